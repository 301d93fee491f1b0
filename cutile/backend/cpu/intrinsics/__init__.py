# pyright: reportUnusedImport=false
# (generated code imports these)
"""What generated CPU code calls, as LLVM IR behind Numba intrinsics.

`build.py` and this folder alone use Numba here.

No file in this folder knows tiles: everything works on single elements, indices and pointers. Generated code may import
what is imported here, and the functions and conversions of the two tables. `emit/_text.py` reads these lines.
"""

from math import inf, nan

from numba import bool_
from numba import float32 as f32
from numba import float64 as f64
from numba import int8 as i8
from numba import int16 as i16
from numba import int32 as i32
from numba import int64 as i64
from numba import uint8 as u8
from numba import uint16 as u16
from numba import uint32 as u32
from numba import uint64 as u64

from cutile.backend.cpu.intrinsics.arith import (
    absolute,
    choose,
    div_ceil,
    div_ceil_unsigned,
    div_trunc,
    floor_div,
    floor_div_float,
    floor_div_unsigned,
    fma,
    fma_odd,
    larger,
    maximum,
    maximum_or_nan,
    maximum_unsigned,
    minimum,
    minimum_or_nan,
    minimum_unsigned,
    mod,
    mod_float,
    mod_unsigned,
    mul_hi,
    mul_hi_unsigned,
    product_step,
    remainder,
    shift_left,
    shift_right,
    shift_right_unsigned,
    smaller,
    sum_step,
    trip_count,
    trip_count_unsigned,
)
from cutile.backend.cpu.intrinsics.atomic import (
    atomic_add,
    atomic_addf,
    atomic_addf_bf16,
    atomic_addf_f16,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_umax,
    atomic_umin,
    atomic_xchg,
    atomic_xor,
)
from cutile.backend.cpu.intrinsics.calls import (
    gemm,
    notify,
)
from cutile.backend.cpu.intrinsics.cast import CONVERSIONS
from cutile.backend.cpu.intrinsics.half import (
    bf16_bits,
    bf16_round,
    bf16_value,
    f16_bits,
    f16_round,
    f16_value,
    to_odd,
)
from cutile.backend.cpu.intrinsics.math import FUNCTIONS
from cutile.backend.cpu.intrinsics.pointer import (
    address_of,
    copy_transposed,
    elements_at,
    load_at,
    load_at_acquire,
    store_at,
    store_at_release,
)
from cutile.backend.cpu.intrinsics.rounding import (
    add_downward,
    add_to_zero,
    add_upward,
    div_downward,
    div_to_zero,
    div_upward,
    flush,
    fma_downward,
    fma_to_zero,
    fma_upward,
    mul_downward,
    mul_to_zero,
    mul_upward,
    sqrt_downward,
    sqrt_to_zero,
    sqrt_upward,
    sub_downward,
    sub_to_zero,
    sub_upward,
)
from cutile.backend.cpu.intrinsics.sort import (
    largest_places,
    sort_places,
)


def __getattr__(name: str) -> object:
    """The functions of floats; the conversions, one for each type and rounding."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in CONVERSIONS:
        return CONVERSIONS[name]
    raise AttributeError(name)
