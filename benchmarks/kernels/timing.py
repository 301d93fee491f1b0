"""Interleaved timing of a kernel and its peers: medians of runs, each measured where it executes.

A `Run` executes once and returns its milliseconds, by the device's own clock (`cutile.bench`). Results are not checked
here.
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
    """Time each of `runs` in rounds, after one round that does not count.

    Args:
        runs: the runs, by name.
        budget_s: seconds for each of them, after which the rounds end.
        least: the fewest rounds, whatever they take.
        most: the most rounds.
        pause_s: idle seconds before each run. The threads of a BLAS spin for a while after a call, on cores that the
            next run needs.
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
        """Idle seconds before a run, in which the threads of the run before go to sleep; see `interleaved`."""
        return 0.1 if self.device.kind == "host" else 0.0

    def time(self, build: Callable[[], DeviceOp[Any]]) -> Run:
        """Return a run that builds an op, executes it and returns the milliseconds of its execution alone."""
        arm = DeviceArm(build, self.stream)
        return lambda: arm.run(1) * 1e3

    def time_copy(self, nbytes: int) -> Run:
        """Return a run that times a plain copy which reads and writes `nbytes` in all."""
        source, destination = (api.zeros((nbytes // 8,), i32).sync_on(self.stream) for _ in range(2))
        return self.time(lambda: api.memcpy(destination, source))
