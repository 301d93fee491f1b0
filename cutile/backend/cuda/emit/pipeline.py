"""Specialised warps: the barriers of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import barriers, limit, numbers, offset
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.pipeline import (
    BarriersStart,
    BarriersType,
    ClusterEnd,
    ClusterStart,
    HandOver,
    PipelineAcquire,
    PipelineRelease,
    PipelineType,
    PipelineWait,
    TakeOver,
)

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


BARRIER_BYTES = 8
"""Of an mbarrier object."""


def barriers_start(op: BarriersStart, kernel: Kernel) -> Call:
    """`start()`."""
    counted: list[tuple[int, int, int]] = []
    for value in op.of:
        where, type_ = offset(value, kernel), value.type
        if isinstance(type_, PipelineType):  # `full` completes by one arrival and its bytes
            behind = where + BARRIER_BYTES * type_.stages
            counted += [(where, type_.stages, 1), (behind, type_.stages, type_.arrivals)]
        elif isinstance(type_, BarriersType):
            counted.append((where, type_.count, type_.arrivals))
    more = ["cluster=True"] if op.cluster else []
    more += [f"flag={offset(op.flag, kernel)}"] if op.flag is not None else []
    return Call(kernel.bind("start", "pipeline.start", *map(str, counted), *more), ())


def cluster_start(op: ClusterStart, kernel: Kernel) -> Call:
    """`join()`."""
    return Call(kernel.bind("join", "pipeline.join"), ())


def cluster_end(op: ClusterEnd, kernel: Kernel) -> Call:
    """`leave()`."""
    return Call(kernel.bind("leave", "pipeline.leave"), ())


def take_over(op: TakeOver, kernel: Kernel) -> Call:
    """`take_over(tile, step)`."""
    made = kernel.bind("take_over", "pipeline.take_over", f"offset={offset(op.barriers, kernel)}", *limit(op))
    return Call(made, (kernel.use(op.number), kernel.use(op.step)))


def hand_over(op: HandOver, kernel: Kernel) -> Call:
    """`hand_over()`."""
    return Call(kernel.bind("hand_over", "pipeline.hand_over", f"offset={offset(op.barriers, kernel)}"), ())


def acquire(op: PipelineAcquire, kernel: Kernel) -> Call:
    """`acquire(counter)`."""
    where = barriers(op.pipeline, kernel)
    made = kernel.bind("acquire", "pipeline.acquire", *where, *numbers(op, "nbytes"), *limit(op))
    return Call(made, (kernel.use(op.counter),))


def wait(op: PipelineWait, kernel: Kernel) -> Call:
    """`wait(counter)`."""
    made = kernel.bind("wait", "pipeline.wait", *barriers(op.pipeline, kernel), *limit(op))
    return Call(made, (kernel.use(op.counter),))


def release(op: PipelineRelease, kernel: Kernel) -> Call:
    """`release(counter, condition)`."""
    warps = ["warps=True"] if op.warps else []
    cluster = kernel.definition(op.pipeline).attributes["cluster"]
    made = kernel.bind("release", "pipeline.release", *barriers(op.pipeline, kernel), f"cluster={cluster}", *warps)
    return Call(made, (kernel.use(op.counter), kernel.use(op.condition)))


EMITTERS = {
    BarriersStart: barriers_start,
    ClusterStart: cluster_start,
    ClusterEnd: cluster_end,
    TakeOver: take_over,
    HandOver: hand_over,
    PipelineAcquire: acquire,
    PipelineWait: wait,
    PipelineRelease: release,
}
