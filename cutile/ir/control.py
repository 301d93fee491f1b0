"""Structured control flow.

Loops and branches carry values as operands, block arguments and results.
"""

from __future__ import annotations

from cutile.dtypes import bool_
from cutile.errors import IRError
from cutile.ir.core import ANY_TILE, SCALAR_INT, Block, Constraint, Op, Value, operand, operands, region
from cutile.ir.types import TileType, Type

__all__ = (
    "For", "If", "SCALAR_BOOL", "While", "Yield",
)  # fmt: skip

SCALAR_BOOL = Constraint("a bool scalar", lambda t: t == TileType(bool_))


class Yield(Op, name="yield", terminates=True):
    """End a nested block with the values it passes on."""

    values: tuple[Value, ...] = operands(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return ()


class For(Op, name="for"):
    """Run `body(i, *carried)` for `i` from `start` to before `stop` by `step` (not 0).

    The results are the carried values after the last iteration. `start`, `stop`, `step` and `i` are scalars of one
    integer dtype.
    """

    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    carried: tuple[Value, ...] = operands(ANY_TILE)
    body: Block = region()

    @property
    def induction(self) -> Value:
        """The loop variable."""
        return self.body.arguments[0]

    @property
    def bounds(self) -> tuple[Value, Value, Value]:
        """Start, stop and step."""
        return self.start, self.stop, self.step

    def infer(self) -> tuple[Type, ...]:
        if not self.start.type == self.stop.type == self.step.type == self.induction.type:
            raise IRError("for: start, stop, step and the loop variable must have one type")
        return _carried_types("for", self.carried, self.body.arguments[1:], self.body)


class While(Op, name="while"):
    """While `condition(*carried)` yields true, `carried = body(*carried)`.

    The results are the carried values at the end.
    """

    carried: tuple[Value, ...] = operands(ANY_TILE)
    condition: Block = region()
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        flag = self.condition.terminator.operands
        if len(flag) != 1 or not SCALAR_BOOL.accepts(flag[0].type):
            raise IRError("while: the condition block must yield one bool scalar")
        _same_types("while", "condition arguments", [v.type for v in self.carried], self.condition.arguments)
        return _carried_types("while", self.carried, self.body.arguments, self.body)


class If(Op, name="if"):
    """Run one of two blocks; the results are the values that it yields."""

    condition: Value = operand(SCALAR_BOOL)
    then: Block = region()
    orelse: Block = region()

    def infer(self) -> tuple[Type, ...]:
        types = tuple(value.type for value in self.then.terminator.operands)
        _same_types("if", "the values of the two branches", types, self.orelse.terminator.operands)
        return types


def _same_types(op: str, what: str, types: tuple[Type, ...] | list[Type], values: tuple[Value, ...]) -> None:
    if list(types) != [value.type for value in values]:
        raise IRError(f"{op}: {what}: expected {list(map(str, types))}, got {[str(v.type) for v in values]}")


def _carried_types(op: str, carried: tuple[Value, ...], arguments: tuple[Value, ...], body: Block) -> tuple[Type, ...]:
    types = tuple(value.type for value in carried)
    _same_types(op, "block arguments", types, arguments)
    _same_types(op, "yielded values", types, body.terminator.operands)
    return types
