"""Specialised warps: what passes between those that load and those that multiply.

A ring of slots in shared memory with two barriers each: `full`, on which the loads of a turn arrive, and `empty`, on
which its readers do. Turn `t` uses slot `t % slots`, for the `t // slots`-th time, which tells the phase to wait for.
"""

from __future__ import annotations

from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import SCALAR_INT, Op, Value, attribute, operand
from cutile.ir.effects import Effect
from cutile.ir.types import Type


class RingStart(Op, name="cuda.ring_start", effect=Effect.WRITE):
    """Set up the barriers of the ring: `full` completes by one arrival and its bytes, `empty` by `readers` arrivals.
    Behind them may be `more`, for `arrivals` each. All threads of the block see them afterwards; where it is one of a
    cluster, as it also is if `nearby` says so, all of the cluster behind a `ClusterStart`. `flag`, if it is not 0, is
    where a word is set to 0: an assertion that fails sets it."""

    slots: int = attribute()
    readers: int = attribute()
    offset: int = attribute()
    cluster: int = attribute()
    more: int = attribute(0)
    arrivals: int = attribute(1)
    nearby: bool = attribute(False)
    flag: int = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterStart(Op, name="cuda.cluster_start", effect=Effect.WRITE):
    """Wait until all blocks of the cluster have set up their barriers."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterEnd(Op, name="cuda.cluster_end", effect=Effect.WRITE):
    """Wait for the cluster's other blocks, which may still write to this one's shared memory."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class RingAcquire(Op, name="cuda.ring_acquire", effect=Effect.WRITE):
    """Wait until the slot of a turn is empty, and announce the `nbytes` that will arrive in it.

    `limited`: a wait of over two seconds ends the kernel.
    """

    turn: Value = operand(SCALAR_INT)
    slots: int = attribute()
    offset: int = attribute()
    nbytes: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class RingWait(Op, name="cuda.ring_wait", effect=Effect.WRITE):
    """Wait until what a turn loads has arrived."""

    turn: Value = operand(SCALAR_INT)
    slots: int = attribute()
    offset: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class RingRelease(Op, name="cuda.ring_release", effect=Effect.WRITE):
    """Where `condition` holds, say that the slot of a turn has been read by this warp group, to all of the cluster.

    `warps`: each of its warps says so for itself.
    """

    turn: Value = operand(SCALAR_INT)
    condition: Value = operand(SCALAR_BOOL)
    slots: int = attribute()
    offset: int = attribute()
    cluster: int = attribute()
    warps: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class TakeOver(Op, name="cuda.take_over", effect=Effect.WRITE):
    """Wait until the group before has begun all products of its tile block, where groups have their own.

    Only then may this one wait for operands: which phase of a slot is the next is not to be known any earlier. `number`
    is the tile block's, `step` that from one of the group's to the next.
    """

    number: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    offset: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class HandOver(Op, name="cuda.hand_over", effect=Effect.WRITE):
    """All products of this group's tile block have begun: the next group may (see `TakeOver`).

    Each of its warps says so: one that has not taken over yet would else miss the other group's next handing over.
    """

    offset: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()
