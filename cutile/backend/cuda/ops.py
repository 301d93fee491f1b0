"""Operations that only this backend's lowered IR has. Every decision about them stands in their attributes.

Lowered operations of the language keep their classes and carry further attributes: `layout`, the name of the result's
layout, `source`, that of the operand's (for `mma` the two operands'), `vector`, the axis and width of wide accesses,
`offset` and `fence`, the place in shared memory and whether it may still be in use. Names of layouts are looked up in
the function's fact `layouts`.
"""

from __future__ import annotations

from cutile.dtypes import DTypeLike
from cutile.ir.core import (
    ANY_MUT,
    ANY_TENSOR,
    ANY_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Op,
    Value,
    attribute,
    operand,
    operands,
)
from cutile.ir.effects import Effect
from cutile.ir.types import Type


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout: by renaming registers (`how` is "take"), or through shared memory ("move")."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


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
    """`acc` plus the product of the operands in slot `turn % slots` of a ring."""

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    depth: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class Barrier(Op, name="cuda.barrier", effect=Effect.WRITE):
    """All threads of the block arrive, and see each other's stores."""

    def infer(self) -> tuple[Type, ...]:
        return ()
