"""Accesses by address on a GPU.

Who waits for whom, and what passes through shared memory. Facts about operations.

A tile block is one thread of the program, and many of the machine. What the one does in order the many do only where
they wait for one another: before an access that comes after others, before a release, after an acquire.
"""

from __future__ import annotations

from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bf16
from cutile.ir.core import Op
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.pointer import LoadPointer, StorePointer

Access = LoadPointer | StorePointer | AtomicRmw | AtomicCas


def waits_before(op: Access) -> bool:
    """Whether all threads must have made their earlier accesses."""
    return op.ordered or op.order in ("release", "acq_rel")


def waits_after(op: Access) -> bool:
    """Whether no thread may go on before the access was made."""
    return op.order in ("acquire", "acq_rel")


def accesses_by_one_lane(op: Access) -> bool:
    """Whether an element that several threads hold is accessed by one of them.

    It may change from one to the next.
    """
    return not (isinstance(op, LoadPointer) and op.order == "weak")


def broadcasts_result(op: Op, layout: Layout | None, used: bool) -> bool:
    """Whether one thread's result must be handed to others that hold the element."""
    if not isinstance(op, LoadPointer | AtomicRmw | AtomicCas) or not used or not accesses_by_one_lane(op):
        return False
    return layout is None or bool(layout.free_lanes or layout.free_warps)


def is_native(kind: str, dtype: DTypeLike, arch: Architecture) -> bool:
    """Whether an update is one instruction."""
    return not (kind == "addf" and dtype is bf16 and arch.major < 9)
