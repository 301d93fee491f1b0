"""Tiles from global to shared memory past the registers (`cp.async`), into the slots of a ring."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import I32, VOID, asm, barrier, i32c, shared
from cutile.backend.cuda.intrinsics.memory import Access, View
from cutile.backend.cuda.layout import Layout
from cutile.dtypes import i32

COPY = 16
"""Bytes of one copy."""


def slot_shift(b: Any, turn: Any, slots: int, size: int) -> Any:
    """The bytes from a ring's first slot to the one of this turn."""
    return b.mul(b.urem(turn, i32c(slots)), i32c(size))


@cache
def stage_tile(view: View, layout: Layout, *, axis: int, slots: int, slot_bytes: int, offset: int, pitch: int) -> Any:
    """`f(base, *dynamic extents, *dynamic strides, *tile index, turn)`: begin to copy a tile; zeros past the edges.

    Args:
        layout: who copies what: neighbours along `axis`, which has stride 1, in vectors of 16 bytes.
        slots: of the ring.
        slot_bytes: from slot to slot.
        offset: where the tile lies in slot 0, in bytes.
        pitch: elements from row to row there.
    """
    size = view.dtype.bits // 8
    width = COPY // size
    if layout.vector(axis) < width:
        raise ValueError(f"no {width} neighbours along axis {axis} in {layout}")
    row = 1 - axis

    def generate(b: Any, values: list[Any]) -> None:
        *rest, turn = values
        access = Access(b, view, layout, rest)
        first = b.add(b.mul(access.at.thread_part(row), i32c(pitch)), access.at.thread_part(axis))
        first = b.add(b.mul(first, i32c(size)), b.add(slot_shift(b, turn, slots, slot_bytes), i32c(offset)))
        target = b.ptrtoint(shared(b, first), I32)
        whole, edge, done = (b.append_basic_block(name) for name in ("inside", "edge", "staged"))
        b.cbranch(access.interior, whole, edge)
        for where, full in ((whole, True), (edge, False)):
            b.position_at_end(where)
            access.enter()
            for register in range(0, layout.registers, width):
                _copy(b, access, register, target, axis, pitch, full)
            b.branch(done)
        b.position_at_end(done)

    return intrinsic("stage_tile", None, [*view.arguments(), frag(i32, 0)], generate)


def _copy(b: Any, access: Access, register: int, target: Any, axis: int, pitch: int, full: bool) -> None:
    """One copy of 16 bytes; `full`: the tile lies wholly in the tensor."""
    layout, size = access.layout, access.view.dtype.bits // 8
    offset = layout.offsets[register]
    place = b.add(target, i32c((offset[1 - axis] * pitch + offset[axis]) * size))
    operands = [place, access.address(register)]
    text, constraints = "cp.async.cg.shared.global [$0], [$1], 16;", "r,l,~{memory}"
    if not full:
        operands.append(access.bytes_inside(register, axis, COPY // size))
        text, constraints = "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}"
    inside = access.at.inside(register)
    if inside is None:
        asm(b, VOID, operands, text, constraints, effect=True)
        return
    with b.if_then(inside):  # beyond the tile's edge another tile may begin
        asm(b, VOID, operands, text, constraints, effect=True)


@cache
def commit() -> Any:
    """`f()`: the copies begun since the last commit are one group."""

    def generate(b: Any, _: list[Any]) -> None:
        asm(b, VOID, [], "cp.async.commit_group;", "~{memory}", effect=True)

    return intrinsic("commit", None, [], generate)


@cache
def wait(pending: int) -> Any:
    """`f()`: at most `pending` groups are still under way, for every thread, and all see what has arrived."""

    def generate(b: Any, _: list[Any]) -> None:
        asm(b, VOID, [], f"cp.async.wait_group {pending};", "~{memory}", effect=True)
        barrier(b)

    return intrinsic("wait", None, [], generate)
