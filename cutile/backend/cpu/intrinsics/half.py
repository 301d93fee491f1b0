"""16-bit floats.

In registers they are f32 values that a 16-bit float can hold; in memory they are 16 bits.

f16 goes through LLVM's `half` (one instruction on machines with F16C or Arm's fp16 conversions), bf16 through shifts.
"""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import define, ir, llvm, types, unary

_HALF, _FLOAT, _I16, _I32 = ir.HalfType(), ir.FloatType(), ir.IntType(16), ir.IntType(32)


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
    bits = builder.bitcast(x, _I32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    moved = builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF)))
    quiet = builder.or_(bits, ir.Constant(_I32, 0x400000))  # rounding up could turn a NaN into infinity
    return builder.select(builder.fcmp_unordered("uno", x, x), quiet, moved)


def bf16_bits_of(builder: Any, arguments: list[Any]) -> Any:
    """The bits of the bf16 nearest to an f32, as instructions."""
    upper = builder.lshr(_bf16_rounded(builder, arguments[0]), ir.Constant(_I32, 16))
    return builder.trunc(upper, _I16)


def _bf16_round(builder: Any, arguments: list[Any]) -> Any:
    upper = builder.and_(_bf16_rounded(builder, arguments[0]), ir.Constant(_I32, -0x10000))
    return builder.bitcast(upper, _FLOAT)


def to_odd_bits(builder: Any, arguments: list[Any]) -> Any:
    """f64 to f32, inexact results with their last bit set.

    Rounding those again, to fewer bits, is then right.
    """
    (x,) = arguments
    near = builder.fptrunc(x, _FLOAT)
    back = builder.fpext(near, x.type)
    bits = builder.bitcast(near, _I32)
    # Where the nearest f32 lies beyond x, the one before it is the rounding toward zero: its bits are one less.
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
