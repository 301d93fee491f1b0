"""Turns of a tile block that are divided among thread blocks, whose sums meet in a workspace."""

from __future__ import annotations

from cutile.backend.common.abi import WORKSPACE
from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.dtypes import bool_, i32
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand
from cutile.ir.types import TileType, Type


class Pieces(Op, name="cuda.pieces"):
    """Into how many pieces the turns of each of `tiles` tile blocks are divided: 1 where these fill the GPU.

    With `whole`, into `most` or not at all: where the launch has a thread block for each.
    """

    intrinsic = Intrinsic("split.pieces", stem="pieces_of")
    tiles: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    most: int = attribute()
    least: int = attribute()
    whole: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Share(Op, name="cuda.share"):
    """Of unit number `unit` of the work: its tile block, which piece of it, and where the piece's turns begin and end.

    The pieces of a tile block follow each other, and so do their turns.
    """

    intrinsic = Intrinsic("split.share")
    unit: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),) * 4


class AddUp(Op, name="cuda.add_up", effect=Effect.WRITE):
    """The sums of all pieces of a tile block, and whether this thread block is the one that has them.

    Of one piece, they are its own. Else each is written to the workspace, and who comes last adds them, in their order.
    """

    intrinsic = Intrinsic("split.add_up", facts=("dtype", "layout"), call=("x", WORKSPACE, "tile", "piece", "pieces"))
    x: Value = operand(NUMBER_TILE)
    tile: Value = operand(SCALAR_INT)
    piece: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, TileType(bool_))
