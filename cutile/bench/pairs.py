"""Two programs timed in turn: A B A B, each for as long as the other.

A GPU at its power limit drifts by several percent within seconds, often more than the difference to be measured. Each
pair of turns gives one ratio, in which common drift cancels. The result is the median ratio with its interval.

An operation is run over and over, and timed by the device's own clock. On a GPU the clock is a pair of events around
the work. Ahead of them a large fill empties the L2 cache, and keeps the device busy while Python submits, so that the
time is the device's alone. On the CPU it is the wall clock, around the run of an operation that was built before.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, cast

from cuda_async import CudaGraph, DeviceOp, ExecutionContext, Storage, Stream, default_device, value
from cutile.errors import ArgumentError, ArgumentTypeError, as_text

MIN_PAIRS = 20  # pairs of runs; the interval of fewer says little
CONFIDENCE = 0.95  # probability that an interval holds the true median


@dataclass(frozen=True)
class Interval:
    """A median with its interval.

    Attributes:
        median: the median of the measurements.
        low, high: two of the measurements, between which the true median lies with at least 95 % probability, whatever
            the distribution. Of fewer than six they are the least and the greatest, and the probability is lower.
        count: the number of measurements.
    """

    median: float
    low: float
    high: float
    count: int


def interval(values: Sequence[float]) -> Interval:
    """The median of `values` and its interval, by order statistics.

    A measurement is below the true median with probability 1/2. So the median lies below the measurement of rank `r`
    with the probability that fewer than `r` of `n` tosses of a coin are heads.

    Raises:
        ValueError: there are no values.

    Example:
        >>> interval([3, 1, 2, 5, 4, 6, 8, 7, 10, 9])
        Interval(median=5.5, low=2, high=9, count=10)
    """
    if not values:
        raise ArgumentError("interval: expected at least one measurement")
    sorted_values, n = sorted(values), len(values)
    rank, below = 0, 0.0  # measurements left out at each end, and the probability that the median lies beyond one end
    while rank < (n - 1) // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > 1 - CONFIDENCE:
            break
        rank += 1
    first = max(rank - 1, 0)
    return Interval(statistics.median(sorted_values), sorted_values[first], sorted_values[n - 1 - first], n)


class Arm(Protocol):
    """A computation to be timed."""

    @property
    def name(self) -> str: ...

    def run(self, repeats: int) -> float:
        """Compute `repeats` times without a pause.

        Return the seconds that the device took.
        """
        ...


@dataclass(frozen=True)
class Budget:
    """How long a comparison takes.

    Attributes:
        warm_s: seconds of running both in turn before anything counts.
        measure_s: seconds of the turns that count, of both together.
        pairs: the number of pairs; with fewer than 20 the interval says little.
        pause_s: idle seconds before each turn, in which threads of the previous turn stop spinning.

    Raises:
        ValueError: `pairs` is below 1.
    """

    warm_s: float = 5.0
    measure_s: float = 4.0
    pairs: int = MIN_PAIRS
    pause_s: float = 0.0

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ArgumentError(f"Budget(pairs={self.pairs}): expected 1 or more")


@dataclass(frozen=True)
class Paired:
    """The result of a comparison.

    Attributes:
        first_s, second_s: seconds of one computation: the median over the pairs.
        ratio: how many times as fast the first is as the second, with its interval.
        repeats: computations of the first and of the second in a turn.
    """

    first_s: float
    second_s: float
    ratio: Interval
    repeats: tuple[int, int]

    @property
    def differ(self) -> bool:
        """Whether the interval of the ratio leaves out 1.

        One of the two is then faster, despite the noise.
        """
        return not self.ratio.low <= 1 <= self.ratio.high


def compare(first: Arm, second: Arm, budget: Budget, *, now: Callable[[], float] = time.perf_counter) -> Paired:
    """Warm both, choose repeats for turns of equal length, and time the pairs.

    Args:
        first: the computation whose speed is divided by that of the second.
        second: the other computation.
        budget: how long it may take.
        now: a wall clock in seconds, for the warming.
    """
    runs_s: list[float] = []
    turn_s = budget.measure_s / (2 * budget.pairs)
    for arm in (first, second):  # the first call compiles and loads: it does not count
        arm.run(1)
        runs_s.append(arm.run(1))
    begin = now()
    while True:
        for side, arm in enumerate((first, second)):
            repeats = _repeats(turn_s, runs_s[side])
            runs_s[side] = arm.run(repeats) / repeats
        if now() - begin >= budget.warm_s:
            break
    repeats = _repeats(turn_s, runs_s[0]), _repeats(turn_s, runs_s[1])
    pairs: list[tuple[float, float]] = []
    for _ in range(budget.pairs):
        pair: list[float] = []
        for side, arm in enumerate((first, second)):
            if budget.pause_s:
                time.sleep(budget.pause_s)
            pair.append(arm.run(repeats[side]) / repeats[side])
        pairs.append((pair[0], pair[1]))
    return Paired(
        interval([one for one, _ in pairs]).median,
        interval([other for _, other in pairs]).median,
        interval([other / one for one, other in pairs]),
        repeats,
    )


def alone(arm: Arm, budget: Budget, *, now: Callable[[], float] = time.perf_counter) -> tuple[Interval, int]:
    """Seconds of one computation without a peer, and the repeats of a turn."""
    turn_s = budget.measure_s / budget.pairs
    arm.run(1)
    run_s = arm.run(1)
    begin = now()
    while True:
        repeats = _repeats(turn_s, run_s)
        run_s = arm.run(repeats) / repeats
        if now() - begin >= budget.warm_s:
            break
    repeats = _repeats(turn_s, run_s)
    return interval([arm.run(repeats) / repeats for _ in range(budget.pairs)]), repeats


def _repeats(turn_s: float, each_s: float) -> int:
    return max(1, round(turn_s / max(each_s, 1e-9)))


Subject = Callable[[], object] | DeviceOp[Any] | CudaGraph[Any]
"""A computation to be timed: a function that makes an operation for each run, an operation, or a graph."""

FLUSH_BYTES = 1 << 30
"""Bytes written ahead of a run: 0.25 ms on a fast GPU, longer than Python takes to submit."""

_WRITE_BYTES = 1 << 27  # bytes of one write


class DeviceArm:
    """An operation on a stream, to be timed; see `Arm`.

    Args:
        subject: a function that makes an operation, anew for each run; an operation, which runs once, so that it is
            recorded as a graph and replayed; or a graph. On the CPU, also a function that makes none: it is timed
            itself.
        stream: where it runs; a new stream of the default device by default.
        clear_l2: whether each run finds the caches cold. By default a GPU's L2 is cleared and the CPU's caches are not.
            With False, replays of a graph without a pause are timed, on the CPU too, so that launches do not count. By
            default the same holds for an operation or a graph on the CPU.
        name: its name in tables.

    Raises:
        ArgumentTypeError: the subject is none of these.
        LaunchError: the operation is to be recorded, and a graph cannot hold it.

    Example:
        >>> from cuda_async import Device, value
        >>> with DeviceArm(lambda: value(1), Device.host().new_stream()) as arm:
        ...     arm.run(3) > 0
        True
    """

    def __init__(
        self, subject: Subject, stream: Stream | None = None, *, clear_l2: bool | None = None, name: str = ""
    ) -> None:
        if not callable(subject) and not isinstance(subject, DeviceOp | CudaGraph):
            raise ArgumentTypeError(
                f"bench: expected a function that makes an operation, an operation or a graph, got {as_text(subject)}; "
                "write lambda: op(...)"
            )
        self.name = name
        self.stream = default_device().new_stream() if stream is None else stream
        device = self.stream.device
        self._gpu = device.driver.works_alone
        self._clear = self._gpu if clear_l2 is None else clear_l2
        self._start, self._end = device.new_event(timing=True), device.new_event(timing=True)
        self._flush: Storage | None = None
        self._own: CudaGraph[Any] | None = None  # a graph recorded here, which `close` closes
        self._graph: CudaGraph[Any] | None = subject if isinstance(subject, CudaGraph) else None
        if isinstance(subject, DeviceOp):
            self._graph = self._own = self._record(cast("DeviceOp[Any]", subject))
        self._make = cast("Callable[[], object]", subject) if self._graph is None else self._graph.launch
        self._replays = clear_l2 is False or (self._graph is not None and not self._clear)
        self._ready = False
        self._works_itself = False  # a function that does work of the CPU, and makes no operation

    @property
    def batches(self) -> bool:
        """Whether a run of several computations is one measurement, without a pause."""
        return self._replays

    def _record(self, op: DeviceOp[Any]) -> CudaGraph[Any]:
        for prepare in op.preparations(self.stream.device):
            prepare()
        return op.graph_on(self.stream)

    def _operation(self, result: Any) -> DeviceOp[Any]:
        if isinstance(result, DeviceOp):
            return cast("DeviceOp[Any]", result)
        raise ArgumentTypeError(
            f"what is timed on {self.stream.device} is an operation; expected a function that returns a DeviceOp, got "
            f"one that returns {type(result).__name__}. Work that another library does on a GPU is measured by its "
            "events"
        )

    # -- running ------------------------------------------------------------------------------

    def run(self, repeats: int) -> float:
        """Compute `repeats` times; return the seconds of the device."""
        if self._replays:
            return self._replay(repeats)
        once = self._between_events if self._gpu else self._by_the_wall
        return sum(once() for _ in range(repeats))

    def _replay(self, repeats: int) -> float:
        """Replay a graph.

        A function's graph is recorded for each turn, so that no tensors are held between turns.
        """
        if self._graph is not None:
            return self._between_marks(self._graph, repeats)
        if not self._ready:
            self._run_once()  # compiled and loaded outside of the recording
            self._ready = True
        if self._works_itself:
            return sum(self._by_the_wall() for _ in range(repeats))
        with self._record(self._operation(self._make())) as graph:
            return self._between_marks(graph, repeats)

    def _run_once(self) -> None:
        result: Any = self._make()
        self._works_itself = not isinstance(result, DeviceOp) and not self._gpu
        if not self._works_itself:
            self._operation(result).sync_on(self.stream)

    def _between_marks(self, graph: CudaGraph[Any], repeats: int) -> float:
        _Replays(graph, repeats, self.mark).sync_on(self.stream)
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3

    def mark(self, *, end: bool) -> None:
        """Record where a batch begins or ends."""
        (self._end if end else self._start).record(self.stream)

    def _between_events(self) -> float:
        op = self._operation(self._make())
        self._empty_caches()
        # The closures run while the chain is submitted, so the events stand right before and behind the work.
        before = value(None).map(lambda _: self.mark(end=False))
        before.then(lambda _: op).map(lambda _: self.mark(end=True)).sync_on(self.stream)
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3

    def _by_the_wall(self) -> float:
        if self._clear:
            self._empty_caches()
            self.stream.synchronize()
        start = time.perf_counter()
        result = self._make()
        if isinstance(result, DeviceOp):
            op = cast("DeviceOp[Any]", result)
            start = time.perf_counter()  # again: building the operation does not count
            op.sync_on(self.stream)
        return time.perf_counter() - start

    def _empty_caches(self) -> None:
        device = self.stream.device
        size = max(_WRITE_BYTES, 2 * device.l2_cache_bytes)
        if self._flush is None:
            self._flush = Storage.allocate(self.stream, size)
        for _ in range(-(-FLUSH_BYTES // size) if self._gpu else 1):
            self.stream.fill(self._flush.address, size, b"\0\0\0\0")

    # -- end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the recorded graph, and the memory that clears the caches."""
        if self._own is not None:
            self._own.close()
            self._own = None
        self._flush = None

    def __enter__(self) -> DeviceArm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Replays(DeviceOp[None]):
    """Launches of a graph without a pause, between two marks."""

    __slots__ = ("_graph", "_mark", "_repeats")

    has_effects = True

    def __init__(self, graph: CudaGraph[Any], repeats: int, mark: Callable[..., None]) -> None:
        self._graph, self._repeats, self._mark = graph, repeats, mark
        super().__init__()

    def execute(self, context: ExecutionContext) -> None:
        self._mark(end=False)
        for _ in range(self._repeats):
            context.keep(self._graph.enqueue(context.stream))
        self._mark(end=True)
