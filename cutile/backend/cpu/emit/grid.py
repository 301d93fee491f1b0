"""The extents of the grid: parameters."""

from __future__ import annotations

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cpu.emit._text import Expression, Printer, Text
from cutile.ir.core import Op
from cutile.ops.grid import NumTileBlocks


def _num_tile_blocks(printer: Printer, op: NumTileBlocks) -> Text:
    return Text(printer.known(GRID_NAMES[op.axis]))


EXPRESSIONS: dict[type[Op], Expression] = {NumTileBlocks: _num_tile_blocks}
