"""Arithmetic and bits on fragments.

f16 and bf16 are computed in f32 and rounded after every operation. Instructions on 16 bits compute `fma`, which f32
would round twice, and operations that round nothing: signs, and extremes of pairs.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.compare import greater, lesser
from cutile.backend.cuda.intrinsics.fragment import elementwise, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F64,
    HALF_BITS,
    I1,
    I16,
    I32,
    I64,
    asm,
    call,
    const,
    float_type,
    halves_of_pair,
    i32c,
    ir,
    merge,
    narrow,
    number,
    pair_of_halves,
    register_type,
    widen,
)
from cutile.dtypes import DTypeLike, bf16, bool_, f32, f64, u16

Scalar = Callable[[Any, DTypeLike, Any, Any], Any]
"""`operation(b, dtype, x, y)`: one element of a binary operation."""


def _add(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fadd(x, y) if dtype.is_float else b.add(x, y)


def _sub(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fsub(x, y) if dtype.is_float else b.sub(x, y)


def _mul(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fmul(x, y) if dtype.is_float else b.mul(x, y)


def _div(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fdiv(x, y)


def _extreme(b: Any, dtype: DTypeLike, x: Any, y: Any, least: bool) -> Any:
    if dtype.is_float:  # of a NaN and a number, the number
        name = "minnum" if least else "maxnum"
        return call(b, f"llvm.{name}.{'f64' if dtype is f64 else 'f32'}", x.type, [x, y])
    return (lesser if least else greater)(b, dtype, x, y)


def _extreme_with(b: Any, dtype: DTypeLike, x: Any, y: Any, which: str, nan: bool, ftz: bool) -> Any:
    """`min` or `max` of floats that propagates NaN, or flushes to zero.

    One instruction for f32, and for f16 and bf16, which come as f32. f64 has no such instruction, and flushes nothing.
    """
    if dtype is f64:
        extreme = call(b, f"llvm.{which}num.f64", x.type, [x, y])
        return b.select(b.fcmp_unordered("uno", x, y), b.fadd(x, y), extreme)  # a sum with a NaN is NaN
    # LLVM's `minnum` drops a NaN and keeps subnormal numbers (PTX ISA, "min", "max").
    text = f"{which}{'.ftz' * ftz}{'.NaN' * nan}.f32 $0, $1, $2;"
    return asm(b, x.type, [x, y], text, "=f,f,f")


def _extreme_form(which: str, nan: bool, ftz: bool) -> Scalar:
    """`min` or `max` of scalars, by its flags.

    `nan`: it propagates NaN. `ftz`: it flushes subnormal numbers to zero.
    """

    def element(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
        if not dtype.is_float:
            return _extreme(b, dtype, x, y, which == "min")
        return _extreme_with(b, dtype, x, y, which, nan, ftz)

    return element


def _min(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _extreme(b, dtype, x, y, True)


def _max(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _extreme(b, dtype, x, y, False)


def _divide(b: Any, dtype: DTypeLike, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Floored quotient, remainder, and whether the divisor is 0.

    LLVM leaves two divisions undefined: by 0, and of the least integer by -1, which overflows. So divisions by 0 or -1
    divide by 1 here. A quotient by -1 is the negated dividend, which wraps.
    """
    zero, one = number(dtype, 0), number(dtype, 1)
    by_zero = b.icmp_unsigned("==", y, zero)
    if dtype.kind == "uint":
        divisor = b.select(by_zero, one, y)
        return b.udiv(x, divisor), b.urem(x, divisor), by_zero
    by_minus_one = b.icmp_unsigned("==", y, number(dtype, -1))
    divisor = b.select(b.or_(by_zero, by_minus_one), one, y)
    quotient, rest = b.sdiv(x, divisor), b.srem(x, divisor)
    # LLVM rounds toward zero: one too much where a remainder and the divisor differ in sign.
    goes_down = b.and_(b.icmp_unsigned("!=", rest, zero), b.icmp_signed("<", b.xor(rest, divisor), zero))
    quotient = b.select(goes_down, b.sub(quotient, one), quotient)
    rest = b.select(goes_down, b.add(rest, divisor), rest)
    return b.select(by_minus_one, b.sub(zero, x), quotient), b.select(by_minus_one, zero, rest), by_zero


def _signs_differ(b: Any, rest: Any, y: Any) -> Any:
    """Whether the remainder `rest` is not 0 and its sign differs from the divisor's."""
    zero = const(y.type, 0.0)
    signs = b.xor(b.fcmp_ordered("<", rest, zero), b.fcmp_ordered("<", y, zero))
    return b.and_(b.fcmp_unordered("!=", rest, zero), signs)


def _remainder(b: Any, x: Any, y: Any) -> Any:
    return call(b, "__nv_fmod" if x.type == F64 else "__nv_fmodf", x.type, [x, y])


def _copysign(b: Any, x: Any, y: Any) -> Any:
    kind = "f64" if x.type == F64 else "f32"
    return call(b, f"llvm.copysign.{kind}", x.type, [x, y])


def _mod_float(b: Any, x: Any, y: Any) -> Any:
    """The remainder of floored division: it has the divisor's sign."""
    zero = const(x.type, 0.0)
    rest = _remainder(b, x, y)
    floored = b.select(_signs_differ(b, rest, y), b.fadd(rest, y), rest)
    # As Python and NumPy: a remainder of 0 has the divisor's sign.
    return b.select(b.fcmp_ordered("==", rest, zero), _copysign(b, zero, y), floored)


def _floor_div_float(b: Any, x: Any, y: Any) -> Any:
    """`(x - x % y) / y` rounded to a whole number, as in NumPy's `floor_divide`."""
    zero, one = const(x.type, 0.0), const(x.type, 1.0)
    rest = _remainder(b, x, y)
    ratio = b.fdiv(x, y)
    quotient = b.fdiv(b.fsub(x, rest), y)
    quotient = b.select(_signs_differ(b, rest, y), b.fsub(quotient, one), quotient)
    # The division rounds, so the quotient may lie just below its whole number: then the floor is one too low.
    whole = call(b, "__nv_floor" if x.type == F64 else "__nv_floorf", x.type, [quotient])
    whole = b.select(b.fcmp_ordered(">", b.fsub(quotient, whole), const(x.type, 0.5)), b.fadd(whole, one), whole)
    whole = b.select(b.fcmp_ordered("==", quotient, zero), _copysign(b, zero, ratio), whole)  # a 0 has a sign
    return b.select(b.fcmp_ordered("==", y, zero), ratio, whole)  # infinite, or NaN of 0 / 0


def _truncating_division(b: Any, dtype: DTypeLike, x: Any, y: Any) -> tuple[Any, Any]:
    """Quotient rounded toward zero, and remainder; both 0 for a zero divisor.

    Divisions that LLVM leaves undefined divide by 1, as in `_divide`.
    """
    zero, one = number(dtype, 0), number(dtype, 1)
    by_zero = b.icmp_unsigned("==", y, zero)
    if dtype.kind == "uint":
        divisor = b.select(by_zero, one, y)
        quotient, rest = b.udiv(x, divisor), b.urem(x, divisor)
    else:
        by_minus_one = b.icmp_unsigned("==", y, number(dtype, -1))
        divisor = b.select(b.or_(by_zero, by_minus_one), one, y)
        quotient = b.select(by_minus_one, b.sub(zero, x), b.sdiv(x, divisor))
        rest = b.select(by_minus_one, zero, b.srem(x, divisor))
    return b.select(by_zero, zero, quotient), b.select(by_zero, zero, rest)


def _div_trunc(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _truncating_division(b, dtype, x, y)[0]


def _rem(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _remainder(b, x, y) if dtype.is_float else _truncating_division(b, dtype, x, y)[1]


def _div_ceil(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    quotient, rest = _truncating_division(b, dtype, x, y)
    goes_up = b.icmp_unsigned("!=", rest, number(dtype, 0))
    if dtype.is_signed:  # operands of one sign: rounding toward zero was rounding down
        goes_up = b.and_(goes_up, b.icmp_signed(">=", b.xor(x, y), number(dtype, 0)))
    return b.add(quotient, b.zext(goes_up, x.type))


def _mul_hi(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    if dtype.bits == 64:  # LLVM 7 has no 128-bit integers on this target (PTX ISA, "mul")
        return asm(b, x.type, [x, y], f"mul.hi.{'s' if dtype.kind == 'int' else 'u'}64 $0, $1, $2;", "=l,l,l")
    double = ir.IntType(2 * dtype.bits)
    extend = b.sext if dtype.is_signed else b.zext
    product = b.mul(extend(x, double), extend(y, double))
    return b.trunc(b.lshr(product, const(double, dtype.bits)), x.type)


def _floor_div(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    if dtype.is_float:
        return _floor_div_float(b, x, y)
    quotient, _, by_zero = _divide(b, dtype, x, y)
    return b.select(by_zero, number(dtype, 0), quotient)


def _mod(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    if dtype.is_float:
        return _mod_float(b, x, y)
    _, rest, by_zero = _divide(b, dtype, x, y)
    return b.select(by_zero, number(dtype, 0), rest)


def _and(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.and_(x, y)


def _or(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.or_(x, y)


def _xor(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.xor(x, y)


def _shl(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    # A count of all bits or more, or a negative one, gives 0; in LLVM it is undefined.
    inside = b.icmp_unsigned("<", y, number(dtype, dtype.bits))
    return b.select(inside, b.shl(x, b.select(inside, y, number(dtype, 0))), number(dtype, 0))


def _shr(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    # As `_shl`, except for a signed number. It is shifted by all bits but one, the most that LLVM defines: every bit of
    # the result is its sign bit.
    inside = b.icmp_unsigned("<", y, number(dtype, dtype.bits))
    count = b.select(inside, y, number(dtype, dtype.bits - 1))
    if dtype.is_signed:
        return b.ashr(x, count)
    return b.select(inside, b.lshr(x, count), number(dtype, 0))


BINARY: dict[str, Scalar] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "min": _min,
    "max": _max,
    **{
        f"{which}{'_nan' * nan}{'_ftz' * ftz}": _extreme_form(which, nan, ftz)
        for which in ("min", "max")
        for nan, ftz in ((True, False), (False, True), (True, True))
    },
    "div_trunc": _div_trunc,
    "div_ceil": _div_ceil,
    "rem": _rem,
    "mul_hi": _mul_hi,
    "floor_div": _floor_div,
    "mod": _mod,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shl,
    "shr": _shr,
}


def combine(b: Any, name: str, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """One element of a binary operation, computed in f32 and rounded for f16 and bf16."""
    if not dtype.is_float:
        return BINARY[name](b, dtype, x, y)
    return narrow(b, dtype, BINARY[name](b, dtype, widen(b, dtype, x), widen(b, dtype, y)))


@cache
def product_half(dtype: DTypeLike, n: int, *, upper: bool = False) -> Any:
    """`f(x, y)`: the lower or the upper half of a product of 32-bit integers."""

    def one(b: Any, x: Any, y: Any) -> Any:
        # NVVM would write two multiplications for both halves; two equal ones in PTX it merges (PTX ISA, "mul").
        product = asm(b, I64, [x, y], f"mul.wide.{'s' if dtype.is_signed else 'u'}32 $0, $1, $2;", "=l,r,r")
        return b.trunc(b.lshr(product, const(I64, dtype.bits)) if upper else product, x.type)

    return elementwise("product_half", (dtype,) * 2, dtype, n, one)


PACKED = {"min": "min", "max": "max", "min_nan": "min.NaN", "max_nan": "max.NaN"}
"""Operations on two f16 or bf16 in one word, by name, and their PTX. They do not round, so f32 would give the same."""


def packed(b: Any, name: str, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """An operation of `PACKED` on two words of two elements each."""
    # LLVM before 11 has no extremes of f16, and none of bf16 (PTX ISA, "max").
    return asm(b, I32, [x, y], f"{PACKED[name]}.{dtype.name}x2 $0, $1, $2;", "=r,r,r")


Operands = tuple[Any, ...]
PairOperation = Callable[[Any, Operands, Operands], tuple[Any, Any]]
"""`operation(b, low, high)`: two results of 16 bits. `low` has the operands of the first, `high` of the second."""


def _by_pairs(name: str, dtype: DTypeLike, n: int, arity: int, operation: PairOperation, element: Any) -> Any:
    """An intrinsic on elements of 16 bits, two at a time.

    Args:
        name: of the intrinsic.
        dtype: of the operands and of the result.
        n: elements per thread; an even number.
        arity: the number of operands.
        operation: on two elements at once.
        element: the same operation on scalars.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        rows = list(zip(*(unpack(b, value, n) for value in values), strict=True))
        pairs = zip(rows[::2], rows[1::2], strict=True)
        return pack(b, [half for low, high in pairs for half in operation(b, low, high)], n)

    function = intrinsic(name, frag(dtype, n), [frag(dtype, n)] * arity, generate)
    function.element = element  # for functions of scalars, which reductions and scans apply
    return function


def _in_words(word_operation: Callable[..., Any]) -> PairOperation:
    """An operation on words of two elements, as an operation on pairs.

    It is called as `word_operation(b, *words)`.
    """

    def operation(b: Any, low: Operands, high: Operands) -> tuple[Any, Any]:
        words = [pair_of_halves(b, *pair) for pair in zip(low, high, strict=True)]
        return halves_of_pair(b, word_operation(b, *words))

    return operation


@cache
def binary(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x, y)` for the operation `name` of `cutile.ops.arith`."""

    def element(b: Any, x: Any, y: Any) -> Any:
        return combine(b, name, dtype, x, y)

    has_pairs = n > 0 and n % 2 == 0
    if name in PACKED and dtype.is_half and has_pairs:

        def word(b: Any, x: Any, y: Any) -> Any:
            return packed(b, name, dtype, x, y)

        return _by_pairs(name + "_", dtype, n, 2, _in_words(word), element)
    if name in _OF_U16_PAIRS and dtype is u16 and has_pairs:
        return _by_pairs(name + "_", dtype, n, 2, _OF_U16_PAIRS[name], element)
    return elementwise(name + "_", (dtype, dtype), dtype, n, element)


UPPER_BYTE, UPPER_BYTES = 8, "0x4341"
"""The shift that leaves the upper byte of 16 bits, and the selector by which `prmt` shifts both halves of a word so."""


def _shr_pair(b: Any, low: Operands, high: Operands) -> tuple[Any, Any]:
    """Shift two u16 in one word if their counts are equal, else one by one.

    LLVM alone would always shift one by one. Both ways are written here, and a selection for each half. If the counts
    are constants, LLVM decides the selections, and drops the way that is not taken.
    """
    counts = (low[1], high[1])
    if all(isinstance(count, ir.Constant) and count.constant == UPPER_BYTE for count in counts):
        # One instruction for both, which LLVM does not take apart: bytes 1 and 3, each below a zero (PTX ISA, "prmt").
        word = pair_of_halves(b, low[0], high[0])
        return halves_of_pair(b, asm(b, I32, [word], f"prmt.b32 $0, $1, 0, {UPPER_BYTES};", "=r,r"))
    single = _shr(b, u16, *low), _shr(b, u16, *high)
    inside = b.icmp_unsigned("<", low[1], number(u16, u16.bits))
    count = b.zext(b.select(inside, low[1], number(u16, 0)), I32)
    # A mask of the bits of each half that the shift of 16 bits alone would leave, the same in both halves. It drops the
    # bits that the shift of the whole word moves from the upper half into the lower.
    own_bits = b.mul(b.lshr(i32c(0xFFFF), count), i32c(0x10001))
    word = b.and_(b.lshr(pair_of_halves(b, low[0], high[0]), count), own_bits)
    is_joint = b.and_(inside, b.icmp_unsigned("==", low[1], high[1]))
    halves = halves_of_pair(b, word)
    return b.select(is_joint, halves[0], single[0]), b.select(is_joint, halves[1], single[1])


def _u16_words(name: str) -> PairOperation:
    """`and`, `or` or `xor` of two u16 in one word.

    LLVM may leave two single operations apart.
    """

    def word(b: Any, x: Any, y: Any) -> Any:
        return BINARY[name](b, u16, x, y)

    return _in_words(word)


_OF_U16_PAIRS = {"shr": _shr_pair, "and": _u16_words("and"), "or": _u16_words("or"), "xor": _u16_words("xor")}
"""Operations on two u16 in one word."""


def _negative(b: Any, dtype: DTypeLike, x: Any) -> Any:
    if dtype.is_half:
        return b.xor(x, const(I16, 0x8000))  # the sign bit
    if dtype.is_float:
        # The older LLVM has no `fneg`. From -0.0: 0.0 - 0.0 would be 0.0.
        return b.fsub(const(register_type(dtype), -0.0), x)
    return b.sub(number(dtype, 0), x)


def _absolute(b: Any, dtype: DTypeLike, x: Any) -> Any:
    if dtype.is_half:
        return b.and_(x, const(I16, 0x7FFF))  # all but the sign bit
    if dtype.is_float:
        return call(b, f"llvm.fabs.{'f64' if dtype is f64 else 'f32'}", x.type, [x])
    if dtype.kind == "uint":
        return x
    return b.select(b.icmp_signed("<", x, number(dtype, 0)), b.sub(number(dtype, 0), x), x)


def _invert(b: Any, dtype: DTypeLike, x: Any) -> Any:
    return b.xor(x, const(x.type, -1) if dtype is not bool_ else number(bool_, True))


def _count_ones(b: Any, dtype: DTypeLike, x: Any) -> Any:
    return call(b, f"llvm.ctpop.i{dtype.bits}", x.type, [x])


UNARY: dict[str, Callable[[Any, DTypeLike, Any], Any]] = {
    "neg": _negative,
    "abs": _absolute,
    "not": _invert,
    "popcount": _count_ones,
}


@cache
def unary(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x)` for the operation `name` of `cutile.ops.arith`."""

    def one(b: Any, x: Any) -> Any:
        return UNARY[name](b, dtype, x)

    return elementwise(name + "_", (dtype,), dtype, n, one)


def fused(b: Any, dtype: DTypeLike, x: Any, y: Any, z: Any) -> Any:
    """`x * y + z` with one rounding, for floats as they are computed: f32 or f64."""
    kind = "f64" if dtype is f64 else "f32"
    return call(b, f"llvm.fma.{kind}", float_type(dtype), [x, y, z])


@cache
def fma(dtype: DTypeLike, n: int) -> Any:
    """`f(x, y, z) = x * y + z` with one rounding; of f16 and bf16 two at a time."""

    def element(b: Any, x: Any, y: Any, z: Any) -> Any:
        if dtype.is_half:
            # One rounding; f32 would round twice (PTX ISA, "fma").
            return asm(b, I16, [x, y, z], f"fma.rn.{dtype.name} $0, $1, $2, $3;", "=h,h,h,h")
        return fused(b, dtype, x, y, z)

    def word(b: Any, x: Any, y: Any, z: Any) -> Any:
        # As for one element, above.
        return asm(b, I32, [x, y, z], f"fma.rn.{dtype.name}x2 $0, $1, $2, $3;", "=r,r,r,r")

    if dtype.is_half and n > 0 and n % 2 == 0:
        return _by_pairs("fma", dtype, n, 3, _in_words(word), element)
    return elementwise("fma", (dtype,) * 3, dtype, n, element)


TIE = 1 << 15
"""The lower half of the bits of an f32 that is halfway between two bf16."""
NEAR_ULPS = 2
"""Units in the last place of f32 by which a product with a reciprocal may miss the quotient: two roundings."""
BRANCH_ELEMENTS = 16
"""Quotients under one branch: their dividends wait in registers until all are known to be right."""
NORMAL = (2.0**-125, 2.0**125)
"""Magnitudes of divisors between which reciprocals are normal numbers."""


@cache
def row_quotient(n: int, packs: bool = False) -> Any:
    """`f(x, y)`: quotients of f32, rounded to bf16.

    `cutile/backend/cuda/rows.py` says for which rows. `packs`: the architecture adds two u16 in one word.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        rows = list(zip(*(unpack(b, value, n) for value in values), strict=True))
        groups = (rows[first : first + BRANCH_ELEMENTS] for first in range(0, n, BRANCH_ELEMENTS))
        return pack(b, [each for group in groups for each in _row_quotients(b, group, packs)], n)

    return intrinsic("row_quotient", frag(bf16, n), [frag(f32, n)] * 2, generate)


def _row_quotients(b: Any, rows: Sequence[tuple[Any, Any]], packs: bool) -> list[Any]:
    """Words of two bf16: quotients of the pairs (dividend, divisor) in `rows`.

    They are products with reciprocals. If any product might round to another bf16 than its quotient, all are divided.
    """
    one, least, most = (const(rows[0][0].type, number) for number in (1.0, *NORMAL))
    # One reciprocal for each element: the compiler merges those of one row, which are equal.
    products = [b.fmul(x, b.fdiv(one, y)) for x, y in rows]
    divides = (_near_ties_packed if packs and len(rows) % 2 == 0 else _near_ties)(b, products)
    for _, y in rows:
        size = call(b, "llvm.fabs.f32", y.type, [y])
        is_normal = b.and_(b.fcmp_ordered(">=", size, least), b.fcmp_ordered("<=", size, most))
        divides = b.or_(divides, b.not_(is_normal))
    words = _to_bf16(b, products)
    before = b.block
    with b.if_then(divides, likely=False):
        quotients = _to_bf16(b, [b.fdiv(x, y) for x, y in rows])
        behind = b.block
    words = merge(b, (words, before), (quotients, behind))
    return [half for word in words for half in halves_of_pair(b, word)][: len(rows)]


def _to_bf16(b: Any, numbers: Sequence[Any]) -> list[Any]:
    """f32 rounded to nearest even, as words of two bf16.

    If their number is odd, the last word has the last element twice.
    """
    pairs = itertools.zip_longest(numbers[::2], numbers[1::2], fillvalue=numbers[-1])
    # The first operand becomes the upper half (PTX ISA, "cvt").
    return [asm(b, I32, [high, low], "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f") for low, high in pairs]


def _near_ties(b: Any, numbers: Sequence[Any]) -> Any:
    """Whether any f32 is within `NEAR_ULPS` of a tie between two bf16.

    Rounding to bf16 drops the lower half of an f32's bits; the half `TIE` is the tie. `TIE - NEAR_ULPS` is subtracted
    from each half, modulo 2 ** 16: the halves near the tie, and no others, become at most `2 * NEAR_ULPS`.
    """
    is_near: Any = const(I1, 0)
    for x in numbers:
        # `TIE` is half of the range of 16 bits, so adding it is the same as subtracting it.
        distance = b.shl(b.add(b.bitcast(x, I32), i32c(TIE + NEAR_ULPS)), i32c(HALF_BITS))
        is_near = b.or_(is_near, b.icmp_unsigned("<=", distance, i32c(2 * NEAR_ULPS << HALF_BITS)))
    return is_near


def _near_ties_packed(b: Any, numbers: Sequence[Any]) -> Any:
    """As `_near_ties`, for an even number of f32: two lower halves to a word."""

    def twice(half: int) -> Any:
        return i32c(half << HALF_BITS | half)

    bits = [b.bitcast(x, I32) for x in numbers]
    least: Any = None
    for low, high in zip(bits[::2], bits[1::2], strict=True):
        lower_halves = call(b, "llvm.nvvm.prmt", I32, [low, high, i32c(0x5410)])  # bytes 0 and 1 of both
        operands = [lower_halves, twice(TIE + NEAR_ULPS)]
        # Hopper adds both halves in one instruction (PTX ISA, "add"); LLVM would split words.
        distances = asm(b, I32, operands, "add.u16x2 $0, $1, $2;", "=r,r,r")
        if least is None:
            least = distances
            continue
        # As the sum above (PTX ISA, "min").
        least = asm(b, I32, [distances, least], "min.u16x2 $0, $1, $2;", "=r,r,r")
    # A half below the limit makes the subtraction borrow: its top bit is set in the difference, and was not set before.
    # A borrow of the lower half can set the top bit of the upper half, too. Then the lower half is near a tie anyway.
    borrows = b.and_(b.sub(least, twice(2 * NEAR_ULPS + 1)), b.not_(least))
    return b.icmp_unsigned("!=", b.and_(borrows, twice(1 << 15)), i32c(0))
