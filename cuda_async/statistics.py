"""Counts of the runtime's past and present work, as frozen records.

    stream.statistics()                 work enqueued and completed, events, waits
    policy.statistics()                 the same for each stream of a `StreamPoolRoundRobin`
    device.statistics()                 memory, finalizers' calls still to be made, uses checked (debug mode)
    device.default_mem_pool().statistics()
    completion_statistics()             the process's reactor and the CPU's workers

Reading them neither waits nor stops other threads: under load the numbers of one record may be a moment apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_async.core.reactor import ReactorStatistics, reactor
from cuda_async.driver.pool import WorkerStatistics, worker_pool

__all__ = ("CompletionStatistics", "completion_statistics")


@dataclass(frozen=True, slots=True)
class CompletionStatistics:
    """The threads that complete runs.

    Attributes:
        reactor: the thread that polls runs whose driver cannot call back (GPUs).
        workers: the threads that do the CPU's work, and complete its runs themselves.
    """

    reactor: ReactorStatistics
    workers: WorkerStatistics


def completion_statistics() -> CompletionStatistics:
    """Counts of the threads that complete runs in this process.

    >>> completion_statistics().reactor.in_flight >= 0
    True
    """
    return CompletionStatistics(reactor().statistics(), worker_pool().statistics())
