"""The barriers of a ring between loading and computing warps (`mbarrier`).

Slot `s` has the barrier `full` at `offset + 8 s` and `empty` behind all of them. A barrier completes a phase when all
arrivals, and all bytes announced, have come; who waits names the parity of the phase. Turn `t` is use `t // slots` of
its slot: its bytes complete phase `t // slots` of `full`, its readers that of `empty`, so a loader waits for the phase
before, which for the first use is taken as done.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import I32, VOID, asm, i32c, shared, thread
from cutile.dtypes import bool_, i32

BARRIER = 8
"""Bytes of a barrier."""
INTEGER: Any = frag(i32, 0)


def address(b: Any, offset: Any) -> Any:
    """The 32-bit address of a place in shared memory."""
    return b.ptrtoint(shared(b, offset), I32)


def slot_of(b: Any, turn: Any, slots: int) -> Any:
    """The slot of a turn."""
    return b.urem(turn, i32c(slots))


def full_barrier(b: Any, turn: Any, slots: int, offset: int) -> Any:
    """The address of the barrier on which a turn's bytes arrive."""
    return b.add(address(b, offset), b.mul(slot_of(b, turn, slots), i32c(BARRIER)))


def _parity(b: Any, turn: Any, slots: int) -> Any:
    return b.and_(b.udiv(turn, i32c(slots)), i32c(1))


def wait_parity(b: Any, barrier: Any, parity: Any) -> None:
    """Wait until the phase of this parity is complete."""
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }"
    asm(b, VOID, [barrier, parity], text, "r,r,~{memory}", effect=True)


@cache
def start(slots: int, readers: int, offset: int) -> Any:
    """`f()`: set up the barriers; all threads of the block see them afterwards."""

    def generate(b: Any, _: list[Any]) -> None:
        base = address(b, offset)
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            for number in range(2 * slots):
                count = 1 if number < slots else readers
                text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
                asm(b, VOID, [b.add(base, i32c(number * BARRIER))], text, "r,~{memory}", effect=True)
            asm(b, VOID, [], "fence.mbarrier_init.release.cluster;", "~{memory}", effect=True)
        asm(b, VOID, [], "bar.sync 0;", "~{memory}", effect=True, convergent=True)

    return intrinsic("start", None, [], generate)


@cache
def acquire(slots: int, offset: int, nbytes: int) -> Any:
    """`f(turn)`: wait until the turn's slot is empty, then announce the bytes that will arrive."""

    def generate(b: Any, values: list[Any]) -> None:
        (turn,) = values
        full = full_barrier(b, turn, slots, offset)
        before = b.xor(_parity(b, turn, slots), i32c(1))
        wait_parity(b, b.add(full, i32c(slots * BARRIER)), before)
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        asm(b, VOID, [full, i32c(nbytes)], text, "r,r,~{memory}", effect=True)

    return intrinsic("acquire", None, [INTEGER], generate)


@cache
def wait(slots: int, offset: int) -> Any:
    """`f(turn)`: wait until the turn's bytes have arrived."""

    def generate(b: Any, values: list[Any]) -> None:
        (turn,) = values
        wait_parity(b, full_barrier(b, turn, slots, offset), _parity(b, turn, slots))

    return intrinsic("wait", None, [INTEGER], generate)


@cache
def release(slots: int, offset: int, group: int) -> Any:
    """`f(turn, condition)`: one thread of each group of `group` threads arrives on the turn's `empty`."""

    def generate(b: Any, values: list[Any]) -> None:
        turn, condition = values
        empty = b.add(full_barrier(b, turn, slots, offset), i32c(slots * BARRIER))
        one = b.icmp_unsigned("==", b.and_(thread(b), i32c(group - 1)), i32c(0))
        flag = b.zext(b.and_(one, condition), I32)
        text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
        asm(b, VOID, [empty, flag], text, "r,r,~{memory}", effect=True)

    return intrinsic("release", None, [INTEGER, frag(bool_, 0)], generate)
