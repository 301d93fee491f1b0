"""The harness on a clock that is made up: what is run in which order, for how long, and what comes out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutile.bench import Budget, alone, compare, interval


@dataclass
class Machine:
    """A clock, and a speed that drifts as that of a chip which grows warm."""

    seconds: float = 0.0
    cooling: float = 0.0
    turns: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])

    def now(self) -> float:
        return self.seconds


@dataclass
class Clockwork:
    """Takes `each` seconds for a computation, more as time goes by, and `first` at its first call."""

    machine: Machine
    name: str
    each: float
    first: float = 0.0
    noise: random.Random = field(default_factory=lambda: random.Random(1))
    spread: float = 0.0

    def run(self, repeats: int) -> float:
        slow = 1 + self.machine.cooling * (1 - math.exp(-self.machine.seconds / 3))
        took = self.first + repeats * self.each * slow * (1 + self.spread * self.noise.uniform(-1, 1))
        self.first = 0.0
        self.machine.seconds += took
        self.machine.turns.append((self.name, repeats, took))
        return took


def test_turns_alternate_and_are_of_equal_length() -> None:
    machine = Machine()
    ours, theirs = Clockwork(machine, "A", 1e-3), Clockwork(machine, "B", 4e-3)
    comparison = compare(ours, theirs, Budget(warm_s=5, measure_s=4), now=machine.now)
    measured = machine.turns[-40:]
    assert [name for name, _, _ in measured] == ["A", "B"] * 20
    assert comparison.repeats == (100, 25)
    assert all(took == pytest.approx(0.1) for _, _, took in measured)
    warmed = sum(took for _, _, took in machine.turns[:-40])
    assert 5 <= warmed <= 5.3
    assert (comparison.first_s, comparison.second_s) == pytest.approx((1e-3, 4e-3))
    assert (comparison.ratio.low, comparison.ratio.median, comparison.ratio.high) == pytest.approx((4, 4, 4))


def test_a_drift_that_both_share_does_not_show() -> None:
    machine = Machine(cooling=0.3)
    ours, theirs = Clockwork(machine, "A", 1.00e-3), Clockwork(machine, "B", 1.03e-3)
    found = compare(ours, theirs, Budget(warm_s=0, measure_s=4), now=machine.now)
    assert found.ratio.median == pytest.approx(1.03, abs=0.005)
    slowest = max(took / repeats for name, repeats, took in machine.turns if name == "A")
    assert slowest > 1.15e-3  # it is there


def test_three_percent_are_told_from_noise() -> None:
    machine = Machine()
    ours = Clockwork(machine, "A", 1.00e-3, spread=0.02)
    theirs = Clockwork(machine, "B", 1.03e-3, noise=random.Random(2), spread=0.02)
    comparison = compare(ours, theirs, Budget(warm_s=1, measure_s=4), now=machine.now)
    assert 1 < comparison.ratio.low <= comparison.ratio.median <= comparison.ratio.high < 1.06
    assert comparison.differ
    assert comparison.ratio.count == 20


def test_what_the_first_call_compiles_does_not_count() -> None:
    machine = Machine()
    ours, theirs = Clockwork(machine, "A", 1e-3, first=3.0), Clockwork(machine, "B", 1e-3, first=7.0)
    found = compare(ours, theirs, Budget(warm_s=0, measure_s=0.4), now=machine.now)
    assert found.repeats == (10, 10)
    assert found.ratio.high == pytest.approx(1)


def test_a_computation_longer_than_a_turn_is_run_once() -> None:
    machine = Machine()
    comparison = compare(
        Clockwork(machine, "A", 2.0), Clockwork(machine, "B", 0.01), Budget(warm_s=0, measure_s=1), now=machine.now
    )
    assert comparison.repeats == (1, 2)


def test_somebody_without_a_peer_is_timed_too() -> None:
    machine = Machine()
    found, repeats = alone(Clockwork(machine, "A", 1e-3), Budget(warm_s=1, measure_s=2, pairs=10), now=machine.now)
    assert (found.count, repeats) == (10, 200)
    assert found.median == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (30, 10, 21)]
)
def test_the_interval_is_that_of_the_tables(count: int, low: int, high: int) -> None:
    found = interval([float(i) for i in range(count, 0, -1)])
    assert (found.low, found.high) == (low, high)  # the ranks that statistics books give for 95 %


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_no_measurement_is_no_result() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        interval([])
