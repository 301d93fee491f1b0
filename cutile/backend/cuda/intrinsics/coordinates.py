"""The coordinates of a thread's elements in a tile, as LLVM values.

They are the layout's map, all constant but for the thread.
"""

from __future__ import annotations

from typing import Any

from cutile.backend.cuda.intrinsics.llvm import I1, const, i32c, thread
from cutile.backend.gpu.layout import LANE_BITS, Layout


class Coordinates:
    """The coordinates of this thread's elements in a tile of `layout`."""

    def __init__(self, b: Any, layout: Layout) -> None:
        self._b = b
        self._layout = layout
        self._number = thread(b)
        self._elements: dict[tuple[int, int], Any] = {}
        self._thread = [self._thread_part(axis) for axis in range(layout.rank)]

    def _thread_part(self, axis: int) -> Any:
        """The contribution of lane and warp along an axis.

        Runs of bits that stay in order move as one.
        """
        b, layout = self._b, self._layout
        bases = [basis[axis] for basis in (*layout.lane, *layout.warp)]
        total: Any = None
        bit = 0
        while bit < len(bases):
            if not bases[bit]:
                bit += 1
                continue
            end = bit + 1
            while end < len(bases) and bases[end] == bases[end - 1] * 2:
                end += 1
            part = self._number if bit == 0 else b.lshr(self._number, i32c(bit))
            if end < len(bases):
                part = b.and_(part, i32c((1 << (end - bit)) - 1))
            shift = bases[bit].bit_length() - 1
            part = b.shl(part, i32c(shift)) if shift else part
            total = part if total is None else b.or_(total, part)
            bit = end
        return i32c(0) if total is None else total

    def enter(self) -> None:
        """Forget what was computed in a branch that does not reach this one."""
        self._elements.clear()

    def thread_part(self, axis: int) -> Any:
        """The coordinate of register 0 along `axis`."""
        return self._thread[axis]

    def element(self, register: int, axis: int) -> Any:
        """The coordinate of a register's element along `axis`."""
        offset = self._layout.offsets[register][axis]
        key = (axis, offset)
        if key not in self._elements:
            part = self._thread[axis]
            self._elements[key] = self._b.add(part, i32c(offset)) if offset else part
        return self._elements[key]

    def inside(self, register: int) -> Any | None:
        """Whether a register's element lies in the tile; None where it always does."""
        b, found = self._b, None
        for axis in self._layout.edge_axes(register):
            test = b.icmp_unsigned("<", self.element(register, axis), i32c(self._layout.shape[axis]))
            found = test if found is None else b.and_(found, test)
        return found

    def owner(self) -> Any | None:
        """Whether this thread stores; None where every thread does."""
        mask = self._layout.free_lanes | self._layout.free_warps << LANE_BITS
        if not mask:
            return None
        return self._b.icmp_unsigned("==", self._b.and_(self._number, i32c(mask)), i32c(0))


def both(b: Any, x: Any | None, y: Any | None) -> Any | None:
    """The conjunction of two conditions, of which None is true."""
    if x is None or y is None:
        return y if x is None else x
    return b.and_(x, y)


def as_flag(condition: Any | None) -> Any:
    """A condition as a bit."""
    return const(I1, 1) if condition is None else condition
