"""Functions of one float, from libdevice: within two units in the last place, never the approximate forms."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import call, float_type, narrow, widen
from cutile.dtypes import DTypeLike, f64

LIBDEVICE: dict[str, tuple[str, str]] = {
    "exp": ("__nv_expf", "__nv_exp"),
    "exp2": ("__nv_exp2f", "__nv_exp2"),
    "log": ("__nv_logf", "__nv_log"),
    "log2": ("__nv_log2f", "__nv_log2"),
    "sqrt": ("__nv_fsqrt_rn", "__nv_dsqrt_rn"),
    "rsqrt": ("__nv_rsqrtf", "__nv_rsqrt"),
    "sin": ("__nv_sinf", "__nv_sin"),
    "cos": ("__nv_cosf", "__nv_cos"),
    "tanh": ("__nv_tanhf", "__nv_tanh"),
    "floor": ("__nv_floorf", "__nv_floor"),
    "ceil": ("__nv_ceilf", "__nv_ceil"),
}


@cache
def unary(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x)` for the operation `name` of `cutile.ops.math`."""
    function = LIBDEVICE[name][dtype is f64]

    def one(b: Any, x: Any) -> Any:
        return narrow(b, dtype, call(b, function, float_type(dtype), [widen(b, dtype, x)]))

    return elementwise(name, (dtype,), dtype, n, one)
