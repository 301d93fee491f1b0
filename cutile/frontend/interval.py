"""Intervals of integers, which decide in how many bits they are computed.

    x.shape[0]                          1 .. the largest extent that a launch takes
    64 * ct.get_tile_block_id()[0]      0 .. 64 * the largest index, by the tiles of a `Mut` along that axis
    x.shape[0] * x.shape[1]             more than 32 bits hold

Operations on intervals follow Python's on whole numbers, but division by zero gives 0, as in kernels (`FloorDiv` in
`ops/arith.py`). A result may lie beyond 64 bits: `weak.computed` takes `I64` for it then, since kernels' integers wrap.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from cutile.dtypes import DTypeLike, i32, i64


@dataclass(frozen=True)
class Interval:
    """The whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    @staticmethod
    def of(dtype: DTypeLike) -> Interval:
        """The numbers that an integer dtype holds."""
        signed = dtype.is_signed
        return Interval(-(2 ** (dtype.bits - 1)) if signed else 0, 2 ** (dtype.bits - signed) - 1)

    def within(self, other: Interval) -> bool:
        """Whether the other one holds all of these numbers."""
        return other.low <= self.low and self.high <= other.high

    def fits(self, dtype: DTypeLike) -> bool:
        """Whether an integer dtype holds all of these numbers."""
        return self.within(Interval.of(dtype))

    def meet(self, other: Interval) -> Interval:
        """The numbers in both; this one where they have none in common.

        No error: the other interval is an assumption, of the author's or of the dtype. Where it contradicts this one,
        the code runs for no number that keeps it.
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else self

    def join(self, other: Interval) -> Interval:
        """The numbers in either, and those between."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


I32 = Interval.of(i32)
I64 = Interval.of(i64)


def _hull(numbers: Iterable[int]) -> Interval:
    found = list(numbers)
    return Interval(min(found), max(found))


def _corners(function: Callable[[int, int], int], x: Interval, y: Interval) -> Interval:
    return _hull(function(a, b) for a, b in product((x.low, x.high), (y.low, y.high)))


def _divided(x: Interval, y: Interval, function: Callable[[int, int], int]) -> Interval:
    """The quotients of numbers in `x` and `y`.

    For divisors of one sign, the extremes are at corners. The divisor 0 is apart from both: it gives 0.
    """
    sides = [Interval(max(y.low, 1), y.high), Interval(y.low, min(y.high, -1))]
    parts = [_corners(function, x, side) for side in sides if side.low <= side.high]
    if y.low <= 0 <= y.high:
        parts.append(Interval(0, 0))
    return _hull(end for part in parts for end in (part.low, part.high))


def _floor_divided(x: Interval, y: Interval) -> Interval:
    return _divided(x, y, lambda a, b: a // b)


def ceil_divided(x: Interval, y: Interval) -> Interval:
    """The quotient rounded up."""
    return _divided(x, y, lambda a, b: -(-a // b))


def _remainder(x: Interval, y: Interval) -> Interval:
    """The remainders of numbers in `x` by numbers in `y`.

    They have the sign of the divisor, as in Python, and are smaller in magnitude. The divisor 0 gives 0.
    """
    high = max(y.high - 1, 0)
    if x.low >= 0 and y.low > 0:
        high = min(high, x.high)
    return Interval(min(y.low + 1, 0), high)


def _bitwise(x: Interval, y: Interval) -> Interval:
    """The result of `&`, `|` or `^`, which is at most as wide as the wider operand."""
    # A bit more than the lowest number needs, if that is a negative power of 2. Too wide an interval is safe.
    most = max(abs(end) for each in (x, y) for end in (each.low, each.high))
    high = 2 ** most.bit_length() - 1
    return Interval(0 if x.low >= 0 and y.low >= 0 else -high - 1, high)


def _shifted_left(x: Interval, y: Interval) -> Interval:
    # By more than 63, all bits are gone: `Shl` gives 0. A negative count is unspecified.
    return _corners(lambda a, b: a << b, x, y) if y.within(Interval(0, 63)) else I64


def _shifted_right(x: Interval, y: Interval) -> Interval:
    # Operands fit 64 bits: `weak` sees to it for scalars, and `whole` refuses other constants. So a shift by 64 leaves
    # 0 or -1, as any longer one does.
    return _corners(lambda a, b: a >> min(b, 64), x, y) if y.low >= 0 else I64


def negated(x: Interval) -> Interval:
    """`-x`."""
    return Interval(-x.high, -x.low)


def magnitude(x: Interval) -> Interval:
    """`abs(x)`."""
    ends = abs(x.low), abs(x.high)
    return Interval(0 if x.low <= 0 <= x.high else min(ends), max(ends))


def inverted(x: Interval) -> Interval:
    """`~x`."""
    return Interval(-x.high - 1, -x.low - 1)


def least(x: Interval, y: Interval) -> Interval:
    """The smaller of two numbers."""
    return Interval(min(x.low, y.low), min(x.high, y.high))


def largest(x: Interval, y: Interval) -> Interval:
    """The larger of two numbers."""
    return Interval(max(x.low, y.low), max(x.high, y.high))


def length_of(start: int, stop: int, step: int) -> int:
    """The number of items of a range.

    It stands for `len(range(...))`, which raises above `sys.maxsize`.
    """
    return max(0, (stop - start + step - (1 if step > 0 else -1)) // step)


def counted(start: Interval, stop: Interval, step: Interval) -> Interval:
    """The values of the variable of `range(start, stop, step)`.

    A step of 0, which makes the range empty in a kernel, has no values: either direction holds for it.
    """
    up = Interval(start.low, max(stop.high - 1, start.low))
    down = Interval(min(stop.low + 1, start.high), start.high)
    if step.low > 0:
        return up
    return down if step.high < 0 else up.join(down)


BINARY: dict[type[ast.AST], Callable[[Interval, Interval], Interval]] = {
    ast.Add: lambda x, y: Interval(x.low + y.low, x.high + y.high),
    ast.Sub: lambda x, y: Interval(x.low - y.high, x.high - y.low),
    ast.Mult: lambda x, y: _corners(lambda a, b: a * b, x, y),
    ast.FloorDiv: _floor_divided,
    ast.Mod: _remainder,
    ast.BitAnd: _bitwise,
    ast.BitOr: _bitwise,
    ast.BitXor: _bitwise,
    ast.LShift: _shifted_left,
    ast.RShift: _shifted_right,
}
"""The interval of each operator's result, of the operands' intervals."""
