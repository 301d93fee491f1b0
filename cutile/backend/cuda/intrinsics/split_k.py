"""The turns of a loop of products, divided, and their sums added up (`pipeline/split_k_sums.py` says how)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

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
    i32c,
    ir,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.persistent_grid import COUNTERS
from cutile.dtypes import DTypeLike, bool_, i32

VECTOR = 4
"""Sums that a thread writes, or reads, at once."""
AT_ONCE = 64
"""Registers of a thread for sums that are on their way from the workspace."""


def _turns(b: Any, start: Any, stop: Any, step: Any) -> Any:
    """Of `range(start, stop, step)`, whose step is positive."""
    length = b.sub(stop, start)
    whole = b.sdiv(b.add(length, b.sub(step, i32c(1))), step)
    return b.select(b.icmp_signed(">", length, i32c(0)), whole, i32c(0))


Numbers = Callable[[], list[Any]]


def _chosen(b: Any, condition: Any, then: Numbers, orelse: list[Any]) -> list[Any]:
    """Numbers made where a condition holds, and others elsewhere: divisions take a while, and are seldom needed."""
    before = b.block
    there, after = b.append_basic_block("divided"), b.append_basic_block("known")
    b.cbranch(condition, there, after)
    b.position_at_end(there)
    made = then()
    end = b.block
    b.branch(after)
    b.position_at_end(after)
    found = [b.phi(I32) for _ in made]
    for each, new, old in zip(found, made, orelse, strict=True):
        each.add_incoming(new, end)
        each.add_incoming(old, before)
    return found


@cache
def splits(most: int, least: int, whole: bool = False) -> Any:
    """`f(tiles, start, stop, step)`: into how many pieces each of so many tiles' turns are divided: 1 to `most`.

    There are no more pieces than thread blocks, and each has `least` turns or more. With `whole` there are 1 or `most`,
    which takes as many thread blocks as that makes.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        tiles, *bounds = values
        blocks = call(b, "llvm.nvvm.read.ptx.sreg.nctaid.x", I32, [])
        turns = _turns(b, *bounds)
        if whole:
            enough = b.icmp_unsigned(">=", turns, i32c(most * least))
            each = b.icmp_unsigned("==", b.mul(tiles, i32c(most)), blocks)
            return b.select(b.and_(enough, each), i32c(most), i32c(1))
        enough = b.icmp_unsigned(">=", turns, i32c(2 * least))
        few = b.icmp_unsigned("<=", b.mul(tiles, i32c(2)), blocks)
        counted = b.icmp_unsigned("<=", tiles, i32c(COUNTERS))

        def divided() -> list[Any]:
            many = b.udiv(blocks, tiles)
            for limit in (i32c(most), b.udiv(turns, i32c(least))):
                many = b.select(b.icmp_unsigned("<", many, limit), many, limit)
            return [many]

        return _chosen(b, b.and_(b.and_(enough, few), counted), divided, [i32c(1)])[0]

    return intrinsic("splits", INTEGER, [INTEGER] * 4, generate)


@cache
def work_unit() -> Any:
    """`f(unit, start, stop, step, pieces)`: a unit's tile, which piece of it, and the bounds of the piece's turns."""
    kind = together((INTEGER,) * 4)

    def generate(b: Any, values: list[Any]) -> Any:
        unit, start, stop, step, count = values

        def divided() -> list[Any]:
            tile, turns = b.udiv(unit, count), _turns(b, start, stop, step)
            piece = b.sub(unit, b.mul(tile, count))
            ends = [b.udiv(b.mul(turns, each), count) for each in (piece, b.add(piece, i32c(1)))]
            return [tile, piece, *(b.add(start, b.mul(each, step)) for each in ends)]

        some = b.icmp_unsigned(">", count, i32c(1))
        return bundle(b, _chosen(b, some, divided, [unit, i32c(0), start, stop]), kind)

    return intrinsic("work_unit", kind, [INTEGER] * 5, generate)


@cache
def fixup(dtype: DTypeLike, layout: Layout) -> Any:
    """`f(sums, workspace, tile, piece, pieces)`: all pieces' sums, and whether this thread block has them.

    Of one piece, these are the sums. Else they are written to the workspace, and the thread block that counts last adds
    them up; the counter then stands at 0 again.
    """
    n, threads = layout.registers, layout.threads
    width = next(each for each in (VECTOR, 2, 1) if n % each == 0)
    ahead = max(1, min(8, AT_ONCE // n))
    kind = together((frag(dtype, n), frag(bool_, 0)))
    element, letter, zero = (I32, "r", i32c(0)) if dtype is i32 else (F32, "f", const(F32, 0.0))
    form = {4: ".v4", 2: ".v2", 1: ""}[width] + (".b32" if dtype is i32 else ".f32")

    def listed(first: int) -> str:
        names = ", ".join(f"${first + i}" for i in range(width))
        return f"{{{names}}}" if width > 1 else names

    def write(b: Any, place: Any, elements: list[Any]) -> None:
        for first in range(0, n, width):
            text = f"st.global{form} [$0+{first * threads * 4}], {listed(1)};"
            constraints = ",".join(["l", *[letter] * width, "~{memory}"])
            asm(b, VOID, [place, *elements[first : first + width]], text, constraints, effect=True)

    def read(b: Any, place: Any) -> list[Any]:
        """Past the first-level cache, which knows nothing of other multiprocessors."""
        found: list[Any] = []
        for first in range(0, n, width):
            text = f"ld.relaxed.gpu.global{form} {listed(0)}, [${width}+{first * threads * 4}];"
            constraints = ",".join([f"={letter}"] * width + ["l", "~{memory}"])
            result = ir.LiteralStructType([element] * width) if width > 1 else element
            made = asm(b, result, [place], text, constraints, effect=True)
            found += [b.extract_value(made, i) for i in range(width)] if width > 1 else [made]
        return found

    def count(b: Any, workspace: Any, tile: Any, pieces: Any) -> Any:
        """Whether all other pieces have been counted, known to every thread."""
        asm(b, VOID, [], "fence.acq_rel.gpu;", "~{memory}", effect=True)
        barrier(b)
        leads = b.icmp_unsigned("==", thread(b), i32c(0))
        counter = b.add(workspace, b.zext(b.mul(tile, i32c(4)), I64))
        text = (
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0xffffffff; "
            "@p atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2; }"
        )
        before_last = b.sub(pieces, i32c(1))
        operands = [counter, before_last, b.zext(leads, I32)]
        before = asm(b, I32, operands, text, "=&r,l,r,r,~{memory}", effect=True)
        last = barrier_any(b, b.icmp_unsigned("==", before, before_last))
        asm(b, VOID, [], "fence.acq_rel.gpu;", "~{memory}", effect=True)
        return last

    def sum_of_all(b: Any, base: Any, pieces: Any) -> list[Any]:
        """In the order of the pieces, several of which are on their way at once."""
        before = b.block
        loop, done = b.append_basic_block("pieces"), b.append_basic_block("added")
        b.branch(loop)
        b.position_at_end(loop)
        piece = b.phi(I32)
        piece.add_incoming(i32c(0), before)
        sums = [b.phi(element) for _ in range(n)]
        for each in sums:
            each.add_incoming(zero, before)
        came: list[tuple[Any, list[Any]]] = []
        for further in range(ahead):
            number = b.add(piece, i32c(further))
            exists = b.icmp_unsigned("<", number, pieces)
            there = b.select(exists, number, i32c(0))
            place = b.add(base, b.mul(b.zext(there, I64), const(I64, n * threads * 4)))
            came.append((exists, read(b, place)))
        total: list[Any] = list(sums)
        for exists, elements in came:
            added = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(total, elements, strict=True)]
            total = [b.select(exists, new, old) for new, old in zip(added, total, strict=True)]
        following = b.add(piece, i32c(ahead))
        piece.add_incoming(following, b.block)
        for each, new in zip(sums, total, strict=True):
            each.add_incoming(new, b.block)
        b.cbranch(b.icmp_unsigned("<", following, pieces), loop, done)
        b.position_at_end(done)
        return total

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        workspace, (tile, piece, pieces) = b.ptrtoint(values[1], I64), values[2:]
        start = b.block
        divided, last, done = (b.append_basic_block(name) for name in ("divided", "last", "whole"))
        b.cbranch(b.icmp_unsigned(">", pieces, i32c(1)), divided, done)
        b.position_at_end(divided)
        mine = b.add(workspace, const(I64, COUNTERS * 4))
        mine = b.add(mine, b.zext(b.mul(thread(b), i32c(width * 4)), I64))
        first = b.mul(b.zext(b.mul(tile, pieces), I64), const(I64, n * threads * 4))
        base = b.add(mine, first)
        write(b, b.add(base, b.mul(b.zext(piece, I64), const(I64, n * threads * 4))), elements)
        is_last = count(b, workspace, tile, pieces)
        handed = b.block
        b.cbranch(is_last, last, done)
        b.position_at_end(last)
        total = sum_of_all(b, base, pieces)
        added = b.block
        b.branch(done)
        b.position_at_end(done)
        out: list[Any] = []
        for own, whole in zip(elements, total, strict=True):
            chosen = b.phi(element)
            chosen.add_incoming(own, start)
            chosen.add_incoming(own, handed)
            chosen.add_incoming(whole, added)
            out.append(chosen)
        keeps = b.phi(I1)
        for flag, origin in ((1, start), (0, handed), (1, added)):
            keeps.add_incoming(const(I1, flag), origin)
        return bundle(b, [pack(b, out, n), keeps], kind)

    return intrinsic("fixup", kind, [frag(dtype, n), POINTER, *[INTEGER] * 3], generate)
