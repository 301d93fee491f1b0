"""Time one thing beside another: medians of interleaved runs, each measured where it executes.

A `Run` executes once and returns the milliseconds it took, by the device's own clock (`cutile.bench`). Not a profiler,
and nothing here judges a result.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_async import Device, DeviceOp, Stream
from cutile import api, i32
from cutile.bench import DeviceArm

Run = Callable[[], float]


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

    @property
    def pause_s(self) -> float:
        """How long to wait before a run, for the threads of the run before to go to sleep; see `interleaved`."""
        return 0.1 if self.device.kind == "host" else 0.0

    def time(self, build: Callable[[], DeviceOp[Any]]) -> Run:
        """Return a run that builds an op, executes it and returns the milliseconds of its execution alone."""
        arm = DeviceArm(build, self.stream)
        return lambda: arm.run(1) * 1e3

    def time_copy(self, nbytes: int) -> Run:
        """Return a run that times a plain copy which reads and writes `nbytes` in all: what the memory can do."""
        source, destination = (api.zeros((nbytes // 8,), i32).sync_on(self.stream) for _ in range(2))
        return self.time(lambda: api.memcpy(destination, source))
