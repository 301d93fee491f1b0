"""Two programs timed in turn: A B A B, each for as long as the other.

A GPU at its power limit drifts by several percent within seconds, often more than what is to be told apart. Each pair
of turns gives one ratio, in which what both share is gone; what comes out is the median ratio with its interval.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cutile.errors import ArgumentError

MIN_PAIRS = 20  # pairs of runs; the interval of fewer says little
CONFIDENCE = 0.95  # probability that an interval holds the true median


@dataclass(frozen=True)
class Interval:
    """A median with its interval.

    Attributes:
        median: of the measurements.
        low, high: two of the measurements, between which the true median lies with at least 95 % probability, whatever
            the distribution: below six measurements, the least and the greatest of them, with less.
        count: how many there were.
    """

    median: float
    low: float
    high: float
    count: int


def interval(values: Sequence[float]) -> Interval:
    """The median of `values` and its interval, by order statistics.

    The true median is above each measurement, or below it, with probability 1/2. So it lies below the one of rank `r`
    with the probability that fewer than `r` of `n` tosses of a coin are heads.

    Raises:
        ValueError: there are none.

    Example:
        >>> interval([3, 1, 2, 5, 4, 6, 8, 7, 10, 9])
        Interval(median=5.5, low=2, high=9, count=10)
    """
    if not values:
        raise ArgumentError("interval: expected at least one measurement")
    ordered, n = sorted(values), len(values)
    rank, below = 0, 0.0  # how many to leave out at each end, and the probability that the median is out there
    while rank < (n - 1) // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > 1 - CONFIDENCE:
            break
        rank += 1
    first = max(rank - 1, 0)
    return Interval(statistics.median(ordered), ordered[first], ordered[n - 1 - first], n)


class Arm(Protocol):
    """One who is timed."""

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
        measure_s: seconds of what counts, both together.
        pairs: how many pairs; at least 20 for a result.
        pause_s: idle seconds before each turn, for threads of the one before that go on spinning.
    """

    warm_s: float = 5.0
    measure_s: float = 4.0
    pairs: int = MIN_PAIRS
    pause_s: float = 0.0


@dataclass(frozen=True)
class Paired:
    """What came out.

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
        """Whether the interval of the ratio leaves 1 out.

        One of the two is the faster, whatever the noise.
        """
        return not self.ratio.low <= 1 <= self.ratio.high


def compare(first: Arm, second: Arm, budget: Budget, *, now: Callable[[], float] = time.perf_counter) -> Paired:
    """Warm both, choose repeats for turns of equal length, and time the pairs.

    Args:
        first: what the ratio is of.
        second: the peer.
        budget: how long it may take.
        now: the clock that the warming goes by.
    """
    runs_s: list[float] = []
    turn_s = budget.measure_s / (2 * budget.pairs)
    for arm in (first, second):  # what the first call loads or compiles is nobody's speed
        arm.run(1)
        runs_s.append(arm.run(1))
    begin = now()
    while True:
        for at, arm in enumerate((first, second)):
            repeats = _repeats(turn_s, runs_s[at])
            runs_s[at] = arm.run(repeats) / repeats
        if now() - begin >= budget.warm_s:
            break
    repeats = _repeats(turn_s, runs_s[0]), _repeats(turn_s, runs_s[1])
    pairs: list[tuple[float, float]] = []
    for _ in range(budget.pairs):
        pair: list[float] = []
        for at, arm in enumerate((first, second)):
            if budget.pause_s:
                time.sleep(budget.pause_s)
            pair.append(arm.run(repeats[at]) / repeats[at])
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
