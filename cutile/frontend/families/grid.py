"""Calls on the grid: block indices and how many blocks there are."""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.families.elementwise import ceil_div
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary
from cutile.frontend.plain_numbers import I32, Interval, weak
from cutile.frontend.registry import operation
from cutile.ir import MutType, Value
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import MAX_EXTENT, TensorDim

GRID_AXES = 3
"""Axes of a launch's grid."""


@operation
def get_tile_block_id(frame: Frame) -> Any:
    return tuple(block_index(frame, axis) for axis in range(GRID_AXES))


@operation
def get_num_tile_blocks(frame: Frame) -> Any:
    return tuple(
        weak(frame, frame.emit(NumTileBlocks(axis=axis)), Interval(1, _max_blocks(frame, axis)))
        for axis in range(GRID_AXES)
    )


def block_index(frame: Frame, axis: int) -> Value:
    """This tile block's index along an axis of the grid."""
    return weak(frame, frame.emit(TileBlockId(axis=axis)), Interval(0, _max_blocks(frame, axis) - 1))


def own_index(frame: Frame, mut: Value) -> tuple[Any, ...]:
    """The index of this tile block's own tile of a `Mut`, one number per axis.

    A grid has three axes. The third one counts the tiles along all remaining axes; the last axis changes fastest.
    """
    rank = mut.mut.rank
    if rank <= GRID_AXES:
        return tuple(block_index(frame, axis) for axis in range(rank))
    rest: Any = block_index(frame, GRID_AXES - 1)
    folded: list[Any] = []
    for axis in reversed(range(GRID_AXES, rank)):
        known = mut.tensor.shape[axis]
        extent = known or weak(frame, frame.emit(TensorDim(x=mut, axis=axis)), Interval(1, MAX_EXTENT))
        count = ceil_div(frame, extent, mut.mut.tile[axis])
        folded.insert(0, binary(frame, ast.Mod, rest, count))
        rest = binary(frame, ast.FloorDiv, rest, count)
    return (*(block_index(frame, axis) for axis in range(GRID_AXES - 1)), rest, *folded)


def _max_blocks(frame: Frame, axis: int) -> int:
    """The largest number of tile blocks along an axis of the grid.

    There are no more blocks than a `Mut` has tiles.
    """
    most = I32.high
    for value in frame.builder.open_blocks[0].arguments:
        if isinstance(value.type, MutType) and value.type.map is None:
            if axis >= value.type.rank:
                return 1
            if axis == GRID_AXES - 1 and value.type.rank > GRID_AXES:  # it goes through further axes, too (`own_index`)
                continue
            extent = value.type.tensor.shape[axis] or MAX_EXTENT
            most = min(most, -(-extent // value.type.tile[axis]))
    return most
