"""The barriers of a pipeline between producer and consumer warps (`mbarrier`).

Stage `s` has a barrier `full` at `offset + 8 s`; the barriers `empty` follow behind the `full` of all stages. A barrier
completes a phase when all arrivals, and all announced bytes, have come. A wait names the parity of its phase. Stage
counter `t` is use number `t // stages` of its stage. The bytes of that use complete phase `t // stages` of `full`. Its
consumers complete the phase of the same number of `empty`. So the producer waits on `empty` for the phase before; a
wait for the phase before the first one ends at once (PTX ISA, "Parallel Synchronization and Communication Instructions:
mbarrier").
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.debug import give_up
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import (
    I32,
    LANES,
    VOID,
    address,
    asm,
    block,
    i32c,
    synchronize_warp,
    thread,
)
from cutile.backend.cuda.smem_layout import WARPGROUP
from cutile.dtypes import bool_, i32

BARRIER = 8
"""Bytes of an mbarrier object (PTX ISA, "Size and alignment of mbarrier object")."""
INTEGER: Any = frag(i32, 0)


def stage_of(b: Any, counter: Any, stages: int) -> Any:
    """The stage of a counter."""
    return b.urem(counter, i32c(stages))


def full_barrier(b: Any, counter: Any, stages: int, offset: int) -> Any:
    """The address of the barrier on which a counter's bytes arrive."""
    return b.add(address(b, offset), b.mul(stage_of(b, counter, stages), i32c(BARRIER)))


def _parity(b: Any, counter: Any, stages: int) -> Any:
    """The parity of the phase that a counter's use of its stage completes."""
    return b.and_(b.udiv(counter, i32c(stages)), i32c(1))


MAX_WAIT_NS = 2 * 10**9
"""Nanoseconds after which a limited wait ends the kernel. Waits of a sound kernel last microseconds."""


def wait_parity(b: Any, barrier: Any, parity: Any, *, scope: str = "") -> None:
    """Wait until the phase of this parity is complete.

    `scope` is ".acquire.cluster" if blocks of the cluster wrote the data that is read next; else threads of this block
    or TMA did.
    """
    # `try_wait` sleeps a while and may fail before the phase is complete, hence the loop. By default it acquires, for
    # the block: writes ahead of the arrivals are seen behind it (PTX ISA, "mbarrier.test_wait / mbarrier.try_wait").
    # Convergent, so that LLVM does not unroll the loops around it.
    text = f"{{ .reg .pred p; W: mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }}"
    asm(b, VOID, [barrier, parity], text, "r,r,~{memory}", effect=True, convergent=True)


def wait_limited(b: Any, barrier: Any, parity: Any, what: str, *counter: Any, scope: str = "") -> None:
    """As `wait_parity`; a wait of over two seconds ends the kernel.

    One thread of a warpgroup prints `what`, the reason, and the stage counter. The others wait on: if they ended the
    kernel first, nothing would be printed.
    """
    number = thread(b)
    speaks = b.zext(b.icmp_unsigned("==", b.and_(number, i32c(WARPGROUP - 1)), i32c(0)), I32)
    # The loop of `wait_parity` with a clock, which is read again only where `try_wait` has failed. `$0` is 1 if this
    # thread gave up. It is early-clobbered, since it is set before the operands are read (PTX ISA, "mbarrier.test_wait
    # / mbarrier.try_wait", "Special Registers: %globaltimer").
    gave_up = asm(
        b,
        I32,
        [barrier, parity, speaks],
        "{ .reg .pred p; .reg .u64 since, now; mov.u32 $0, 0; mov.u64 since, %globaltimer; "
        f"W: mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$1], $2; @p bra D; mov.u64 now, %globaltimer; "
        f"sub.u64 now, now, since; setp.gt.u64 p, now, {MAX_WAIT_NS}; setp.ne.and.b32 p, $3, 0, p; @!p bra W; "
        "mov.u32 $0, 1; D: }",
        "=&r,r,r,r,~{memory}",
        effect=True,
        convergent=True,
    )
    with b.if_then(b.icmp_unsigned("!=", gave_up, i32c(0)), likely=False):
        form = f"{what}{' (stage counter %d)' if counter else ''}: waited for over 2 s, in thread %d of block %d"
        give_up(b, form, [*counter, number, block(b)], "a wait lasted over 2 s")


@cache
def start(*barriers: tuple[int, int, int], cluster: bool = False, flag: int = 0) -> Any:
    """`f()`: set up barriers, which all threads of the block see afterwards.

    In a cluster they see the barriers only behind `cluster_wait`. All threads wait there, even producers that need
    nothing of other blocks yet: compute-sanitizer's racecheck lets no thread pass before all have come to wait.

    Args:
        barriers: for each group of barriers, the offset of the first in bytes, their number, and a phase's arrivals.
        cluster: whether blocks load together, or send each other data later.
        flag: the offset of a word that becomes 0: a failed assertion of this thread block sets it to 1. 0 for none.
    """
    begin = barriers[0][0]

    def generate(b: Any, _: list[Any]) -> None:
        base = address(b, begin)
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            for offset, count, arrivals in barriers:
                for number in range(count):
                    where = b.add(base, i32c(offset - begin + number * BARRIER))
                    # The operand is the number of arrivals of each phase (PTX ISA, "mbarrier.init").
                    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
                    asm(b, VOID, [where], text, "r,~{memory}", effect=True)
            if flag:
                # In PTX, so that LLVM keeps the store in its place among the barriers.
                asm(b, VOID, [address(b, flag), i32c(0)], "st.shared.b32 [$0], $1;", "r,r,~{memory}", effect=True)
            # Shows the new barriers to other blocks of the cluster and to TMA (PTX ISA, "membar / fence").
            asm(b, VOID, [], "fence.mbarrier_init.release.cluster;", "~{memory}", effect=True)
        # Without a flag, only the barriers must be visible to the cluster. The fence above has released them, so the
        # arrival may be relaxed. The flag's store needs a release (PTX ISA, "barrier.cluster", "bar").
        arrive = "barrier.cluster.arrive.release;" if flag else "barrier.cluster.arrive.relaxed;"
        text = arrive if cluster else "bar.sync 0;"  # of the whole block, the producer's warps too
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("start", None, [], generate)


@cache
def cluster_wait() -> Any:
    """`f()`: wait until all blocks of the cluster have set up their barriers."""

    def generate(b: Any, _: list[Any]) -> None:
        # The other half of `start`'s arrival; other set-up ran between the two (PTX ISA, "barrier.cluster").
        asm(b, VOID, [], "barrier.cluster.wait.acquire;", "~{memory}", effect=True, convergent=True)

    return intrinsic("cluster_wait", None, [], generate)


@cache
def cluster_sync() -> Any:
    """`f()`: wait until no block of the cluster writes to this one any more."""

    def generate(b: Any, _: list[Any]) -> None:
        # A block that ends takes its shared memory with it, while others may still arrive on barriers or write there
        # (PTX ISA, "barrier.cluster").
        text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("cluster_sync", None, [], generate)


def wait_empty(b: Any, counter: Any, stages: int, offset: int, limited: bool) -> Any:
    """Wait until the counter's stage is empty; return the address of its `full`."""
    full = full_barrier(b, counter, stages, offset)
    parity = b.xor(_parity(b, counter, stages), i32c(1))  # of the phase before
    empty = b.add(full, i32c(stages * BARRIER))
    if limited:
        wait_limited(b, empty, parity, "the stage is never released for the loads", counter)
    else:
        wait_parity(b, empty, parity)
    return full


@cache
def acquire(stages: int, offset: int, nbytes: int, limited: bool = False) -> Any:
    """`f(counter)`: wait for an empty stage, and announce the bytes that will arrive."""

    def generate(b: Any, values: list[Any]) -> None:
        full = wait_empty(b, values[0], stages, offset, limited)
        # The phase's only arrival announces the bytes that complete it (PTX ISA, "mbarrier.arrive").
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        asm(b, VOID, [full, i32c(nbytes)], text, "r,r,~{memory}", effect=True)

    return intrinsic("acquire", None, [INTEGER], generate)


@cache
def wait(stages: int, offset: int, limited: bool = False) -> Any:
    """`f(counter)`: wait until the counter's bytes have arrived."""

    def generate(b: Any, values: list[Any]) -> None:
        (counter,) = values
        full, parity = full_barrier(b, counter, stages, offset), _parity(b, counter, stages)
        if limited:
            wait_limited(b, full, parity, "nothing arrives of the loads", counter)
        else:
            wait_parity(b, full, parity)

    return intrinsic("wait", None, [INTEGER], generate)


@cache
def order_wait(offset: int, limited: bool = False) -> Any:
    """`f(number, step)`: wait until the other warpgroup has begun its products.

    Each of two warpgroups has a barrier, the first at `offset`, the second behind it. The warps of the other warpgroup
    arrive there once for each of their tile blocks. For its tile block `n = number // step`, the second warpgroup waits
    for phase `n` of its barrier. The first waits for phase `n - 1`; its first wait ends at once.
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

    return intrinsic("order_wait", None, [INTEGER, INTEGER], generate)


@cache
def order_arrive(offset: int) -> Any:
    """`f()`: each warp of a warpgroup arrives on the order barrier of the other one."""

    def generate(b: Any, _: list[Any]) -> None:
        other = b.xor(group_of(b), i32c(1))
        synchronize_warp(b)  # no lane of the warp still waits for its turn
        with b.if_then(b.icmp_unsigned("==", b.and_(thread(b), i32c(LANES - 1)), i32c(0))):
            # Every warp arrives, not one for its warpgroup: a late warp could otherwise miss a whole phase (PTX ISA,
            # "mbarrier.arrive").
            where = b.add(address(b, offset), b.mul(other, i32c(BARRIER)))
            asm(b, VOID, [where], "mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", effect=True)

    return intrinsic("order_arrive", None, [], generate)


def group_of(b: Any) -> Any:
    """The thread's warpgroup."""
    return b.lshr(thread(b), i32c(WARPGROUP.bit_length() - 1))


@cache
def release(stages: int, offset: int, cluster: int, warps: bool = False) -> Any:
    """`f(counter, condition)`: a warpgroup arrives on the counter's `empty`.

    If the condition holds, it arrives in every block of the cluster. With `warps` each warp arrives: its threads have
    read the stage themselves, and one warp may be later than another. The arrival need not release anything to the
    cluster: TMA overwrites the stage next, and this block has not written to it by ordinary stores.
    """

    def generate(b: Any, values: list[Any]) -> None:
        counter, condition = values
        empty = b.add(full_barrier(b, counter, stages, offset), i32c(stages * BARRIER))
        number = b.and_(thread(b), i32c((LANES if warps else WARPGROUP) - 1))
        arrives = b.icmp_unsigned("<", number, i32c(cluster))
        flag = b.zext(b.and_(arrives, condition), I32)
        if warps:  # so that the other lanes' reads, too, come before the arrival
            synchronize_warp(b)
        if cluster == 1:
            # Predicated: the warp does not branch for one lane's arrival (PTX ISA, "mbarrier.arrive").
            text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
            asm(b, VOID, [empty, flag], text, "r,r,~{memory}", effect=True)
            return
        # Thread i arrives in block i of the cluster: `mapa` finds the same barrier there (PTX ISA, "mapa").
        text = (
            "{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, $1, 0; @p mapa.shared::cluster.u32 there, $0, $2; "
            "@p mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        )
        asm(b, VOID, [empty, flag, number], text, "r,r,r,~{memory}", effect=True)

    return intrinsic("release", None, [INTEGER, frag(bool_, 0)], generate)
