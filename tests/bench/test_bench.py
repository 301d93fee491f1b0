"""`do_bench` on a clock that is made up, and on operations that take what they take."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, Stream, value
from cuda_async.testing import SimDriver
from cutile import api, f32
from cutile.bench import BenchOptions, DeviceArm, Measurement, do_bench, do_bench_paired, measure
from cutile.errors import ArgumentError, ArgumentTypeError
from tests.support.kernels import kernel

QUICK = BenchOptions(warmup_ms=5, rep_ms=20, min_reps=3, max_reps=50)
SAXPY = kernel("def saxpy(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n")


@dataclass
class Clockwork:
    """Takes `each` seconds, `first` more at its first call, and `between` that nobody times; there is no other time."""

    each: float
    first: float = 0.0
    between: float = 0.0
    batches: bool = False
    name: str = ""
    seconds: float = 0.0
    runs: list[int] = field(default_factory=list[int])

    def run(self, repeats: int) -> float:
        took, self.first = self.first + repeats * self.each, 0.0
        self.seconds += took + self.between
        self.runs.append(repeats)
        return took

    def now(self) -> float:
        return self.seconds


def test_as_many_runs_count_as_fit_the_time() -> None:
    arm = Clockwork(1e-3, first=3.0)
    found = measure(arm, BenchOptions(warmup_ms=25, rep_ms=100), now=arm.now)
    assert found.times_ms == pytest.approx((1.0,) * 100)
    assert len(arm.runs) - 100 == pytest.approx(
        27, abs=1
    )  # what compiles, one to know how long it takes, 25 ms of them


def test_what_is_done_between_the_runs_takes_its_part_of_the_time() -> None:
    arm = Clockwork(1e-3, between=3e-3)
    assert measure(arm, BenchOptions(warmup_ms=25, rep_ms=100), now=arm.now).times_ms == pytest.approx((1.0,) * 25)


@pytest.mark.parametrize(("each", "reps"), [(1.0, 5), (1e-6, 1000), (0.0, 1000)])
def test_there_are_no_fewer_runs_than_the_least_and_no_more_than_the_most(each: float, reps: int) -> None:
    arm = Clockwork(each)
    assert measure(arm, BenchOptions(warmup_ms=0), now=arm.now).reps == reps


def test_short_computations_without_a_pause_are_timed_by_batches() -> None:
    arm = Clockwork(1e-5, batches=True)
    found = measure(arm, BenchOptions(warmup_ms=1, rep_ms=10), now=arm.now)
    assert arm.runs[-1] == 50  # half a millisecond
    assert found.times_ms == pytest.approx((0.01,) * 20)


def test_figures_of_a_measurement() -> None:
    measurement = Measurement((5.0, 1.0, 2.0, 4.0, 9.0, 3.0))
    assert (measurement.median_ms, measurement.min_ms, measurement.mean_ms, measurement.reps) == (3.5, 1.0, 4.0, 6)
    assert [measurement.quantile(q) for q in (0, 0.1, 0.5, 1)] == [1.0, 1.5, 3.5, 9.0]
    assert measurement.quantile(0.9) == pytest.approx(float(np.quantile(measurement.times_ms, 0.9)))
    assert (measurement.interval_ms.low, measurement.interval_ms.high) == (1.0, 9.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        measurement.quantile(1.5)


@pytest.mark.parametrize("wrong", [{"min_reps": 0}, {"min_reps": 9, "max_reps": 8}, {"rep_ms": -1.0}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="BenchOptions"):
        BenchOptions(**wrong)  # pyright: ignore[reportArgumentType]


# -- on devices -----------------------------------------------------------------------------------


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    with Device.parse(request.param) as device:
        yield device.new_stream()


def test_a_fill_is_timed(stream: Stream) -> None:
    """One that allocates: it is made anew for each run."""
    measurement = do_bench(lambda: api.full(1.0, (1 << 20,), f32), QUICK, stream=stream)
    assert 3 <= measurement.reps <= 50
    assert all(np.isfinite(each) and each >= 0 for each in measurement.times_ms)
    assert 0 < measurement.min_ms <= measurement.median_ms


def test_medians_are_in_the_order_of_the_work(stream: Stream) -> None:
    """Eight times the work takes longer: made anew or replayed, with cold caches and with warm ones."""
    small, large = (api.ones((n,)).sync_on(stream) for n in (1 << 20, 1 << 23))
    outs = [api.zeros(x.shape).sync_on(stream) for x in (small, large)]

    def median(subject: object, **options: bool) -> float:
        quick = BenchOptions(warmup_ms=2, rep_ms=20, min_reps=5, max_reps=50, **options)
        return do_bench(subject, quick, stream=stream).median_ms  # pyright: ignore[reportArgumentType]

    def made(index: int) -> object:
        return SAXPY(outs[index].mut.partition((4096,)), 2.0, (small, large)[index])

    assert median(lambda: made(0)) < median(lambda: made(1))
    assert median(lambda: made(0), clear_l2=False) < median(lambda: made(1), clear_l2=False)
    assert median(lambda: made(0), clear_l2=True) < median(lambda: made(1), clear_l2=True)
    assert median(made(0)) < median(made(1))
    assert outs[0].to_numpy().sync_on(stream)[0] > 2  # what was timed was computed, and the tensors are free again


def test_an_operation_of_a_kernel_that_never_ran_is_recorded(stream: Stream) -> None:
    fresh = kernel("def fresh(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) + 41)\n")
    x, y = (api.ones((1000,)).sync_on(stream) for _ in range(2))
    assert do_bench(fresh(y.mut.partition((64,)), x), QUICK, stream=stream).min_ms > 0
    assert y.to_numpy().sync_on(stream).tolist() == [42] * 1000


def test_pairs_say_which_is_the_faster(stream: Stream) -> None:
    # A GPU fills 2**24 elements in 20 us, of which nothing shows beside other processes that take turns with this one.
    many = 1 << (24 if stream.device.runs_host_code else 27)
    one, other = (lambda n=n: api.full(1.0, (n,), f32) for n in (1 << 14, many))
    comparison = do_bench_paired(one, other, QUICK, stream=stream)
    assert comparison.ratio.count == 20
    assert comparison.first_s < comparison.second_s
    assert comparison.ratio.median > 1  # how wide the interval is depends on who else is at work


def test_what_the_function_raises_arrives(stream: Stream) -> None:
    def broken() -> object:
        raise RuntimeError("intentional")

    with pytest.raises(RuntimeError, match="intentional"):
        do_bench(broken, QUICK, stream=stream)


def test_a_function_on_the_cpu_may_do_the_work_itself() -> None:
    x = np.ones(1 << 16)
    stream = Device.host().new_stream()
    assert do_bench(lambda: np.sqrt(x), QUICK, stream=stream).min_ms > 0
    warm = BenchOptions(warmup_ms=0, rep_ms=1, clear_l2=False)
    assert do_bench(lambda: np.sqrt(x), warm, stream=stream).min_ms > 0


def test_launches_count_by_default_and_not_in_replays() -> None:
    stream = Device.host().new_stream()
    x, y = (api.ones((64,)).sync_on(stream) for _ in range(2))

    def median(clear_l2: bool | None) -> float:
        options = BenchOptions(warmup_ms=1, rep_ms=5, clear_l2=clear_l2)
        return do_bench(lambda: SAXPY(y.mut.partition((64,)), 2.0, x), options, stream=stream).median_ms

    assert median(False) < median(None)


@pytest.mark.gpu
def test_a_function_for_a_gpu_has_to_make_an_operation() -> None:
    with pytest.raises(TypeError, match="expected a function that returns a DeviceOp"):
        do_bench(lambda: 1, QUICK, stream=Device(0).new_stream())


def test_a_graph_is_closed_by_who_made_it() -> None:
    stream = Device.host().new_stream()
    y = api.zeros((64,)).sync_on(stream)
    graph = SAXPY(y.mut.partition((64,)), 1.0, api.ones((64,)).sync_on(stream)).graph_on(stream)
    with DeviceArm(graph, stream) as arm:
        assert arm.batches
        assert arm.run(3) > 0
    assert not graph.closed
    graph.close()
    assert y.to_numpy().sync_on(stream)[0] == 3
    with DeviceArm(SAXPY(y.mut.partition((64,)), 1.0, y.dup().sync_on(stream)), stream) as arm:
        arm.run(1)
    api.fill(y, 7.0).sync_on(stream)  # nobody holds it any more
    assert y.to_numpy().sync_on(stream)[0] == 7


def test_each_run_of_the_function_is_timed_without_its_making() -> None:
    """The making takes a hundred times as long as the operation, which enqueues nothing."""
    device = Device.from_driver(SimDriver(seed=1))
    sums: list[int] = []

    def make() -> object:
        sums.append(sum(range(200_000)))
        return value(1)

    measurement = do_bench(make, BenchOptions(warmup_ms=0, rep_ms=0, min_reps=20), stream=device.new_stream())
    begin = do_bench(lambda: sum(range(200_000)), BenchOptions(warmup_ms=0, rep_ms=0), stream=device.new_stream())
    assert len(sums) == 20 + 3
    assert statistics.median(measurement.times_ms) < begin.median_ms


def test_options_that_measure_nothing_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected milliseconds, 0 or more"):
        BenchOptions(rep_ms=float("nan"))
    with pytest.raises(ArgumentError, match=r"Budget\(pairs=0\): expected 1 or more"):
        do_bench_paired(lambda: value(1), lambda: value(1), pairs=0)


@pytest.mark.parametrize("wrong", [5, None, "add"])
def test_what_cannot_be_timed_is_refused(wrong: Any) -> None:
    for call in (lambda: do_bench(wrong, QUICK), lambda: do_bench_paired(lambda: value(1), wrong, QUICK)):
        with pytest.raises(
            ArgumentTypeError, match=r"bench: expected a function that makes an operation, .*write lambda:"
        ):
            call()
