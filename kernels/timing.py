"""Time one thing beside another: medians of interleaved runs, each measured where it executes.

A `Run` executes once and returns the milliseconds it took. On a GPU the clock is a pair of events around the work, and
a large fill ahead of it empties the L2 cache and keeps the device busy while Python submits; on the CPU it is the wall
clock. Not a profiler, and nothing here judges a result.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_async import Device, DeviceOp, Stream, value
from cutile import Tensor, api, i32

Run = Callable[[], float]

FLUSH_BYTES = 1 << 30  # about a quarter of a millisecond on a fast GPU: longer than Python takes to submit an op


@dataclass(frozen=True)
class Timing:
    """Milliseconds of several runs."""

    median: float
    fastest: float
    runs: int


def interleaved(
    runs: Mapping[str, Run],
    *,
    budget_s: float = 1.0,
    least: int = 5,
    most: int = 100,
    pause_s: float = 0.0,
) -> dict[str, Timing]:
    """Time each of `runs` in turn, over and over, after one round that does not count.

    Args:
        runs: what to time, by name.
        budget_s: stop after this many seconds for each of them,
        least: but not before so many rounds,
        most: and at the latest after so many.
        pause_s: idle seconds before each run. The threads of a BLAS spin for a while after a call, and would take
            their cores from whoever comes next.
    """
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    spent = 0.0
    for done in range(most):
        if done >= least and spent > budget_s * len(runs):
            break
        for name, run in runs.items():
            if pause_s:
                time.sleep(pause_s)
            start = time.perf_counter()
            times[name].append(run())
            spent += time.perf_counter() - start
    return {name: Timing(statistics.median(all_), min(all_), len(all_)) for name, all_ in times.items()}


def wall_clock(call: Callable[[], object]) -> Run:
    """Return a run that times `call` on the host."""

    def run() -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    return run


class DeviceClock:
    """Times ops on one device.

    Args:
        device: where the ops run.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream = device.new_stream()
        self._flush: Tensor | None = None

    @property
    def pause_s(self) -> float:
        """How long to wait before a run, for the threads of the run before to go to sleep; see `interleaved`."""
        return 0.1 if self.device.kind == "host" else 0.0

    def time(self, build: Callable[[], DeviceOp[Any]]) -> Run:
        """Return a run that builds an op, executes it and returns the milliseconds of its execution alone."""
        return self._between_events(build) if self.device.kind == "cuda" else self._until_done(build)

    def _until_done(self, build: Callable[[], DeviceOp[Any]]) -> Run:
        def run() -> float:
            op = build()
            start = time.perf_counter()
            op.sync_on(self.stream)
            return (time.perf_counter() - start) * 1e3

        return run

    def _between_events(self, build: Callable[[], DeviceOp[Any]]) -> Run:
        start, end = self.device.new_event(timing=True), self.device.new_event(timing=True)

        def run() -> float:
            op = build()
            self._empty_cache()
            # The closures run while the chain is submitted, so the events stand right before and behind the work.
            before = value(None).map(lambda _: start.record(self.stream))
            before.then(lambda _: op).map(lambda _: end.record(self.stream)).sync_on(self.stream)
            end.synchronize()
            return start.elapsed_time(end)

        return run

    def time_copy(self, nbytes: int) -> Run:
        """Return a run that times a plain copy which reads and writes `nbytes` in all: what the memory can do."""
        buffer = api.zeros((nbytes // 4,), i32).sync_on(self.stream)
        half = nbytes // 2
        start, end = self.device.new_event(timing=True), self.device.new_event(timing=True)

        def run() -> float:
            self._empty_cache()
            start.record(self.stream)
            self.stream.copy(buffer.device_pointer(), buffer.device_pointer() + half, half)
            end.record(self.stream)
            end.synchronize()
            return start.elapsed_time(end)

        return run

    def _empty_cache(self) -> None:
        if self.device.kind != "cuda":
            return  # the CPU's peers are timed on the same warm arrays
        if self._flush is None:
            self._flush = api.zeros((FLUSH_BYTES // 4,), i32).sync_on(self.stream)
        self.stream.fill(self._flush.device_pointer(), FLUSH_BYTES, b"\0\0\0\0")
