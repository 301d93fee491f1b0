# pyright: reportUnknownMemberType=false
# (the operator module is typed with protocols whose parameters are unknown)
"""Operators of tiles, scalars and constants: dtypes, broadcasting, operations.

Python numbers are weakly typed beside a tile: `2.0 * f16_tile` is f16. Tiles of different dtypes do not mix.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from cutile.dtypes import DTypeLike, bool_, f32, i32, i64
from cutile.frontend import elsewhere, plain_numbers
from cutile.frontend.frame import Frame
from cutile.frontend.plain_numbers import adapted, computed, dtype_of_weak, interval_of, is_weak, is_whole, of_weak
from cutile.frontend.registry import METHODS, OPERATIONS
from cutile.frontend.structure import (
    OWN_PREFIXES,
    compared_items,
    define_operator,
    has_own_truth,
    leaves,
    may_be_equal,
    own_equality,
    own_method,
    own_operator,
)
from cutile.frontend.values import (
    ListItems,
    MappedRef,
    MutRef,
    PartitionRef,
    PointerRef,
    Record,
    Table,
    TensorRef,
    converted,
    describe,
    is_tile,
    items_of,
    meeting,
    plain,
    shift_for_power,
    to_tile,
)
from cutile.ir import Constant, Op, Value, remedy
from cutile.language.variable import DeviceVariable
from cutile.ops import arith, compare, math
from cutile.ops.cast import Convert
from cutile.ops.shape import Broadcast, Reshape


def _is_in(item: Any, items: Any) -> bool:
    return item in items


def _is_not_in(item: Any, items: Any) -> bool:
    return item not in items


PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _is_in,
    ast.NotIn: _is_not_in,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}

SPELLING: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip

TILE_BINARY: dict[type[ast.AST], type[Op]] = {
    ast.Add: arith.Add,
    ast.Sub: arith.Sub,
    ast.Mult: arith.Mul,
    ast.Div: arith.Div,
    ast.FloorDiv: arith.FloorDiv,
    ast.Mod: arith.Mod,
    ast.BitAnd: arith.And,
    ast.BitOr: arith.Or,
    ast.BitXor: arith.Xor,
    ast.LShift: arith.Shl,
    ast.RShift: arith.Shr,
}

TILE_COMPARE: dict[type[ast.AST], type[Op]] = {
    ast.Eq: compare.Eq,
    ast.NotEq: compare.Ne,
    ast.Lt: compare.Lt,
    ast.LtE: compare.Le,
    ast.Gt: compare.Gt,
    ast.GtE: compare.Ge,
}

MAX_UNROLLED_POWER = 16
"""The largest exponent of `**` that becomes products."""

_LOW_BITS_SUFFICE = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
"""Operators whose low bits depend on the operands' low bits alone, so that they need no `widened` operands."""

_PYTHON_KINDS = (bool, int, float, str, tuple, type(None), type)
"""Classes of compile-time values that are the same objects in Python."""

_IN_MEMORY = (TensorRef, MutRef, MappedRef, PartitionRef, PointerRef)
"""Classes of values that stand for memory. Their elements have to be loaded before they are compared."""

_ANY_OPERANDS = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Not)
"""Operators that take compile-time values of any kind."""


def require_computed(frame: Frame, what: str, *values: Any) -> None:
    """Refuse tiles of dtypes that are only stored, converted or multiplied by `mma`."""
    for value in values:
        if is_tile(value) and not value.tile.dtype.computes:
            frame.type_error(f"{what}: tiles of {value.tile.dtype} are not computed with", remedy=remedy(value.type))


def is_number(value: Any) -> bool:
    """Whether `value` is a compile-time number."""
    return isinstance(value, bool | int | float)


def is_tile_or_number(value: Any) -> bool:
    """Whether a value may be an operand of operators, and be carried by loops."""
    return is_tile(value) or is_number(value)


def default_dtype(value: float) -> DTypeLike:
    """The dtype of a number alone: bool, i32 (i64 for a larger integer), or f32."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return i32 if plain_numbers.I32.low <= value <= plain_numbers.I32.high else i64
    return f32


def materialize(
    frame: Frame,
    value: Any,
    dtype: DTypeLike | None = None,
    shape: tuple[int, ...] = (),
    *,
    bare: bool = False,
    neighbour: Value | None = None,
) -> Value:
    """A tile for `value`: itself, or a constant of `dtype` and `shape` for a number.

    Args:
        dtype: None for `default_dtype`.
        bare: whether the author did not write `dtype`; see `Bare`.
        neighbour: the tile or scalar that has `dtype`, for errors.

    Raises:
        KernelTypeError: `value` is a number that `dtype` cannot hold, or neither a number nor a tile.
    """
    if is_tile(value):
        return value
    if not is_number(value):
        frame.type_error(
            f"expected a tile or a number, got {describe(value)}",
            remedy="Load a tile of a tensor or Mut first; take an item of a tuple.",
        )
    element = dtype or default_dtype(value)
    plain_numbers.require_fit(frame, value, element, neighbour)
    value = float(value) if element.kind in ("float", "storage") else value
    op = Constant(value=value, dtype=element, shape=shape)
    number = frame.emit(op)
    if (bare or dtype is None) and element is f32:
        frame.compilation.bare.note(op, number)
    return number


def broadcast_shape(frame: Frame, shapes: list[tuple[int, ...]], what: str) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to, by NumPy's rule."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        named = " and ".join(map(str, shapes))
        remedy = "Axes are aligned from the right; sizes must be equal or 1."
        frame.type_error(
            f"{what}: the shapes {named} do not broadcast",
            remedy=f"{remedy} {_new_axis_remedy(shapes)}".rstrip(),
        )


def _new_axis_remedy(shapes: list[tuple[int, ...]]) -> str:
    """A remedy where one more axis would let shapes broadcast; empty elsewhere."""
    most = max(map(len, shapes))
    try:
        np.broadcast_shapes(*[(*each, 1) if len(each) == 1 < most else each for each in shapes])
    except ValueError:
        return ""
    return "One number for each row is x[:, None]."


def broadcast_to(frame: Frame, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` repeated to `shape`, axes of size 1 added on the left as in NumPy."""
    have = value.tile.shape
    if have == shape:
        return value
    if have and len(have) < len(shape):
        value = frame.emit(Reshape(x=value, shape=(1,) * (len(shape) - len(have)) + have))
        if value.tile.shape == shape:
            return value
    return frame.emit(Broadcast(x=value, shape=shape))


def unify(frame: Frame, values: list[Any], what: str, dtype: DTypeLike | None = None) -> list[Value]:
    """Tiles of one type for `values`: numbers take the tiles' dtype, shapes broadcast.

    Raises:
        KernelTypeError: the tiles have different dtypes; names both.
    """
    tiles = [value for value in values if is_tile(value)]
    for value in values:
        if not is_tile(value) and not is_number(value):
            frame.type_error(
                f"{what}: expected a tile or a number, got {describe(value)}",
                remedy=to_tile(value),
            )
    strong = [tile for tile in tiles if not is_weak(frame, tile)]
    if dtype is None and tiles:
        dtype = strong[0].tile.dtype if strong else dtype_of_weak(values)
    elif dtype is None and len({default_dtype(value) for value in values}) > 1:
        dtype = dtype_of_weak(values)  # numbers alone, of different defaults, such as 1 beside 2.5
    if dtype is not None:
        values = [adapted(frame, value, dtype) for value in values]
        tiles = [value for value in values if is_tile(value)]
    for tile in tiles:
        if tile.tile.dtype is not dtype:
            first = next((each for each in tiles if each.tile.dtype is dtype), tile)
            kinds = ("tiles", "a tile and a scalar", "scalars")[first.tile.is_scalar + tile.tile.is_scalar]
            frame.type_error(
                f"{what}: {kinds} of different dtypes do not mix: {dtype} and {tile.tile.dtype}",
                remedy=meeting(first, tile, is_weak(frame, tile)),
            )
    shape = broadcast_shape(frame, [tile.tile.shape for tile in tiles], what) if tiles else ()
    operands: list[Value] = []
    for value in values:
        if is_tile(value):
            operands.append(broadcast_to(frame, value, shape))
        else:
            neighbour = next((each for each in strong or tiles if each.tile.dtype is dtype), None)
            operands.append(materialize(frame, value, dtype, shape, bare=not strong, neighbour=neighbour))
    return operands


def widened(frame: Frame, values: list[Any]) -> list[Any]:
    """Values with strong i32 tiles as i64 beside a weak i64.

    So the operation is exact, as in Python. `narrowed` makes its result an i32 again.
    """
    weak = frame.compilation.weak
    wide = any(is_tile(each) and each in weak and each.tile.dtype is i64 for each in values)
    strong = [each for each in values if is_tile(each) and each not in weak]
    if not wide or any(each.tile.dtype is not i32 for each in strong):
        return values
    return [frame.emit(Convert(x=each, dtype=i64)) if each in strong else each for each in values]


def narrowed(frame: Frame, result: Value, *operands: Any) -> Value:
    """The result of an operation on `widened` operands, in the strong ones' i32."""
    strong = [each for each in operands if is_tile(each) and each not in frame.compilation.weak]
    was_widened = strong and result.tile.dtype is i64 and all(each.tile.dtype is i32 for each in strong)
    return frame.emit(Convert(x=result, dtype=i32)) if was_widened else result


def _power(frame: Frame, base: Any, exponent: Any) -> Any:
    """Products for a small constant exponent, else `pow`."""
    if not (isinstance(exponent, int) and 1 <= exponent <= MAX_UNROLLED_POWER and not isinstance(exponent, bool)):
        x, y = unify(frame, [base, exponent], "**")
        if not x.tile.dtype.is_float:
            frame.type_error(
                f"**: the exponent of integers must be a constant from 1 to {MAX_UNROLLED_POWER}, "
                f"got {describe(exponent)}",
                remedy=shift_for_power(base, exponent)
                or f"Convert to floats first: {_first_converted('f32', base, exponent)}, or multiply in a loop.",
            )
        return frame.emit(math.Pow(x=x, y=y))
    result = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else binary(frame, ast.Mult, result, square)
        exponent >>= 1
        if exponent:
            square = binary(frame, ast.Mult, square, square)
    return result


_POINTER_METHODS: dict[type[ast.AST], str] = {ast.Add: "__add__", ast.Sub: "__sub__"}
"""The methods that pointers have for operators (`METHODS`)."""


def binary(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`left <op> right`."""
    left, right = plain(left), plain(right)
    own = METHODS.get((cast("type[Any]", type(left)), _POINTER_METHODS.get(kind, "")))
    if own is not None:
        return own(frame, left, right)
    own = own_operator(frame, kind, left, right)
    if own is not NotImplemented:
        return own
    spelling = SPELLING[kind]
    if kind is ast.Mod and isinstance(left, str) and any(map(is_tile, leaves(right))):
        what = "values that are known only when the kernel runs"
        frame.type_error(f"%: text of {what}", remedy="Write an f-string, which print takes: print(f'{x:5d} {y:.3f}').")
    if not is_tile(left) and not is_tile(right):
        return _fold(frame, kind, left, right)
    if kind is ast.MatMult:
        return OPERATIONS["matmul"](frame, left, right)
    require_computed(frame, spelling, left, right)
    if kind is ast.Pow:
        result = _power(frame, left, right)
        return result if result in frame.compilation.weak else of_weak(frame, result, left, right)
    if kind in plain_numbers.BINARY and is_whole(frame, left) and is_whole(frame, right):
        interval = plain_numbers.BINARY[kind](interval_of(frame, left), interval_of(frame, right))
        return computed(frame, TILE_BINARY[kind], interval, left, right)
    is_of_numbers = kind is ast.Div and is_weak(frame, left) and is_weak(frame, right)  # a float, as in Python
    values = [left, right] if kind in _LOW_BITS_SUFFICE else widened(frame, [left, right])
    x, y = unify(frame, values, spelling, f32 if is_of_numbers else None)
    dtype = x.tile.dtype
    if kind is ast.Div and not dtype.is_float:
        frame.type_error(
            f"/: the {'scalars' if x.tile.is_scalar else 'tiles'} are {dtype}, and / divides floats",
            remedy=f"Use // to divide integers, or convert: {_first_converted('f32', left, right)}.",
        )
    if kind in (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift) and dtype.is_float:
        frame.type_error(
            f"{spelling}: bit operations take integers or bools, got {dtype}",
            remedy=f"Convert first: {_first_converted('i32', left, right)}.",
        )
    if dtype.is_bool and kind not in (ast.BitAnd, ast.BitOr, ast.BitXor):
        remedy = f"Convert first: {_first_converted('i32', left, right)}."
        frame.type_error(f"{spelling}: arithmetic on bool", remedy=remedy)
    result = frame.emit(TILE_BINARY[kind](x=x, y=y))
    return of_weak(frame, narrowed(frame, result, left, right), left, right)


def _first_converted(dtype: str, *values: Any) -> str:
    """How a kernel converts the first operand that is a tile or scalar."""
    return converted(next(filter(is_tile, values)), dtype, "x")


def _fold(frame: Frame, kind: type[ast.AST], *values: Any) -> Any:
    """Python's own meaning, on compile-time values."""
    for value in values:
        if isinstance(value, Record) and (remedy := define_operator(kind, value)):
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=remedy)
    if kind not in PYTHON:
        frame.type_error(f"{SPELLING[kind]} of two numbers", remedy="It multiplies tiles of at least one axis.")
    for value in values:
        if any(map(is_tile, leaves(value))) and kind not in (ast.Is, ast.IsNot, ast.Add, ast.Mult):
            frame.type_error(
                f"{SPELLING[kind]}: a tuple that holds tiles", remedy="Combine or compare its items one by one."
            )
        if not isinstance(value, _PYTHON_KINDS) and kind not in _ANY_OPERANDS:
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
    if kind in (ast.Eq, ast.NotEq, ast.In, ast.NotIn) and (wrong := elsewhere.compared_with_dtype(*values)):
        message = f"{SPELLING[kind]}: a dtype never equals {describe(wrong[0])}"
        frame.type_error(message, remedy=f"Compare it with {wrong[1]}.")
    # `x == 0` of a tensor would be false, whatever its elements are.
    for value in values:
        if kind in (ast.Eq, ast.NotEq) and isinstance(value, _IN_MEMORY) and None not in values:
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
    try:
        return PYTHON[kind](*values)
    except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
        # Python's own message would name a class of the front end, such as `TensorRef`.
        for value in values:
            if not isinstance(value, _PYTHON_KINDS):
                frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
        tuples = any(isinstance(value, tuple) for value in values)
        remedy = to_tile(()) if tuples else "Both sides are known now, and Python itself refuses them."
        # Versions of Python have different words for a division by zero.
        reason = "division by zero" if isinstance(error, ZeroDivisionError) else str(error)
        reason = "the result does not fit into memory" if isinstance(error, MemoryError) else reason
        frame.type_error(f"{SPELLING[kind]}: {reason}", remedy=remedy)


def unary(frame: Frame, kind: type[ast.AST], value: Any) -> Any:
    """`<op> value`."""
    value = plain(value)
    if kind is ast.Not and isinstance(value, Record) and not has_own_truth(value):
        return False  # any object is true
    if kind is ast.Not and isinstance(value, (*_IN_MEMORY, Record, tuple)):
        return not truth(frame, value)  # raises where `if x:` does
    if own := own_method(frame, value, OWN_PREFIXES.get(kind, "")):
        return frame.invoke(own, value, node=frame.node)
    if not is_tile(value):
        return _fold(frame, kind, value)
    require_computed(frame, SPELLING[kind], value)
    if kind is ast.UAdd:
        return value
    if kind in (ast.USub, ast.Invert) and is_whole(frame, value):
        op, interval = (arith.Neg, plain_numbers.negated) if kind is ast.USub else (arith.Not, plain_numbers.inverted)
        return computed(frame, op, interval(interval_of(frame, value)), value)
    if kind is ast.USub:
        if value.tile.dtype.is_bool:
            frame.type_error("-: arithmetic on bool", remedy=f"Convert first: {converted(value, 'i32', 'x')}.")
        return of_weak(frame, frame.emit(arith.Neg(x=value)), value)
    if kind is ast.Not:
        if not value.tile.is_scalar:
            frame.type_error("`not` of a tile", remedy="Use ~ for each element.")
        return frame.emit(arith.Not(x=truth(frame, value)))
    if value.tile.dtype.is_float:
        frame.type_error(
            f"~: bit operations take integers or bools, got {value.tile.dtype}",
            remedy=f"Convert first: {converted(value, 'i32', 'x')}.",
        )
    return frame.emit(arith.Not(x=value))


def comparison(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`left <op> right`, a bool or a tile of bool."""
    left, right = plain(left), plain(right)
    if isinstance(right, Table) and kind in (ast.In, ast.NotIn):
        right = tuple(right.items)
    if kind in _ITEM_COMPARISONS and (_compared_here(left) or _compared_here(right)):
        return _compare_items(frame, kind, left, right)
    own = own_operator(frame, kind, left, right)
    if own is not NotImplemented:
        return own
    if not is_tile(left) and not is_tile(right):
        return _fold(frame, kind, left, right)
    if kind in (ast.Is, ast.IsNot) and (left is None or right is None):
        return kind is ast.IsNot  # a tile is not None
    if kind in (ast.In, ast.NotIn) and isinstance(right, tuple) and is_tile(left) and left.tile.is_scalar:
        return _is_one_of(frame, kind, left, items_of(right))
    if kind not in TILE_COMPARE:
        scalar = all(not is_tile(each) or each.tile.is_scalar for each in cast("list[Any]", [left, right]))
        what = "a scalar" if scalar else "a tile"
        frame.type_error(f"`{SPELLING[kind]}` of {what}", remedy="Compare the elements with == or !=.")
    require_computed(frame, SPELLING[kind], left, right)
    x, y = unify(frame, widened(frame, [left, right]), SPELLING[kind])
    return frame.emit(TILE_COMPARE[kind](x=x, y=y))


_ITEM_COMPARISONS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
"""Comparisons of tuples and dataclasses, item by item."""


def _compared_here(value: Any) -> bool:
    """Whether a value holds tiles, or is the front end's in place of Python's."""
    items = compared_items(value)
    return items is not None and (
        isinstance(value, Record | Table | ListItems)
        or any(is_tile(plain(item)) or _compared_here(item) for item in items)
    )


def _compare_items(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`==` of tuples that hold scalars, and `in` of tuples that hold such tuples."""
    if kind in (ast.In, ast.NotIn):
        if not isinstance(right, tuple):
            frame.type_error(f"`{SPELLING[kind]}`: expected a tuple, got {describe(right)}", remedy=to_tile(right))
        contained = _any_of(frame, [_equal(frame, left, each) for each in items_of(right)])
        return contained if kind is ast.In else _negated(frame, contained)
    equal = _equal(frame, left, right)
    return equal if kind is ast.Eq else _negated(frame, equal)


def _equal(frame: Frame, left: Any, right: Any) -> Any:
    """Whether two values are equal, as Python has it: a bool, or a bool scalar."""
    left, right = plain(left), plain(right)
    for one, two in ((left, right), (right, left)):
        if own := own_equality(frame, one, two):
            return truth(frame, frame.invoke(own, one, two, node=frame.node))
    x, y = compared_items(left), compared_items(right)
    if x is None or y is None:
        if not (is_tile(left) or is_tile(right)):
            return left == right
        if not all(map(is_tile_or_number, (left, right))):
            return False  # a scalar equals no text, None or tuple
        result = comparison(frame, ast.Eq, left, right)
        if not result.tile.is_scalar:
            frame.type_error(
                f"==: a tuple that holds a tile of shape {result.tile.shape}",
                remedy="Compare its items one by one: a tile's comparison has a bool for each element.",
            )
        return result
    if not may_be_equal(left, right) or len(x) != len(y):
        return False
    result: Any = True
    for one, two in zip(x, y, strict=True):
        equal = _equal(frame, one, two)
        if not is_tile(equal):
            if not equal:
                return False
        else:
            result = equal if result is True else frame.emit(arith.And(x=result, y=equal))
    return result


def _any_of(frame: Frame, flags: list[Any]) -> Any:
    """Whether any flag is true, a bool or a bool scalar."""
    result: Any = False
    for flag in flags:
        if not is_tile(flag):
            if flag:
                return True
        else:
            result = flag if result is False else frame.emit(arith.Or(x=result, y=flag))
    return result


def _negated(frame: Frame, flag: Any) -> Any:
    return frame.emit(arith.Not(x=flag)) if is_tile(flag) else not flag


def _is_one_of(frame: Frame, kind: type[ast.AST], value: Value, items: tuple[Any, ...]) -> Any:
    """`value in items`, for a scalar: whether it equals one of them."""
    numbers = filter(is_tile_or_number, items)  # nothing else equals a scalar
    contained = _any_of(frame, [comparison(frame, ast.Eq, value, number) for number in numbers])
    return contained if kind is ast.In else _negated(frame, contained)


def truth(frame: Frame, value: Any, node: ast.AST | None = None) -> Any:
    """`value` as a condition: a Python bool, or a bool scalar."""
    value = plain(value)
    if not isinstance(value, Value):
        if is_number(value) or isinstance(value, str | tuple | type(None)):
            return bool(value)  # pyright: ignore[reportUnknownArgumentType]
        remedy = to_tile(value) if isinstance(value, DeviceVariable) else "Compare something."
        if isinstance(value, _IN_MEMORY):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else "x"
            remedy = f"Whether it was given is `{name} is not None`. Its elements are compared once they are loaded."
        frame.type_error(f"a condition must be a bool, got {describe(value)}", node, remedy)
    if not value.tile.is_scalar:
        frame.type_error(
            f"a condition must be a scalar, got a tile of shape {value.tile.shape}",
            node,
            "Use ct.select(condition, a, b) to choose element by element, or condition.any() or .all() for one answer.",
        )
    require_computed(frame, "a condition", value)
    if value.tile.dtype is bool_:
        return value
    zero = materialize(frame, 0, value.tile.dtype)
    return frame.emit(compare.Ne(x=value, y=zero))
