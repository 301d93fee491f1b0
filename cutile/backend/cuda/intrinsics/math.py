"""Functions of floats, from libdevice or, where f32 may flush, the hardware's.

They are as accurate as the operations state.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from cutile.backend.cuda.intrinsics.arith import fused
from cutile.backend.cuda.intrinsics.fragment import elementwise, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import F32, I32, asm, call, const, float_type, i32c, narrow, widen
from cutile.dtypes import DTypeLike, f32, f64

LIBDEVICE: dict[str, tuple[str, str]] = {
    "exp": ("__nv_expf", "__nv_exp"),
    "exp2": ("__nv_exp2f", "__nv_exp2"),
    "log": ("__nv_logf", "__nv_log"),
    "log2": ("__nv_log2f", "__nv_log2"),
    "log10": ("__nv_log10f", "__nv_log10"),
    "sqrt": ("__nv_fsqrt_rn", "__nv_dsqrt_rn"),
    "cbrt": ("__nv_cbrtf", "__nv_cbrt"),
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

    A name that ends in `_ftz` flushes f32.
    """

    def one(b: Any, *elements: Any) -> Any:
        if name in HARDWARE:
            # The hardware's approximation, with its own flushing (PTX ISA, "ex2", "rsqrt").
            return asm(b, F32, elements, f"{HARDWARE[name]} $0, $1;", "=f,f")
        library = LIBDEVICE[name][dtype is f64]
        return narrow(b, dtype, call(b, library, float_type(dtype), [widen(b, dtype, each) for each in elements]))

    return elementwise(name, (dtype,) * (1 + (name in TWO)), dtype, n, one)


# -- exponentials of differences with the largest ---------------------------------------------------

LOG2_E = (np.float32(np.log2(np.e)), np.float32(np.log2(np.e) - np.float64(np.float32(np.log2(np.e)))))
"""log2(e) as the sum of two f32."""
WHOLE = 1.5 * 2**23
"""A number that leaves an f32 that is added to it no fraction, and its low bits are the whole number."""
MANTISSA_BITS = 23
MOST_QUICK = 87.0
"""Up to here e ** -x is a normal number."""
AT_ONCE = 16
"""Elements that are tried together: one branch for all of them."""


@cache
def negative_exp(n: int) -> Any:
    """`f(x) = e ** -x` of f32, quick between 0 and `MOST_QUICK`.

    All elements that a thread tries together have to lie there. `rows.py` says of what they are.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        groups = (elements[first : first + AT_ONCE] for first in range(0, n, AT_ONCE))
        return pack(b, [each for group in groups for each in _negative_exps(b, group)], n)

    return intrinsic("negative_exp", frag(f32, n), [frag(f32, n)], generate)


def _negative_exps(b: Any, elements: Sequence[Any]) -> list[Any]:
    """The quick way, or the exact one for all.

    As bits, what is below 0 and NaN are larger than any number up to the limit: one comparison finds all three.
    """
    most = _greatest(b, [b.bitcast(x, I32) for x in elements])
    limit = int(np.float32(MOST_QUICK).view(np.uint32))
    # Before the first of them is computed: else all would need two registers.
    with b.if_else(b.icmp_unsigned(">", most, i32c(limit)), likely=False) as (rare, usual):
        with rare:
            exact = [call(b, "__nv_expf", F32, [_negated(b, x)]) for x in elements]
            behind_rare = b.block
        with usual:
            quick = [_quick_exp(b, x) for x in elements]
            behind_usual = b.block
    results: list[Any] = []
    for one, other in zip(exact, quick, strict=True):
        result = b.phi(F32)
        result.add_incoming(one, behind_rare)
        result.add_incoming(other, behind_usual)
        results.append(result)
    return results


def _greatest(b: Any, words: Sequence[Any]) -> Any:
    """In two chains, of which each instruction of Hopper takes two words more."""

    def greater(x: Any, y: Any) -> Any:
        return b.select(b.icmp_unsigned(">", x, y), x, y)  # no signs, which linkers might drop (`compare.py`)

    return functools.reduce(greater, [functools.reduce(greater, each) for each in (words[::2], words[1::2]) if each])


def _quick_exp(b: Any, x: Any) -> Any:
    """`2 ** (n + w)` of a whole `n` and a fraction `w`, by six instructions.

    It is within 1.94 units where it is a normal number (all floats tried on an H200). `__nv_expf` takes eight, as it
    knows no limits. Five do without a whole number, and are off by 2.54 units: the hardware's powers of negative
    numbers are worse.
    """
    high, low = (const(F32, -float(part)) for part in LOG2_E)
    # Down, so that the fraction is positive.
    shifted = call(b, "llvm.nvvm.fma.rm.f", F32, [x, high, const(F32, WHOLE)])
    whole = b.fsub(shifted, const(F32, WHOLE))
    fraction = fused(b, f32, x, low, fused(b, f32, x, high, _negated(b, whole)))
    power = asm(b, F32, [fraction], f"{HARDWARE['exp2_ftz']} $0, $1;", "=f,f")
    return _scaled(b, power, b.bitcast(shifted, I32))


def _scaled(b: Any, power: Any, exponent: Any) -> Any:
    """`power * 2 ** exponent`, by addition to the bits that have the exponent."""
    return b.bitcast(b.add(b.bitcast(power, I32), b.shl(exponent, i32c(MANTISSA_BITS))), F32)


def _negated(b: Any, x: Any) -> Any:
    return b.fsub(const(F32, -0.0), x)
