"""Calls of arithmetic: integers, floats with a rounding, bits, and functions of floats."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import f32
from cutile.frontend.expect import marker_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.interval import ceil_divided, largest, least
from cutile.frontend.operators import narrowed, unify, widened
from cutile.frontend.registry import OPERATIONS, operation
from cutile.frontend.values import is_tile
from cutile.frontend.weak import computed, interval_of, is_whole, of_weak
from cutile.ir.core import Op, Value
from cutile.language import markers
from cutile.ops import arith, math, rounding

INTEGERS: tuple[str, ...] = ("int", "uint")


BITS: tuple[str, ...] = ("int", "uint", "bool")


FLOATS: tuple[str, ...] = ("float",)


NEAREST = markers.rounding.NEAREST_EVEN


NO_PROMISE = markers.overflow.NONE


OFF = False


_SAY: dict[tuple[str, ...], str] = {INTEGERS: "integers", BITS: "integers or bools", FLOATS: "floats"}


def require_kind(frame: Frame, tile: Value, kinds: tuple[str, ...], what: str) -> Value:
    """A tile of one of the kinds of dtype."""
    if tile.tile.dtype.kind in kinds:
        return tile
    if kinds is FLOATS and is_tile(tile) and tile.tile.dtype.kind != "bool":
        remedy = "Convert first: ct.convert_tile(x, ct.f32)."
    else:
        remedy = f"The operators take any numbers; {what} takes {_SAY[kinds]}."
    frame.type_error(f"{what}: expected a tile of {_SAY[kinds]}, got {tile.type}", remedy=remedy)


def operands(frame: Frame, values: list[Any], kinds: tuple[str, ...], what: str) -> list[Value]:
    """Tiles of one type, of one of the kinds. Numbers alone are f32 where floats are wanted."""
    wanted = f32 if kinds is FLOATS and not any(map(is_tile, values)) else None
    return [require_kind(frame, each, kinds, what) for each in unify(frame, values, what, wanted)]


def _binary(op: type[Op], kinds: tuple[str, ...], name: str) -> None:
    def handler(frame: Frame, x: Any, y: Any) -> Any:
        a, b = operands(frame, [x, y], kinds, name)
        return frame.emit(op(x=a, y=b))

    OPERATIONS[name] = handler


def _wrapping(op: type[Op], name: str) -> None:
    """Results wrap whatever is promised: a promise that holds changes nothing."""

    def handler(frame: Frame, x: Any, y: Any, overflow: Any = NO_PROMISE) -> Any:
        marker_of(frame, overflow, markers.overflow, name)
        a, b = operands(frame, [x, y], INTEGERS, name)
        return frame.emit(op(x=a, y=b))

    OPERATIONS[name] = handler


def _rounded(plain: type[Op], op: type[Op], name: str, count: int) -> None:
    """A float operation with a rounding: the plain operation where nothing is asked."""

    def build(frame: Frame, values: list[Any], mode: Any, flush: Any) -> Any:
        chosen = marker_of(frame, mode, markers.rounding, name)
        flushed = marker_of(frame, flush, markers.ftz, name) is markers.ftz.ENABLED
        given = operands(frame, values, FLOATS, name)
        if chosen is NEAREST and not flushed:
            return frame.emit(plain(*given))
        if given[0].tile.dtype.bits == 16:
            frame.type_error(
                f"{name}: a rounding other than NEAREST_EVEN, and ftz, are for f32 and f64, got {given[0].type}",
                remedy="Convert first: ct.convert_tile(x, ct.f32).",
            )
        facts: dict[str, Any] = {"rounding": chosen.value, "ftz": flushed}
        return frame.emit(op(*given, **facts))

    def one(frame: Frame, x: Any, rounding: Any = NEAREST, ftz: Any = OFF) -> Any:
        return build(frame, [x], rounding, ftz)

    def two(frame: Frame, x: Any, y: Any, rounding: Any = NEAREST, ftz: Any = OFF) -> Any:
        return build(frame, [x, y], rounding, ftz)

    def three(frame: Frame, x: Any, y: Any, z: Any, rounding: Any = NEAREST, ftz: Any = OFF) -> Any:
        return build(frame, [x, y, z], rounding, ftz)

    OPERATIONS[name] = (one, two, three)[count - 1]


def _float_extreme(op: type[Op], name: str) -> None:
    def handler(frame: Frame, x: Any, y: Any, nan: Any = OFF, ftz: Any = OFF) -> Any:
        propagates = marker_of(frame, nan, markers.nan, name) is markers.nan.ENABLED
        flushed = marker_of(frame, ftz, markers.ftz, name) is markers.ftz.ENABLED
        a, b = operands(frame, [x, y], FLOATS, name)
        return frame.emit(op(x=a, y=b, nan=propagates, ftz=flushed))

    OPERATIONS[name] = handler


def _unary(op: type[Op], kinds: tuple[str, ...], name: str) -> None:
    def handler(frame: Frame, x: Any) -> Any:
        return frame.emit(op(x=require_kind(frame, tile_of(frame, x, name), kinds, name)))

    OPERATIONS[name] = handler


def _flushing(op: type[Op], name: str) -> None:
    def handler(frame: Frame, x: Any, ftz: Any = OFF) -> Any:
        flushed = marker_of(frame, ftz, markers.ftz, name) is markers.ftz.ENABLED
        return frame.emit(op(x=require_kind(frame, tile_of(frame, x, name), FLOATS, name), ftz=flushed))

    OPERATIONS[name] = handler


DIVISIONS: dict[markers.rounding, type[Op]] = {
    markers.rounding.ZERO: arith.DivTrunc,
    markers.rounding.NEGATIVE_INF: arith.FloorDiv,
    markers.rounding.POSITIVE_INF: arith.DivCeil,
}


@operation
def divi(frame: Frame, x: Any, y: Any, rounding: Any = markers.rounding.ZERO) -> Any:
    mode = marker_of(frame, rounding, markers.rounding, "divi")
    if mode not in DIVISIONS:
        frame.type_error(
            f"divi: integers are not rounded to {mode.name}", remedy="Use ZERO, NEGATIVE_INF or POSITIVE_INF."
        )
    a, b = operands(frame, [x, y], INTEGERS, "divi")
    return frame.emit(DIVISIONS[mode](x=a, y=b))


@operation
def negi(frame: Frame, x: Any, overflow: Any = NO_PROMISE) -> Any:
    marker_of(frame, overflow, markers.overflow, "negi")
    return frame.emit(arith.Neg(x=require_kind(frame, tile_of(frame, x, "negi"), INTEGERS, "negi")))


@operation
def true_div(frame: Frame, x: Any, y: Any) -> Any:
    a, b = operands(frame, [x, y], FLOATS, "true_div")
    if a.tile.dtype is not f32:
        return frame.emit(arith.Div(x=a, y=b))
    return frame.emit(rounding.RoundedDiv(x=a, y=b, rounding="approx", ftz=True))


@operation
def min_tile(frame: Frame, x: Any, y: Any) -> Any:
    return _smaller_or_larger(frame, arith.Min, x, y, "min_tile")


@operation
def max_tile(frame: Frame, x: Any, y: Any) -> Any:
    return _smaller_or_larger(frame, arith.Max, x, y, "max_tile")


def _smaller_or_larger(frame: Frame, op: type[arith.Min | arith.Max], x: Any, y: Any, what: str) -> Any:
    if is_whole(frame, x) and is_whole(frame, y) and (is_tile(x) or is_tile(y)):
        interval = (least if op is arith.Min else largest)(interval_of(frame, x), interval_of(frame, y))
        return computed(frame, op, interval, x, y)
    a, b = unify(frame, widened(frame, [x, y]), what)
    return narrowed(frame, frame.emit(op(x=a, y=b)), x, y)


def _register() -> None:
    for name, op in {"addi": arith.Add, "subi": arith.Sub, "muli": arith.Mul, "shli": arith.Shl}.items():
        _wrapping(op, name)
    integers = {"remi": arith.Rem, "mulhii": arith.MulHi, "mini": arith.Min, "maxi": arith.Max, "shri": arith.Shr}
    for name, op in integers.items():
        _binary(op, INTEGERS, name)
    for name, op in {"andi": arith.And, "ori": arith.Or, "xori": arith.Xor}.items():
        _binary(op, BITS, name)
    for name, op in {"remf": arith.Rem, "pow": math.Pow, "atan2": math.Atan2}.items():
        _binary(op, FLOATS, name)
    _unary(arith.Abs, INTEGERS, "absi")
    _unary(arith.Not, BITS, "noti")
    for name, op in {"negf": arith.Neg, "absf": arith.Abs}.items():
        _unary(op, FLOATS, name)
    _rounded(arith.Add, rounding.RoundedAdd, "addf", 2)
    _rounded(arith.Sub, rounding.RoundedSub, "subf", 2)
    _rounded(arith.Mul, rounding.RoundedMul, "mulf", 2)
    _rounded(arith.Div, rounding.RoundedDiv, "divf", 2)
    _rounded(arith.Fma, rounding.RoundedFma, "fma", 3)
    _rounded(math.Sqrt, rounding.RoundedSqrt, "sqrt", 1)
    for name, op in {"minf": arith.Min, "maxf": arith.Max}.items():
        _float_extreme(op, name)
    for op in (math.Exp2, math.Rsqrt):
        _flushing(op, op.name)
    for op in (math.Exp, math.Log, math.Log2, math.Sin, math.Cos, math.Tan, math.Sinh, math.Cosh, math.Tanh):
        _unary(op, FLOATS, op.name)
    for op in (math.Floor, math.Ceil):
        _unary(op, FLOATS, op.name)


_register()


@operation
def ceil_div(frame: Frame, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            frame.type_error("ceil_div: division by zero", remedy="Both numbers are known now.")
        return -(-a // b)
    if is_whole(frame, a) and is_whole(frame, b):
        return computed(frame, arith.DivCeil, ceil_divided(interval_of(frame, a), interval_of(frame, b)), a, b)
    x, y = unify(frame, widened(frame, [a, b]), "ceil_div")
    return of_weak(frame, narrowed(frame, frame.emit(arith.DivCeil(x=x, y=y)), a, b), a, b)
