"""Conversions for which Numba's own differ from `cutile.conversion`.

They saturate, round only once, or result in floats of few bits. In registers a 16-bit float is an f32 with a value that
16 bits can hold; in memory it is 16 bits. f16 goes through LLVM's `half` (one instruction on machines with F16C or
Arm's fp16 conversions), bf16 through shifts.

Names end in the direction of rounding; a name without a direction rounds to nearest even.
"""

from typing import Any

from cutile.backend.common import encoding
from cutile.backend.cpu.intrinsics._seam import define, ir, llvm, types, unary
from cutile.conversion import NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import STORAGE_DTYPES, DTypeLike, bf16, f16

_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def f16_value_of(builder: Any, arguments: list[Any]) -> Any:
    """The f32 value of f16 bits, as instructions."""
    return builder.fpext(builder.bitcast(arguments[0], _HALF), _FLOAT)


def f16_bits_of(builder: Any, arguments: list[Any]) -> Any:
    """The bits of the f16 nearest to an f32, as instructions."""
    return builder.bitcast(builder.fptrunc(arguments[0], _HALF), _I16)


def _f16_round(builder: Any, arguments: list[Any]) -> Any:
    return builder.fpext(builder.fptrunc(arguments[0], _HALF), _FLOAT)


def bf16_value_of(builder: Any, arguments: list[Any]) -> Any:
    """The f32 value of bf16 bits, as instructions."""
    wide = builder.zext(arguments[0], _I32)
    return builder.bitcast(builder.shl(wide, ir.Constant(_I32, 16)), _FLOAT)


def _bf16_rounded(builder: Any, x: Any) -> Any:
    """The bits of the nearest bf16 in the upper half; ties to even; NaN stays NaN."""
    # The lower half is the fraction to be rounded. Adding 0x7FFF, and 1 more if the upper half is odd, carries into the
    # upper half exactly where that is rounded up: above the midpoint, and at the midpoint if the upper half is odd.
    bits = builder.bitcast(x, _I32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    rounded = builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF)))
    quiet = builder.or_(bits, ir.Constant(_I32, 0x400000))  # rounding up could turn a NaN into infinity
    return builder.select(builder.fcmp_unordered("uno", x, x), quiet, rounded)


def bf16_bits_of(builder: Any, arguments: list[Any]) -> Any:
    """The bits of the bf16 nearest to an f32, as instructions."""
    upper = builder.lshr(_bf16_rounded(builder, arguments[0]), ir.Constant(_I32, 16))
    return builder.trunc(upper, _I16)


def _bf16_round(builder: Any, arguments: list[Any]) -> Any:
    upper = builder.and_(_bf16_rounded(builder, arguments[0]), ir.Constant(_I32, -0x10000))
    return builder.bitcast(upper, _FLOAT)


def to_odd_bits(builder: Any, arguments: list[Any]) -> Any:
    """An f64 as an f32 rounded to odd: an inexact result has its last bit set.

    A second rounding, to fewer bits, then gives what one rounding would have given.
    """
    (x,) = arguments
    near = builder.fptrunc(x, _FLOAT)
    back = builder.fpext(near, x.type)
    bits = builder.bitcast(near, _I32)
    # Where the nearest f32 has the larger magnitude, its neighbour is x rounded toward zero: the bits are one less.
    beyond = builder.fcmp_ordered(">", llvm(builder, "fabs", back), llvm(builder, "fabs", x))
    toward_zero = builder.select(beyond, builder.sub(bits, ir.Constant(_I32, 1)), bits)
    odd = builder.bitcast(builder.or_(toward_zero, ir.Constant(_I32, 1)), _FLOAT)
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.select(inexact, odd, near)


def _value_type(x: Any) -> Any:
    return types.float32 if x == types.uint16 else None


def _odd_type(x: Any) -> Any:
    return types.float32 if x == types.float64 else None


def _bits_type(x: Any) -> Any:
    return types.uint16 if x == types.float32 else None


def _round_type(x: Any) -> Any:
    return x if x == types.float32 else None


f16_value = unary(define("f16_value", f16_value_of), _value_type)
"""The f32 value of f16 bits."""
f16_bits = unary(define("f16_bits", f16_bits_of), _bits_type)
"""The bits of the f16 nearest to an f32."""
f16_round = unary(define("f16_round", _f16_round), _round_type)
"""The f32 rounded to what an f16 can hold."""
bf16_value = unary(define("bf16_value", bf16_value_of), _value_type)
"""The f32 value of bf16 bits."""
bf16_bits = unary(define("bf16_bits", bf16_bits_of), _bits_type)
"""The bits of the bf16 nearest to an f32."""
bf16_round = unary(define("bf16_round", _bf16_round), _round_type)
"""The f32 rounded to what a bf16 can hold."""
to_odd = unary(define("to_odd", to_odd_bits), _odd_type)
"""An f64 as an f32 on its way to 16 bits: inexact values get an odd last bit, so that the next rounding is right."""


# The rounding, by the suffix of a name.
DIRECTIONS = {"": NEAREST_EVEN, "_upward": POSITIVE_INF, "_downward": NEGATIVE_INF, "_to_zero": ZERO}


def _only(kind: Any, result: Any) -> Any:
    """The result's type, for an argument of one type alone."""

    def of(x: Any) -> Any:
        return result if x == kind else None

    return of


def _held(dtype: DTypeLike) -> Any:
    """The machine type of a dtype that is only stored: tf32 has 32 bits, the others 8."""
    return types.uint32 if dtype.bits == 32 else types.uint8


def _decoder(dtype: DTypeLike) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        return encoding.decode(builder, dtype, arguments[0])

    return unary(define(f"{dtype.name}_value", emit), _only(_held(dtype), types.float32))


def _encoder(dtype: DTypeLike, suffix: str) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        return encoding.encode(builder, dtype, arguments[0], DIRECTIONS[suffix])

    return unary(define(f"{dtype.name}_bits{suffix}", emit), _only(types.float32, _held(dtype)))


def _rounder(dtype: DTypeLike, suffix: str) -> Any:
    """An f32 rounded to a 16-bit float, as an f32: to its bits, and back."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        bits = encoding.encode(builder, dtype, arguments[0], DIRECTIONS[suffix])
        if dtype is f16:
            return f16_value_of(builder, [bits])
        return bf16_value_of(builder, [bits])

    return unary(define(f"{dtype.name}_round{suffix}", emit), _only(types.float32, types.float32))


def _whole(signed: bool) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        return encoding.whole_to_odd(builder, arguments[0], signed)

    kind = types.int64 if signed else types.uint64
    return unary(define("whole_to_odd" if signed else "whole_to_odd_unsigned", emit), _only(kind, types.float64))


whole_to_odd, whole_to_odd_unsigned = _whole(signed=True), _whole(signed=False)
"""An integer of 64 bits as an f64 rounded to odd, on its way to fewer bits, as with `to_odd`."""


def _stepped(builder: Any, near: Any, above: Any, below: Any, suffix: str) -> Any:
    """A number rounded in one direction: the nearest float, or its neighbour there.

    Floats in order of magnitude have bits that are integers in order of magnitude. So the bits of a neighbour are one
    more or one less. The neighbours of 0 are the smallest numbers of both signs.

    Args:
        builder: the builder.
        near: the float nearest to the exact number.
        above: whether the exact number is larger than it.
        below: whether the exact number is smaller than it.
        suffix: the direction, a key of `DIRECTIONS`.
    """
    bits_type = ir.IntType(32 if near.type == _FLOAT else 64)
    one, zero = ir.Constant(bits_type, 1), ir.Constant(bits_type, 0)
    bits = builder.bitcast(near, bits_type)
    negative = builder.icmp_signed("<", bits, zero)
    is_zero = builder.fcmp_ordered("==", near, ir.Constant(near.type, 0.0))
    sign = ir.Constant(bits_type, -(1 << (bits_type.width - 1)))
    up = builder.select(is_zero, one, builder.select(negative, builder.sub(bits, one), builder.add(bits, one)))
    down = builder.select(
        is_zero, builder.or_(sign, one), builder.select(negative, builder.add(bits, one), builder.sub(bits, one))
    )
    if suffix == "_upward":
        rounded = builder.select(above, up, bits)
    elif suffix == "_downward":
        rounded = builder.select(below, down, bits)
    else:
        rounded = builder.select(builder.and_(above, negative), up, bits)
        rounded = builder.select(builder.and_(below, builder.not_(negative)), down, rounded)
    return builder.bitcast(rounded, near.type)


def _single(suffix: str) -> Any:
    """An f64 as an f32, rounded in one direction."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        (x,) = arguments
        near = builder.fptrunc(x, _FLOAT)
        back = builder.fpext(near, _DOUBLE)
        above, below = builder.fcmp_ordered(">", x, back), builder.fcmp_ordered("<", x, back)
        return _stepped(builder, near, above, below, suffix)

    return unary(define(f"f32{suffix}", emit), _only(types.float64, types.float32))


def _double(suffix: str, signed: bool) -> Any:
    """An integer of 64 bits as an f64, rounded in one direction.

    Its halves are exact as f64, and so is the error of their sum (Fast2Sum: the upper half is 0 or the larger one).
    """

    def emit(builder: Any, arguments: list[Any]) -> Any:
        (x,) = arguments
        width = ir.Constant(_I64, 32)  # bits of the lower half
        upper = builder.ashr(x, width) if signed else builder.lshr(x, width)
        high = builder.fmul(
            (builder.sitofp if signed else builder.uitofp)(upper, _DOUBLE), ir.Constant(_DOUBLE, 2.0**32)
        )
        low = builder.uitofp(builder.and_(x, ir.Constant(_I64, (1 << 32) - 1)), _DOUBLE)
        near = builder.fadd(high, low)
        error = builder.fsub(low, builder.fsub(near, high))
        zero = ir.Constant(_DOUBLE, 0.0)
        above, below = builder.fcmp_ordered(">", error, zero), builder.fcmp_ordered("<", error, zero)
        return _stepped(builder, near, above, below, suffix)

    name = f"f64{suffix}" if signed else f"f64{suffix}_unsigned"
    return unary(define(name, emit), _only(types.int64 if signed else types.uint64, types.float64))


_EXACT_IN_FLOAT, _EXACT_IN_DOUBLE = 24, 53
"""Bits of the widest integers that f32 and f64 represent exactly."""


def _saturated(bits: int, signed: bool) -> Any:
    """A float as an integer, without its fraction.

    A number beyond the range gives the nearest integer in it, NaN gives 0.
    """
    kind, lowest = ir.IntType(bits), -(2 ** (bits - 1)) if signed else 0
    beyond = 2 ** (bits - signed)  # the first integer above the range
    machine = ir.IntType(max(bits, 32))  # machines convert vectors of floats to vectors of words, and no shorter ones

    def emit(builder: Any, arguments: list[Any]) -> Any:
        # Written out, since LLVM does not vectorise loops with its own `llvm.fptosi.sat`.
        (x,) = arguments
        exact = bits <= (_EXACT_IN_FLOAT if x.type == _FLOAT else _EXACT_IN_DOUBLE)
        if exact:  # the float type has the largest integer: three instructions clamp the number and drop NaN
            low, high = (ir.Constant(x.type, float(each)) for each in (lowest, beyond - 1))
            part = builder.select(builder.fcmp_ordered(">", x, high), high, x)
            part = builder.select(builder.fcmp_ordered("<", part, low), low, part)
            part = builder.select(builder.fcmp_ordered("ord", x, x), part, ir.Constant(x.type, 0.0))
            # A short unsigned integer fits 32 bits with a sign, and vectors of these are converted in one instruction.
            whole = builder.fptosi(part, machine) if signed or bits < 32 else builder.fptoui(part, machine)
            return whole if bits >= 32 else builder.trunc(whole, kind)
        low, high = (ir.Constant(x.type, float(each)) for each in (lowest, beyond))
        below = builder.fcmp_ordered("<", x, low)
        above = builder.fcmp_ordered(">=", x, high)
        within = builder.and_(builder.fcmp_ordered(">=", x, low), builder.fcmp_ordered("<", x, high))
        part = builder.select(within, x, ir.Constant(x.type, 0.0))
        whole = builder.fptosi(part, machine) if signed else builder.fptoui(part, machine)
        whole = builder.select(above, ir.Constant(kind, beyond - 1), whole)
        return builder.select(below, ir.Constant(kind, lowest), whole)

    result = getattr(types, f"{'' if signed else 'u'}int{bits}")

    def of(x: Any) -> Any:
        return result if isinstance(x, types.Float) else None

    return unary(emit, of)


def _truncated_to(bits: int, signed: bool) -> Any:
    """A float in the range of an integer type as an integer, without its fraction."""
    kind = ir.IntType(bits)
    machine = ir.IntType(max(bits, 32))

    def emit(builder: Any, arguments: list[Any]) -> Any:
        (x,) = arguments
        whole = builder.fptosi(x, machine) if signed or bits < 32 else builder.fptoui(x, machine)
        return whole if bits >= 32 else builder.trunc(whole, kind)

    result = getattr(types, f"{'' if signed else 'u'}int{bits}")

    def of(x: Any) -> Any:
        return result if isinstance(x, types.Float) else None

    return unary(emit, of)


def _nearest(builder: Any, arguments: list[Any]) -> Any:
    return llvm(builder, "rint", arguments[0])


def _truncated(builder: Any, arguments: list[Any]) -> Any:
    return llvm(builder, "trunc", arguments[0])


nearest = unary(_nearest)
"""The nearest whole number; of two equally near ones the even one."""
truncated = unary(_truncated)
"""The number without its fraction."""


def _caster(result: Any, machine: Any) -> Any:
    """The same bits as another type."""

    def emit(builder: Any, arguments: list[Any]) -> Any:
        return builder.bitcast(arguments[0], machine)

    def of(x: Any) -> Any:
        return result if x.bitwidth == result.bitwidth else None

    return unary(emit, of)


CONVERSIONS: dict[str, Any] = {
    **{f"{each.name}_value": _decoder(each) for each in STORAGE_DTYPES if each.format is not None},
    **{
        f"{each.name}_bits{suffix}": _encoder(each, suffix)
        for each in STORAGE_DTYPES
        if each.format is not None
        for suffix in DIRECTIONS
    },
    **{f"{each.name}_round{suffix}": _rounder(each, suffix) for each in (f16, bf16) for suffix in DIRECTIONS if suffix},
    **{f"f32{suffix}": _single(suffix) for suffix in DIRECTIONS if suffix},
    **{
        f"f64{suffix}{'' if signed else '_unsigned'}": _double(suffix, signed)
        for suffix in DIRECTIONS
        if suffix
        for signed in (True, False)
    },
    **{
        f"saturated_{'i' if signed else 'u'}{bits}": _saturated(bits, signed)
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    },
    **{
        f"truncated_{'i' if signed else 'u'}{bits}": _truncated_to(bits, signed)
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    },
    **{f"as_u{bits}": _caster(getattr(types, f"uint{bits}"), ir.IntType(bits)) for bits in (8, 16, 32, 64)},
    **{f"as_i{bits}": _caster(getattr(types, f"int{bits}"), ir.IntType(bits)) for bits in (8, 16, 32, 64)},
    "as_f32": _caster(types.float32, _FLOAT),
    "as_f64": _caster(types.float64, _DOUBLE),
    "nearest": nearest,
    "truncated": truncated,
    "whole_to_odd": whole_to_odd,
    "whole_to_odd_unsigned": whole_to_odd_unsigned,
}
"""The conversions, by their names in generated code."""
