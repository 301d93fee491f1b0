"""Ranges of a kernel's integer scalars, in launch-known numbers.

    i = tile_block_id()             0 .. grid[0] - 1
    for k in 0..n:                  0 .. n - 1
    j = 4 * k + i                   0 .. 4 * (n - 1) + grid[0] - 1

A range is *reached* if each of its ends is the value in some tile block, in some iteration of the loops around. Only
then may a launch be refused because an end is outside: the kernel would have reached that end.

Sums and products of ranges hold modulo 2**bits of the dtype. If both ends lie within a tensor, so does the value, even
if it wrapped on the way. Other operations first ask whether a value can have wrapped (`_fits`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cutile.analysis.affine import Affine, Atom, Facts, ceil_div, extent_atom, multiple, scalar_atom
from cutile.dtypes import DTypeLike
from cutile.ir import Constant, For, Function, If, MutType, Op, TileType, Value
from cutile.ops.arith import Add, DivCeil, FloorDiv, Max, Min, Mod, Mul, Neg, Sub
from cutile.ops.bound import AssumeBounds, AssumeDivisible, AssumeWithin, Assumption
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import MAX_EXTENT, TensorDim
from cutile.ops.view import TensorView

ONLY_IN_THE_KERNEL = "?"
"""The first character of the text of an atom that the launch does not know: it serves proofs, and no launch check."""


@dataclass(frozen=True)
class Range:
    """`low` to `high`, both included; None where nothing is known.

    Attributes:
        varies: the block ids and loop variables on which the value depends, and operations with unknown results.
        reached: whether both ends are values of some block and iteration.
    """

    low: Affine | None = None
    high: Affine | None = None
    varies: frozenset[object] = frozenset()
    reached: bool = False

    @property
    def launch_known(self) -> Affine | None:
        """The value, if the launch decides it; else None."""
        return self.low if self.reached and not self.varies else None


UNKNOWN = Range()


def known(x: Affine) -> Range:
    """The range of a value that the launch decides."""
    return Range(x, x, frozenset(), True)


class Ranges:
    """The ranges of a function's integer scalars.

    Args:
        function: the kernel, as written or optimised.
        facts: facts of every launch, to which the ranges add further ones.
    """

    def __init__(self, function: Function, facts: Facts) -> None:
        self.facts = facts
        self.parameters = {value: value.name for value in function.parameters}
        self._made_by = {value: op for op in function.walk() for value in op.results}
        self._loops = {op.induction: op for op in function.walk() if isinstance(op, For)}
        self._ranges: dict[Value, Range] = {}
        self._views: dict[Value, int] = {}
        self._grid = [Affine.of(Atom(f"grid[{axis}]", 1, 2**31 - 1)) for axis in range(3)]
        outputs = [value for value in function.parameters if isinstance(value.type, MutType) and value.mut.tells_grid]
        for value in reversed(outputs):  # all of them have this grid, as a launch checks; the first one's text names it
            counts = [ceil_div(self.extent(value, axis), tile) for axis, tile in enumerate(value.mut.tile[:3])]
            if value.mut.rank > 3:  # the third axis goes through the tiles along all further ones
                counts[2] = self._grid[2]
            for axis, count in enumerate([*counts, Affine(1), Affine(1)][:3]):
                if value is not outputs[-1]:
                    facts.add(count - self._grid[axis])
                    facts.add(self._grid[axis] - count)
                self._grid[axis] = count

    def of(self, value: Value) -> Range:
        """The range of a value."""
        if value not in self._ranges:
            self._ranges[value] = UNKNOWN  # for a value that depends on itself, through a loop
            self._ranges[value] = self._find(value)
        return self._ranges[value]

    def is_exact(self, value: Value) -> bool:
        """Whether a value lies in its range itself, and not only modulo 2**bits."""
        if value in self._loops or isinstance(self._made_by.get(value), AssumeBounds):
            return True  # each known end bounds the value itself, even where the other end is unknown
        return _fits(self.of(value), value.tile.dtype)

    def extent(self, tensor: Value, axis: int) -> Affine:
        """The extent of a tensor."""
        extent = tensor.tensor.shape[axis]
        if extent is not None:
            return Affine(extent)
        if tensor in self.parameters:
            return self.facts.symbol(extent_atom(tensor.name, axis))
        op = self._made_by[tensor]
        number = op.extents[axis] if isinstance(op, TensorView) else None
        count = self.of(number).launch_known if isinstance(number, Value) else None
        if count is None:
            view = self._views.setdefault(tensor, len(self._views))
            return Affine.of(Atom(f"{ONLY_IN_THE_KERNEL}extent {axis} of view {view}", 0, MAX_EXTENT))
        if len(count.terms) != 1 or count != Affine.of(count.terms[0][0]):
            return count
        atom = count.terms[0][0]  # a view has extents that a tensor may have; a part of a tensor may be empty
        return Affine.of(Atom(atom.text, max(atom.low or 0, 0), min(atom.high or MAX_EXTENT, MAX_EXTENT)))

    def tiles(self, tensor: Value, axis: int, step: int) -> Affine:
        """The number of tiles that begin in a tensor, at multiples of `step`."""
        return ceil_div(self.extent(tensor, axis), step)

    def _find(self, value: Value) -> Range:
        if not isinstance(value.type, TileType) or not value.type.is_scalar or value.type.dtype.is_float:
            return UNKNOWN
        if value in self.parameters:
            return known(self.facts.symbol(scalar_atom(value.name, value.type.dtype)))
        if value in self._loops:
            return self._induction(self._loops[value])
        op = self._made_by.get(value)
        return UNKNOWN if op is None else self._result(op, value)

    def _induction(self, loop: For) -> Range:
        start, stop, step = self.of(loop.start), self.of(loop.stop), self.of(loop.step)
        dtype = loop.induction.tile.dtype
        if self._is_grid_stride(loop) and stop.launch_known is not None and stop.launch_known.fits(dtype):
            # Each number is the value in one of the blocks. The step may be unknown: it is the number of blocks.
            return Range(Affine(), stop.launch_known - 1, frozenset({loop.induction}), True)
        by = step.launch_known.known if step.launch_known is not None else None
        if by is None or by == 0:
            return UNKNOWN
        first, last = (loop.start, loop.stop) if by > 0 else (loop.stop, loop.start)
        low, high = self.of(first).low, self.of(last).high
        # An end that may have wrapped is no bound: the loop goes from one value to the other, not from end to end.
        low = low if low is not None and low.fits(dtype) and self.is_exact(first) else None
        high = high if high is not None and high.fits(dtype) and self.is_exact(last) else None
        if by > 0:
            high = None if high is None else high - 1
        else:
            low = None if low is None else low + 1
        reached = start.reached and stop.reached and not start.varies & stop.varies
        if abs(by) > 1:  # the last iteration's value may lie short of the end
            end = high if by > 0 else low
            origin = start.launch_known
            reached = reached and end is not None and origin is not None
            if reached and end is not None and origin is not None:
                whole_steps = ((end - origin) if by > 0 else (origin - end)).floor_div(abs(by))
                last_value = origin + whole_steps.times(by)
                self.facts.add(last_value - end if by > 0 else end - last_value)
                low, high = (low, last_value) if by > 0 else (last_value, high)
        return Range(low, high, frozenset({loop.induction}) | start.varies | stop.varies, reached)

    def _is_grid_stride(self, loop: For) -> bool:
        """Whether a loop is `range(block id, n, number of blocks)`.

        The blocks together run each of its `n` iterations once.
        """
        start, step = self._made_by.get(loop.start), self._made_by.get(loop.step)
        return isinstance(start, TileBlockId) and isinstance(step, NumTileBlocks) and start.axis == step.axis

    def _result(self, op: Op, value: Value) -> Range:
        dtype = value.tile.dtype
        match op:
            case Constant():
                return known(Affine(int(op.value))) if not dtype.is_bool else UNKNOWN
            case TileBlockId():
                return Range(Affine(), self._grid[op.axis] - 1, frozenset({f"block {op.axis}"}), True)
            case NumTileBlocks():
                return known(self._grid[op.axis])
            case TensorDim():
                return known(self.extent(op.x, op.axis))
            case Add() | Sub():
                return self._sum(self.of(op.x), self.of(op.y), isinstance(op, Sub))
            case Neg():
                return self._sum(known(Affine()), self.of(op.x), True)
            case Mul():
                return self._product(self.of(op.x), self.of(op.y))
            case FloorDiv() | DivCeil() | Mod():
                return self._quotient(op)
            case Min() | Max():
                return self._extreme(op)
            case Convert():
                inner = self.of(op.x)
                return inner if _fits(inner, dtype) and _fits(inner, op.x.tile.dtype) else UNKNOWN
            case Select():
                return self._union([self.of(op.x), self.of(op.y)])
            case If():
                position = op.results.index(value)
                ends = [block.terminator.operands[position] for block in (op.then, op.orelse)]
                return self._union([self.of(each) for each in ends])
            case Assumption():
                return self._assumed(op)
            case _:
                return UNKNOWN

    def _sum(self, x: Range, y: Range, minus: bool) -> Range:
        if minus:
            y = Range(
                None if y.high is None else y.high.times(-1),
                None if y.low is None else y.low.times(-1),
                y.varies,
                y.reached,
            )
        low = None if x.low is None or y.low is None else x.low + y.low
        high = None if x.high is None or y.high is None else x.high + y.high
        return Range(low, high, x.varies | y.varies, x.reached and y.reached and not x.varies & y.varies)

    def _product(self, x: Range, y: Range) -> Range:
        for factor, other in ((x, y), (y, x)):
            by = factor.launch_known.known if factor.launch_known is not None else None
            if by is None:
                continue
            ends = [None if end is None else end.times(by) for end in (other.low, other.high)]
            low, high = ends if by >= 0 else reversed(ends)
            return Range(low, high, other.varies, other.reached)
        a, b = x.launch_known, y.launch_known
        if a is None or b is None or a.low is None or b.low is None or a.low < 0 or b.low < 0:
            return UNKNOWN
        high = None if a.high is None or b.high is None else a.high * b.high
        return known(Affine.of(Atom(f"{a.operand} * {b.operand}", a.low * b.low, high)))

    def _quotient(self, op: FloorDiv | DivCeil | Mod) -> Range:
        x, y = self.of(op.x), self.of(op.y)
        divisor = y.launch_known
        if divisor is None or not self.facts.at_most(Affine(1), divisor) or not _fits(y, op.y.tile.dtype):
            return UNKNOWN
        if isinstance(op, Mod):
            return Range(Affine(), divisor - 1, x.varies | {id(op)})
        by = divisor.known
        if by is None or not _fits(x, op.x.tile.dtype) or x.low is None or x.high is None:
            return UNKNOWN
        if isinstance(op, DivCeil):
            return Range(ceil_div(x.low, by), ceil_div(x.high, by), x.varies, x.reached)
        return Range(x.low.floor_div(by), x.high.floor_div(by), x.varies, x.reached)

    def _extreme(self, op: Min | Max) -> Range:
        x, y = self.of(op.x), self.of(op.y)
        if x.low is None or x.high is None or y.low is None or y.high is None:
            return UNKNOWN
        if not (_fits(x, op.x.tile.dtype) and _fits(y, op.x.tile.dtype)):
            return UNKNOWN
        pick = self.facts.smaller if isinstance(op, Min) else self.facts.larger
        reached = x.reached and y.reached and not x.varies & y.varies
        return Range(pick(x.low, y.low), pick(x.high, y.high), x.varies | y.varies, reached)

    def _union(self, parts: list[Range]) -> Range:
        """The hull of ranges, which holds modulo 2**bits as they do."""
        low, high = parts[0].low, parts[0].high
        for each in parts[1:]:
            low = None if low is None or each.low is None else self.facts.smaller(low, each.low)
            high = None if high is None or each.high is None else self.facts.larger(high, each.high)
        return Range(low, high, frozenset[object]().union(*(each.varies for each in parts)))

    def _assumed(self, op: Assumption) -> Range:
        inner = self.of(op.x)
        if isinstance(op, AssumeBounds):
            own = inner if _fits(inner, op.x.tile.dtype) else UNKNOWN
            low = own.low if op.lower is None else Affine(op.lower)
            high = own.high if op.upper is None else Affine(op.upper)
            atom = _atom(inner, op)
            if atom is not None:
                return known(Affine.of(Atom(atom.text, _higher(atom.low, op.lower), _lower(atom.high, op.upper))))
            return Range(low, high, inner.varies)
        if isinstance(op, AssumeWithin):
            low, high = self.of(op.low).launch_known, self.of(op.high).launch_known
            end = None if high is None else high - 1
            return Range(low, end, frozenset({id(op)}), op.reached and low is not None and high is not None)
        if isinstance(op, AssumeDivisible) and op.every is None:
            atom = _atom(inner, op)
            if atom is not None:
                return known(multiple(atom, op.by))
        return inner


def _atom(x: Range, op: Assumption) -> Atom | None:
    """The atom that equals a value; None where it is another sum, or may have wrapped."""
    value = x.launch_known
    if value is None or len(value.terms) != 1 or not value.fits(op.x.tile.dtype):
        return None
    atom = value.terms[0][0]
    return atom if value == Affine.of(atom) else None


def _fits(x: Range, dtype: DTypeLike) -> bool:
    """Whether a value lies in its range itself, and not only modulo 2**bits.

    The lower bound of the low end and the upper bound of the high end have to fit. The ends need not be in order:
    `range(n)` goes from 0 to `n - 1`, which is below 0 where there are no iterations.
    """
    least, most = x.low.low if x.low is not None else None, x.high.high if x.high is not None else None
    return least is not None and most is not None and Affine(least).fits(dtype) and Affine(most).fits(dtype)


def _higher(x: int | None, y: int | None) -> int | None:
    return max((each for each in (x, y) if each is not None), default=None)


def _lower(x: int | None, y: int | None) -> int | None:
    return min((each for each in (x, y) if each is not None), default=None)
