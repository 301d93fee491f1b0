"""Conversions between element types, of one element or two at a time.

`cutile.conversion` has their meaning. An instruction converts where the architecture has one for the pair of types and
the rounding. Integer arithmetic converts floats of 8 and 4 bits and tf32 elsewhere. A number with more bits than an f32
becomes a narrower float in two steps. The first rounds it to an f32 *to odd*, so that the second rounds as if it were
the only one.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from cutile.backend.common.encoding import decode, encode, to_odd, whole_to_odd
from cutile.backend.cuda.intrinsics.fragment import elementwise, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    asm,
    const,
    from_memory,
    halves_of_pair,
    i32c,
    memory_type,
    narrow,
    number,
    register_type,
    widen,
)
from cutile.backend.cuda.intrinsics.memory import join, split
from cutile.conversion import MEANING, NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import DTypeLike, bf16, bool_, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i32, i64, tf32, u8, u16, u32, u64

Capability = tuple[int, int]
OLDEST: Capability = (8, 0)
"""The compute capability whose instructions every other one has."""

FLOAT_SUFFIX = {NEAREST_EVEN: "rn", ZERO: "rz", POSITIVE_INF: "rp", NEGATIVE_INF: "rm"}
WHOLE_SUFFIX = {NEAREST_EVEN: "rni", ZERO: "rzi", POSITIVE_INF: "rpi", NEGATIVE_INF: "rmi"}
"""PTX's names of the roundings to a float, and to an integer."""
FP8: dict[DTypeLike, str] = {f8e4m3fn: "e4m3x2", f8e5m2: "e5m2x2"}
"""PTX's names of a pair of 8-bit floats."""
FP8_SINCE: Capability = (8, 9)
"""The first architecture with conversions of 8-bit floats."""
TF32_SINCE: Capability = (9, 0)
"""The first architecture whose `cvt` to tf32 rounds to nearest even and toward zero."""


def _cvt(b: Any, name: str, result: Any, letter: str, x: Any, source_letter: str) -> Any:
    """`cvt.<name>`; the letters are the constraints of the result and of `x`."""
    # LLVM's conversions round one way, and their result out of range is undefined (PTX ISA, "cvt").
    return asm(b, result, [x], f"cvt.{name} $0, $1;", f"={letter},{source_letter}")


def _float_letter(x: Any) -> tuple[str, str]:
    """The name of a float's type in PTX, and its constraint."""
    return ("f64", "d") if x.type == F64 else ("f32", "f")


def _to_whole(b: Any, x: Any, target: DTypeLike, rounding: str) -> Any:
    """An f32 or f64 as an integer: rounded, saturated; 0 of a NaN."""
    kind, source_letter = _float_letter(x)
    sign = "s" if target.is_signed else "u"
    width = max(target.bits, 32)  # `cvt` saturates at the width of the register: 32 or 64 bits
    result, letter = (I64, "l") if width == 64 else (I32, "r")
    whole = _cvt(b, f"{WHOLE_SUFFIX[rounding]}.{sign}{width}.{kind}", result, letter, x, source_letter)
    # `cvt` makes 0 of a NaN only from f32 to 32 bits. Else its result has the top bit alone set (PTX ISA, "cvt").
    if kind == "f64" or width == 64:
        whole = b.select(b.fcmp_unordered("uno", x, x), const(result, 0), whole)
    if target.bits >= 32:
        return whole
    compare = b.icmp_signed if sign == "s" else b.icmp_unsigned
    top = (1 << (target.bits - (sign == "s"))) - 1
    whole = b.select(compare(">", whole, i32c(top)), i32c(top), whole)
    if sign == "s":
        whole = b.select(compare("<", whole, i32c(-top - 1)), i32c(-top - 1), whole)
    return b.trunc(whole, register_type(target))


def _single(b: Any, source: DTypeLike, x: Any, capability: Capability) -> Any:
    """An element as an f32: exact, or rounded to odd.

    A narrower float that is rounded from it is as if it had been rounded once.
    """
    if source in FP8 and capability >= FP8_SINCE:
        # The instruction takes two; the second one is 0 here (PTX ISA, "cvt").
        pair = _cvt(b, f"rn.f16x2.{FP8[source]}", I32, "r", b.zext(x, I16), "h")
        return widen(b, f16, b.trunc(pair, I16))
    if not source.computes:
        return decode(b, source, x)
    if source is f64:
        return to_odd(b, x)
    if source.is_float:
        return widen(b, source, x)
    if source in (i64, u64):
        return to_odd(b, whole_to_odd(b, x, source is i64))
    if source in (i32, u32):  # f64 holds 32 bits exactly
        return to_odd(b, (b.sitofp if source is i32 else b.uitofp)(x, F64))
    return (b.sitofp if source.is_signed else b.uitofp)(x, F32)


def _wide(b: Any, source: DTypeLike, x: Any, capability: Capability) -> Any:
    """A float as an f32 or f64 of the same value."""
    return x if source is f64 else _single(b, source, x, capability)


def _to_stored(b: Any, x: Any, target: DTypeLike, rounding: str, capability: Capability) -> Any:
    """An f32 as an element of a stored type."""
    near = rounding == NEAREST_EVEN
    if target in FP8 and near and capability >= FP8_SINCE:
        # Two f32 become two bytes, the first operand the upper byte: 0 here (PTX ISA, "cvt").
        text = f"cvt.rn.satfinite.{FP8[target]}.f32 $0, $1, $2;"
        pair = asm(b, I16, [const(F32, 0.0), x], text, "=h,f,f")
        return b.trunc(pair, I8)
    if target is tf32 and capability >= TF32_SINCE and rounding in (NEAREST_EVEN, ZERO):
        return _cvt(b, f"{FLOAT_SUFFIX[rounding]}.tf32.f32", I32, "r", x, "f")
    return encode(b, target, x, rounding)


def _to_half(b: Any, source: DTypeLike, target: DTypeLike, x: Any, rounding: str, capability: Capability) -> Any:
    """An element as f16 or bf16."""
    suffix = FLOAT_SUFFIX[rounding]
    if target is f16:
        if source is f64:
            return _cvt(b, f"{suffix}.f16.f64", I16, "h", x, "d")
        single = _single(b, source, x, capability)
        return (
            narrow(b, f16, single) if rounding == NEAREST_EVEN else _cvt(b, f"{suffix}.f16.f32", I16, "h", single, "f")
        )
    single = _single(b, source, x, capability)
    if rounding in (NEAREST_EVEN, ZERO):
        return _cvt(b, f"{suffix}.bf16.f32", I16, "h", single, "f")
    return encode(b, bf16, single, rounding)


def _to_full(b: Any, source: DTypeLike, target: DTypeLike, x: Any, rounding: str, capability: Capability) -> Any:
    """An element as f32 or f64."""
    result, letter = (F64, "d") if target is f64 else (F32, "f")
    near = rounding == NEAREST_EVEN
    if source.is_integer:
        if near or source.bits < 32:  # fewer bits than 32 are exact in an f32, however they are rounded
            return (b.sitofp if source.is_signed else b.uitofp)(x, result)
        sign, source_letter = ("s" if source.is_signed else "u"), ("l" if source.bits == 64 else "r")
        name = f"{FLOAT_SUFFIX[rounding]}.{target.name}.{sign}{source.bits}"
        return _cvt(b, name, result, letter, x, source_letter)
    if source.is_bool:
        return b.uitofp(x, result)
    number_ = _wide(b, source, x, capability)
    if number_.type == result:
        return number_
    if target is f64:
        return b.fpext(number_, F64)
    return b.fptrunc(number_, F32) if near else _cvt(b, f"{FLOAT_SUFFIX[rounding]}.f32.f64", F32, "f", number_, "d")


def converted(
    b: Any,
    source: DTypeLike,
    target: DTypeLike,
    x: Any,
    rounding: str | None = None,
    capability: Capability = OLDEST,
) -> Any:
    """One element of `source` as `target`."""
    if source is target:
        return x
    is_float = source.format is not None
    if target is bool_:
        if not is_float:
            return b.icmp_unsigned("!=", x, number(source, 0))
        x = _wide(b, source, x, capability)
        return b.fcmp_unordered("!=", x, const(x.type, 0.0))  # a NaN is true
    if target.format is not None:
        mode = rounding or NEAREST_EVEN
        if target in (f32, f64):
            return _to_full(b, source, target, x, mode, capability)
        if target.is_half:
            return _to_half(b, source, target, x, mode, capability)
        return _to_stored(b, _single(b, source, x, capability), target, mode, capability)
    if is_float:
        return _to_whole(b, _wide(b, source, x, capability), target, rounding or ZERO)
    if not source.is_bool and target.bits < source.bits:
        return b.trunc(x, register_type(target))
    if not source.is_bool and target.bits == source.bits:
        return x
    return (b.sext if source.is_signed else b.zext)(x, register_type(target))


def _pairs(dtype: DTypeLike, target: DTypeLike, rounding: str | None, capability: Capability) -> bool:
    """Whether two elements are converted together.

    An instruction does so from f32 to 16 bits, and from and to 8-bit floats; `_whole_pair` does from bytes.
    """
    if (dtype in (i8, u8) and target.is_half) or (dtype, target) == (u8, u16):  # exact, whatever the rounding
        return True
    near = rounding in (None, NEAREST_EVEN)
    fp8 = (dtype in FP8 and target in (f16, f32)) or (target in FP8 and dtype in (f16, bf16, f32))
    return near and ((dtype is f32 and target.is_half) or (capability >= FP8_SINCE and fp8))


def _convert_pair(b: Any, source: DTypeLike, target: DTypeLike, low: Any, high: Any) -> tuple[Any, Any]:
    """Two elements at once, for the dtypes of `_pairs`.

    The linker would pair single conversions to 16 bits as well. But if they read a warpgroup's accumulator, it then
    assumes that they do so while products are under way, and lets no two products run at once (its remark C7514).
    """
    if source is f32 and target.is_half:
        # The first operand becomes the upper half (PTX ISA, "cvt").
        return halves_of_pair(b, asm(b, I32, [high, low], f"cvt.rn.{target.name}x2.f32 $0, $1, $2;", "=r,f,f"))
    if source in (i8, u8):
        return halves_of_pair(b, _whole_pair(b, source, target, low, high))
    if target in FP8:
        # The first operand becomes the upper byte (PTX ISA, "cvt").
        text = f"cvt.rn.satfinite.{FP8[target]}.f32 $0, $1, $2;"
        pair = asm(b, I16, [widen(b, source, high), widen(b, source, low)], text, "=h,f,f")
        return b.trunc(pair, I8), b.trunc(b.lshr(pair, const(I16, 8)), I8)
    # Two bytes in 16 bits become two f16 in 32.
    bits = b.or_(b.zext(low, I16), b.shl(b.zext(high, I16), const(I16, 8)))
    halves = halves_of_pair(b, _cvt(b, f"rn.f16x2.{FP8[source]}", I32, "r", bits, "h"))
    return halves if target is f16 else (widen(b, f16, halves[0]), widen(b, f16, halves[1]))


@dataclass(frozen=True)
class _Steps:
    """The bits of 16-bit floats by which bytes become floats.

    Attributes:
        begin: of the number from which on neighbouring floats differ by 1: a byte in the low bits adds its value.
        minus: of that number, negated.
        minus_signed: of the sum of that number and 128, negated.
        unit: of 1.
    """

    begin: int
    minus: int
    minus_signed: int
    unit: int


_STEPS: dict[DTypeLike, _Steps] = {
    f16: _Steps(begin=0x6400, minus=0xE400, minus_signed=0xE480, unit=0x3C00),  # 1024: 10 bits of fraction
    bf16: _Steps(begin=0x4300, minus=0xC300, minus_signed=0xC380, unit=0x3F80),  # 128: 7 bits of fraction
}
BIT_7, SIGN = 0x80, 0x8000
"""The upper bit of a byte, and of 16 bits."""
INTERLEAVE = "0x4140"
"""The selector of `prmt` for a word and a byte: it puts the byte above each of the word's two lower bytes."""


def _twice(bits: int) -> Any:
    """A word of the same 16 bits twice."""
    word = bits | bits << 16  # two halves
    return i32c(word - (word >> 31 << 32))  # as a signed number, which LLVM's i32 constants are


def _whole_pair(b: Any, source: DTypeLike, target: DTypeLike, low: Any, high: Any) -> Any:
    """Two integers of 8 bits as two of u16, f16 or bf16 in a word, by their bits.

        u8 -> f16    1024 | x          then - 1024
        i8 -> f16    1024 | x ^ 128    then - 1152
        bf16         128 | x & 127     then - 128, and + 128 (u8) or - 128 (i8) where bit 7 is set

    Every step is exact.
    """
    steps = _STEPS.get(target)
    both = b.or_(b.zext(low, I16), b.shl(b.zext(high, I16), const(I16, 8)))  # as neighbours lie in memory
    upper = i32c(steps.begin >> 8 if steps else 0)  # the upper byte of each half
    # One instruction for both: LLVM would shift and mask each (PTX ISA, "prmt").
    halves = asm(b, I32, [b.zext(both, I32), upper], f"prmt.b32 $0, $1, $2, {INTERLEAVE};", "=r,r,r")
    if steps is None:
        return halves
    if target is f16:
        halves = b.xor(halves, _twice(BIT_7)) if source is i8 else halves
        return _plus(b, target, halves, steps.unit, _twice(steps.minus_signed if source is i8 else steps.minus))
    lower = b.and_(halves, _twice(~BIT_7 & (SIGN | SIGN - 1)))
    if source is i8:
        # 128 + the lower bits - (128 or 256). Bit 7 is the lowest of a bf16's exponent: set, it makes 256 of 128.
        return _plus(b, target, b.and_(halves, _twice(-BIT_7 & (SIGN | SIGN - 1))), steps.unit | SIGN, lower)
    # 128 + the lower bits - (128 or 0). Bit 7, inverted, times a factor is the bits of -128, or 0.
    inverse = b.xor(b.and_(halves, _twice(BIT_7)), _twice(BIT_7))
    return _plus(b, target, lower, steps.unit, b.mul(inverse, i32c(steps.minus // BIT_7)))


def _plus(b: Any, half: DTypeLike, pair: Any, unit: int, other: Any) -> Any:
    """A pair of halves, times 1 or -1, plus another one."""
    # `fma` for a sum: bf16 has `add` from sm_90 on only (PTX ISA, "add", "fma").
    return asm(b, I32, [pair, _twice(unit), other], f"fma.rn.{half.name}x2 $0, $1, $2, $3;", "=r,r,r,r")


def convert_all(
    b: Any,
    source: DTypeLike,
    target: DTypeLike,
    elements: list[Any],
    rounding: str | None = None,
    capability: Capability = OLDEST,
) -> list[Any]:
    """Elements of `source` as `target`, two at a time where `_pairs` says so."""
    results: list[Any] = []
    if _pairs(source, target, rounding, capability):
        for i in range(0, len(elements) - 1, 2):
            results += _convert_pair(b, source, target, elements[i], elements[i + 1])
    return results + [converted(b, source, target, x, rounding, capability) for x in elements[len(results) :]]


@cache
def convert(
    source: DTypeLike,
    target: DTypeLike,
    n: int,
    rounding: str | None = None,
    capability: Capability = OLDEST,
) -> Any:
    """`f(x)`: the elements as `target`.

    Args:
        rounding: of `cutile.conversion.ROUNDINGS`; None: toward zero to integers, to nearest even to floats.
        capability: of the architecture, whose instructions may be used.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        return pack(b, convert_all(b, source, target, unpack(b, values[0], n), rounding, capability), n)

    def element(b: Any, x: Any) -> Any:
        return converted(b, source, target, x, rounding, capability)

    function = intrinsic("convert", frag(target, n), [frag(source, n)], generate)
    function.element = element  # for functions of scalars, which reductions and scans apply
    return function


@cache
def bitcast(source: DTypeLike, target: DTypeLike, n: int) -> Any:
    """`f(x)`: the same bits as another type of the same width."""

    def one(b: Any, x: Any) -> Any:
        if source in MEANING:  # a dtype with bits that mean nothing: they may be anything, and become 0
            x = b.and_(x, const(x.type, MEANING[source]))
        bits = b.bitcast(x, memory_type(source)) if source in (f32, f64) else x
        return b.bitcast(bits, register_type(target)) if target in (f32, f64) else bits

    return elementwise("bitcast", (source,), target, n, one)


@cache
def again(dtype: DTypeLike, n: int) -> Any:
    """`f(x)`: the same elements, which the compiler takes for other ones.

    It is an optimisation barrier. The compiler then computes anew from the elements (rematerialisation), and does not
    keep earlier results in registers.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        per_word = max(1, 32 // dtype.bits)
        # 0, but ptxas does not know it, as it would of a move: shared memory comes in units of 128 bytes, so the lowest
        # bit of its size is never set (PTX ISA, "Special Registers: %total_smem_size").
        text = "{ .reg .b32 s; mov.u32 s, %total_smem_size; and.b32 $0, s, 1; }"
        zero = asm(b, I32, [], text, "=r", effect=True)
        results: list[Any] = []
        for first in range(0, n, per_word):
            group = elements[first : first + per_word]
            word = join(b, dtype, group)
            word = b.xor(word, zero if word.type == I32 else b.trunc(zero, word.type))
            results += split(b, dtype, word, len(group)) if len(group) > 1 else [from_memory(b, dtype, word)]
        return pack(b, results, n)

    return intrinsic("again", frag(dtype, n), [frag(dtype, n)], generate)
