"""What generated CPU code calls, as LLVM IR behind Numba intrinsics. With `build.py` the only users of Numba here.

No file in this folder knows tiles: everything works on single elements, indices and pointers.
"""

from math import inf, nan

from numba import bool_, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from cutile.backend.cpu.intrinsics.arith import (
    absolute,
    choose,
    floor_div,
    floor_div_unsigned,
    fma,
    larger,
    maximum,
    maximum_unsigned,
    minimum,
    minimum_unsigned,
    mod,
    mod_unsigned,
    shift_left,
    shift_right,
    shift_right_unsigned,
    smaller,
)
from cutile.backend.cpu.intrinsics.half import (
    bf16_bits,
    bf16_round,
    bf16_value,
    f16_bits,
    f16_round,
    f16_value,
    to_odd,
)
from cutile.backend.cpu.intrinsics.math import ceil, cos, exp, exp2, floor, log, log2, rsqrt, sin, sqrt, tanh
from cutile.backend.cpu.intrinsics.matmul import gemm
from cutile.backend.cpu.intrinsics.reduce import product_step, sum_step
from cutile.backend.cpu.intrinsics.view import elements_at

i8, i16, i32, i64 = int8, int16, int32, int64
u8, u16, u32, u64 = uint8, uint16, uint32, uint64
f32, f64 = float32, float64

__all__ = (
    "absolute",
    "bf16_bits",
    "bf16_round",
    "bf16_value",
    "bool_",
    "ceil",
    "choose",
    "cos",
    "elements_at",
    "exp",
    "exp2",
    "f16_bits",
    "f16_round",
    "f16_value",
    "f32",
    "f64",
    "floor",
    "floor_div",
    "floor_div_unsigned",
    "fma",
    "gemm",
    "i8",
    "i16",
    "i32",
    "i64",
    "inf",
    "larger",
    "log",
    "log2",
    "maximum",
    "maximum_unsigned",
    "minimum",
    "minimum_unsigned",
    "mod",
    "mod_unsigned",
    "nan",
    "product_step",
    "rsqrt",
    "shift_left",
    "shift_right",
    "shift_right_unsigned",
    "sin",
    "smaller",
    "sqrt",
    "sum_step",
    "tanh",
    "to_odd",
    "u8",
    "u16",
    "u32",
    "u64",
)
