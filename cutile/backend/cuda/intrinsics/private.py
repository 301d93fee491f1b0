"""Privatised sums, which a thread block keeps in shared memory until its end.

Each element has copies (cells) side by side. Their number is a power of two, up to one for each lane. With one for each
lane, no two lanes of a warp meet in a bank, whichever elements they add to. If the elements do not fit, they are
updated in global memory.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import Coordinates, as_flag, both, frag, intrinsic, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    I1,
    I32,
    I64,
    LANES,
    VOID,
    address,
    asm,
    barrier,
    call,
    const,
    i32c,
    lane_of,
    shared_element,
    thread,
)
from cutile.backend.cuda.private_updates import CELLS, WORD
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, bool_, i32, u64

CELL_BITS = CELLS.bit_length() - 1
"""Bits of a cell's number."""
BYTES = 256
"""Values that a byte may have."""


def _copies(b: Any, extent: Any) -> tuple[Any, Any]:
    """Whether the elements fit, and the binary logarithm of the copies of each."""
    last = b.sub(extent, i32c(1))  # -1 if there are no elements: it has 32 bits, which do not fit
    # The bits of the last element's number: 32 less its leading zeros.
    bits = b.sub(i32c(32), call(b, "llvm.ctlz.i32", I32, [last, const(I1, 0)]))
    fits = b.icmp_unsigned("<=", bits, i32c(CELL_BITS))
    room = b.sub(i32c(CELL_BITS), bits)
    return fits, b.select(b.icmp_unsigned("<", room, i32c(LANE_BITS)), room, i32c(LANE_BITS))


@contextmanager
def _spread(b: Any, count: Any, threads: int) -> Generator[Any]:
    """A loop over the numbers below `count`: thread `t` has `t`, `t + threads`, ..."""
    first, before = thread(b), b.block
    test, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.branch(test)
    b.position_at_end(test)
    number = b.phi(I32)
    number.add_incoming(first, before)
    b.cbranch(b.icmp_unsigned("<", number, count), body, done)
    b.position_at_end(body)
    yield number
    number.add_incoming(b.add(number, i32c(threads)), b.block)
    b.branch(test)
    b.position_at_end(done)


def _cell(b: Any, offset: int, number: Any) -> Any:
    """A pointer to a cell."""
    return shared_element(b, I32, number, offset)


@cache
def start(*, offset: int, threads: int) -> Any:
    """`f(extent)`: set all cells to zero."""

    def generate(b: Any, values: list[Any]) -> None:
        (extent,) = values
        fits, copies = _copies(b, extent)
        with b.if_then(fits), _spread(b, b.shl(extent, copies), threads) as number:
            b.store(i32c(0), _cell(b, offset, number))
        barrier(b)  # zero before anybody adds

    return intrinsic("private_start", None, [frag(i32, 0)], generate)


@cache
def update(
    index: DTypeLike, dtype: DTypeLike, layout: Layout, *, offset: int, limited: bool = False, masks: int = 0
) -> Any:
    """`f(index, value, base, extent, limit, *masks)`: add to cells, or elements.

    Args:
        index: the dtype of the elements' numbers; a number that is not below `extent` is dropped.
        dtype: of the values, i32 or u32.
        layout: of both tiles, and of the masks.
        offset: of the cells, in bytes.
        limited: whether there is a `limit`: only the tile's first `limit` elements add.
        masks: number of masks; an element adds where all of them hold.
    """
    count = layout.registers

    def generate(b: Any, arguments: list[Any]) -> None:
        numbers, values, base, extent, *rest = arguments
        limit, columns = (rest[0], rest[1:]) if limited else (None, rest)
        fragments = [unpack(b, fragment, count) for fragment in (numbers, values, *columns)]
        lanes = _Update(b, index, layout, fragments, extent, limit)
        names = ("owner", "in_shared", "all_copies", "some_copies", "in_global", "done")
        owner, in_shared, all_copies, some_copies, in_global, done = (b.append_basic_block(name) for name in names)
        b.cbranch(as_flag(lanes.at.owner()), owner, done)
        b.position_at_end(owner)
        fits, copies = _copies(b, extent)
        lane = lane_of(b, thread(b))
        b.cbranch(fits, in_shared, in_global)
        b.position_at_end(in_shared)
        has_all_copies = b.icmp_unsigned("==", copies, i32c(LANE_BITS))
        b.cbranch(b.and_(lanes.within_limit(), has_all_copies), all_copies, some_copies)
        # Each lane has its own copy, and no lane is beyond the limit: the usual case, with the fewest instructions.
        b.position_at_end(all_copies)
        own_first = b.add(address(b, i32c(offset)), b.mul(lane, i32c(WORD)))
        spare = b.add(own_first, i32c(CELLS * WORD))
        for register in range(count):
            cell = b.add(b.mul(lanes.number(register), i32c(LANES * WORD)), own_first)
            lanes.add_shared(register, cell, spare, lanes.active(register, limited=False))
        b.branch(done)
        b.position_at_end(some_copies)
        own = b.mul(b.and_(lane, b.sub(b.shl(i32c(1), copies), i32c(1))), i32c(WORD))
        own, shift = b.add(own, address(b, i32c(offset))), b.add(copies, i32c(WORD.bit_length() - 1))
        spare = b.add(address(b, i32c(offset + CELLS * WORD)), b.mul(lane, i32c(WORD)))
        for register in range(count):
            cell = b.add(b.shl(lanes.number(register), shift), own)
            lanes.add_shared(register, cell, spare, lanes.active(register, limited=True))
        b.branch(done)
        b.position_at_end(in_global)
        for register in range(count):
            place = b.mul(b.zext(lanes.number(register), I64), const(I64, WORD))
            lanes.add_global(register, b.add(base, place), lanes.active(register, limited=True))
        b.branch(done)
        b.position_at_end(done)

    scalars = [frag(u64, 0), frag(i32, 0), *([frag(i32, 0)] if limited else [])]
    operands = [frag(index, count), frag(dtype, count), *scalars, *[frag(bool_, count)] * masks]
    return intrinsic("private_update", None, operands, generate)


class _Update:
    """One update: the elements and the conditions of its lanes."""

    def __init__(
        self,
        b: Any,
        index: DTypeLike,
        layout: Layout,
        fragments: list[list[Any]],
        extent: Any,
        limit: Any | None,
    ) -> None:
        self.at = Coordinates(b, layout)
        self._b = b
        self._index = index
        self._layout = layout
        self._indices, self._values, *self._masks = fragments
        self._extent = extent
        self._limit = limit

    @property
    def _is_byte(self) -> bool:
        """Whether indices are unsigned bytes: of `BYTES` elements, none is outside."""
        return self._index.bits == 8 and self._index.kind == "uint"

    def within_limit(self) -> Any:
        """Whether no element of the tile is beyond the limit.

        If the indices are bytes, every byte must also be the number of an element.
        """
        b, flag = self._b, const(I1, 1)
        if self._limit is not None:
            flag = b.icmp_signed(">=", self._limit, i32c(self._layout.shape[0]))
        if self._is_byte:
            flag = b.and_(flag, b.icmp_unsigned("==", self._extent, i32c(BYTES)))
        return flag

    def number(self, register: int) -> Any:
        """The number of a lane's element."""
        b, value = self._b, self._indices[register]
        if self._index.bits == 32:
            return value
        return b.sext(value, I32) if self._index.kind == "int" else b.zext(value, I32)

    def active(self, register: int, *, limited: bool) -> Any | None:
        """Whether a lane adds; None where it always does.

        `limited` is false in the branch where `within_limit` is true: neither limit nor bytes are tested there.
        """
        b = self._b
        flag = self.at.inside(register)
        for mask in self._masks:
            flag = both(b, flag, mask[register])
        if limited and self._limit is not None:
            self.at.enter()  # coordinates of another branch do not dominate this one
            flag = both(b, flag, b.icmp_signed("<", self.at.element(register, 0), self._limit))
        if not limited and self._is_byte:
            return flag
        return both(b, flag, b.icmp_unsigned("<", self.number(register), self._extent))

    def add_shared(self, register: int, cell: Any, spare: Any, active: Any | None) -> None:
        """Add to a cell.

        An inactive lane adds to a spare cell, which is cheaper than a branch.
        """
        place = cell if active is None else self._b.select(active, cell, spare)
        # Relaxed, among the block's threads alone: nobody reads before a barrier (PTX ISA, "red").
        text = "red.relaxed.cta.shared::cta.add.u32 [$0], $1;"
        asm(self._b, VOID, [place, self._values[register]], text, "r,r,~{memory}", effect=True)

    def add_global(self, register: int, place: Any, active: Any | None) -> None:
        """Add to an element."""
        flag = self._b.zext(as_flag(active), I32)
        # Predicated: an inactive lane's index may be outside. Relaxed: nobody reads before the kernel's end (PTX ISA,
        # "red").
        text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p red.relaxed.gpu.global.add.u32 [$0], $1;}"
        asm(self._b, VOID, [place, self._values[register], flag], text, "l,r,r,~{memory}", effect=True)


@cache
def end(*, offset: int, threads: int) -> Any:
    """`f(base, extent)`: add the sum of each element's copies to the element."""

    def generate(b: Any, values: list[Any]) -> None:
        base, extent = values
        barrier(b)  # all have added
        fits, copies = _copies(b, extent)
        with b.if_then(fits):
            last = b.sub(b.shl(i32c(1), copies), i32c(1))  # the number of an element's last copy
            with _spread(b, extent, threads) as number:
                before = b.block
                cells = b.shl(number, copies)
                loop, done = b.append_basic_block("copies"), b.append_basic_block("total")
                b.branch(loop)
                b.position_at_end(loop)
                iteration, sum_before = b.phi(I32), b.phi(I32)
                # Neighbouring threads begin with different copies, so that they meet in no bank.
                cell = b.add(cells, b.and_(b.add(iteration, number), last))
                total = b.add(sum_before, b.load(_cell(b, offset, cell)))
                iteration.add_incoming(i32c(0), before)
                iteration.add_incoming(b.add(iteration, i32c(1)), loop)
                sum_before.add_incoming(i32c(0), before)
                sum_before.add_incoming(total, loop)
                b.cbranch(b.icmp_unsigned("<", iteration, last), loop, done)
                b.position_at_end(done)
                place = b.add(base, b.mul(b.zext(number, I64), const(I64, WORD)))
                flag = b.zext(b.icmp_unsigned("!=", total, i32c(0)), I32)
                # Other thread blocks add as well. Relaxed: nobody reads before the kernel's end. Predicated: a sum of 0
                # costs no access (PTX ISA, "red").
                text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p red.relaxed.gpu.global.add.u32 [$0], $1;}"
                asm(b, VOID, [place, total, flag], text, "l,r,r,~{memory}", effect=True)

    return intrinsic("private_end", None, [frag(u64, 0), frag(i32, 0)], generate)
