"""The median of a few measurements, and the interval in which the median of all of them lies."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cutile.errors import ArgumentError

CONFIDENCE = 0.95


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
