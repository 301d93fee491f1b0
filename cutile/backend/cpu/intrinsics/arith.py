"""Arithmetic that Python's operators in Numba do not give as NumPy means it: bounds, integer division, shifts, fma."""

from __future__ import annotations

from typing import Any

from cutile.backend.cpu.intrinsics._seam import binary, define, ir, llvm, same_type, ternary, types, unary


def _is_float(value: Any) -> bool:
    return str(value.type) in ("float", "double")


def _signed(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Integer) and x == y and x.signed else None


def _unsigned(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Integer) and x == y and not x.signed else None


def _index(x: Any, y: Any) -> Any:
    return x if x == y == types.int64 else None


def _chosen(bit: Any, x: Any, y: Any) -> Any:
    return x if x == y and bit == types.boolean else None


def _pick(operator: str) -> Any:
    """Of two index values, the one that `operator` holds for. Indices are i64 whatever they came from."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        return builder.select(builder.icmp_signed(operator, *arguments), *arguments)

    return binary(emit, _index)


smaller = _pick("<")
"""The smaller of two i64."""
larger = _pick(">")
"""The larger of two i64."""


def _float_extreme(builder: Any, x: Any, y: Any, operator: str) -> Any:
    """The larger (">") or smaller ("<") float; of a number and NaN the number; -0 is below +0.

    LLVM 22 has operations for that, `maximumnum` and `minimumnum`, but where it knows one operand to be a number it
    makes code for x86 that returns the other's NaN.
    """
    bits = ir.IntType(32 if x.type == ir.FloatType() else 64)
    first, second = builder.bitcast(x, bits), builder.bitcast(y, bits)
    # Equal floats differ in nothing but the sign of zero, which AND makes + and OR makes -.
    equal = builder.bitcast((builder.and_ if operator == ">" else builder.or_)(first, second), x.type)
    chosen = builder.select(builder.fcmp_ordered(operator, x, y), x, y)
    chosen = builder.select(builder.fcmp_unordered("uno", y, y), x, chosen)
    return builder.select(builder.fcmp_ordered("==", x, y), equal, chosen)


def _extreme(operator: str, signed_name: str, unsigned_name: str) -> Any:
    """`fmin` or `fmax`: of a number and NaN the number."""

    def typing(name_of_int: str) -> Any:
        def emit(builder: Any, arguments: list[Any]) -> Any:
            if _is_float(arguments[0]):
                return _float_extreme(builder, *arguments, operator)
            return llvm(builder, name_of_int, *arguments)

        return emit

    return (
        binary(typing(signed_name), same_type),
        binary(typing(unsigned_name), same_type),
    )


minimum, minimum_unsigned = _extreme("<", "smin", "umin")
"""The smaller of two values of one type; NaN is dropped where the other is a number."""
maximum, maximum_unsigned = _extreme(">", "smax", "umax")
"""The larger of two values of one type; NaN is dropped where the other is a number."""


def _divisor(builder: Any, x: Any, y: Any, signed: bool) -> tuple[Any, Any]:
    """A divisor that never traps (0 and the overflowing -1 become 1), and where it was 0."""
    kind = y.type
    zero, one = ir.Constant(kind, 0), ir.Constant(kind, 1)
    is_zero = builder.icmp_unsigned("==", y, zero)
    bad = is_zero
    if signed:
        lowest = builder.icmp_signed("==", x, ir.Constant(kind, -(1 << (kind.width - 1))))
        minus_one = builder.icmp_signed("==", y, ir.Constant(kind, -1))
        bad = builder.or_(bad, builder.and_(lowest, minus_one))
    return builder.select(bad, one, y), is_zero


def _floor_div_signed(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    zero = ir.Constant(x.type, 0)
    divisor, is_zero = _divisor(builder, x, y, signed=True)
    quotient = builder.sdiv(x, divisor)
    rest = builder.sub(x, builder.mul(quotient, divisor))
    apart = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    down = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
    floored = builder.sub(quotient, builder.zext(down, x.type))
    return builder.select(is_zero, zero, floored)  # lowest // -1 is lowest // 1: it wraps to itself


def _mod_signed(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    zero = ir.Constant(x.type, 0)
    divisor, is_zero = _divisor(builder, x, y, signed=True)
    rest = builder.srem(x, divisor)
    apart = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    move = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
    return builder.select(is_zero, zero, builder.select(move, builder.add(rest, divisor), rest))


def _floor_div_unsigned(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    divisor, is_zero = _divisor(builder, x, y, signed=False)
    return builder.select(is_zero, ir.Constant(x.type, 0), builder.udiv(x, divisor))


def _mod_unsigned(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    divisor, is_zero = _divisor(builder, x, y, signed=False)
    return builder.select(is_zero, ir.Constant(x.type, 0), builder.urem(x, divisor))


floor_div = binary(define("floor_div", _floor_div_signed), _signed)
"""`x // y` rounded down; 0 for a zero divisor; signed."""
floor_div_unsigned = binary(define("floor_div_unsigned", _floor_div_unsigned), _unsigned)
"""`x // y`; 0 for a zero divisor; unsigned."""
mod = binary(define("mod", _mod_signed), _signed)
"""`x % y` with the sign of `y`; 0 for a zero divisor; signed."""
mod_unsigned = binary(define("mod_unsigned", _mod_unsigned), _unsigned)
"""`x % y`; 0 for a zero divisor; unsigned."""


def _shift(method: str, fill: bool) -> Any:
    """A shift whose count may be at least the width: then 0, or the sign where `fill`."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        x, count = arguments
        last = ir.Constant(x.type, x.type.width - 1)
        over = builder.icmp_unsigned(">", count, last)
        shifted = getattr(builder, method)(x, builder.select(over, last, count))
        return shifted if fill else builder.select(over, ir.Constant(x.type, 0), shifted)

    return emit


shift_left = binary(define("shift_left", _shift("shl", fill=False)), same_type)
"""`x << y`; 0 for counts of at least the width."""
shift_right = binary(define("shift_right", _shift("ashr", fill=True)), _signed)
"""`x >> y`, the sign kept; signed."""
shift_right_unsigned = binary(define("shift_right_unsigned", _shift("lshr", fill=False)), _unsigned)
"""`x >> y`; 0 for counts of at least the width; unsigned."""


def _fma(builder: Any, arguments: list[Any]) -> Any:
    return llvm(builder, "fma", *arguments)


fma = ternary(_fma)
"""`x * y + z` of one float type with one rounding."""


def _absolute(builder: Any, arguments: list[Any]) -> Any:
    (x,) = arguments
    if _is_float(x):
        return llvm(builder, "fabs", x)
    negative = builder.icmp_signed("<", x, ir.Constant(x.type, 0))
    return builder.select(negative, builder.neg(x), x)


absolute = unary(_absolute)
"""The absolute value of a float or a signed integer; the smallest integer stays itself."""


def _choose(builder: Any, arguments: list[Any]) -> Any:
    return builder.select(*arguments)


choose = ternary(_choose, _chosen)
"""`x` where the bool is true, else `y`; both are computed."""
