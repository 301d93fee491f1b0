"""A ring that one group of threads fills by copies of its own (`cp.async`) and multiplies from."""

from __future__ import annotations

from cutile.dtypes import DTypeLike
from cutile.ir.core import ANY_TENSOR, NUMBER_TILE, SCALAR_INT, Op, Value, attribute, operand, operands
from cutile.ir.effects import Effect
from cutile.ir.types import Type


class StageTile(Op, name="cuda.stage_tile", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index into slot `turn % slots` of a ring in shared memory; zeros past the edges.

    `role` says which operand of the ring's product it is: "left" or "right".
    """

    x: Value = operand(ANY_TENSOR)
    turn: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    role: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageCommit(Op, name="cuda.stage_commit", effect=Effect.WRITE):
    """What was begun since the last commit is one group."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageWait(Op, name="cuda.stage_wait", effect=Effect.WRITE):
    """Wait until at most `pending` groups are under way, and for all threads: then all see what has arrived."""

    pending: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StagedMma(Op, name="cuda.staged_mma", effect=Effect.READ):
    """`acc` plus the product of the operands in slot `turn % slots` of a ring.

    `dtype` and `other` are the operands' types, `swaps` says which of them lie transposed, `rounds` that they
    are f32 to be rounded to tf32.
    """

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    depth: int = attribute()
    swaps: tuple[bool, bool] = attribute()
    rounds: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)
