"""The places of a row's elements in order: sorts, and insertion of the largest."""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import cgutils, intrinsic, ir, types

__all__ = (
    "largest_places",
    "sort_places",
)

_PLACE, _INDEX = ir.IntType(32), ir.IntType(64)

_MIN_RADIX = 32
"""The fewest elements of a row that is sorted by digits. Measured on Zen 4, in ns per element: for 32 f32, 10 by digits
and 21 by merging; for 32 f64, 21 by either; for 16 f32, 22 by digits and 13 by merging."""

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
"""Values of a digit. Their counts take 1 KB, so that those of all digits of a key stay in the first cache."""


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


class _Row:
    """The elements of a row, by their places; NaN is larger than every number."""

    def __init__(self, builder: Any, kind: Any, memory: Any, at: Any, step: Any) -> None:
        self._builder, self._kind = builder, kind
        self._memory, self._at, self._step = memory, at, step

    def element(self, place: Any) -> Any:
        """The element at a place, an i32."""
        b = self._builder
        offset = b.add(self._at, b.mul(b.zext(place, _INDEX), self._step))
        return b.load(b.gep(self._memory, [offset]))

    def less(self, x: Any, y: Any) -> Any:
        """Whether an element is less than another."""
        b = self._builder
        if isinstance(self._kind, types.Float):
            number = b.and_(b.fcmp_ordered("ord", x, x), b.fcmp_unordered("uno", y, y))
            return b.or_(b.fcmp_ordered("<", x, y), number)
        signed = isinstance(self._kind, types.Integer) and self._kind.signed
        return (b.icmp_signed if signed else b.icmp_unsigned)("<", x, y)

    def key(self, element: Any) -> Any:
        """An unsigned integer that orders like the element; equal for equal elements."""
        b = self._builder
        if not isinstance(self._kind, types.Float):
            if element.type.width < _DIGIT_BITS:
                return b.zext(element, ir.IntType(_DIGIT_BITS))
            top = ir.Constant(element.type, 1 << (element.type.width - 1))
            return b.xor(element, top) if isinstance(self._kind, types.Integer) and self._kind.signed else element
        bits = ir.IntType(self._kind.bitwidth)
        zero = ir.Constant(element.type, 0.0)
        pattern = b.select(b.fcmp_ordered("==", element, zero), bits(0), b.bitcast(element, bits))  # -0 equals +0
        # The patterns of negative numbers fall as the numbers rise: all their bits are flipped. Of other numbers only
        # the sign is flipped.
        sign = b.ashr(pattern, bits(self._kind.bitwidth - 1))
        ordered = b.xor(pattern, b.or_(sign, bits(1 << (self._kind.bitwidth - 1))))
        return b.select(b.fcmp_unordered("uno", element, element), bits(-1), ordered)


def _load(builder: Any, places: Any, at: Any) -> Any:
    return builder.load(builder.gep(places, [at]))


def _store(builder: Any, place: Any, places: Any, at: Any) -> None:
    builder.store(place, builder.gep(places, [at]))


def _smaller(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _sort(b: Any, row: _Row, places: Any, spare: Any, count: Any, descending: Any) -> None:
    """The places in order. Of equal elements the left one comes first."""
    with b.if_else(b.icmp_signed("<", count, _number(_MIN_RADIX))) as (short, long):
        with short:
            _merge_sort(b, row, places, spare, count, descending)
        with long:
            _radix_sort(b, row, places, spare, count, descending)


def _radix_sort(b: Any, row: _Row, places: Any, spare: Any, count: Any, descending: Any) -> None:
    """Sort by the digits of the keys, the last digit first (radix sort).

    Each pass keeps the order of equal digits (Knuth, The Art of Computer Programming, volume 3, 5.2.5).
    """

    def key_of(place: Any) -> Any:
        key = row.key(row.element(place))
        return b.xor(key, b.select(descending, key.type(-1), key.type(0)))

    def count_slot(key: Any, digit: Any) -> Any:
        """The position in `counts` of the value that a digit of a key has."""
        shift = b.mul(digit, _number(_DIGIT_BITS))
        shift = b.trunc(shift, key.type) if key.type.width < _INDEX.width else shift
        value = b.trunc(b.lshr(key, shift), ir.IntType(_DIGIT_BITS)) if key.type.width > _DIGIT_BITS else key
        return b.add(b.mul(digit, _number(_DIGITS)), b.zext(value, _INDEX))

    digits = key_of(_PLACE(0)).type.width // _DIGIT_BITS
    counts = cgutils.alloca_once(b, _PLACE, size=_INDEX(digits * _DIGITS))
    is_spare = cgutils.alloca_once_value(b, ir.IntType(1)(0))
    cgutils.memset(b, counts, _INDEX(digits * _DIGITS * _PLACE.width // 8), 0)
    with cgutils.for_range(b, count) as each:
        place = b.trunc(each.index, _PLACE)
        _store(b, place, places, each.index)
        key = key_of(place)
        for digit in range(digits):
            slot = b.gep(counts, [count_slot(key, _number(digit))])
            b.store(b.add(b.load(slot), _PLACE(1)), slot)
    with cgutils.for_range(b, _number(digits)) as digit:
        source, target = (b.select(b.load(is_spare), *pair) for pair in ((spare, places), (places, spare)))
        same = _load(b, counts, count_slot(key_of(_PLACE(0)), digit.index))
        with b.if_then(b.icmp_signed("!=", b.zext(same, _INDEX), count)):  # else all keys have one digit here
            total = cgutils.alloca_once(b, _PLACE)
            b.store(_PLACE(0), total)
            with cgutils.for_range(b, _number(_DIGITS)) as value:
                slot = b.gep(counts, [b.add(b.mul(digit.index, _number(_DIGITS)), value.index)])
                start = b.load(total)
                b.store(b.add(start, b.load(slot)), total)
                b.store(start, slot)
            with cgutils.for_range(b, count) as each:
                place = _load(b, source, each.index)
                slot = b.gep(counts, [count_slot(key_of(place), digit.index)])
                at = b.load(slot)
                _store(b, place, target, b.zext(at, _INDEX))
                b.store(b.add(at, _PLACE(1)), slot)
            b.store(b.not_(b.load(is_spare)), is_spare)
    with b.if_then(b.load(is_spare)), cgutils.for_range(b, count) as each:
        _store(b, _load(b, spare, each.index), places, each.index)


def _merge_sort(b: Any, row: _Row, places: Any, spare: Any, count: Any, descending: Any) -> None:
    """Merge runs of 1, 2, 4, ... places, from one array to the other and back."""
    left, right = cgutils.alloca_once(b, _INDEX), cgutils.alloca_once(b, _INDEX)
    passes = cgutils.alloca_once_value(b, _number(0))
    with cgutils.for_range(b, count) as each:
        _store(b, b.trunc(each.index, _PLACE), places, each.index)
    with cgutils.for_range(b, _number(31)) as merge:  # the most passes: places are i32, so a row has below 2**31
        width = b.shl(_number(1), merge.index)
        with b.if_then(b.icmp_signed(">=", width, count)):
            merge.do_break()
        b.store(b.add(merge.index, _number(1)), passes)
        odd = b.trunc(merge.index, ir.IntType(1))
        source, target = b.select(odd, spare, places), b.select(odd, places, spare)
        with cgutils.for_range_slice(b, _number(0), count, b.shl(width, _number(1))) as (start, _):
            middle = _smaller(b, b.add(start, width), count)
            end = _smaller(b, b.add(middle, width), count)
            b.store(start, left)
            b.store(middle, right)
            with cgutils.for_range(b, end, start) as out:
                # Both elements are loaded, so that there is no branch. For a run that has ended, it is one at `start`.
                i, j = b.load(left), b.load(right)
                has_left, has_right = b.icmp_signed("<", i, middle), b.icmp_signed("<", j, end)
                first = _load(b, source, b.select(has_left, i, start))
                second = _load(b, source, b.select(has_right, j, start))
                x, y = row.element(first), row.element(second)
                before = b.select(descending, row.less(x, y), row.less(y, x))
                takes_right = b.and_(has_right, b.or_(b.not_(has_left), before))
                _store(b, b.select(takes_right, second, first), target, out.index)
                b.store(b.add(i, b.zext(b.not_(takes_right), _INDEX)), left)
                b.store(b.add(j, b.zext(takes_right, _INDEX)), right)
    # After an odd number of passes the places are in `spare`.
    with b.if_then(b.trunc(b.load(passes), ir.IntType(1))), cgutils.for_range(b, count) as each:
        _store(b, _load(b, spare, each.index), places, each.index)


def _largest(b: Any, row: _Row, places: Any, count: Any, k: Any) -> None:
    """The places of the `k` largest, by insertion.

    Most elements are compared only with the least of the `k` largest so far, which stands last.
    """
    hole = cgutils.alloca_once(b, _INDEX)
    last = b.sub(k, _number(1))
    _store(b, ir.Constant(_PLACE, 0), places, _number(0))  # the first iteration reads it before it writes it
    with cgutils.for_range(b, count) as loop:
        place = b.trunc(loop.index, _PLACE)
        element = row.element(place)
        least = row.element(_load(b, places, b.select(b.icmp_signed("<", loop.index, k), _number(0), last)))
        fills = b.icmp_signed("<", loop.index, k)
        with b.if_then(b.or_(fills, row.less(least, element))):
            end = b.select(fills, loop.index, last)
            b.store(end, hole)
            with cgutils.for_range(b, end) as shift:
                at = b.sub(b.sub(end, shift.index), _number(1))
                other = _load(b, places, at)
                with b.if_then(b.not_(row.less(row.element(other), element))):
                    shift.do_break()
                _store(b, other, places, b.add(at, _number(1)))
                b.store(at, hole)
            _store(b, place, places, b.load(hole))


@intrinsic
def sort_places(_context: Any, x: Any, at: Any, step: Any, places: Any, spare: Any, count: Any, descending: Any) -> Any:
    """The places of `count` elements in order, written to `places`."""
    signature = types.void(*map(types.unliteral, (x, at, step, places, spare, count, descending)))

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        memory, first, distance, target, other, length, backward = values
        row = _Row(builder, x.dtype, memory, first, distance)
        _sort(builder, row, target, other, length, builder.trunc(backward, ir.IntType(1)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def largest_places(_context: Any, x: Any, at: Any, step: Any, places: Any, count: Any, k: Any) -> Any:
    """The places of the `k` largest of `count` elements, written to `places`."""
    signature = types.void(*map(types.unliteral, (x, at, step, places, count, k)))

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        memory, first, distance, target, length, most = values
        _largest(builder, _Row(builder, x.dtype, memory, first, distance), target, length, most)
        return context.get_dummy_value()

    return signature, codegen
