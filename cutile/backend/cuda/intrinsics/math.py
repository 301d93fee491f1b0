"""Functions of floats, from libdevice or, where f32 may flush, the hardware's.

They are as accurate as the operations state.
"""

import functools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from cutile.backend.cuda.intrinsics.arith import fused, packed
from cutile.backend.cuda.intrinsics.fragment import elementwise, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    I32,
    asm,
    call,
    const,
    float_type,
    halves_of_pair,
    i32c,
    merge,
    narrow,
    pair_of_halves,
    widen,
)
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bf16, f32, f64

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
    return merge(b, (exact, behind_rare), (quick, behind_usual))


def _greatest(b: Any, words: Sequence[Any]) -> Any:
    """In two chains, of which each instruction of Hopper takes two words more."""

    def greater(x: Any, y: Any) -> Any:
        return b.select(b.icmp_unsigned(">", x, y), x, y)  # no signs, which linkers might drop (`compare.py`)

    return functools.reduce(greater, [functools.reduce(greater, each) for each in (words[::2], words[1::2]) if each])


def _quick_exp(b: Any, x: Any) -> Any:
    """`e ** -x` as `2 ** (n + w)` of a whole `n` and a fraction `w`.

    By six instructions.
    It is within 1.94 units where it is a normal number (all floats tried on an H200). `__nv_expf` takes eight, as it
    knows no limits. Five do without a whole number, and are off by 2.54 units: the hardware's powers of negative
    numbers are worse.
    """
    return _power(b, x, -1, const(F32, WHOLE))


def _power(b: Any, x: Any, sign: int, start: Any) -> Any:
    """`2 ** (log2(e) * sign * x + start - WHOLE)`.

    `start` is a whole number between `2**23` and `2**24`.
    """
    high, low = (const(F32, sign * float(part)) for part in LOG2_E)
    # Down, so that the fraction is positive.
    shifted = call(b, "llvm.nvvm.fma.rm.f", F32, [x, high, start])
    whole = b.fsub(shifted, start)
    fraction = fused(b, f32, x, low, fused(b, f32, x, high, _negated(b, whole)))
    return _scaled(b, _hardware_power(b, fraction), b.bitcast(shifted, I32))


def _hardware_power(b: Any, x: Any) -> Any:
    # An approximation (PTX ISA, "ex2").
    return asm(b, F32, [x], f"{HARDWARE['exp2_ftz']} $0, $1;", "=f,f")


# -- exponentials of a row ------------------------------------------------------------------------

LEAST_TOP, LARGEST_BARE, LARGEST_TOP = -64.0, 64.0, 128.0
"""Largest elements of a row from and up to which its exponentials take few instructions. From 0 to the middle one they
are `e ** x`, else over a power of 2."""
LOWEST_QUICK = 86.5
"""What an element may lack of the largest: e ** -x, over at most the square root of 2, is a normal number."""
SHORT_LOG2_E = np.float32(47274 / 32768)
"""log2(e) to 16 bits: its product with a bf16, which has 8, is exact in f32."""
REST = np.float32(1 - float(SHORT_LOG2_E) / np.log2(np.e))
"""What `e ** x` is above `2 ** (SHORT_LOG2_E * x)`, to first order, over `x`."""


@cache
def row_exp(dtype: DTypeLike, n: int) -> Any:
    """`f(x, m) = e ** x / 2 ** M(m)`, of f16 or bf16 `x` and an f32 `m`.

    `x` is not above `m`. `row_exp_unit` says what `M` is. Without a difference, and with two elements at once tried for
    their range.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        rows = list(zip(*(unpack(b, value, n) for value in values), strict=True))
        groups = (rows[first : first + AT_ONCE] for first in range(0, n, AT_ONCE))
        return pack(b, [each for group in groups for each in _row_exps(b, dtype, group)], n)

    return intrinsic("row_exp", frag(f32, n), [frag(dtype, n), frag(f32, n)], generate)


@cache
def row_exp_unit(n: int) -> Any:
    """`f(m) = 2 ** M / e ** m`.

    `M` is 0 from 0 to `LARGEST_BARE`, else the whole number nearest to `log2(e) * m` from `LEAST_TOP` to `LARGEST_TOP`,
    and elsewhere `log2(e) * m` itself.
    """

    def one(b: Any, m: Any) -> Any:
        power = _power(b, m, -1, b.fadd(const(F32, WHOLE), _whole(b, m)))
        return b.select(_is_quick_top(b, m), power, const(F32, 1.0))

    return elementwise("row_exp_unit", (f32,), f32, n, one)


@cache
def row_exp_sum(dtype: DTypeLike, layout: Layout, *, axis: int) -> Any:
    """`f(x, m)`: the sum of `row_exp(x, m)` along `axis`.

    Each thread has all elements along it.
    """
    target = layout.collapse(axis)
    where = {each: register for register, each in enumerate(target.offsets)}
    slots = [where[(*each[:axis], 0, *each[axis + 1 :])] for each in layout.offsets]

    def generate(b: Any, values: list[Any]) -> Any:
        x, m = (unpack(b, value, layout.registers) for value in values)
        return pack(b, _row_exp_sums(b, dtype, list(zip(x, m, strict=True)), slots), target.registers)

    arguments = [frag(dtype, layout.registers), frag(f32, layout.registers)]
    return intrinsic("row_exp_sum", frag(f32, target.registers), arguments, generate)


def _row_exps(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The quick way, or the exact one for all."""
    with b.if_else(_are_quick(b, dtype, rows), likely=True) as (usual, rare):
        with usual:
            # The compiler makes these of a register's halves where they are used, for nothing else uses them.
            powers = [b.fmul(*_row_power(b, dtype, *each)) for each in rows]
            behind_usual = b.block
        with rare:
            exact = _exact_row_exps(b, dtype, rows)
            behind_rare = b.block
    return merge(b, (powers, behind_usual), (exact, behind_rare))


def _row_exp_sums(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]], slots: Sequence[int]) -> list[Any]:
    """Of the rows of each slot the sum of their exponentials.

    The products that these end with are added by the same instruction.
    """
    sums: list[Any] = [const(F32, 0.0)] * (1 + max(slots))
    for first in range(0, len(rows), AT_ONCE):
        group, places = rows[first : first + AT_ONCE], slots[first : first + AT_ONCE]
        touched = sorted(set(places))
        with b.if_else(_are_quick(b, dtype, group), likely=True) as (usual, rare):
            with usual:
                quick = {place: sums[place] for place in touched}
                for place, each in zip(places, group, strict=True):
                    quick[place] = fused(b, f32, *_row_power(b, dtype, *each), quick[place])
                behind_usual = b.block
            with rare:
                exact = {place: sums[place] for place in touched}
                for place, power in zip(places, _exact_row_exps(b, dtype, group), strict=True):
                    exact[place] = b.fadd(exact[place], power)
                behind_rare = b.block
        both = merge(b, (list(quick.values()), behind_usual), (list(exact.values()), behind_rare))
        for place, total in zip(touched, both, strict=True):
            sums[place] = total
    return sums


def _are_quick(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> Any:
    """Whether all are within the limits.

    Asked before the first of them is computed: else all would need two registers. Elements of one row have one `m`, and
    the compiler finds that what is made of it is the same.
    """
    halves, tops = (list(column) for column in zip(*rows, strict=True))
    quick = functools.reduce(b.and_, [_is_quick_top(b, m) for m in tops])
    top = functools.reduce(lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y), tops)
    lowest = b.fsub(top, const(F32, LOWEST_QUICK))
    for least in _least(b, dtype, halves):  # false for NaN, which is the least of those that it is among
        quick = b.and_(quick, b.fcmp_ordered(">=", least, lowest))
    return quick


def _row_power(b: Any, dtype: DTypeLike, x: Any, m: Any) -> tuple[Any, Any]:
    """`e ** x / 2 ** M` of what is within the limits, as two factors: normal numbers.

    Of bf16 as `2 ** (c * x - M)` and `1 + REST * x`, by three instructions.
    """
    wide, whole, one = widen(b, dtype, x), _whole(b, m), const(F32, 1.0)
    if dtype is not bf16:
        return _power(b, wide, 1, b.fsub(const(F32, WHOLE), whole)), one
    power = _hardware_power(b, fused(b, f32, wide, const(F32, float(SHORT_LOG2_E)), _negated(b, whole)))
    return power, fused(b, f32, wide, const(F32, float(REST)), one)


def _exact_row_exps(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The same of any numbers."""
    exact: list[Any] = []
    for x, m in rows:
        is_quick, is_bare = _is_quick_top(b, m), _is_bare(b, m)
        origin = b.select(is_bare, const(F32, 0.0), m)
        power = call(b, "__nv_expf", F32, [b.fsub(widen(b, dtype, x), origin)])
        over = b.select(b.and_(is_quick, b.not_(is_bare)), _hardware_power(b, _rest(b, m)), const(F32, 1.0))
        exact.append(b.fmul(power, over))
    return exact


def _least(b: Any, dtype: DTypeLike, halves: Sequence[Any]) -> list[Any]:
    """The least of each second one of some f16 or bf16, as f32; NaN if one of them is."""
    words = [pair_of_halves(b, *both) for both in zip(halves[::2], halves[1::2], strict=False)]
    last = list(halves[len(words) * 2 :])
    if words:
        last += halves_of_pair(b, functools.reduce(lambda x, y: packed(b, "min_nan", dtype, x, y), words))
    return [widen(b, dtype, each) for each in last]


def _is_quick_top(b: Any, m: Any) -> Any:
    least, most = (const(F32, limit) for limit in (LEAST_TOP, LARGEST_TOP))
    return b.and_(b.fcmp_ordered(">=", m, least), b.fcmp_ordered("<=", m, most))


def _is_bare(b: Any, m: Any) -> Any:
    least, most = const(F32, 0.0), const(F32, LARGEST_BARE)
    return b.and_(b.fcmp_ordered(">=", m, least), b.fcmp_ordered("<=", m, most))


def _whole(b: Any, m: Any) -> Any:
    """The whole number nearest to `log2(e) * m`; 0 from 0 to `LARGEST_BARE`."""
    nearest = b.fsub(fused(b, f32, m, const(F32, float(LOG2_E[0])), const(F32, WHOLE)), const(F32, WHOLE))
    return b.select(_is_bare(b, m), const(F32, 0.0), nearest)


def _rest(b: Any, m: Any) -> Any:
    """What `log2(e) * m` is above that number."""
    high, low = (const(F32, float(part)) for part in LOG2_E)
    return fused(b, f32, m, low, fused(b, f32, m, high, _negated(b, _whole(b, m))))


def _scaled(b: Any, power: Any, exponent: Any) -> Any:
    """`power * 2 ** exponent`, by addition to the bits that have the exponent."""
    return b.bitcast(b.add(b.bitcast(power, I32), b.shl(exponent, i32c(MANTISSA_BITS))), F32)


def _negated(b: Any, x: Any) -> Any:
    return b.fsub(const(F32, -0.0), x)
