"""The extents of the grid: parameters."""

from __future__ import annotations

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cpu.emit._text import Expression, Printer, Text
from cutile.backend.cpu.stage import GridSize
from cutile.ir.core import Op


def _grid_size(printer: Printer, op: GridSize) -> Text:
    return Text(printer.known(GRID_NAMES[op.axis]))


EXPRESSIONS: dict[type[Op], Expression] = {GridSize: _grid_size}
