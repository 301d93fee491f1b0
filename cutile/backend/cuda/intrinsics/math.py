"""Functions of floats: libdevice's, or the hardware's where f32 may flush to zero.

They are as accurate as the classes of the operations state (`cutile/ops/math.py`). Exponentials of rows have a fast
path of their own, and fall back to libdevice.
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
    pairs_of_halves,
    widen,
)
from cutile.backend.cuda.intrinsics.reduce import result_registers
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
    "erf": ("__nv_erff", "__nv_erf"),
    "erfc": ("__nv_erfcf", "__nv_erfc"),
    "erfinv": ("__nv_erfinvf", "__nv_erfinv"),
    "lgamma": ("__nv_lgammaf", "__nv_lgamma"),
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
    "trunc": ("__nv_truncf", "__nv_trunc"),
}
"""libdevice's functions of f32 and of f64, of one operand."""
LIBDEVICE_OF_TWO: dict[str, tuple[str, str]] = {
    "pow": ("__nv_powf", "__nv_pow"),
    "atan2": ("__nv_atan2f", "__nv_atan2"),
    "hypot": ("__nv_hypotf", "__nv_hypot"),
}
"""libdevice's functions of f32 and of f64, of two operands."""
HARDWARE = {"exp2_ftz": "ex2.approx.ftz.f32", "rsqrt_ftz": "rsqrt.approx.ftz.f32"}
"""The PTX instruction of each function that is one instruction."""


@cache
def function(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x)` or `f(x, y)` for the operation `name` of `cutile.ops.math`.

    The operands and the result have `n` elements of `dtype` in each thread. A function whose name ends in `_ftz`
    flushes subnormal numbers of f32 to zero.
    """

    def one(b: Any, *elements: Any) -> Any:
        if name in HARDWARE:
            # The hardware's approximation, with its own flushing (PTX ISA, "ex2", "rsqrt").
            return asm(b, F32, elements, f"{HARDWARE[name]} $0, $1;", "=f,f")
        library = (LIBDEVICE_OF_TWO if name in LIBDEVICE_OF_TWO else LIBDEVICE)[name][dtype is f64]
        return narrow(b, dtype, call(b, library, float_type(dtype), [widen(b, dtype, each) for each in elements]))

    return elementwise(name, (dtype,) * (1 + (name in LIBDEVICE_OF_TWO)), dtype, n, one)


# -- exponentials of differences from a row's largest element -----------------------------------------

LOG2_E = (np.float32(np.log2(np.e)), np.float32(np.log2(np.e) - np.float64(np.float32(np.log2(np.e)))))
"""log2(e) as the sum of two f32."""
ROUNDING_SHIFT = 1.5 * 2**23
"""An f32 whose sum with a small number has no fraction, since neighbours differ by 1 there.

The low bits of the sum are that number, rounded to an integer. The factor is 1.5, so that sums with small negative
numbers stay above 2**23. Its own low 9 bits are 0, so that `_add_exponent` may take the bits of the sum.
"""
MANTISSA_BITS = 23
"""Bits of an f32 below those of its exponent."""
MAX_FAST_EXPONENT = 87.0
"""The largest x of the fast path, whose e ** -x is a normal f32: 87.0 is below -ln(2**-126) = 87.33."""
BRANCH_ELEMENTS = 16
"""Elements of a thread under one branch, which takes the fast path if all of them are in its range.

Softmax of rows of 8192 reaches 0.96 of a copy with 16, and 0.92 with 8 (an H200, `docs/benchmarks/memory`). No
measurement of more than 16 is recorded.
"""


@cache
def negative_exp(n: int) -> Any:
    """`f(x) = e ** -x` of f32, fast between 0 and `MAX_FAST_EXPONENT`.

    It is fast only if all elements under a branch (`BRANCH_ELEMENTS`) lie there. `cutile/backend/cuda/rows.py` says
    where such elements come from.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        groups = (elements[first : first + BRANCH_ELEMENTS] for first in range(0, n, BRANCH_ELEMENTS))
        return pack(b, [each for group in groups for each in _negative_exps(b, group)], n)

    return intrinsic("negative_exp", frag(f32, n), [frag(f32, n)], generate)


def _negative_exps(b: Any, elements: Sequence[Any]) -> list[Any]:
    """Exponentials by the fast path, or all by libdevice.

    As unsigned bits, NaN and numbers below 0 are larger than any number from 0 to the limit. So one comparison finds
    them, and the numbers above the limit.
    """
    greatest = _greatest(b, [b.bitcast(x, I32) for x in elements])
    limit = int(np.float32(MAX_FAST_EXPONENT).view(np.uint32))
    # Tested before the first exponential is computed: else every element would need two registers, before and after.
    with b.if_else(b.icmp_unsigned(">", greatest, i32c(limit)), likely=False) as (slow_path, fast_path):
        with slow_path:
            slow = [call(b, "__nv_expf", F32, [_negative(b, x)]) for x in elements]
            behind_slow = b.block
        with fast_path:
            fast = [_fast_exp(b, x) for x in elements]
            behind_fast = b.block
    return merge(b, (slow, behind_slow), (fast, behind_fast))


def _greatest(b: Any, words: Sequence[Any]) -> Any:
    """The greatest of some words, in two chains.

    Hopper's instruction takes the greatest of three: a chain folds two words at a time. The two chains do not wait for
    each other. Their number was chosen, not measured.
    """

    def greater(x: Any, y: Any) -> Any:
        # Not `compare.greater`: the linker's fault that it avoids is in negated operands, and there are none here.
        return b.select(b.icmp_unsigned(">", x, y), x, y)

    return functools.reduce(greater, [functools.reduce(greater, each) for each in (words[::2], words[1::2]) if each])


def _fast_exp(b: Any, x: Any) -> Any:
    """`e ** -x` as `2 ** (n + w)`, of a whole `n` and a fraction `w`.

    It takes six instructions. Where it is a normal number, it is within 1.94 units in the last place (all floats tried
    on an H200). `__nv_expf` takes eight instructions, as it knows no limits. Five would do without splitting off `n`:
    `ex2` of the whole, negative exponent, and a correction for that exponent's rounding. They are off by up to 2.54
    units, since `ex2` is less accurate for negative numbers.
    """
    return _power(b, x, -1, const(F32, ROUNDING_SHIFT))


def _power(b: Any, x: Any, sign: int, shift: Any) -> Any:
    """`2 ** (log2(e) * sign * x + shift - ROUNDING_SHIFT)`.

    `shift` is a whole number between `2**23` and `2**24`, where f32 have no fraction.
    """
    high, low = (const(F32, sign * float(part)) for part in LOG2_E)
    # Rounded down: the fraction is not negative but for its last bits, and `ex2` is most accurate there. The whole
    # exponent is in the sum's low bits (`ROUNDING_SHIFT`).
    exponent = call(b, "llvm.nvvm.fma.rm.f", F32, [x, high, shift])
    whole = b.fsub(exponent, shift)
    fraction = fused(b, f32, x, low, fused(b, f32, x, high, _negative(b, whole)))
    return _add_exponent(b, _hardware_power(b, fraction), b.bitcast(exponent, I32))


def _hardware_power(b: Any, x: Any) -> Any:
    """`2 ** x` of f32, approximately."""
    # The hardware's approximation, which flushes results below 2**-126 (PTX ISA, "ex2"). Callers keep theirs above.
    return asm(b, F32, [x], f"{HARDWARE['exp2_ftz']} $0, $1;", "=f,f")


# -- exponentials of a row ------------------------------------------------------------------------

MIN_TOP, MAX_UNSCALED_TOP, MAX_TOP = -64.0, 64.0, 128.0
"""Limits of a row's top: its largest element, or a number above it.

From the first to the last limit, the row's exponentials take the fast path. From 0 to the middle one they are `e ** x`,
elsewhere `e ** x` over a power of 2. The limits were chosen, not measured, within these bounds:

- An unscaled exponential has to be a normal number, also `MAX_DIFFERENCE` below the top: a top has to be above
  86.5 - 87.33 = -0.83, hence 0.
- The sum of a row's unscaled exponentials has to be finite: e ** 64 leaves room for 2 ** 35 of them.
- The error of bf16 grows with the square of an element (`SHORT_LOG2_E_ERROR`). The outer limits keep elements between
  -64 - 86.5 = -150.5 and 128.
"""
MAX_DIFFERENCE = 86.5
"""The largest difference x from the top on the fast path.

It is below -ln(2**-126 * 2**0.5) = 86.99. So e ** -x is a normal number even over 2 ** 0.5, by which `2 ** M` may
exceed e ** top: `M` is rounded to the nearest whole number.
"""
SHORT_LOG2_E = np.float32(47274 / 32768)
"""log2(e) to 16 bits: its product with a bf16, which has 8 bits, is exact in f32."""
SHORT_LOG2_E_ERROR = np.float32(1 - float(SHORT_LOG2_E) / np.log2(np.e))
"""To first order, `e ** x` is `2 ** (SHORT_LOG2_E * x)` times `1 + SHORT_LOG2_E_ERROR * x`.

The dropped terms are `(SHORT_LOG2_E_ERROR * x) ** 2 / 2` of it: at most 1.5 * 2**-24 of an unscaled exponential, whose
x is between -86.5 and 64, and at most 4.6 * 2**-24 of any other, at -150.5.
"""


@cache
def row_exp(dtype: DTypeLike, n: int) -> Any:
    """`f(x, m) = e ** x / 2 ** M(m)`, of f16 or bf16 `x` and an f32 `m`.

    `x` is not above `m`, the row's top. `row_exp_unit` defines `M`. The fast path computes no difference `x - m`, and
    tests the range of two elements at once.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        rows = list(zip(*(unpack(b, value, n) for value in values), strict=True))
        groups = (rows[first : first + BRANCH_ELEMENTS] for first in range(0, n, BRANCH_ELEMENTS))
        return pack(b, [each for group in groups for each in _row_exps(b, dtype, group)], n)

    return intrinsic("row_exp", frag(f32, n), [frag(dtype, n), frag(f32, n)], generate)


@cache
def row_exp_unit(n: int) -> Any:
    """`f(m) = 2 ** M / e ** m`, the factor from `row_exp(x, m)` to `e ** (x - m)`.

    A row has one `m`, so the same factor scales the row's sum.

    - `M` is 0 if 0 <= m <= `MAX_UNSCALED_TOP`;
    - else `round(log2(e) * m)` if `MIN_TOP` <= m <= `MAX_TOP`;
    - else `log2(e) * m`, so that f(m) is 1.
    """

    def one(b: Any, m: Any) -> Any:
        power = _power(b, m, -1, b.fadd(const(F32, ROUNDING_SHIFT), _whole(b, m)))
        return b.select(_is_fast_top(b, m), power, const(F32, 1.0))

    return elementwise("row_exp_unit", (f32,), f32, n, one)


@cache
def row_exp_sum(dtype: DTypeLike, layout: Layout, *, axis: int) -> Any:
    """`f(x, m)`: the sum of `row_exp(x, m)` along `axis`.

    Each thread holds all elements along that axis.
    """
    target = layout.collapse(axis)
    slots = result_registers(layout, axis)

    def generate(b: Any, values: list[Any]) -> Any:
        x, m = (unpack(b, value, layout.registers) for value in values)
        return pack(b, _row_exp_sums(b, dtype, list(zip(x, m, strict=True)), slots), target.registers)

    arguments = [frag(dtype, layout.registers), frag(f32, layout.registers)]
    return intrinsic("row_exp_sum", frag(f32, target.registers), arguments, generate)


def _row_exps(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Exponentials by the fast path, or all by libdevice."""
    with b.if_else(_are_fast(b, dtype, rows), likely=True) as (fast_path, slow_path):
        with fast_path:
            # The test ahead reads whole words of two halves. Only the two paths use single halves, so the compiler
            # splits a register inside a path.
            fast = [b.fmul(*_row_exp_factors(b, dtype, *row)) for row in rows]
            behind_fast = b.block
        with slow_path:
            slow = _slow_row_exps(b, dtype, rows)
            behind_slow = b.block
    return merge(b, (fast, behind_fast), (slow, behind_slow))


def _row_exp_sums(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]], slots: Sequence[int]) -> list[Any]:
    """The sums of the exponentials of each slot's elements.

    `slots` has the number of the sum that each of `rows` adds to. An exponential ends with a product, so one fused
    multiply-add also adds it.
    """
    sums: list[Any] = [const(F32, 0.0)] * (1 + max(slots))
    for first in range(0, len(rows), BRANCH_ELEMENTS):
        group, places = rows[first : first + BRANCH_ELEMENTS], slots[first : first + BRANCH_ELEMENTS]
        group_slots = sorted(set(places))
        with b.if_else(_are_fast(b, dtype, group), likely=True) as (fast_path, slow_path):
            with fast_path:
                fast = {slot: sums[slot] for slot in group_slots}
                for slot, each in zip(places, group, strict=True):
                    fast[slot] = fused(b, f32, *_row_exp_factors(b, dtype, *each), fast[slot])
                behind_fast = b.block
            with slow_path:
                slow = {slot: sums[slot] for slot in group_slots}
                for slot, power in zip(places, _slow_row_exps(b, dtype, group), strict=True):
                    slow[slot] = b.fadd(slow[slot], power)
                behind_slow = b.block
        totals = merge(b, (list(fast.values()), behind_fast), (list(slow.values()), behind_slow))
        for slot, total in zip(group_slots, totals, strict=True):
            sums[slot] = total
    return sums


def _are_fast(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> Any:
    """Whether all (element, top) are within the limits of the fast path.

    Tested ahead, as in `_negative_exps`. The top is tested for each element; the compiler merges the tests of one row.
    """
    halves, tops = (list(column) for column in zip(*rows, strict=True))
    are_fast = functools.reduce(b.and_, [_is_fast_top(b, m) for m in tops])
    top = functools.reduce(lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y), tops)
    lowest = b.fsub(top, const(F32, MAX_DIFFERENCE))  # of the greatest top, so that it holds for all rows
    for least in _least(b, dtype, halves):  # NaN if an element is, for which the comparison is false
        are_fast = b.and_(are_fast, b.fcmp_ordered(">=", least, lowest))
    return are_fast


def _row_exp_factors(b: Any, dtype: DTypeLike, x: Any, m: Any) -> tuple[Any, Any]:
    """`e ** x / 2 ** M` within the limits, as two factors, which are normal numbers.

    Of bf16 they are `2 ** (SHORT_LOG2_E * x - M)` and `1 + SHORT_LOG2_E_ERROR * x`, by three instructions.
    """
    x, whole, one = widen(b, dtype, x), _whole(b, m), const(F32, 1.0)
    if dtype is not bf16:
        return _power(b, x, 1, b.fsub(const(F32, ROUNDING_SHIFT), whole)), one
    power = _hardware_power(b, fused(b, f32, x, const(F32, float(SHORT_LOG2_E)), _negative(b, whole)))
    return power, fused(b, f32, x, const(F32, float(SHORT_LOG2_E_ERROR)), one)


def _slow_row_exps(b: Any, dtype: DTypeLike, rows: Sequence[tuple[Any, Any]]) -> list[Any]:
    """`e ** x / 2 ** M` of any numbers."""
    results: list[Any] = []
    for x, m in rows:
        is_fast, is_unscaled = _is_fast_top(b, m), _is_unscaled_top(b, m)
        origin = b.select(is_unscaled, const(F32, 0.0), m)
        power = call(b, "__nv_expf", F32, [b.fsub(widen(b, dtype, x), origin)])
        # `e ** m / 2 ** M` where `M` is rounded; 1 where it is 0, or `log2(e) * m` itself.
        scale = b.select(b.and_(is_fast, b.not_(is_unscaled)), _hardware_power(b, _rest(b, m)), const(F32, 1.0))
        results.append(b.fmul(power, scale))
    return results


def _least(b: Any, dtype: DTypeLike, halves: Sequence[Any]) -> list[Any]:
    """Up to three f32: the least of them is the least of all elements.

    The elements are f16 or bf16. Words of two elements fold to one word, which holds the least even element and the
    least odd one. A last element without a neighbour is the third. If an element is NaN, one of the three is.
    """
    words = pairs_of_halves(b, halves)
    last = list(halves[len(words) * 2 :])
    if words:
        last += halves_of_pair(b, functools.reduce(lambda x, y: packed(b, "min_nan", dtype, x, y), words))
    return [widen(b, dtype, each) for each in last]


def _is_fast_top(b: Any, m: Any) -> Any:
    return _is_between(b, m, MIN_TOP, MAX_TOP)


def _is_unscaled_top(b: Any, m: Any) -> Any:
    return _is_between(b, m, 0.0, MAX_UNSCALED_TOP)


def _is_between(b: Any, x: Any, least: float, most: float) -> Any:
    """Whether an f32 is within these limits, themselves included; false of a NaN."""
    return b.and_(b.fcmp_ordered(">=", x, const(F32, least)), b.fcmp_ordered("<=", x, const(F32, most)))


def _whole(b: Any, m: Any) -> Any:
    """The whole number nearest to `log2(e) * m`; 0 where the row is not scaled."""
    nearest = b.fsub(
        fused(b, f32, m, const(F32, float(LOG2_E[0])), const(F32, ROUNDING_SHIFT)), const(F32, ROUNDING_SHIFT)
    )
    return b.select(_is_unscaled_top(b, m), const(F32, 0.0), nearest)


def _rest(b: Any, m: Any) -> Any:
    """`log2(e) * m` less `_whole(m)`."""
    high, low = (const(F32, float(part)) for part in LOG2_E)
    return fused(b, f32, m, low, fused(b, f32, m, high, _negative(b, _whole(b, m))))


def _add_exponent(b: Any, power: Any, exponent: Any) -> Any:
    """`power * 2 ** exponent`, by addition to the bits that have the exponent.

    The result has to be a normal number. Only the low 9 bits of `exponent` count.
    """
    return b.bitcast(b.add(b.bitcast(power, I32), b.shl(exponent, i32c(MANTISSA_BITS))), F32)


def _negative(b: Any, x: Any) -> Any:
    """`-x`, subtracted from -0.0, so that a zero changes its sign too."""
    return b.fsub(const(F32, -0.0), x)
