"""Prints and assertions: calls of functions in this process, which know each by its number in the file."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import NOT, Printer, Statement, call
from cutile.backend.cpu.stage import FailUnless, Say
from cutile.ir.core import Op


def _say(printer: Printer, op: Say) -> None:
    site = printer.site("prints", [list(op.pieces), list(op.specs), [[name, list(shape)] for name, shape in op.shapes]])
    function = printer.parameter("say", "i64")
    for position, memory in enumerate(op.memories):
        address = call(printer, "address_of", printer.name(memory))
        printer.line(f"{printer.use('notify')}({function}, {site}, {position}, {address.text}, 0)", op)
    printer.line(f"{printer.use('notify')}({function}, {site}, -1, 0, 0)", op)


def _fail(printer: Printer, op: FailUnless) -> None:
    site = printer.site("asserts", [op.message, list(op.where)])
    function = printer.parameter("fail", "i64")
    index = ", ".join(printer.operand(each).text for each in (op.x, op.y, op.z))
    printer.line(f"if not {printer.operand(op.condition).within(NOT)}:", op)
    with printer.indented():
        printer.line(f"{printer.use('notify')}({function}, {site}, {index})")
        printer.line("return")


STATEMENTS: dict[type[Op], Statement] = {Say: _say, FailUnless: _fail}
