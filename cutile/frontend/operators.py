# pyright: reportUnknownMemberType=false
# (the operator module is typed with protocols whose parameters are unknown)
"""Operators of tiles, scalars and constants: dtypes, broadcasting, operations.

Python numbers are weakly typed beside a tile: `2.0 * f16_tile` is f16. Tiles of different dtypes do not mix.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
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
    needs_item_comparison,
    own_equality,
    own_method,
    own_operator,
)
from cutile.frontend.values import (
    IN_MEMORY,
    ListItems,
    Record,
    Table,
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


PYTHON_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
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
"""The meaning of operators on compile-time values. `@` is not among them: Python's numbers have none."""

SPELLING: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip
"""Operators as kernels write them, for errors."""

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
"""The operation of an operator on two tiles of one type. `**` and `@` become other operations."""

TILE_COMPARE: dict[type[ast.AST], type[Op]] = {
    ast.Eq: compare.Eq,
    ast.NotEq: compare.Ne,
    ast.Lt: compare.Lt,
    ast.LtE: compare.Le,
    ast.Gt: compare.Gt,
    ast.GtE: compare.Ge,
}
"""The operation of a comparison of two tiles of one type."""

MAX_UNROLLED_POWER = 16
"""The largest exponent of `**` that becomes products: six of them at most, for 15."""

_LOW_BITS_SUFFICE = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
"""Operators whose low bits depend on the operands' low bits alone, so that they need no `widened` operands."""

_PYTHON_KINDS = (bool, int, float, str, tuple, type(None), type)
"""Classes of compile-time values that the front end holds as Python's own objects.

The classes of all other values, such as `TensorRef`, are in `values.py`.
"""

_ITEM_COMPARISONS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
"""Comparisons of tuples and dataclasses, item by item."""

_OF_LIKE_SEQUENCES = (ast.Add, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Operators that Python refuses between a list and a tuple."""

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
    # Only shapes of one axis get another: where it would belong in longer ones is the author's guess alone.
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
    if have and len(have) < len(shape):  # a scalar broadcasts to any shape as it is
        value = frame.emit(Reshape(x=value, shape=(1,) * (len(shape) - len(have)) + have))
        if value.tile.shape == shape:
            return value
    return frame.emit(Broadcast(x=value, shape=shape))


def unify(frame: Frame, values: list[Any], what: str, dtype: DTypeLike | None = None) -> list[Value]:
    """Tiles of one type for `values`: numbers take the tiles' dtype, shapes broadcast.

    Raises:
        KernelTypeError: a value is neither a tile nor a number, dtypes differ, shapes do not broadcast, or a number
            does not fit the tiles' dtype.
    """
    tiles = [value for value in values if is_tile(value)]
    for value in values:
        if not is_tile(value) and not is_number(value):
            frame.type_error(
                f"{what}: expected a tile or a number, got {describe(value)}",
                remedy=to_tile(value),
            )
    # The dtype is that of the first strong tile, else the one that plain numbers share. It stays None for constants of
    # one default dtype, which each of them takes by itself.
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
            dtypes = [dtype, tile.tile.dtype]
            if first.tile.is_scalar and not tile.tile.is_scalar:
                dtypes.reverse()  # the tile's first, as in `kinds`
            frame.type_error(
                f"{what}: {kinds} of different dtypes do not mix: {dtypes[0]} and {dtypes[1]}",
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
    """The operands, with i32 tiles converted to i64 beside a plain number of i64.

    All other tiles must be i32. The operation is exact then, as in Python. `narrowed` makes its result an i32 again.
    """
    wide = any(is_tile(value) and is_weak(frame, value) and value.tile.dtype is i64 for value in values)
    strong = [value for value in values if is_tile(value) and not is_weak(frame, value)]
    if not wide or any(tile.tile.dtype is not i32 for tile in strong):
        return values
    return [frame.emit(Convert(x=value, dtype=i64)) if value in strong else value for value in values]


def narrowed(frame: Frame, result: Value, *operands: Any) -> Value:
    """The result on `widened` operands: an i32 again if they were converted."""
    strong = [operand for operand in operands if not is_weak(frame, operand)]
    was_widened = strong and result.tile.dtype is i64 and all(operand.tile.dtype is i32 for operand in strong)
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
    _refuse_bool(frame, ast.Pow, base)
    result = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else binary(frame, ast.Mult, result, square)
        exponent >>= 1
        if exponent:
            square = binary(frame, ast.Mult, square, square)
    return result


def _refuse_bool(frame: Frame, kind: type[ast.AST], value: Value, *others: Any) -> None:
    """Refuse arithmetic on a bool, or a tile of bools."""
    if value.tile.dtype.is_bool:
        remedy = f"Convert first: {_first_converted('i32', *others, value)}."
        frame.type_error(f"{SPELLING[kind]}: arithmetic on bool", remedy=remedy)


_POINTER_METHODS: dict[type[ast.AST], str] = {ast.Add: "__add__", ast.Sub: "__sub__"}
"""The methods that pointers have for operators (`METHODS`)."""


def binary(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`left <op> right`."""
    left, right = plain(left), plain(right)
    own = METHODS.get((cast("type[Any]", type(left)), _POINTER_METHODS.get(kind, "")))
    if own is not None:
        return own(frame, left, right)
    own = own_operator(frame, kind, left, right)  # ahead of folding, by which an author's class is no operand
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
        # Products of whole numbers have noted their interval, which a second note would replace.
        return result if is_weak(frame, result) else of_weak(frame, result, left, right)
    # Ahead of `unify`: intervals say how wide an operation on plain numbers is.
    if kind in plain_numbers.BINARY and is_whole(frame, left) and is_whole(frame, right):
        interval = plain_numbers.BINARY[kind](interval_of(frame, left), interval_of(frame, right))
        return computed(frame, TILE_BINARY[kind], interval, left, right)
    is_of_numbers = kind is ast.Div and is_weak(frame, left) and is_weak(frame, right)  # a float, as in Python
    # Integers are not divided by `/`, and the error has to name the dtype that the author sees.
    values = [left, right] if kind in (*_LOW_BITS_SUFFICE, ast.Div) else widened(frame, [left, right])
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
    if kind not in (ast.BitAnd, ast.BitOr, ast.BitXor):
        _refuse_bool(frame, kind, x, left, right)
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
    if kind not in PYTHON_OPERATORS:
        for value in filter(lambda operand: not is_number(operand), values):
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
        frame.type_error(f"{SPELLING[kind]} of two numbers", remedy="It multiplies tiles of at least one axis.")
    classes = {isinstance(value, ListItems) for value in values if isinstance(value, tuple)}
    if kind in _OF_LIKE_SEQUENCES and len(classes) > 1:
        message = f"{SPELLING[kind]}: a list and a tuple do not mix"
        frame.type_error(message, remedy="Make them alike: [*items] is a list, (*items,) a tuple.")
    for value in values:
        holds_tiles = not isinstance(value, IN_MEMORY) and any(map(is_tile, leaves(value)))  # a pointer has an address
        if holds_tiles and kind not in (ast.Is, ast.IsNot, ast.Add, ast.Mult):
            frame.type_error(
                f"{SPELLING[kind]}: a tuple that holds tiles", remedy="Combine or compare its items one by one."
            )
        if not isinstance(value, _PYTHON_KINDS) and kind not in _ANY_OPERANDS:
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
    if kind in _ITEM_COMPARISONS:
        _refuse_never_equal(frame, kind, *values)
    try:
        return PYTHON_OPERATORS[kind](*values)
    except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
        # Python's own message would name a class of the front end, such as `TensorRef`.
        for value in values:
            if not isinstance(value, _PYTHON_KINDS):
                frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))
        tuples = any(isinstance(value, tuple) for value in values)
        remedy = to_tile(()) if tuples else "The operands are known now, and Python itself refuses them."
        # Versions of Python have different words for a division by zero.
        reason = "division by zero" if isinstance(error, ZeroDivisionError) else str(error)
        reason = "the result does not fit into memory" if isinstance(error, MemoryError) else reason
        frame.type_error(f"{SPELLING[kind]}: {reason}", remedy=remedy)


def _refuse_never_equal(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> None:
    """Refuse a comparison that would be false whatever the elements, or names, are."""
    if wrong := elsewhere.compared_with_dtype(left, right):
        message = f"{SPELLING[kind]}: a dtype never equals {describe(wrong[0])}"
        frame.type_error(message, remedy=f"Compare it with {wrong[1]}.")
    for value in (left, right):
        if isinstance(value, IN_MEMORY) and left is not None and right is not None:
            frame.type_error(f"{SPELLING[kind]}: cannot use a {describe(value)}", remedy=to_tile(value))


def unary(frame: Frame, kind: type[ast.AST], value: Any) -> Any:
    """`<op> value`."""
    value = plain(value)
    if kind is ast.Not and isinstance(value, Record) and not has_own_truth(value):
        return False  # any object is true
    if kind is ast.Not and isinstance(value, (*IN_MEMORY, Record, tuple)):
        return not truth(frame, value)  # memory and dataclasses raise, as in `if x:`; a tuple is true if it has items
    if own := own_method(frame, value, OWN_PREFIXES.get(kind, "")):
        return frame.invoke(own, value, node=frame.node)
    if not is_tile(value):
        return _fold(frame, kind, value)
    require_computed(frame, SPELLING[kind], value)
    if kind in (ast.UAdd, ast.USub):
        _refuse_bool(frame, kind, value)
    if kind is ast.UAdd:
        return value
    if kind in (ast.USub, ast.Invert) and is_whole(frame, value):
        op, interval = (arith.Neg, plain_numbers.negated) if kind is ast.USub else (arith.Not, plain_numbers.inverted)
        return computed(frame, op, interval(interval_of(frame, value)), value)
    if kind is ast.USub:
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
    if kind in _ITEM_COMPARISONS and (needs_item_comparison(left) or needs_item_comparison(right)):
        return _compare_items(frame, kind, left, right)
    own = own_operator(frame, kind, left, right)
    if own is not NotImplemented:
        return own
    is_scalar = is_tile(left) and left.tile.is_scalar
    if kind in (ast.In, ast.NotIn) and isinstance(right, tuple) and (is_scalar or isinstance(left, IN_MEMORY)):
        return _compare_items(frame, kind, left, right)
    if not is_tile(left) and not is_tile(right):
        return _fold(frame, kind, left, right)
    if kind in (ast.Is, ast.IsNot) and (left is None or right is None):
        return kind is ast.IsNot  # the other one is a tile, which is not None
    if kind in (ast.In, ast.NotIn) and not isinstance(right, tuple | Value):
        remedy = to_tile(right) if isinstance(right, IN_MEMORY) else "Write the items as a tuple: x in (1, 2)."
        frame.type_error(f"{SPELLING[kind]}: expected a tuple, got {describe(right)}", remedy=remedy)
    if kind not in TILE_COMPARE:
        scalars = all(not is_tile(operand) or operand.tile.is_scalar for operand in cast("list[Any]", [left, right]))
        what, elements = ("a scalar", "it") if scalars else ("a tile", "the elements")
        frame.type_error(f"`{SPELLING[kind]}` of {what}", remedy=f"Compare {elements} with == or !=.")
    require_computed(frame, SPELLING[kind], left, right)
    x, y = unify(frame, widened(frame, [left, right]), SPELLING[kind])
    return frame.emit(TILE_COMPARE[kind](x=x, y=y))


def _compare_items(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`==`, `!=`, `in` and `not in` of tuples, dataclasses and dicts, item by item."""
    if kind in (ast.In, ast.NotIn):
        if not isinstance(right, tuple):
            frame.type_error(f"`{SPELLING[kind]}`: expected a tuple, got {describe(right)}", remedy=to_tile(right))
        contained = _any_of(frame, (_equal(frame, kind, left, item) for item in items_of(right)))
        return contained if kind is ast.In else _negated(frame, contained)
    equal = _equal(frame, kind, left, right)
    return equal if kind is ast.Eq else _negated(frame, equal)


def _equal(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """Whether two items are equal by Python's rules: a bool, or a bool scalar.

    `kind` is the comparison that asks, for errors.
    """
    left, right = plain(left), plain(right)
    for x, y in ((left, right), (right, left)):
        if own := own_equality(frame, x, y):
            return truth(frame, frame.invoke(own, x, y, node=frame.node))
    x, y = compared_items(left), compared_items(right)
    if x is None or y is None:
        if isinstance(left, IN_MEMORY) and left == right:
            return True  # one and the same, which Python asks of items first
        _refuse_never_equal(frame, kind, left, right)
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
    for first, second in zip(x, y, strict=True):
        equal = _equal(frame, kind, first, second)
        if not is_tile(equal):
            if not equal:
                return False
        else:
            result = equal if result is True else frame.emit(arith.And(x=result, y=equal))
    return result


def _any_of(frame: Frame, flags: Iterable[Any]) -> Any:
    """Whether any flag is true. Flags behind a constant True are not computed."""
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


def truth(frame: Frame, value: Any, node: ast.AST | None = None) -> Any:
    """`value` as a condition: a Python bool, or a bool scalar."""
    value = plain(value)
    if not isinstance(value, Value):
        if is_number(value) or isinstance(value, str | tuple | type(None)):
            return bool(value)  # pyright: ignore[reportUnknownArgumentType]
        remedy = to_tile(value) if isinstance(value, DeviceVariable) else "Compare it: a condition is like x > 0."
        if isinstance(value, Record) and has_own_truth(value):
            remedy = "Compare its fields: a kernel asks no object whether it is true."
        if isinstance(value, IN_MEMORY):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else "x"
            remedy = f"To ask whether it was given, write `{name} is not None`. To compare its elements, load them."
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
