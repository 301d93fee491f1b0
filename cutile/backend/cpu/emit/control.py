"""Control flow: loops, branches, extents of the grid, prints and assertions.

Prints and assertions call functions in this process, with their number in the file.
"""

import itertools
import re
from collections.abc import Sequence

from cutile.analysis.structure import MAX_BRANCHES, chained
from cutile.backend.cpu.emit._text import NOT, Expression, Printer, Statement, Text, call
from cutile.backend.cpu.stage import FailUnless, GridSize, Say, TripCount
from cutile.dtypes import i64
from cutile.ir import Block, For, If, Op, Value, While


def _assign(printer: Printer, names: Sequence[str], values: Sequence[Value]) -> None:
    """`names = values`, as if all values were read before any is written."""
    # One after the other where no value reads a name that is written before it; else in one assignment.
    pairs = [(name, printer.operand(value).text) for name, value in zip(names, values, strict=True)]
    pairs = [(name, text) for name, text in pairs if name != text]
    written: set[str] = set()
    clash = False
    for name, text in pairs:
        clash = clash or any(re.search(rf"\b{re.escape(other)}\b", text) for other in written)
        written.add(name)
    if clash:
        printer.line(f"{', '.join(name for name, _ in pairs)} = {', '.join(text for _, text in pairs)}")
        return
    for name, text in pairs:
        printer.line(f"{name} = {text}")


def _enter(printer: Printer, op: For | While, *arguments: Sequence[Value]) -> list[str]:
    """One variable per carried value, which its block arguments and its result share."""
    names = [printer.name(value) for value in op.results]
    for group in arguments:
        for value, name in zip(group, names, strict=True):
            printer.alias(value, name)
    for name, value in zip(names, op.carried, strict=True):
        printer.line(f"{name} = {printer.operand(value).text}", op)
    return names


def _body(printer: Printer, block: Block, names: Sequence[str]) -> None:
    with printer.indented():
        written = printer.count
        printer.block(block)
        _assign(printer, names, block.terminator.operands)
        if printer.count == written:
            printer.line("pass")


def _bound(printer: Printer, value: Value) -> str:
    """A loop's bound, as an i64; a literal is one already."""
    number = printer.constant(value)
    if number is not None:
        return str(number)
    text = printer.operand(value)
    return text.text if value.tile.dtype is i64 else call(printer, "i64", text).text


def _for(printer: Printer, op: For) -> None:
    """Write a loop over a `range` of i64; its variable has the dtype of the IR."""
    names = _enter(printer, op, op.body.arguments[1:])
    dtype = op.induction.tile.dtype
    start, stop, step = (_bound(printer, value) for value in (op.start, op.stop, op.step))
    bounds = [stop] if (start, step) == ("0", "1") else [start, stop] if step == "1" else [start, stop, step]
    if dtype is i64:
        printer.line(f"for {printer.name(op.induction)} in range({', '.join(bounds)}):", op)
        _body(printer, op.body, names)
        return
    # Numba's range has two integer types; the loop variable has its own dtype all the same.
    counter = printer.name(Value(op.induction.type, f"{op.induction.name or 'i'}_counter"))
    variable = printer.name(op.induction)  # named before the block: its own names may be given again after it
    printer.line(f"for {counter} in range({', '.join(bounds)}):", op)
    with printer.indented():
        printer.line(f"{variable} = {call(printer, dtype.name, counter).text}")
    _body(printer, op.body, names)


def _while(printer: Printer, op: While) -> None:
    names = _enter(printer, op, op.condition.arguments, op.body.arguments)
    printer.line("while True:", op)
    with printer.indented():
        printer.block(op.condition)
        printer.line(f"if not {printer.operand(op.condition.terminator.operands[0]).within(NOT)}:")
        with printer.indented():
            printer.line("break")
    _body(printer, op.body, names)


def _if(printer: Printer, op: If) -> None:
    """Write a branch.

    Of a long chain, `MAX_BRANCHES` branches are nested, and the next ones follow them, at the same depth.
    """
    flag = printer.chained.get(op, "")
    if flag:
        printer.line(f"{flag} = True")
        return
    chain = [op] if op in printer.chained else chained(op)
    if len(chain) <= MAX_BRANCHES:
        _branch(printer, op)
        return
    for outer, inner in itertools.pairwise(chain):
        side = outer.orelse if inner in outer.orelse.operations else outer.then
        for result, value in zip(outer.results, side.terminator.operands, strict=True):
            if value in inner.results:  # all branches of the chain assign one variable
                printer.alias(value, printer.name(result))
    behind = chain[MAX_BRANCHES::MAX_BRANCHES]
    with printer.in_chain(chain, behind) as flag:
        printer.line(f"{flag} = False")
        _branch(printer, op)
        for branch in behind:
            printer.line(f"if {flag}:")
            with printer.indented():
                printer.line(f"{flag} = False")
                _branch(printer, branch)


def _branch(printer: Printer, op: If) -> None:
    names = [printer.name(value) for value in op.results]
    printer.line(f"if {printer.operand(op.condition).text}:", op)
    _body(printer, op.then, names)
    if len(op.orelse.operations) > 1 or names:  # a block that does nothing has its terminator
        printer.line("else:")
        _body(printer, op.orelse, names)


def _trip_count(printer: Printer, op: TripCount) -> Text:
    unsigned = op.start.tile.dtype.kind == "uint"
    return call(printer, "trip_count" + "_unsigned" * unsigned, *map(printer.operand, op.operands))


def _grid_size(printer: Printer, op: GridSize) -> Text:
    return Text(printer.own_parameter("grid", axis=op.axis))


def _say(printer: Printer, op: Say) -> None:
    site = printer.site("prints", [list(op.pieces), list(op.specs), [[name, list(shape)] for name, shape in op.shapes]])
    function = printer.process_function("say", "i64")
    for position, memory in enumerate(op.memories):
        address = call(printer, "address_of", printer.name(memory))
        printer.line(f"{printer.use('notify')}({function}, {site}, {position}, {address.text}, 0)", op)
    printer.line(f"{printer.use('notify')}({function}, {site}, -1, 0, 0)", op)  # -1: the print's end


def _fail(printer: Printer, op: FailUnless) -> None:
    site = printer.site("asserts", [op.message, list(op.where), list(op.names), list(op.kinds)])
    function = printer.process_function("fail", "i64")
    index = ", ".join(printer.operand(each).text for each in (op.x, op.y, op.z))
    printer.line(f"if not {printer.operand(op.condition).within(NOT)}:", op)
    with printer.indented():
        for number in op.numbers:  # -1: a number of the assertion that follows
            printer.line(f"{printer.use('notify')}({function}, -1, {printer.operand(number).text}, 0, 0)")
        printer.line(f"{printer.use('notify')}({function}, {site}, {index})")
        printer.line("return")


EXPRESSIONS: dict[type[Op], Expression] = {
    TripCount: _trip_count,
    GridSize: _grid_size,
}
STATEMENTS: dict[type[Op], Statement] = {
    For: _for,
    While: _while,
    If: _if,
    Say: _say,
    FailUnless: _fail,
}
