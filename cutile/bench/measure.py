"""`do_bench` times an operation; `do_bench_paired` compares two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from cuda_async import Stream, default_device
from cutile.bench.pairs import MIN_PAIRS, Arm, Budget, DeviceArm, Interval, Paired, Subject, compare, interval
from cutile.errors import ArgumentError, as_text

BATCH_S = 0.5e-3
"""Seconds of a batch, whose computations are timed together. Events and launches take little of that."""


@dataclass(frozen=True)
class BenchOptions:
    """How long a measurement takes.

    Attributes:
        warmup_ms: milliseconds of runs that do not count. They begin after the first run, which compiles and loads.
        rep_ms: milliseconds of runs that count, together with the time between them.
        min_reps: the fewest runs that count, even if they take longer than `rep_ms`.
        max_reps: the most runs that count.
        clear_l2: whether each run finds cold caches; by default it does on a GPU and not on the CPU. With False,
            launches do not count either. See `DeviceArm`.

    Raises:
        ValueError: `min_reps` is below 1 or above `max_reps`, or a time is negative.

    Example:
        >>> BenchOptions(rep_ms=20).max_reps
        1000
    """

    warmup_ms: float = 25.0
    rep_ms: float = 100.0
    min_reps: int = 5
    max_reps: int = 1000
    clear_l2: bool | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_reps <= self.max_reps:
            raise ArgumentError(
                f"BenchOptions(min_reps={as_text(self.min_reps)}, max_reps={as_text(self.max_reps)}): expected "
                "1 <= min_reps <= max_reps"
            )
        if not (self.warmup_ms >= 0 and self.rep_ms >= 0):  # NaN fails as well
            raise ArgumentError(
                f"BenchOptions(warmup_ms={as_text(self.warmup_ms)}, rep_ms={as_text(self.rep_ms)}): expected "
                "milliseconds, 0 or more"
            )


DEFAULT_BENCH = BenchOptions()


@dataclass(frozen=True)
class Measurement:
    """The times of several runs.

    Attributes:
        times_ms: milliseconds of each run, in the order in which they ran. A batch is one run: the mean of its
            computations.

    Example:
        >>> Measurement((3.0, 1.0, 2.0))
        2 ms, the median of 3 runs (1 to 3)
    """

    times_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The median, the figure to compare."""
        return statistics.median(self.times_ms)

    @property
    def min_ms(self) -> float:
        """The fastest run."""
        return min(self.times_ms)

    @property
    def mean_ms(self) -> float:
        """The mean; a single slow run shifts it."""
        return statistics.fmean(self.times_ms)

    @property
    def reps(self) -> int:
        """The number of runs that counted."""
        return len(self.times_ms)

    @property
    def interval_ms(self) -> Interval:
        """The median, and the two runs that enclose the true median with 95 % probability."""
        return interval(self.times_ms)

    def quantile(self, q: float) -> float:
        """Milliseconds that a share `q` of the runs does not exceed.

        It is interpolated linearly between two runs.

        Raises:
            ValueError: `q` is not between 0 and 1.

        Example:
            >>> Measurement((1.0, 2.0, 3.0, 4.0, 5.0)).quantile(0.25)
            2.0
        """
        if not 0 <= q <= 1:
            raise ArgumentError(f"quantile: expected a share between 0 and 1, got {q}")
        times, place = sorted(self.times_ms), q * (len(self.times_ms) - 1)
        below = int(place)
        above = min(below + 1, len(times) - 1)
        return times[below] + (place - below) * (times[above] - times[below])

    def __repr__(self) -> str:
        runs = self.interval_ms
        return f"{runs.median:.4g} ms, the median of {runs.count} runs ({runs.low:.4g} to {runs.high:.4g})"


def do_bench(subject: Subject, options: BenchOptions = DEFAULT_BENCH, *, stream: Stream | None = None) -> Measurement:
    """Time an operation, by the clock of the device that runs it.

    Args:
        subject: a function that makes a `DeviceOp`, called anew for each run, outside of the timed span; an operation
            that a graph can hold, which is recorded and replayed; or a graph. On the CPU a function may also do the
            work itself, as with NumPy.
        options: how long the measurement takes, and whether the caches are cold.
        stream: where it runs; a new stream of the default device by default.

    Raises:
        ArgumentTypeError: a function for a GPU returns no operation.
        LaunchError: the operation is to be recorded, and a graph cannot hold it.
        Whatever the function, or its operation, raises.

    Example:
        >>> from cutile import api
        >>> x = api.ones((1000,)).sync()
        >>> times = do_bench(lambda: x.dup(), BenchOptions(warmup_ms=1, rep_ms=5))
        >>> times.reps >= 5 and 0 < times.min_ms <= times.median_ms
        True
    """
    with DeviceArm(subject, stream, clear_l2=options.clear_l2) as arm:
        return measure(arm, options)


def measure(
    arm: Arm, options: BenchOptions = DEFAULT_BENCH, *, now: Callable[[], float] = time.perf_counter
) -> Measurement:
    """Warm an arm up, then time as many runs as the options allow.

    Args:
        arm: the computation. With a true attribute `batches` it is timed by batches of half a millisecond.
        options: how long the measurement takes.
        now: a wall clock in seconds, for the times of the options.
    """
    arm.run(1)  # the first run compiles and loads: it does not count
    run_s = arm.run(1)
    in_batches = bool(getattr(arm, "batches", False))
    begin = last = now()
    while True:
        batch = _batch(run_s) if in_batches else 1
        run_s = arm.run(batch) / batch
        before, last = last, now()
        if last - begin >= options.warmup_ms / 1e3:
            break
    # Reps by the wall clock: making an operation and clearing caches take time outside of the timed span.
    reps_in_time = round(options.rep_ms / 1e3 / max(last - before, run_s * batch, 1e-9))
    batch = _batch(run_s) if in_batches else 1
    reps = min(max(reps_in_time, options.min_reps), options.max_reps)
    return Measurement(tuple(arm.run(batch) / batch * 1e3 for _ in range(reps)))


def _batch(each_s: float) -> int:
    return max(1, round(BATCH_S / max(each_s, 1e-9)))


def do_bench_paired(
    first: Subject,
    second: Subject,
    options: BenchOptions = DEFAULT_BENCH,
    *,
    pairs: int = MIN_PAIRS,
    stream: Stream | None = None,
) -> Paired:
    """Time two operations in turn, A B A B, so that common drift cancels.

    Both are warmed for `options.warmup_ms`. Then each takes `pairs` turns of equal length, `options.rep_ms` in all.
    `ratio` says how many times as fast the first is, with its 95 % interval.

    Args:
        first: the operation whose speed is divided by that of the second; see `do_bench`.
        second: the other operation. It may write the same tensors.
        options: how long the comparison takes. `min_reps` and `max_reps` do not count here.
        pairs: turns of each; with fewer than 20 the interval says little.
        stream: where both run; a new stream of the default device by default.

    Example:
        >>> from cutile import api
        >>> small, large = api.ones((1000,)).sync(), api.ones((1000000,)).sync()
        >>> paired = do_bench_paired(large.dup, small.dup, BenchOptions(warmup_ms=1, rep_ms=10))
        >>> paired.ratio.median < 1
        True
    """
    where = default_device().new_stream() if stream is None else stream
    clear = options.clear_l2
    with DeviceArm(first, where, clear_l2=clear) as one, DeviceArm(second, where, clear_l2=clear) as other:
        return compare(one, other, Budget(options.warmup_ms / 1e3, 2 * options.rep_ms / 1e3, pairs))
