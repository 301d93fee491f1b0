"""Interleaved timing of a kernel and its peers: medians of timed calls.

A `TimedCall` executes once and returns its milliseconds: by the events of a GPU (`cutile.bench`), by the host's clock
elsewhere. Results are not checked here.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_async import Device, DeviceOp, Stream
from cutile import api, i32
from cutile.bench import DeviceArm

TimedCall = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """The time of one call, of several measurements.

    Attributes:
        median: their median, in milliseconds.
        fastest: the shortest, in milliseconds.
        runs: their number.
    """

    median: float
    fastest: float
    runs: int


def interleaved(
    runs: Mapping[str, TimedCall],
    *,
    budget_s: float = 1.0,
    min_rounds: int = 5,
    max_rounds: int = 100,
    pause_s: float = 0.0,
) -> dict[str, Timing]:
    """Time each of `runs` in rounds, after one round that does not count.

    Args:
        runs: the timed calls, by name.
        budget_s: seconds for each of them on average. The rounds end once all together have taken
            `budget_s * len(runs)`, without the pauses.
        min_rounds: the fewest rounds, whatever they take.
        max_rounds: the most rounds.
        pause_s: idle seconds before each run. The threads of a BLAS spin for a while after a call, on cores that the
            next run needs.
    """
    for run in runs.values():
        run()  # compiles, and touches memory for the first time
    times: dict[str, list[float]] = {name: [] for name in runs}
    spent = 0.0
    for done in range(max_rounds):
        if done >= min_rounds and spent > budget_s * len(runs):
            break
        for name, run in runs.items():
            if pause_s:
                time.sleep(pause_s)
            start = time.perf_counter()
            times[name].append(run())
            spent += time.perf_counter() - start
    return {name: Timing(statistics.median(samples), min(samples), len(samples)) for name, samples in times.items()}


def wall_clock(call: Callable[[], object]) -> TimedCall:
    """Return a function that times `call` on the host."""

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
        """Idle seconds before a run, in which a BLAS's threads of the preceding run go to sleep; see `interleaved`."""
        return 0.1 if self.device.kind == "host" else 0.0  # chosen, not measured

    def time(self, build: Callable[[], DeviceOp[Any]]) -> TimedCall:
        """Return a function that builds an op, executes it, and returns the milliseconds of its execution.

        On the CPU these are from the call of `sync_on` to its return.
        """
        arm = DeviceArm(build, self.stream)
        return lambda: arm.run(1) * 1e3

    def time_copy(self, nbytes: int) -> TimedCall:
        """Return a function that times a plain copy which reads and writes `nbytes` of zeros in all."""
        # Each i32 is read and written: 8 bytes.
        source, destination = (api.zeros((nbytes // 8,), i32).sync_on(self.stream) for _ in range(2))
        return self.time(lambda: api.memcpy(destination, source))
