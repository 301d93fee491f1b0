"""Functions of floats, from libdevice or, where f32 may flush, the hardware's.

They are as accurate as the operations state.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import F32, asm, call, float_type, narrow, widen
from cutile.dtypes import DTypeLike, f64

LIBDEVICE: dict[str, tuple[str, str]] = {
    "exp": ("__nv_expf", "__nv_exp"),
    "exp2": ("__nv_exp2f", "__nv_exp2"),
    "log": ("__nv_logf", "__nv_log"),
    "log2": ("__nv_log2f", "__nv_log2"),
    "log10": ("__nv_log10f", "__nv_log10"),
    "sqrt": ("__nv_fsqrt_rn", "__nv_dsqrt_rn"),
    "rsqrt": ("__nv_rsqrtf", "__nv_rsqrt"),
    "sin": ("__nv_sinf", "__nv_sin"),
    "cos": ("__nv_cosf", "__nv_cos"),
    "tanh": ("__nv_tanhf", "__nv_tanh"),
    "tan": ("__nv_tanf", "__nv_tan"),
    "sinh": ("__nv_sinhf", "__nv_sinh"),
    "cosh": ("__nv_coshf", "__nv_cosh"),
    "pow": ("__nv_powf", "__nv_pow"),
    "atan2": ("__nv_atan2f", "__nv_atan2"),
    "erf": ("__nv_erff", "__nv_erf"),
    "erfc": ("__nv_erfcf", "__nv_erfc"),
    "log1p": ("__nv_log1pf", "__nv_log1p"),
    "expm1": ("__nv_expm1f", "__nv_expm1"),
    "asin": ("__nv_asinf", "__nv_asin"),
    "acos": ("__nv_acosf", "__nv_acos"),
    "atan": ("__nv_atanf", "__nv_atan"),
    "asinh": ("__nv_asinhf", "__nv_asinh"),
    "acosh": ("__nv_acoshf", "__nv_acosh"),
    "atanh": ("__nv_atanhf", "__nv_atanh"),
    "floor": ("__nv_floorf", "__nv_floor"),
    "ceil": ("__nv_ceilf", "__nv_ceil"),
    "round": ("__nv_rintf", "__nv_rint"),
}


HARDWARE = {"exp2_ftz": "ex2.approx.ftz.f32", "rsqrt_ftz": "rsqrt.approx.ftz.f32"}
TWO = ("pow", "atan2")


@cache
def function(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x)` or `f(x, y)` for the operation `name` of `cutile.ops.math`.

    With `_ftz` behind the name, flushing f32.
    """

    def one(b: Any, *elements: Any) -> Any:
        if name in HARDWARE:
            # The hardware's approximation, with its own flushing (PTX ISA, "ex2", "rsqrt").
            return asm(b, F32, elements, f"{HARDWARE[name]} $0, $1;", "=f,f")
        library = LIBDEVICE[name][dtype is f64]
        return narrow(b, dtype, call(b, library, float_type(dtype), [widen(b, dtype, each) for each in elements]))

    return elementwise(name, (dtype,) * (1 + (name in TWO)), dtype, n, one)
