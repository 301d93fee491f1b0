"""Specialised warps: the ring's barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import limit, numbers
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.ring import (
    ClusterEnd,
    ClusterStart,
    HandOver,
    RingAcquire,
    RingRelease,
    RingStart,
    RingWait,
    TakeOver,
)

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def ring_start(op: RingStart, kernel: Kernel) -> Call:
    """`start()`."""
    more = [f"more={op.more}"] if op.more else []
    more += [f"arrivals={op.arrivals}"] if op.arrivals > 1 else []
    more += ["nearby=True"] if op.nearby else []
    more += [f"flag={op.flag}"] if op.flag else []
    return Call(kernel.bind("start", "ring.start", *numbers(op, "slots", "readers", "offset", "cluster"), *more), ())


def cluster_start(op: ClusterStart, kernel: Kernel) -> Call:
    """`join()`."""
    return Call(kernel.bind("join", "ring.join"), ())


def cluster_end(op: ClusterEnd, kernel: Kernel) -> Call:
    """`leave()`."""
    return Call(kernel.bind("leave", "ring.leave"), ())


def take_over(op: TakeOver, kernel: Kernel) -> Call:
    """`take_over(tile, step)`."""
    made = kernel.bind("take_over", "ring.take_over", *numbers(op, "offset"), *limit(op))
    return Call(made, (kernel.use(op.number), kernel.use(op.step)))


def hand_over(op: HandOver, kernel: Kernel) -> Call:
    """`hand_over()`."""
    return Call(kernel.bind("hand_over", "ring.hand_over", *numbers(op, "offset")), ())


def acquire(op: RingAcquire, kernel: Kernel) -> Call:
    """`acquire(turn)`."""
    made = kernel.bind("acquire", "ring.acquire", *numbers(op, "slots", "offset", "nbytes"), *limit(op))
    return Call(made, (kernel.use(op.turn),))


def wait(op: RingWait, kernel: Kernel) -> Call:
    """`wait(turn)`."""
    return Call(kernel.bind("wait", "ring.wait", *numbers(op, "slots", "offset"), *limit(op)), (kernel.use(op.turn),))


def release(op: RingRelease, kernel: Kernel) -> Call:
    """`release(turn, condition)`."""
    warps = ["warps=True"] if op.warps else []
    made = kernel.bind("release", "ring.release", *numbers(op, "slots", "offset", "cluster"), *warps)
    return Call(made, (kernel.use(op.turn), kernel.use(op.condition)))


EMITTERS = {
    RingStart: ring_start,
    ClusterStart: cluster_start,
    ClusterEnd: cluster_end,
    TakeOver: take_over,
    HandOver: hand_over,
    RingAcquire: acquire,
    RingWait: wait,
    RingRelease: release,
}
