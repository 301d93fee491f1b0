"""The barriers of a ring between loading and computing warps (`mbarrier`).

Slot `s` has the barrier `full` at `offset + 8 s` and `empty` behind all of them. A barrier completes a phase when all
arrivals, and all bytes announced, have come; who waits names the parity of the phase. Turn `t` is use `t // slots` of
its slot: its bytes complete phase `t // slots` of `full`, its readers that of `empty`, so a loader waits for the phase
before, which for the first use is taken as done.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.debug import give_up
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import I32, VOID, address, asm, block, i32c, thread
from cutile.backend.cuda.panels import GROUP
from cutile.dtypes import bool_, i32

WARP = 32
"""Threads of a warp."""
BARRIER = 8
"""Bytes of a barrier."""
INTEGER: Any = frag(i32, 0)


def slot_of(b: Any, turn: Any, slots: int) -> Any:
    """The slot of a turn."""
    return b.urem(turn, i32c(slots))


def full_barrier(b: Any, turn: Any, slots: int, offset: int) -> Any:
    """The address of the barrier on which a turn's bytes arrive."""
    return b.add(address(b, offset), b.mul(slot_of(b, turn, slots), i32c(BARRIER)))


def _parity(b: Any, turn: Any, slots: int) -> Any:
    return b.and_(b.udiv(turn, i32c(slots)), i32c(1))


LONGEST = 2 * 10**9
"""Nanoseconds that a limited wait lasts."""


def wait_parity(b: Any, barrier: Any, parity: Any, *, scope: str = "") -> None:
    """Wait until the phase of this parity is complete. Convergent, so that LLVM does not unroll the loops around it.

    `scope`, ".acquire.cluster", is how far away those are who write what is then read; the block otherwise.
    """
    text = f"{{ .reg .pred p; W: mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }}"
    asm(b, VOID, [barrier, parity], text, "r,r,~{memory}", effect=True, convergent=True)


def wait_limited(b: Any, barrier: Any, parity: Any, what: str, *turn: Any, scope: str = "") -> None:
    """As `wait_parity`; where it takes too long, say `what` is wrong, in which turn, and end the kernel.

    One thread of a warp group does so. The others wait on: were they to end the kernel, nothing would be said.
    """
    number = thread(b)
    speaks = b.zext(b.icmp_unsigned("==", b.and_(number, i32c(GROUP - 1)), i32c(0)), I32)
    late = asm(
        b,
        I32,
        [barrier, parity, speaks],
        "{ .reg .pred p; .reg .u64 since, now; mov.u32 $0, 0; mov.u64 since, %globaltimer; "
        f"W: mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$1], $2; @p bra D; mov.u64 now, %globaltimer; "
        f"sub.u64 now, now, since; setp.gt.u64 p, now, {LONGEST}; setp.ne.and.b32 p, $3, 0, p; @!p bra W; "
        "mov.u32 $0, 1; D: }",
        "=&r,r,r,r,~{memory}",
        effect=True,
        convergent=True,
    )
    with b.if_then(b.icmp_unsigned("!=", late, i32c(0)), likely=False):
        said = f"{what}{' of turn %d' if turn else ''}: waited for over 2 s, in thread %d of block %d"
        give_up(b, said, [*turn, number, block(b)], "a wait lasted over 2 s")


@cache
def start(
    slots: int,
    readers: int,
    offset: int,
    cluster: int,
    more: int = 0,
    arrivals: int = 1,
    *,
    nearby: bool = False,
    flag: int = 0,
) -> Any:
    """`f()`: set up the barriers; all threads of the block see them afterwards, or, in a cluster, behind `join`.

    `more` of them behind the ring's are for `arrivals` each. Blocks are a cluster where they load together, or have
    something for each other later (`nearby`). Those that load need not know of the others then, but wait with the rest:
    racecheck of compute-sanitizer lets nobody past this barrier before all have come to wait. `flag`, if not 0, is
    where a word becomes 0, by which this thread block's assertions say that they failed.
    """

    def generate(b: Any, _: list[Any]) -> None:
        base = address(b, offset)
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            for number in range(2 * slots + more):
                count = 1 if number < slots else readers if number < 2 * slots else arrivals
                text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
                asm(b, VOID, [b.add(base, i32c(number * BARRIER))], text, "r,~{memory}", effect=True)
            if flag:
                asm(b, VOID, [address(b, flag), i32c(0)], "st.shared.b32 [$0], $1;", "r,r,~{memory}", effect=True)
            asm(b, VOID, [], "fence.mbarrier_init.release.cluster;", "~{memory}", effect=True)
        # In a cluster nothing but the barriers is to be seen, and those have a fence of their own; but for the flag.
        arrive = "barrier.cluster.arrive.release;" if flag else "barrier.cluster.arrive.relaxed;"
        text = arrive if cluster > 1 or nearby else "bar.sync 0;"
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("start", None, [], generate)


@cache
def join() -> Any:
    """`f()`: wait until all blocks of the cluster have set up their barriers, and see them."""

    def generate(b: Any, _: list[Any]) -> None:
        asm(b, VOID, [], "barrier.cluster.wait.acquire;", "~{memory}", effect=True, convergent=True)

    return intrinsic("join", None, [], generate)


@cache
def leave() -> Any:
    """`f()`: wait until no block of the cluster writes to this one's shared memory any more."""

    def generate(b: Any, _: list[Any]) -> None:
        text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("leave", None, [], generate)


@cache
def acquire(slots: int, offset: int, nbytes: int, limited: bool = False) -> Any:
    """`f(turn)`: wait until the turn's slot is empty, then announce the bytes that will arrive."""

    def generate(b: Any, values: list[Any]) -> None:
        (turn,) = values
        full = full_barrier(b, turn, slots, offset)
        before = b.xor(_parity(b, turn, slots), i32c(1))
        empty = b.add(full, i32c(slots * BARRIER))
        if limited:
            wait_limited(b, empty, before, "the slot is never given up for the loads", turn)
        else:
            wait_parity(b, empty, before)
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        asm(b, VOID, [full, i32c(nbytes)], text, "r,r,~{memory}", effect=True)

    return intrinsic("acquire", None, [INTEGER], generate)


@cache
def wait(slots: int, offset: int, limited: bool = False) -> Any:
    """`f(turn)`: wait until the turn's bytes have arrived."""

    def generate(b: Any, values: list[Any]) -> None:
        (turn,) = values
        full, parity = full_barrier(b, turn, slots, offset), _parity(b, turn, slots)
        if limited:
            wait_limited(b, full, parity, "nothing arrives of the loads", turn)
        else:
            wait_parity(b, full, parity)

    return intrinsic("wait", None, [INTEGER], generate)


@cache
def take_over(offset: int, limited: bool = False) -> Any:
    """`f(number, step)`: wait until the other of two groups has handed over.

    Each group has a barrier of its own, at `offset` and behind it, on which the warps of the other one arrive for each
    of its tile blocks. For its tile block `n` the second group waits for phase `n` of its barrier; the first for the
    one before, which for its first tile block is taken as done.
    """

    def generate(b: Any, values: list[Any]) -> None:
        mine = group_of(b)
        count = b.udiv(values[0], values[1])
        parity = b.and_(b.add(b.add(count, mine), i32c(1)), i32c(1))
        barrier = b.add(address(b, offset), b.mul(mine, i32c(BARRIER)))
        if limited:
            wait_limited(b, barrier, parity, "the other warp group never begins its last product", count)
        else:
            wait_parity(b, barrier, parity)

    return intrinsic("take_over", None, [INTEGER, INTEGER], generate)


@cache
def hand_over(offset: int) -> Any:
    """`f()`: each warp of a group arrives on the barrier of the other one."""

    def generate(b: Any, _: list[Any]) -> None:
        other = b.xor(group_of(b), i32c(1))
        _synchronize_warp(b)  # no lane of it still waits to take over
        with b.if_then(b.icmp_unsigned("==", b.and_(thread(b), i32c(WARP - 1)), i32c(0))):
            where = b.add(address(b, offset), b.mul(other, i32c(BARRIER)))
            asm(b, VOID, [where], "mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", effect=True)

    return intrinsic("hand_over", None, [], generate)


def _synchronize_warp(b: Any) -> None:
    asm(b, VOID, [], "bar.warp.sync 0xffffffff;", "~{memory}", effect=True, convergent=True)


def group_of(b: Any) -> Any:
    """The thread's warp group."""
    return b.lshr(thread(b), i32c(GROUP.bit_length() - 1))


@cache
def release(slots: int, offset: int, cluster: int, warps: bool = False) -> Any:
    """`f(turn, condition)`: each warp group arrives on the turn's `empty`, in every block of the cluster.

    With `warps` each warp does: they have read what is there themselves, one maybe later than another. The arrival
    needs no release to the cluster: what follows it there is a copy, which no ordinary write precedes.
    """

    def generate(b: Any, values: list[Any]) -> None:
        turn, condition = values
        empty = b.add(full_barrier(b, turn, slots, offset), i32c(slots * BARRIER))
        number = b.and_(thread(b), i32c((WARP if warps else GROUP) - 1))
        one = b.icmp_unsigned("<", number, i32c(cluster))
        flag = b.zext(b.and_(one, condition), I32)
        if warps:  # what its other lanes have read comes before the arrival too
            _synchronize_warp(b)
        if cluster == 1:
            text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
            asm(b, VOID, [empty, flag], text, "r,r,~{memory}", effect=True)
            return
        text = (
            "{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, $1, 0; @p mapa.shared::cluster.u32 there, $0, $2; "
            "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        )
        asm(b, VOID, [empty, flag, number], text, "r,r,r,~{memory}", effect=True)

    return intrinsic("release", None, [INTEGER, frag(bool_, 0)], generate)
