"""Arithmetic for which Numba gives Python's operators another meaning than NumPy.

Extremes, integer division, shifts, fma.
"""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import binary, define, ir, llvm, same_type, ternary, types, unary
from cutile.backend.cpu.intrinsics.cast import to_odd_bits

__all__ = (
    "absolute",
    "choose",
    "div_ceil",
    "div_ceil_unsigned",
    "div_trunc",
    "floor_div",
    "floor_div_float",
    "floor_div_unsigned",
    "fma",
    "fma_odd",
    "larger",
    "maximum",
    "maximum_or_nan",
    "maximum_unsigned",
    "minimum",
    "minimum_or_nan",
    "minimum_unsigned",
    "mod",
    "mod_float",
    "mod_unsigned",
    "mul_hi",
    "mul_hi_unsigned",
    "popcount",
    "product_step",
    "quotient",
    "remainder",
    "shift_left",
    "shift_right",
    "shift_right_unsigned",
    "smaller",
    "sum_step",
    "trip_count",
    "trip_count_unsigned",
)


def _is_float(value: Any) -> bool:
    return str(value.type) in ("float", "double")


def _signed(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Integer) and x == y and x.signed else None


def _unsigned(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Integer) and x == y and not x.signed else None


def _index(x: Any, y: Any) -> Any:
    return x if x == y == types.int64 else None


def _all_f32(x: Any, y: Any, z: Any) -> Any:
    return x if x == y == z == types.float32 else None


def _f32_and_f64(x: Any, y: Any) -> Any:
    return x if x == types.float32 and y == types.float64 else None


def _choice_type(bit: Any, x: Any, y: Any) -> Any:
    return x if x == y and bit == types.boolean else None


def _pick(operator: str) -> Any:
    """An intrinsic: `x` if `x operator y` holds, else `y`; both are i64."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        return builder.select(builder.icmp_signed(operator, *arguments), *arguments)

    return binary(emit, _index)


smaller = _pick("<")
"""The smaller of two i64."""
larger = _pick(">")
"""The larger of two i64."""


def _extreme(float_name: str, signed_name: str, unsigned_name: str) -> Any:
    """Two intrinsics: one for floats and signed integers, one for unsigned integers.

    They are two since an LLVM integer has no sign: `emit` cannot tell the two kinds of integers apart.

    Of a number and NaN the result is the number. Each intrinsic calls an operation of LLVM, which vectorises loops that
    reduce by that operation.
    """

    def emitter(int_name: str) -> Any:
        def emit(builder: Any, arguments: list[Any]) -> Any:
            return llvm(builder, float_name if _is_float(arguments[0]) else int_name, *arguments)

        return emit

    return (
        binary(emitter(signed_name), same_type),
        binary(emitter(unsigned_name), same_type),
    )


def _propagating(name: str) -> Any:
    """LLVM's `maximum` or `minimum` of floats.

    LLVM vectorises loops that reduce by it.
    """

    def emit(builder: Any, arguments: list[Any]) -> Any:
        return llvm(builder, name, *arguments)

    return binary(emit, same_type)


minimum_or_nan = _propagating("minimum")
"""The smaller of two floats; NaN where either is; -0 is below +0."""
maximum_or_nan = _propagating("maximum")
"""The larger of two floats; NaN where either is; -0 is below +0."""
minimum, minimum_unsigned = _extreme("minimumnum", "smin", "umin")
"""The smaller of two values of one type; NaN is dropped where the other is a number."""
maximum, maximum_unsigned = _extreme("maximumnum", "smax", "umax")
"""The larger of two values of one type; NaN is dropped where the other is a number."""


def _divisor(builder: Any, x: Any, y: Any, signed: bool) -> tuple[Any, Any]:
    """A divisor that never traps, and a bit: whether the divisor was 0.

    A divisor of 0 becomes 1. So does a divisor of -1 where `x` is the lowest integer: their quotient overflows, and x86
    traps on it. Divided by 1 the lowest integer gives what wrapping gives: itself, and the remainder 0.
    """
    kind = y.type
    zero, one = ir.Constant(kind, 0), ir.Constant(kind, 1)
    is_zero = builder.icmp_unsigned("==", y, zero)
    traps = is_zero
    if signed:
        lowest = builder.icmp_signed("==", x, ir.Constant(kind, -(1 << (kind.width - 1))))
        minus_one = builder.icmp_signed("==", y, ir.Constant(kind, -1))
        traps = builder.or_(traps, builder.and_(lowest, minus_one))
    return builder.select(traps, one, y), is_zero


def _floor_div_signed(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    zero = ir.Constant(x.type, 0)
    divisor, is_zero = _divisor(builder, x, y, signed=True)
    quotient = builder.sdiv(x, divisor)
    rest = builder.sub(x, builder.mul(quotient, divisor))
    signs_differ = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    round_down = builder.and_(builder.icmp_signed("!=", rest, zero), signs_differ)
    floored = builder.sub(quotient, builder.zext(round_down, x.type))
    return builder.select(is_zero, zero, floored)


def _mod_signed(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    zero = ir.Constant(x.type, 0)
    divisor, is_zero = _divisor(builder, x, y, signed=True)
    rest = builder.srem(x, divisor)
    signs_differ = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    move = builder.and_(builder.icmp_signed("!=", rest, zero), signs_differ)
    return builder.select(is_zero, zero, builder.select(move, builder.add(rest, divisor), rest))


def _floor_div_unsigned(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    divisor, is_zero = _divisor(builder, x, y, signed=False)
    return builder.select(is_zero, ir.Constant(x.type, 0), builder.udiv(x, divisor))


def _mod_unsigned(builder: Any, arguments: list[Any]) -> Any:
    x, y = arguments
    divisor, is_zero = _divisor(builder, x, y, signed=False)
    return builder.select(is_zero, ir.Constant(x.type, 0), builder.urem(x, divisor))


def _truncated(builder: Any, arguments: list[Any], signed: bool) -> tuple[Any, Any]:
    """The quotient rounded toward zero, and the remainder; for a divisor of 0, zeros."""
    x, y = arguments
    divisor, is_zero = _divisor(builder, x, y, signed=signed)
    zero = ir.Constant(x.type, 0)
    quotient = (builder.sdiv if signed else builder.udiv)(x, divisor)
    rest = builder.sub(x, builder.mul(quotient, divisor))
    return builder.select(is_zero, zero, quotient), builder.select(is_zero, zero, rest)


def _div_trunc(builder: Any, arguments: list[Any]) -> Any:
    return _truncated(builder, arguments, signed=True)[0]


def _remainder(builder: Any, arguments: list[Any]) -> Any:
    x, _ = arguments
    if _is_float(x):
        return builder.frem(*arguments)
    return _truncated(builder, arguments, signed=True)[1]


def _div_ceil(signed: bool) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        x, y = arguments
        zero = ir.Constant(x.type, 0)
        quotient, rest = _truncated(builder, arguments, signed)
        up = builder.icmp_unsigned("!=", rest, zero)
        if signed:  # with different signs the quotient is negative: rounding toward zero has rounded it up already
            up = builder.and_(up, builder.icmp_signed(">=", builder.xor(x, y), zero))
        return builder.add(quotient, builder.zext(up, x.type))

    return emit


def _mul_hi(extend: str) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        kind = arguments[0].type
        double = ir.IntType(2 * kind.width)
        x, y = (getattr(builder, extend)(each, double) for each in arguments)
        # A shift that fills with zeros serves signed operands, too: the truncation drops the bits that it fills.
        return builder.trunc(builder.lshr(builder.mul(x, y), ir.Constant(double, kind.width)), kind)

    return emit


def _signs_differ(builder: Any, rest: Any, y: Any) -> Any:
    """Whether a remainder is not 0, and its sign is not the divisor's."""
    zero = ir.Constant(y.type, 0.0)
    signs = builder.xor(builder.fcmp_ordered("<", rest, zero), builder.fcmp_ordered("<", y, zero))
    # Unordered: NaN counts as not 0, as in NumPy. The result is NaN in any case.
    return builder.and_(builder.fcmp_unordered("!=", rest, zero), signs)


def _mod_float(builder: Any, arguments: list[Any]) -> Any:
    """The remainder with the sign of the divisor, also where the remainder is 0."""
    x, y = arguments
    zero = ir.Constant(x.type, 0.0)
    rest = builder.frem(x, y)
    moved = builder.select(_signs_differ(builder, rest, y), builder.fadd(rest, y), rest)
    return builder.select(builder.fcmp_ordered("==", rest, zero), llvm(builder, "copysign", zero, y), moved)


def _floor_div_float(builder: Any, arguments: list[Any]) -> Any:
    """`(x - x % y) / y` as a whole number, by NumPy's algorithm (`npy_divmod`)."""
    x, y = arguments
    zero, one = ir.Constant(x.type, 0.0), ir.Constant(x.type, 1.0)
    rest = builder.frem(x, y)
    ratio = builder.fdiv(x, y)
    quotient = builder.fdiv(builder.fsub(x, rest), y)
    quotient = builder.select(_signs_differ(builder, rest, y), builder.fsub(quotient, one), quotient)
    # Without rounding errors the quotient would be a whole number: the nearest whole number is right.
    whole = llvm(builder, "floor", quotient)
    is_nearer_above = builder.fcmp_ordered(">", builder.fsub(quotient, whole), ir.Constant(x.type, 0.5))
    whole = builder.select(is_nearer_above, builder.fadd(whole, one), whole)
    is_zero = builder.fcmp_ordered("==", quotient, zero)
    floored = builder.select(is_zero, llvm(builder, "copysign", zero, ratio), whole)  # 0 has the sign of x / y
    return builder.select(builder.fcmp_ordered("==", y, zero), ratio, floored)  # x / 0 is infinite or NaN


def _floats(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Float) and x == y else None


def _signed_or_float(x: Any, y: Any) -> Any:
    return _floats(x, y) or _signed(x, y)


div_trunc = binary(define("div_trunc", _div_trunc), _signed)
"""`x / y` rounded toward zero; 0 for a zero divisor; signed."""
div_ceil = binary(define("div_ceil", _div_ceil(signed=True)), _signed)
"""`x / y` rounded up; 0 for a zero divisor; signed."""
div_ceil_unsigned = binary(define("div_ceil_unsigned", _div_ceil(signed=False)), _unsigned)
"""`x / y` rounded up; 0 for a zero divisor; unsigned."""
remainder = binary(define("remainder", _remainder), _signed_or_float)
"""The remainder of the quotient rounded toward zero, with the sign of `x`; signed integers, or floats.

A divisor of 0 gives 0 for integers, and NaN for floats.
"""
mul_hi = binary(define("mul_hi", _mul_hi("sext")), _signed)
"""The upper half of the product; signed."""
mul_hi_unsigned = binary(define("mul_hi_unsigned", _mul_hi("zext")), _unsigned)
"""The upper half of the product; unsigned."""
mod_float = binary(define("mod_float", _mod_float), _floats)
"""`x % y` of floats, with the sign of `y`."""
floor_div_float = binary(define("floor_div_float", _floor_div_float), _floats)
"""`x // y` of floats, as NumPy has it."""
floor_div = binary(define("floor_div", _floor_div_signed), _signed)
"""`x // y` rounded down; 0 for a zero divisor; signed."""
floor_div_unsigned = binary(define("floor_div_unsigned", _floor_div_unsigned), _unsigned)
"""`x // y`; 0 for a zero divisor; unsigned."""
mod = binary(define("mod", _mod_signed), _signed)
"""`x % y` with the sign of `y`; 0 for a zero divisor; signed."""
mod_unsigned = binary(define("mod_unsigned", _mod_unsigned), _unsigned)
"""`x % y`; 0 for a zero divisor; unsigned."""


def _shift(method: str, keeps_sign: bool) -> Any:
    """A shift by any count.

    Counts from the width on give 0, or copies of the sign if `keeps_sign`. So do negative counts, which the language
    leaves unspecified: the comparison is unsigned.
    """

    def emit(builder: Any, arguments: list[Any]) -> Any:
        x, count = arguments
        last = ir.Constant(x.type, x.type.width - 1)  # a larger count would give poison in LLVM
        over = builder.icmp_unsigned(">", count, last)
        shifted = getattr(builder, method)(x, builder.select(over, last, count))
        return shifted if keeps_sign else builder.select(over, ir.Constant(x.type, 0), shifted)

    return emit


shift_left = binary(define("shift_left", _shift("shl", keeps_sign=False)), same_type)
"""`x << y`; 0 for counts of at least the width."""
shift_right = binary(define("shift_right", _shift("ashr", keeps_sign=True)), _signed)
"""`x >> y`, the sign kept; signed."""
shift_right_unsigned = binary(define("shift_right_unsigned", _shift("lshr", keeps_sign=False)), _unsigned)
"""`x >> y`; 0 for counts of at least the width; unsigned."""


def _fma(builder: Any, arguments: list[Any]) -> Any:
    return llvm(builder, "fma", *arguments)


def _fma_odd(builder: Any, arguments: list[Any]) -> Any:
    """`x * y + z` of f32 that hold 16-bit floats, as an f32 rounded to odd.

    The product is exact in f64. The sum is rounded to odd there, and once more to f32. Two roundings to nearest could
    move a sum to the midpoint of two 16-bit floats, and then to the wrong one. Rounding to odd moves no sum to a
    midpoint.
    """
    double, wide = ir.DoubleType(), ir.IntType(64)
    x, y, z = (builder.fpext(each, double) for each in arguments)
    product = builder.fmul(x, y)
    total = builder.fadd(product, z)
    # The error of the sum, which is exact (Knuth's two-sum).
    part = builder.fsub(total, product)
    rest = builder.fadd(builder.fsub(product, builder.fsub(total, part)), builder.fsub(z, part))
    zero = ir.Constant(double, 0.0)
    bits = builder.bitcast(total, wide)
    # An inexact total with an even last bit is replaced by its neighbour toward the exact sum. Its bits are one more
    # where rest and total have one sign, else one less.
    one = ir.Constant(wide, 1)
    outward = builder.icmp_signed(">=", builder.xor(builder.bitcast(rest, wide), bits), ir.Constant(wide, 0))
    moved = builder.select(outward, builder.add(bits, one), builder.sub(bits, one))
    inexact = builder.fcmp_ordered("!=", rest, zero)
    finite = builder.fcmp_ordered("==", builder.fsub(total, total), zero)  # if it is not, `rest` is NaN or infinite
    even = builder.icmp_unsigned("==", builder.and_(bits, one), ir.Constant(wide, 0))
    move = builder.and_(builder.and_(inexact, finite), even)
    return to_odd_bits(builder, [builder.bitcast(builder.select(move, moved, bits), double)])


fma_odd = ternary(define("fma_odd", _fma_odd), _all_f32)
"""`x * y + z` of f32 that hold 16-bit floats, as an f32 rounded to odd, which a caller rounds to 16 bits."""
fma = ternary(_fma)
"""`x * y + z` of one float type with one rounding."""


def _quotient(builder: Any, arguments: list[Any]) -> Any:
    """An f32 divided by another one, of which the reciprocal is given, in f64.

    The product is rounded to 50 bits and then to f32; `lowering/strength_reduction.py` has the proof. In a float's bits
    the rounding is an addition and a mask. Infinities and zeros stay as they are. A NaN stays one, since the lower bits
    of a NaN that was an f32 are 0.
    """
    x, reciprocal = arguments
    double, wide = ir.DoubleType(), ir.IntType(64)
    bits = builder.bitcast(builder.fmul(builder.fpext(x, double), reciprocal), wide)
    bits = builder.and_(builder.add(bits, ir.Constant(wide, 4)), ir.Constant(wide, -8))  # 53 bits less 3
    return builder.fptrunc(builder.bitcast(bits, double), ir.FloatType())


quotient = binary(_quotient, _f32_and_f64)
"""`x / y` of f32, with the f64 `1 / y` in place of `y`: the quotient's bits, at the cost of a product."""


def _absolute(builder: Any, arguments: list[Any]) -> Any:
    (x,) = arguments
    if _is_float(x):
        return llvm(builder, "fabs", x)
    negative = builder.icmp_signed("<", x, ir.Constant(x.type, 0))
    return builder.select(negative, builder.neg(x), x)


def _popcount(builder: Any, arguments: list[Any]) -> Any:
    return llvm(builder, "ctpop", *arguments)


popcount = unary(_popcount)
"""How many bits of an integer are 1, in its type."""

absolute = unary(_absolute)
"""The absolute value of a float or a signed integer; the smallest integer stays itself."""


def _choose(builder: Any, arguments: list[Any]) -> Any:
    return builder.select(*arguments)


choose = ternary(_choose, _choice_type)
"""`x` where the bool is true, else `y`; both are computed."""


def _trip_count(signed: bool) -> Any:
    """The iterations of a loop.

    Its division is unsigned: the difference of two i64 fits a u64.
    """

    def emit(builder: Any, arguments: list[Any]) -> Any:
        start, stop, step = arguments
        kind = start.type
        zero, one = ir.Constant(kind, 0), ir.Constant(kind, 1)
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        upward = compare(">", step, zero)
        first, last = builder.select(upward, start, stop), builder.select(upward, stop, start)
        size = builder.select(upward, step, builder.neg(step))
        runs = builder.and_(compare("<", first, last), builder.icmp_unsigned("!=", step, zero))
        size = builder.select(runs, size, one)  # the division is computed in any case, and a divisor of 0 traps
        # The distance over the step's size, rounded up.
        count = builder.add(builder.udiv(builder.sub(builder.sub(last, first), one), size), one)
        max_count = ir.Constant(kind, 2 ** (kind.width - 1) - 1)  # the result is an i64; a longer loop would not end
        count = builder.select(builder.icmp_unsigned("<", count, max_count), count, max_count)
        return builder.select(runs, count, zero)

    return emit


def _count_type(start: Any, stop: Any, step: Any) -> Any:
    return types.int64 if start == stop == step and start in (types.int64, types.uint64) else None


trip_count = ternary(define("trip_count", _trip_count(signed=True)), _count_type)
"""The iterations of `range(start, stop, step)` of i64; 0 for a step of 0."""
trip_count_unsigned = ternary(define("trip_count_unsigned", _trip_count(signed=False)), _count_type)
"""The iterations of `range(start, stop, step)` of u64; 0 for a step of 0."""


# Flags of LLVM's float operations. `reassoc`: LLVM may reorder the sums and products of a reduction, and so keep
# several vector accumulators. `nsz`: LLVM may ignore the sign of a zero. That loses nothing in a sum: its accumulator
# begins with +0, and +0 plus -0 is +0.
_ANY_ORDER = ("reassoc", "nsz")


def _step(float_method: str, int_method: str) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        if _is_float(arguments[0]):
            return getattr(builder, float_method)(*arguments, flags=_ANY_ORDER)
        return getattr(builder, int_method)(*arguments)

    return binary(emit, same_type)


sum_step = _step("fadd", "add")
"""The accumulator plus an element; the order of the whole sum is the compiler's choice."""
product_step = _step("fmul", "mul")
"""The accumulator times an element; the order of the whole product is the compiler's choice."""
