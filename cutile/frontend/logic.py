"""`and`, `or` and chained comparisons.

As in Python, the right side is not computed where the left side decides. One exception is not observable: a cheap right
side without effect is always computed, since an operation on two bool scalars costs less than a branch.
"""

from __future__ import annotations

import ast
from typing import Any, NoReturn

from cutile.dtypes import bool_, i32, i64
from cutile.frontend import operators
from cutile.frontend.branches import branch
from cutile.frontend.frame import Frame
from cutile.frontend.operators import default_dtype, is_number, materialize, truth
from cutile.frontend.plain_numbers import Interval, adapted, interval_of, is_weak, is_whole, narrows, of_weak, weak
from cutile.frontend.values import describe, is_tile, plain
from cutile.ir import Block, Constant, Effect, If, Op, TileType, Value
from cutile.ops.arith import And, Or
from cutile.ops.cast import Convert

_FLAG = TileType(bool_)


def is_cheap(block: Block) -> bool:
    """Whether a block has only operations on scalars, without effects or regions."""
    return all(map(_is_cheap, block.operations))


def _is_cheap(op: Op) -> bool:
    values = [value.type for value in (*op.operands, *op.results)]
    small = all(type.is_scalar for type in values if isinstance(type, TileType))
    return op.effect is Effect.NONE and not op.regions and small


def has_effects(block: Block) -> bool:
    """Whether a block writes, prints or asserts."""
    return any(op.effect >= Effect.WRITE for op in block.operations)


def settled(frame: Frame, block: Block, second: Any) -> Any:
    """A right side's value; a bool becomes a scalar if the block has effects.

    The scalar keeps the block. A block without effects is not needed for `flag and True`.
    """
    if isinstance(second, bool) and has_effects(block):
        with frame.builder.within(block):
            return frame.emit(Constant(value=second, dtype=bool_, shape=()))
    return second


def conjunction(frame: Frame, first: Value | None, block: Block, second: Value) -> Value:
    """`first and second`, where `block` computes `second`; None stands for true."""
    if first is None or is_cheap(block):
        frame.builder.current.operations.extend(block.operations)
        return second if first is None else frame.emit(And(x=first, y=second))
    with frame.builder.within(block):
        frame.builder.yield_(second)
    return _short_circuit(frame, first, block, False)


def _disjunction(frame: Frame, first: Value, block: Block, second: Value) -> Value:
    if is_cheap(block):
        frame.builder.current.operations.extend(block.operations)
        return frame.emit(Or(x=first, y=second))
    with frame.builder.within(block):
        frame.builder.yield_(second)
    return _short_circuit(frame, first, block, True)


def _short_circuit(frame: Frame, condition: Value, block: Block, decided: bool) -> Value:
    """`decided` where `condition` equals it, else the value that `block` computes."""
    with frame.builder.block() as known:
        frame.builder.yield_(frame.emit(Constant(value=decided, dtype=bool_, shape=())))
    then, orelse = (known, block) if decided else (block, known)
    return frame.builder.value(If(condition=condition, then=then, orelse=orelse))


def logical(frame: Frame, node: ast.BoolOp) -> Any:
    """`a and b`, `a or b`: one of the two, as in Python."""
    return _operand(frame, node, 0)


def _operand(frame: Frame, node: ast.BoolOp, position: int) -> Any:
    """The value of the operands from `position` on, joined by the operator."""
    operand = node.values[position]
    value = plain(frame.evaluate(operand))
    if position == len(node.values) - 1:
        return value
    is_and = isinstance(node.op, ast.And)
    condition = _condition(frame, value, operand, is_and)
    if isinstance(condition, bool):
        return _operand(frame, node, position + 1) if condition is is_and else value
    if value.type != _FLAG:  # a number: the result is one of the two operands, and not a bool

        def rest() -> Any:
            return _beside_number(frame, value, _operand(frame, node, position + 1), node)

        def first() -> Any:
            return value

        return branch(frame, condition, *((rest, first) if is_and else (first, rest)), node)
    before = dict(frame.variables)
    with frame.builder.block() as block, frame.dynamic():
        second = settled(frame, block, _operand(frame, node, position + 1))
    _refuse_assignment(frame, before, node.values[position + 1])
    if isinstance(second, bool):  # `flag and True`, `flag or False` are the flag; otherwise `second` decides
        return condition if second is is_and else second
    if not is_tile(second) or second.type != _FLAG:
        return _flag_and_number(frame, condition, block, second, node)
    return (conjunction if is_and else _disjunction)(frame, condition, block, second)


def _word(node: ast.BoolOp) -> str:
    return "and" if isinstance(node.op, ast.And) else "or"


def _refuse_mixed(frame: Frame, first: Any, second: Any, node: ast.BoolOp) -> NoReturn:
    frame.type_error(
        f"`{_word(node)}` of {describe(first)} and {describe(second)}, which have no one type",
        node,
        "It gives one of the two: convert one, as in ct.f32(n); or compare each with something, if bools are meant.",
    )


def _beside_number(frame: Frame, first: Value, second: Any, node: ast.BoolOp) -> Any:
    """The right side beside a number: of its dtype, a bool as 0 or 1."""
    if isinstance(second, bool):
        return int(second)
    if is_tile(second) and second.type == _FLAG:
        return frame.emit(Convert(x=second, dtype=first.tile.dtype))
    if is_tile(second) and second.tile.is_scalar:
        if not narrows(frame, second, first.tile.dtype):
            second = adapted(frame, second, first.tile.dtype)
        both_weak = is_weak(frame, first) and is_weak(frame, second)
        if second.tile.dtype is not first.tile.dtype and not both_weak:  # `branch` joins the dtypes of two weak scalars
            _refuse_mixed(frame, first, second, node)
    elif not is_number(second) or (isinstance(second, float) and first.tile.dtype.is_integer):
        _refuse_mixed(frame, first, second, node)
    return second


def _flag_and_number(frame: Frame, condition: Value, block: Block, second: Any, node: ast.BoolOp) -> Any:
    """`flag and n`, `flag or n`: a bool as the result is 0 or 1, as in Python."""
    if not is_number(second) and not (is_tile(second) and second.tile.is_scalar):
        _refuse_mixed(frame, condition, second, node)
    number: Any = second
    dtype = second.tile.dtype if is_tile(second) else default_dtype(number)
    if is_tile(second) and not second.tile.dtype.computes:
        _refuse_mixed(frame, condition, second, node)
    with frame.builder.within(block):
        frame.builder.yield_(materialize(frame, second, dtype))
    is_and = isinstance(node.op, ast.And)
    with frame.builder.block() as known:
        frame.builder.yield_(materialize(frame, 0 if is_and else 1, dtype))
    then, orelse = (block, known) if is_and else (known, block)
    result = frame.builder.value(If(condition=condition, then=then, orelse=orelse))
    if is_whole(frame, second) and dtype in (i32, i64):
        return weak(frame, result, interval_of(frame, second).join(Interval(0, 1)))
    return of_weak(frame, result, second)


def _condition(frame: Frame, value: Any, node: ast.expr, is_and: bool) -> Any:
    if is_tile(value) and not value.tile.is_scalar:
        word, mark = ("and", "&") if is_and else ("or", "|")
        frame.type_error(
            f"`{word}` takes scalars, got a tile of shape {value.tile.shape}",
            node,
            f"Combine tiles of bool element by element with {mark}.",
        )
    return truth(frame, value, node)


def changed(frame: Frame, before: dict[str, Any]) -> bool:
    """Whether an expression has assigned a variable."""
    now = frame.variables
    return now.keys() != before.keys() or any(now[name] is not value for name, value in before.items())


def _refuse_assignment(frame: Frame, before: dict[str, Any], node: ast.expr) -> None:
    """Refuse `:=` where it depends on a scalar whether there is an assignment."""
    if changed(frame, before):
        frame.syntax_error(
            node,
            "an assignment (:=) that depends on what is left of it is not compiled in a kernel",
            "Assign on a line of its own, before.",
        )


def compare(frame: Frame, node: ast.Compare) -> Any:
    """`a < b`, and `a < b < c`, which is `a < b and b < c` with `b` computed once."""
    return _chain(frame, node, frame.evaluate(node.left), 0)


def _chain(frame: Frame, node: ast.Compare, left: Any, position: int) -> Any:
    """The comparisons from `position` on, of which the first has `left` on its left."""
    right = frame.evaluate(node.comparators[position])
    outcome = operators.comparison(frame, type(node.ops[position]), left, right)
    if position == len(node.ops) - 1:
        return outcome
    if not is_tile(outcome):
        return _chain(frame, node, right, position + 1) if outcome else outcome
    if not outcome.tile.is_scalar:
        x, y = operators.unify(frame, [outcome, _chain(frame, node, right, position + 1)], "and")
        return frame.emit(And(x=x, y=y))
    before = dict(frame.variables)
    with frame.builder.block() as block, frame.dynamic():
        rest = settled(frame, block, _chain(frame, node, right, position + 1))
    _refuse_assignment(frame, before, node.comparators[position + 1])
    if not is_tile(rest):
        return outcome if rest else rest
    if not rest.tile.is_scalar:  # no branch yields one of a scalar and a tile: both are computed, and unified
        frame.builder.current.operations.extend(block.operations)
        x, y = operators.unify(frame, [outcome, rest], "and")
        return frame.emit(And(x=x, y=y))
    return conjunction(frame, outcome, block, rest)
