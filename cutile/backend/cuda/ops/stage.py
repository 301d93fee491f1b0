"""Tiles copied to shared memory ahead of their use (`cp.async`), by all threads.

Copies go to stage `turn % stages` of a place. `stage` says where: its first byte from the begin of the loop's
reservation (the attribute `offset`), its stages, and the bytes from stage to stage.
"""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.dtypes import DTypeLike
from cutile.ir.core import (
    ANY_TENSOR,
    ANY_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Effect,
    Op,
    Value,
    attribute,
    operand,
    operands,
)
from cutile.ir.types import TileType, Type

Stages = tuple[int, int, int]
"""The first byte, the stages, the bytes from stage to stage."""


class StageTile(Op, name="cuda.stage_tile", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index; zeros past the edges.

    `index`, `steps` and `limited` are those of a `load_view`. Element `c` of the tile lies `sum(c * strides)` elements
    into the stage.
    """

    x: Value = operand(ANY_TENSOR)
    turn: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()
    stage: Stages = attribute()
    steps: tuple[int, ...] = attribute(())
    limited: tuple[int, ...] = attribute(())

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageCommit(Op, name="cuda.stage_commit", effect=Effect.WRITE):
    """What was begun since the last commit is one group."""

    intrinsic = Intrinsic("stage.commit")

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageWait(Op, name="cuda.stage_wait", effect=Effect.WRITE):
    """Wait until at most `pending` groups of this thread's copies are under way.

    `meet`: wait for all threads too; then all see what has arrived.
    """

    intrinsic = Intrinsic("stage.wait", facts=("pending",), stem="wait_{pending}")
    pending: int = attribute()
    meet: bool = attribute(default=True)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageRead(Op, name="cuda.stage_read", effect=Effect.READ):
    """The tile in a stage, in registers.

    Attributes:
        own: each thread reads the elements that it copied.
        of: the tensor's name.
    """

    turn: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()
    stage: Stages = attribute()
    own: bool = attribute()
    of: str = attribute(default="")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


class StagePut(Op, name="cuda.stage_put", effect=Effect.WRITE):
    """Write an operand of a `staged_mma` from registers to a stage.

    `right` says which operand it is; the other attributes are the product's.
    """

    value: Value = operand(ANY_TILE)
    turn: Value = operand(SCALAR_INT)
    right: bool = attribute()
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    swaps: tuple[bool, bool] = attribute()
    stage: Stages = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StagedMma(Op, name="cuda.staged_mma", effect=Effect.READ):
    """`acc` plus the product of the operands in their stages of this turn.

    `dtype` and `other` are the operands' types, `swaps` says which of them lie transposed, `rounds` that they are f32
    to be rounded to tf32.
    """

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    depth: int = attribute()
    swaps: tuple[bool, bool] = attribute()
    left: Stages = attribute()
    right: Stages = attribute()
    rounds: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)
