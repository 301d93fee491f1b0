"""Keys by which elements are sorted.

An element and its place make one key: unsigned words, of which the first that differs decides. No two keys of a row
are equal, so the order is total, and a sorting network, which is not stable, sorts stably. The words of a key:

    8 or 16 bits    order << 16 | place << 1 | sign of a zero        one of 32 bits
    32 bits         order << 32 | place << 1 | sign of a zero        one of 64 bits
    64 bits         order, then place << 1 | sign of a zero          64 bits, then 32

`order` is the element's bits, changed so that unsigned integers compare as the elements do. -0.0 has the order of 0.0,
and every NaN has one order, behind infinity. The sign of a zero is kept to give the element back.
"""

from typing import Any

from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    F64,
    I16,
    I32,
    I64,
    const,
    i32c,
    ir,
    memory_type,
    shared_element,
    shuffle_words,
    shuffle_xor,
    widen,
)
from cutile.backend.cuda.sort_lowering import key_words
from cutile.conversion import bits_of
from cutile.dtypes import DTypeLike, bf16, bool_, f32

SHORT, WORD, LONG = 16, 32, 64
"""Bits of an element's order in its key."""
SHORT_MASK = (1 << SHORT) - 1

Key = list[Any]
"""The words of a key: the second one decides where the first ones are equal."""


class Keys:
    """How elements of a dtype become keys, and keys elements."""

    def __init__(self, b: Any, dtype: DTypeLike, descending: bool) -> None:
        self._b, self._dtype, self._descending = b, dtype, descending
        self.kinds = [memory_type(kind) for kind in key_words(dtype)]
        self._width = max(dtype.bits, SHORT)

    def last(self) -> Key:
        """The key behind all others, for places past the edge."""
        return [const(kind, -1) for kind in self.kinds]

    def encode(self, value: Any, place: Any) -> Key:
        """The key of an element."""
        b, width = self._b, self._width
        order, negative_zero = self._order(value)
        if self._descending:
            order = b.xor(order, const(order.type, -1 if width > SHORT else SHORT_MASK))
        low = b.shl(place, i32c(1))
        if negative_zero is not None:
            low = b.or_(low, b.zext(negative_zero, I32))
        if width == SHORT:
            return [b.or_(b.shl(order, i32c(SHORT)), low)]
        if width == WORD:
            return [b.or_(b.shl(b.zext(order, I64), const(I64, WORD)), b.zext(low, I64))]
        return [order, low]

    def decode(self, key: Key) -> tuple[Any, Any]:
        """The element of a key, and its place."""
        b, width = self._b, self._width
        if width == SHORT:
            order, low = b.lshr(key[0], i32c(SHORT)), b.and_(key[0], i32c(SHORT_MASK))
        elif width == WORD:
            order, low = b.trunc(b.lshr(key[0], const(I64, WORD)), I32), b.trunc(key[0], I32)
        else:
            order, low = key
        if self._descending:
            order = b.xor(order, const(order.type, -1 if width > SHORT else SHORT_MASK))
        return self._element(order, low), b.lshr(low, i32c(1))

    def _order(self, value: Any) -> tuple[Any, Any | None]:
        """An element's order, in 32 or 64 bits, and whether it is -0.0.

        The latter is an i1; None for a dtype without -0.0.
        """
        b, dtype = self._b, self._dtype
        if dtype is bool_:
            return b.zext(value, I32), None
        if not dtype.is_float:
            kind = I64 if dtype.bits == LONG else I32
            if dtype.kind == "uint":
                return b.zext(value, kind) if dtype.bits < WORD else value, None
            wide = b.sext(value, kind) if dtype.bits < WORD else value
            flipped = b.xor(wide, const(kind, 1 << (self._width - 1)))  # negative numbers come first
            return b.and_(flipped, const(kind, SHORT_MASK)) if dtype.bits < WORD else flipped, None
        width = self._width
        kind = I64 if width == LONG else I32
        bits = b.zext(value, I32) if width == SHORT else b.bitcast(value, kind)
        sign = const(kind, 1 << (width - 1))
        negative_zero = b.icmp_unsigned("==", bits, sign)
        negative = b.icmp_unsigned("!=", b.and_(bits, sign), const(kind, 0))
        ones = const(kind, (1 << width) - 1)
        # The larger the bits of a negative number, the less the number: they are inverted.
        order = b.xor(bits, b.select(negative, ones, sign))
        order = b.select(negative_zero, sign, order)
        if width == SHORT:  # f16 and bf16 are integers in registers: without the sign, a NaN is above infinity
            infinity = const(kind, bits_of(float("inf"), dtype))
            nan = b.icmp_unsigned(">", b.and_(bits, const(kind, SHORT_MASK >> 1)), infinity)
        else:
            nan = b.fcmp_unordered("uno", value, value)
        return b.select(nan, ones, order), negative_zero

    def _element(self, order: Any, low: Any) -> Any:
        """The element with an order; the lowest bit of `low` is the sign of a zero."""
        b, dtype, width = self._b, self._dtype, self._width
        if dtype is bool_:
            return b.icmp_unsigned("!=", order, i32c(0))
        if not dtype.is_float:
            bits = order if dtype.kind == "uint" else b.xor(order, const(order.type, 1 << (width - 1)))
            return b.trunc(bits, ir.IntType(dtype.bits)) if dtype.bits < WORD else bits
        kind = order.type
        sign = const(kind, 1 << (width - 1))
        positive = b.icmp_unsigned("!=", b.and_(order, sign), const(kind, 0))
        bits = b.xor(order, b.select(positive, sign, const(kind, (1 << width) - 1)))
        zero = b.and_(b.icmp_unsigned("==", order, sign), b.icmp_unsigned("!=", b.and_(low, i32c(1)), i32c(0)))
        bits = b.select(zero, sign, bits)  # the order of a NaN gives a NaN: all bits but the sign are ones
        if width == SHORT:
            return b.trunc(bits, I16)
        return b.bitcast(bits, F64 if width == LONG else F32)

    def quick(self, value: Any, place: Any) -> Key:
        """The key of an element, without the sign of a zero, in fewer instructions.

        Two elements of f32 or bf16 take 5 instructions in place of 12. `signed` adds the sign.
        """
        b, dtype = self._b, self._dtype
        if dtype not in (f32, bf16):
            return self.encode(value, place)
        # The sum with 0.0 makes 0.0 of either zero, and one NaN, the hardware's, of any NaN (PTX ISA, "add").
        bits = b.bitcast(b.fadd(widen(b, dtype, value), const(F32, 0.0)), I32)
        sign = 1 << (WORD - 1)
        flips = b.or_(b.ashr(bits, i32c(WORD - 1)), i32c(sign))
        order = b.xor(bits, b.xor(flips, i32c(-1)) if self._descending else flips)
        low = b.shl(place, i32c(1))
        if dtype is bf16:
            return [b.or_(b.and_(order, i32c(SHORT_MASK << SHORT)), low)]
        return [b.or_(b.shl(b.zext(order, I64), const(I64, WORD)), b.zext(low, I64))]

    def signed(self, key: Key, value: Any) -> Key:
        """The key of an element, from the one that `quick` gave."""
        b, dtype = self._b, self._dtype
        if dtype not in (f32, bf16):
            return key
        bits = value if dtype is bf16 else b.bitcast(value, I32)
        negative_zero = b.icmp_unsigned("==", bits, const(bits.type, 1 << (dtype.bits - 1)))
        return [b.or_(key[0], b.zext(negative_zero, key[0].type))]

    # Comparisons and moves of keys.

    def less(self, x: Key, y: Key) -> Any:
        """Whether a key comes before another."""
        b = self._b
        first = b.icmp_unsigned("<", x[0], y[0])
        if len(x) == 1:
            return first
        same = b.icmp_unsigned("==", x[0], y[0])
        return b.or_(first, b.and_(same, b.icmp_unsigned("<", x[1], y[1])))

    def select(self, condition: Any, x: Key, y: Key) -> Key:
        """One of two keys."""
        return [self._b.select(condition, mine, other) for mine, other in zip(x, y, strict=True)]

    def ordered(self, x: Key, y: Key) -> tuple[Key, Key]:
        """Two keys in their order."""
        first = self.less(x, y)
        return self.select(first, x, y), self.select(first, y, x)

    def lesser(self, x: Key, y: Key) -> Key:
        """Of two keys, the one that comes first."""
        return self.select(self.less(x, y), x, y)

    def from_lane(self, key: Key, mask: Any) -> Key:
        """The key of the lane whose number differs by the i32 value `mask`."""
        b = self._b
        return [shuffle_words(b, word, lambda bits: shuffle_xor(b, bits, mask)) for word in key]

    # Keys in shared memory: an array for each word of a key, so that lanes side by side use all banks.

    def _addresses(self, place: Any, offset: int, count: int) -> list[Any]:
        """Pointers to the words of the key at a place."""
        b, start = self._b, offset
        addresses: list[Any] = []
        for kind in self.kinds:
            addresses.append(shared_element(b, kind, place, start))
            start += kind.width // 8 * count  # bytes
        return addresses

    def write(self, key: Key, place: Any, offset: int, count: int) -> None:
        """Put a key to a place of an array of `count` keys at a byte offset."""
        for word, address in zip(key, self._addresses(place, offset, count), strict=True):
            self._b.store(word, address)

    def read(self, place: Any, offset: int, count: int) -> Key:
        """The key at a place of an array of `count` keys at a byte offset."""
        return [self._b.load(address) for address in self._addresses(place, offset, count)]


class Doubles(Keys):
    """Keys of f32 that compare as f64.

    A sorting network is bound by instructions on integers, and a comparison of 64 bits takes two of them. A comparison
    of f64 is one instruction, of other units. Some architectures have enough of these (`sort_lowering.FAST_DOUBLES`).

        element << 32 | place << 1 | sign of a zero, the lower word inverted where the element is negative

    The inversion keeps places in order: of negative numbers, the one with the larger lower word is less.
    """

    LAST = 0x7FE << 52  # exponent
    """The largest exponent of a number in f64: behind the keys of NaNs, which are numbers of f64 (`NAN`)."""
    NAN = 0x7FC << 20  # f64's exponent; of an f32, the exponent and the first bit of the fraction
    """Bits of a NaN of f32. As the upper half of an f64 they are a number: f64 has three more bits of exponent."""

    def last(self) -> Key:
        return [const(I64, self.LAST)]

    def encode(self, value: Any, place: Any) -> Key:
        b, sign = self._b, i32c(1 << (WORD - 1))
        bits = b.bitcast(value, I32)
        negative_zero = b.icmp_unsigned("==", bits, sign)
        bits = b.select(b.fcmp_unordered("uno", value, value), i32c(self.NAN), bits)
        bits = b.select(negative_zero, i32c(0), bits)
        bits = b.xor(bits, sign) if self._descending else bits
        low = b.or_(b.shl(place, i32c(1)), b.zext(negative_zero, I32))
        low = b.xor(low, b.ashr(bits, i32c(WORD - 1)))
        return [b.or_(b.shl(b.zext(bits, I64), const(I64, WORD)), b.zext(low, I64))]

    def decode(self, key: Key) -> tuple[Any, Any]:
        b, sign = self._b, i32c(1 << (WORD - 1))
        bits = b.trunc(b.lshr(key[0], const(I64, WORD)), I32)
        low = b.xor(b.trunc(key[0], I32), b.ashr(bits, i32c(WORD - 1)))
        bits = b.xor(bits, sign) if self._descending else bits
        flag = b.icmp_unsigned("!=", b.and_(low, i32c(1)), i32c(0))
        return b.bitcast(b.select(flag, sign, bits), F32), b.lshr(low, i32c(1))

    def less(self, x: Key, y: Key) -> Any:
        return self._b.fcmp_ordered("<", self._b.bitcast(x[0], F64), self._b.bitcast(y[0], F64))
