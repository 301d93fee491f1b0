"""Split-K through a workspace in global memory: work units and their fix-up.

A work unit is one split of one tile. `pipeline/accumulators.py` describes the scheme.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from cutile.backend.cuda.grids import COUNTERS
from cutile.backend.cuda.intrinsics.fragment import POINTER, bundle, frag, intrinsic, pack, together, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    I1,
    I32,
    I64,
    VOID,
    WORD_BYTES,
    asm,
    barrier,
    barrier_any,
    call,
    const,
    device_fence,
    i32c,
    ir,
    merge,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER
from cutile.backend.cuda.intrinsics.roles import iterations
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

VECTOR = 4
"""Sums that a thread writes, or reads, at once."""
MAX_PENDING = 64
"""Registers of a thread for sums that are being read from the workspace."""
MAX_AHEAD = 8
"""Splits whose sums a thread reads at once."""
COUNTER_BYTES = 4


Numbers = Callable[[], list[Any]]
"""Writes the code that computes some i32 values."""


def _computed_if(b: Any, condition: Any, then: Numbers, orelse: list[Any]) -> list[Any]:
    """The numbers of `then` if a condition holds, else `orelse`.

    It is a branch, not a selection: the numbers of `then` take divisions, which are slow and seldom needed.
    """
    before = b.block
    divided, after = b.append_basic_block("divided"), b.append_basic_block("known")
    b.cbranch(condition, divided, after)
    b.position_at_end(divided)
    numbers = then()
    end = b.block
    b.branch(after)
    b.position_at_end(after)
    return merge(b, (numbers, end), (orelse, before))


@cache
def splits(most: int, least: int, whole: bool = False) -> Any:
    """`f(tiles, start, stop, step)`: the number of splits of each of `tiles` tiles.

    Splits have `least` iterations or more, and all splits together are no more than the thread blocks. A tile has 1 to
    `most` splits. With `whole` it has `most` if the thread blocks are exactly `tiles * most`, else 1.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        tiles, *bounds = values
        blocks = call(b, "llvm.nvvm.read.ptx.sreg.nctaid.x", I32, [])
        count = iterations(b, *bounds)
        if whole:
            enough = b.icmp_unsigned(">=", count, i32c(most * least))
            matches = b.icmp_unsigned("==", b.mul(tiles, i32c(most)), blocks)
            return b.select(b.and_(enough, matches), i32c(most), i32c(1))
        enough = b.icmp_unsigned(">=", count, i32c(2 * least))
        are_few = b.icmp_unsigned("<=", b.mul(tiles, i32c(2)), blocks)  # each tile can have two thread blocks or more
        have_counters = b.icmp_unsigned("<=", tiles, i32c(COUNTERS))

        def divided() -> list[Any]:
            number = b.udiv(blocks, tiles)
            for limit in (i32c(most), b.udiv(count, i32c(least))):
                number = b.select(b.icmp_unsigned("<", number, limit), number, limit)
            return [number]

        return _computed_if(b, b.and_(b.and_(enough, are_few), have_counters), divided, [i32c(1)])[0]

    return intrinsic("splits", INTEGER, [INTEGER] * 4, generate)


@cache
def work_unit() -> Any:
    """`f(unit, start, stop, step, splits)`: tile, split and bounds of a work unit."""
    kind = together((INTEGER,) * 4)

    def generate(b: Any, values: list[Any]) -> Any:
        unit, start, stop, step, count = values

        def divided() -> list[Any]:
            tile, total = b.udiv(unit, count), iterations(b, start, stop, step)
            split = b.sub(unit, b.mul(tile, count))
            ends = [b.udiv(b.mul(total, at), count) for at in (split, b.add(split, i32c(1)))]
            return [tile, split, *(b.add(start, b.mul(end, step)) for end in ends)]

        several = b.icmp_unsigned(">", count, i32c(1))
        return bundle(b, _computed_if(b, several, divided, [unit, i32c(0), start, stop]), kind)

    return intrinsic("work_unit", kind, [INTEGER] * 5, generate)


class SumVectors:
    """Accesses to partial sums: up to four registers of a thread at a time.

    `width` registers of a thread lie side by side, then those of the next thread. So a warp accesses one stretch of
    global memory, and no two of its lanes meet in a bank of shared memory.

    Args:
        dtype: of the sums, f32 or i32.
        count: the registers of a thread.
    """

    def __init__(self, dtype: DTypeLike, count: int) -> None:
        self.width = next(width for width in (VECTOR, 2, 1) if count % width == 0)
        self.element, self.letter, kind = (I32, "r", ".b32") if dtype is i32 else (F32, "f", ".f32")
        self.suffix = (f".v{self.width}" if self.width > 1 else "") + kind  # of the instruction's name

    def registers(self, first: int) -> str:
        """The registers of one access in PTX, from number `first` on."""
        names = ", ".join(f"${first + i}" for i in range(self.width))
        return f"{{{names}}}" if self.width > 1 else names

    def letters(self, *others: str) -> str:
        """The constraints of a store: `others` of the operands ahead, then the sums'."""
        return ",".join([*others, *[self.letter] * self.width])

    def load(self, b: Any, address: Any, letter: str, access: str, offset: int) -> list[Any]:
        """The sums at an address and an offset in bytes.

        `access` is the instruction's name without suffix, `letter` the constraint of the address.
        """
        width = self.width
        constraints = ",".join([f"={self.letter}"] * width + [letter, "~{memory}"])
        result = ir.LiteralStructType([self.element] * width) if width > 1 else self.element
        # With an effect: other threads write there, of which LLVM knows nothing (PTX ISA, "ld").
        text = f"{access}{self.suffix} {self.registers(0)}, [${width}+{offset}];"
        sums = asm(b, result, [address], text, constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(width)] if width > 1 else [sums]


class _Workspace:
    """The sums of all splits in global memory, behind a counter for each tile."""

    def __init__(self, dtype: DTypeLike, layout: Layout) -> None:
        self.count, self.threads = layout.registers, layout.threads
        self.split_bytes = self.count * self.threads * WORD_BYTES
        self.vectors = SumVectors(dtype, self.count)
        self.zero = const(self.vectors.element, 0 if dtype is i32 else 0.0)

    def _offset(self, first: int) -> int:
        """Bytes from a thread's first register to its register `first`."""
        return first * self.threads * WORD_BYTES

    def write(self, b: Any, place: Any, elements: list[Any]) -> None:
        """Write this thread's sums of one split."""
        vectors = self.vectors
        for first in range(0, self.count, vectors.width):
            # In PTX, so that it has the width chosen here, and LLVM keeps it ahead of the fence (PTX ISA, "st").
            text = f"st.global{vectors.suffix} [$0+{self._offset(first)}], {vectors.registers(1)};"
            sums = elements[first : first + vectors.width]
            asm(b, VOID, [place, *sums], text, vectors.letters("l") + ",~{memory}", effect=True)

    def read(self, b: Any, place: Any) -> list[Any]:
        """This thread's sums of one split."""
        # Relaxed for the GPU, and so not from the L1 cache, which does not see other SMs' writes (PTX ISA, "ld").
        access, sums = "ld.relaxed.gpu.global", list[Any]()
        for first in range(0, self.count, self.vectors.width):
            sums += self.vectors.load(b, place, "l", access, self._offset(first))
        return sums


def _is_last(b: Any, workspace: Any, tile: Any, splits_: Any) -> Any:
    """Count this split; every thread gets whether it is the last of the tile."""
    # Each thread releases its sums here, and one counts behind the barrier (PTX ISA, "Release and Acquire Patterns").
    device_fence(b)
    barrier(b)  # no thread counts before all have written
    leads = b.icmp_unsigned("==", thread(b), i32c(0))
    counter = b.add(workspace, b.zext(b.mul(tile, i32c(COUNTER_BYTES)), I64))
    text = (
        "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0xffffffff; "
        "@p atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2; }"
    )
    before_last = b.sub(splits_, i32c(1))
    operands = [counter, before_last, b.zext(leads, I32)]
    # The last split's `inc` wraps the counter, so that the next launch finds 0 (PTX ISA, "atom"). Threads that do not
    # count get a number that no split has.
    counted = asm(b, I32, operands, text, "=&r,l,r,r,~{memory}", effect=True)
    last = barrier_any(b, b.icmp_unsigned("==", counted, before_last))  # only the counting thread's flag can hold
    # Every thread acquires the sums whose counts the counting thread has seen.
    device_fence(b)
    return last


def _sum_of_splits(b: Any, sums: _Workspace, dtype: DTypeLike, base: Any, splits_: Any) -> list[Any]:
    """Add up the sums of all splits, in their order; several splits are read ahead."""
    ahead = max(1, min(MAX_AHEAD, MAX_PENDING // sums.count))
    before = b.block
    loop, done = b.append_basic_block("splits"), b.append_basic_block("total")
    b.branch(loop)
    b.position_at_end(loop)
    split = b.phi(I32)
    split.add_incoming(i32c(0), before)
    totals = [b.phi(sums.vectors.element) for _ in range(sums.count)]
    for total in totals:
        total.add_incoming(sums.zero, before)
    partials: list[tuple[Any, list[Any]]] = []
    for further in range(ahead):
        number = b.add(split, i32c(further))
        exists = b.icmp_unsigned("<", number, splits_)
        number = b.select(exists, number, i32c(0))  # past the last split: read any, and do not add it
        place = b.add(base, b.mul(b.zext(number, I64), const(I64, sums.split_bytes)))
        partials.append((exists, sums.read(b, place)))
    new: list[Any] = list(totals)
    for exists, elements in partials:
        with_split = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(new, elements, strict=True)]
        new = [b.select(exists, x, y) for x, y in zip(with_split, new, strict=True)]
    following = b.add(split, i32c(ahead))
    split.add_incoming(following, b.block)
    for total, value in zip(totals, new, strict=True):
        total.add_incoming(value, b.block)
    b.cbranch(b.icmp_unsigned("<", following, splits_), loop, done)
    b.position_at_end(done)
    return new


@cache
def fixup(dtype: DTypeLike, layout: Layout) -> Any:
    """`f(sums, workspace, tile, split, splits)`: sums; whether they are the result.

    If a tile has one split, its own sums are the result. Else each thread block writes its sums to the workspace. The
    block that counts last adds all of them up, and has the result. Then the tile's counter is 0 again.
    """
    sums = _Workspace(dtype, layout)
    n = sums.count
    kind = together((frag(dtype, n), frag(bool_, 0)))

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        workspace, (tile, split, splits_) = b.ptrtoint(values[1], I64), values[2:]
        start = b.block
        divided, last, done = (b.append_basic_block(name) for name in ("divided", "last", "whole"))
        b.cbranch(b.icmp_unsigned(">", splits_, i32c(1)), divided, done)
        b.position_at_end(divided)
        mine = b.add(workspace, const(I64, COUNTERS * COUNTER_BYTES))  # the sums lie behind all counters
        mine = b.add(mine, b.zext(b.mul(thread(b), i32c(sums.vectors.width * WORD_BYTES)), I64))
        first = b.mul(b.zext(b.mul(tile, splits_), I64), const(I64, sums.split_bytes))
        base = b.add(mine, first)
        sums.write(b, b.add(base, b.mul(b.zext(split, I64), const(I64, sums.split_bytes))), elements)
        is_last = _is_last(b, workspace, tile, splits_)
        behind_count = b.block
        b.cbranch(is_last, last, done)
        b.position_at_end(last)
        total = _sum_of_splits(b, sums, dtype, base, splits_)
        behind_total = b.block
        b.branch(done)
        b.position_at_end(done)
        yes, no = const(I1, 1), const(I1, 0)
        *results, owns_result = merge(
            b, ([*elements, yes], start), ([*elements, no], behind_count), ([*total, yes], behind_total)
        )
        return bundle(b, [pack(b, results, n), owns_result], kind)

    return intrinsic("fixup", kind, [frag(dtype, n), POINTER, *[INTEGER] * 3], generate)
