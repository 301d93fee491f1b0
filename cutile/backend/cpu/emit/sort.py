"""The places of a row's elements in order."""

from cutile.backend.cpu.emit._text import Printer, Statement
from cutile.backend.cpu.stage import Order
from cutile.ir.core import Op


def _order(printer: Printer, op: Order) -> None:
    row = ", ".join([printer.name(op.x), *(printer.operand(value).text for value in (op.at, op.step))])
    count, places = printer.operand(op.count).text, printer.name(op.places)
    if op.k:
        printer.line(f"{printer.use('largest_places')}({row}, {places}, {count}, {op.k})", op)
    else:
        spare = printer.name(op.spare)
        printer.line(f"{printer.use('sort_places')}({row}, {places}, {spare}, {count}, {int(op.descending)})", op)


STATEMENTS: dict[type[Op], Statement] = {
    Order: _order,
}
