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
    asm,
    barrier,
    barrier_any,
    call,
    const,
    device_fence,
    i32c,
    ir,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

VECTOR = 4
"""Sums that a thread writes, or reads, at once."""
AT_ONCE = 64
"""Registers of a thread for sums that are on their way from the workspace."""
MAX_AHEAD = 8
"""Splits of which sums are on their way at once."""
SUM_BYTES = 4
COUNTER_BYTES = 4


def _iterations(b: Any, start: Any, stop: Any, step: Any) -> Any:
    """The length of `range(start, stop, step)`, whose step is positive."""
    length = b.sub(stop, start)
    whole = b.sdiv(b.add(length, b.sub(step, i32c(1))), step)
    return b.select(b.icmp_signed(">", length, i32c(0)), whole, i32c(0))


Numbers = Callable[[], list[Any]]
"""Writes the code that computes some i32 values."""


def _computed_if(b: Any, condition: Any, then: Numbers, orelse: list[Any]) -> list[Any]:
    """The numbers of `then` if a condition holds, else `orelse`.

    By a branch, not by a selection: the numbers take divisions, which are slow and seldom needed.
    """
    before = b.block
    there, after = b.append_basic_block("divided"), b.append_basic_block("known")
    b.cbranch(condition, there, after)
    b.position_at_end(there)
    numbers = then()
    end = b.block
    b.branch(after)
    b.position_at_end(after)
    results = [b.phi(I32) for _ in numbers]
    for each, new, old in zip(results, numbers, orelse, strict=True):
        each.add_incoming(new, end)
        each.add_incoming(old, before)
    return results


@cache
def splits(most: int, least: int, whole: bool = False) -> Any:
    """`f(tiles, start, stop, step)`: the number of splits of each of so many tiles.

    Splits have `least` iterations or more, and all splits together are no more than the thread blocks. A tile has 1 to
    `most` splits. With `whole` it has `most` if the thread blocks are exactly `tiles * most`, else 1.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        tiles, *bounds = values
        blocks = call(b, "llvm.nvvm.read.ptx.sreg.nctaid.x", I32, [])
        iterations = _iterations(b, *bounds)
        if whole:
            enough = b.icmp_unsigned(">=", iterations, i32c(most * least))
            matches = b.icmp_unsigned("==", b.mul(tiles, i32c(most)), blocks)
            return b.select(b.and_(enough, matches), i32c(most), i32c(1))
        enough = b.icmp_unsigned(">=", iterations, i32c(2 * least))
        few = b.icmp_unsigned("<=", b.mul(tiles, i32c(2)), blocks)
        counted = b.icmp_unsigned("<=", tiles, i32c(COUNTERS))

        def divided() -> list[Any]:
            many = b.udiv(blocks, tiles)
            for limit in (i32c(most), b.udiv(iterations, i32c(least))):
                many = b.select(b.icmp_unsigned("<", many, limit), many, limit)
            return [many]

        return _computed_if(b, b.and_(b.and_(enough, few), counted), divided, [i32c(1)])[0]

    return intrinsic("splits", INTEGER, [INTEGER] * 4, generate)


@cache
def work_unit() -> Any:
    """`f(unit, start, stop, step, splits)`: tile, split and bounds of a work unit."""
    kind = together((INTEGER,) * 4)

    def generate(b: Any, values: list[Any]) -> Any:
        unit, start, stop, step, count = values

        def divided() -> list[Any]:
            tile, iterations = b.udiv(unit, count), _iterations(b, start, stop, step)
            split = b.sub(unit, b.mul(tile, count))
            ends = [b.udiv(b.mul(iterations, at), count) for at in (split, b.add(split, i32c(1)))]
            return [tile, split, *(b.add(start, b.mul(end, step)) for end in ends)]

        several = b.icmp_unsigned(">", count, i32c(1))
        return bundle(b, _computed_if(b, several, divided, [unit, i32c(0), start, stop]), kind)

    return intrinsic("work_unit", kind, [INTEGER] * 5, generate)


class _Workspace:
    """The sums of all splits in global memory, behind a counter for each tile.

    `width` registers of a thread lie side by side, then those of the next thread, so that a warp accesses one piece of
    memory.
    """

    def __init__(self, dtype: DTypeLike, layout: Layout) -> None:
        self.count, self.threads = layout.registers, layout.threads
        self.width = next(width for width in (VECTOR, 2, 1) if self.count % width == 0)
        self.split_bytes = self.count * self.threads * SUM_BYTES
        self.element, self.letter, self.zero = (I32, "r", i32c(0)) if dtype is i32 else (F32, "f", const(F32, 0.0))
        self._suffix = (f".v{self.width}" if self.width > 1 else "") + (".b32" if dtype is i32 else ".f32")

    def _listed(self, first: int) -> str:
        """The registers of one access in PTX, from number `first` on."""
        names = ", ".join(f"${first + i}" for i in range(self.width))
        return f"{{{names}}}" if self.width > 1 else names

    def write(self, b: Any, place: Any, elements: list[Any]) -> None:
        """Write this thread's sums of one split."""
        for first in range(0, self.count, self.width):
            # In PTX, with the width chosen here, so that LLVM keeps the store ahead of the fence (PTX ISA, "st").
            text = f"st.global{self._suffix} [$0+{first * self.threads * SUM_BYTES}], {self._listed(1)};"
            constraints = ",".join(["l", *[self.letter] * self.width, "~{memory}"])
            asm(b, VOID, [place, *elements[first : first + self.width]], text, constraints, effect=True)

    def read(self, b: Any, place: Any) -> list[Any]:
        """This thread's sums of one split."""
        width, sums = self.width, list[Any]()
        for first in range(0, self.count, width):
            # Relaxed for the GPU, and so not from the L1 cache, which does not see other SMs' writes (PTX ISA, "ld").
            text = (
                f"ld.relaxed.gpu.global{self._suffix} {self._listed(0)}, [${width}+{first * self.threads * SUM_BYTES}];"
            )
            constraints = ",".join([f"={self.letter}"] * width + ["l", "~{memory}"])
            result = ir.LiteralStructType([self.element] * width) if width > 1 else self.element
            loaded = asm(b, result, [place], text, constraints, effect=True)
            sums += [b.extract_value(loaded, i) for i in range(width)] if width > 1 else [loaded]
        return sums


def _is_last(b: Any, workspace: Any, tile: Any, splits_: Any) -> Any:
    """Count this split; the result, in every thread: whether it is the tile's last."""
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
    # `inc` wraps behind the last split's number, so that the next launch finds 0 (PTX ISA, "atom"). Threads that do not
    # count get a number that no split has.
    counted = asm(b, I32, operands, text, "=&r,l,r,r,~{memory}", effect=True)
    last = barrier_any(b, b.icmp_unsigned("==", counted, before_last))  # only the counting thread's flag can hold
    # Every thread acquires the sums whose counts the counting thread has seen.
    device_fence(b)
    return last


def _sum_of_splits(b: Any, sums: _Workspace, dtype: DTypeLike, base: Any, splits_: Any) -> list[Any]:
    """Add up the sums of all splits, in their order; several splits are read ahead."""
    ahead = max(1, min(MAX_AHEAD, AT_ONCE // sums.count))
    before = b.block
    loop, done = b.append_basic_block("pieces"), b.append_basic_block("added")
    b.branch(loop)
    b.position_at_end(loop)
    split = b.phi(I32)
    split.add_incoming(i32c(0), before)
    totals = [b.phi(sums.element) for _ in range(sums.count)]
    for total in totals:
        total.add_incoming(sums.zero, before)
    loaded: list[tuple[Any, list[Any]]] = []
    for further in range(ahead):
        number = b.add(split, i32c(further))
        exists = b.icmp_unsigned("<", number, splits_)
        there = b.select(exists, number, i32c(0))  # past the last split: read any, and do not add it
        place = b.add(base, b.mul(b.zext(there, I64), const(I64, sums.split_bytes)))
        loaded.append((exists, sums.read(b, place)))
    new: list[Any] = list(totals)
    for exists, elements in loaded:
        added = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(new, elements, strict=True)]
        new = [b.select(exists, x, y) for x, y in zip(added, new, strict=True)]
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

    A tile of one split has its own sums as the result. Else each thread block writes its sums to the workspace. The one
    that counts last adds all of them up, and has the result. The tile's counter is 0 again then.
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
        mine = b.add(mine, b.zext(b.mul(thread(b), i32c(sums.width * SUM_BYTES)), I64))
        first = b.mul(b.zext(b.mul(tile, splits_), I64), const(I64, sums.split_bytes))
        base = b.add(mine, first)
        sums.write(b, b.add(base, b.mul(b.zext(split, I64), const(I64, sums.split_bytes))), elements)
        is_last = _is_last(b, workspace, tile, splits_)
        handed_in = b.block
        b.cbranch(is_last, last, done)
        b.position_at_end(last)
        total = _sum_of_splits(b, sums, dtype, base, splits_)
        added = b.block
        b.branch(done)
        b.position_at_end(done)
        out: list[Any] = []
        for own, whole in zip(elements, total, strict=True):
            result = b.phi(sums.element)
            for value, origin in ((own, start), (own, handed_in), (whole, added)):
                result.add_incoming(value, origin)
            out.append(result)
        owns_result = b.phi(I1)
        for flag, origin in ((1, start), (0, handed_in), (1, added)):
            owns_result.add_incoming(const(I1, flag), origin)
        return bundle(b, [pack(b, out, n), owns_result], kind)

    return intrinsic("fixup", kind, [frag(dtype, n), POINTER, *[INTEGER] * 3], generate)
