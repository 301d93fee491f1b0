"""Operations of several kernels: their launches found without running them, compiled ahead, searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, DeviceOp, NotReadyError, value, zip
from cutile import ArgumentTypeError, Const, GenericsError, Mut, Tensor, TuningError, api, f32
from cutile.bench import BenchOptions
from cutile.composite import Composite
from cutile.launch.searching import Space
from cutile.tune import composites
from cutile.tune.composites import key_of
from kernels.decode import decode

QUICK = BenchOptions(warmup_ms=0.2, rep_ms=1.0)


@ct.entry
def scale(y: Mut, x: Tensor, a: f32, *, PLUS: Const = 0):
    y.store(a * ct.load_tile_like(x, y) + PLUS)


def twice(x: Any, *, tile: int = 64, plus: int = 0) -> DeviceOp[Any]:
    """2 x into a new tensor, then 4 x onto it."""
    y = scale(api.empty(x.shape).partition((tile,)), x, 2.0).first().unpartition()
    return y.then(lambda y: scale(y.partition((tile,)), x, 4.0, PLUS=plus)).first().unpartition()


def test_every_launch_behind_then_is_found_and_nothing_runs() -> None:
    launches = ct.launches_of(twice, api.meta((256,)), tile=32, plus=7)
    assert [(launch.name, launch.grid, launch.generics["PLUS"]) for launch in launches] == [
        ("scale", (8, 1, 1), 0),
        ("scale", (8, 1, 1), 7),
    ]
    assert launches.result.shape == (256,)
    with pytest.raises(NotReadyError, match="was traced does not exist"):
        launches.result.numpy()
    first, second = launches.diagram().splitlines()[1:]
    assert "writes #1, reads #2" in first
    assert "after 1" in second
    assert Path(launches[0].site[0]) == Path(__file__)
    assert "store" in launches[0].render("ir")


def test_what_is_compiled_ahead_is_not_compiled_by_a_run() -> None:
    before = scale.specializations
    ct.compile_ahead(twice, api.meta((512,)), tile=128, plus=3)
    compiled = scale.specializations
    assert compiled == before + 2
    np.testing.assert_array_equal(twice(api.ones((512,)).sync(), tile=128, plus=3).to_numpy().sync(), 7)
    assert scale.specializations == compiled


def test_a_composite_is_compiled_for_a_gpu_that_is_not_there() -> None:
    q, k, v = (api.meta((2, count, 64), ct.f16) for count in (4, 256, 256))
    launches = ct.launches_of(decode, q, k, v, parts=2, rows=64, keys=64)
    assert [launch.name for launch in launches] == ["decode_part", "combine"]
    assert launches[1].generics["PARTS"] == 2
    assert "cuda.dot" in launches[0].render("lowered", "sm_90a")


def test_arguments_that_exist_are_neither_written_nor_held() -> None:
    x, y = api.ones((64,)).sync(), api.zeros((64,)).sync()
    launches = ct.launches_of(lambda: scale(y.mut.partition((64,)), x, 2.0))
    assert len(launches) == 1
    assert not y.numpy().any()
    assert scale(y.mut.partition((64,)), x, 2.0).sync().y.tensor.numpy().all()


def test_copies_to_the_host_random_numbers_and_branches_are_no_obstacle() -> None:
    def all_of_it() -> DeviceOp[Any]:
        left, right = zip(api.randn(0.0, 1.0, (64,), 1), api.from_numpy(np.ones(64, np.float32))).unzip(2)
        one = right.shared()
        both = zip(left.then(lambda x: twice(x)).to_numpy(), one.clone().then(twice), one)
        return both.map(lambda results: results[1])

    assert len(ct.launches_of(all_of_it)) == 4
    assert all_of_it().sync().shape == (64,)


def test_what_cannot_be_known_is_refused_with_the_reason() -> None:
    x = api.ones((64,)).sync()
    with pytest.raises(NotReadyError, match="too early to read the values of a tensor"):
        ct.launches_of(lambda: x.to_numpy().then(lambda values: value(values.sum())))
    other = Device.from_driver(_simulated())
    with pytest.raises(NotReadyError, match="a copy between devices cannot be traced"):
        ct.launches_of(lambda: x.to_device(other))
    shared = api.ones((64,)).shared()
    with pytest.raises(NotReadyError, match=r"the shared operation made at .*test_composite"):
        ct.launches_of(lambda: shared.then(twice))
    assert shared.sync().shape == (64,)  # tracing has not used it up
    with pytest.raises(TuningError, match="which of 2 configurations"):
        ct.launches_of(lambda: scale(api.empty((64,)).partition("B"), x, 1.0).generics([{"B": 8}, {"B": 64}]))
    with pytest.raises(ArgumentTypeError, match="looking for its kernels uses an operation up"):
        ct.launches_of(twice(x))  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="expected a function that returns an operation"):
        ct.launches_of(lambda: 3)  # type: ignore[arg-type,return-value]


def _simulated() -> Any:
    from cuda_async.driver.sim import SimDriver

    return SimDriver(seed=1)


def searched(configs: list[dict[str, Any]], **more: Any) -> Composite[Any, Any]:
    def composed(x: Any, out: Any, *, tile: int = 64, wrong: float = 0.0) -> DeviceOp[Any]:
        first = scale(out.mut.partition((tile,)), x, 2.0 + wrong)
        return (
            first.then(lambda result: scale(out.mut.partition((tile,)), x, 4.0 + wrong))
            .first()
            .map(lambda part: part.tensor)
        )

    return ct.autotune(configs, bench=QUICK, **more)(ct.composite(composed))


def test_a_composite_is_searched_and_its_outputs_are_as_one_run_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))
    x, out = api.ones((4096,)).sync(), api.zeros((4096,)).sync()
    fast = searched([{"tile": 64}, {"tile": 4096}, {"tile": 4096, "wrong": 1.0}])
    with pytest.raises(TuningError, match="is not known, and a search waits"):
        value(x).then(lambda x: fast(x, out)).sync()
    assert not out.numpy().any()
    np.testing.assert_array_equal(fast(x, out).to_numpy().sync(), 4)
    (choice,) = fast.choices
    assert choice.config in ({"tile": 64}, {"tile": 4096})
    assert choice.tuned is not None
    assert "as the first configuration has it" in str(choice.tuned)
    assert len(value(x).then(lambda x: fast(x, out)).map(lambda y: y.shape).sync()) == 1  # known: no search
    again = searched([{"tile": 64}, {"tile": 4096}, {"tile": 4096, "wrong": 1.0}])
    again(x, out).sync()
    assert again.choices[0].tuned is None  # from disk
    assert again.choices[0].config == choice.config
    np.testing.assert_array_equal(fast(x, out, wrong=2.0).to_numpy().sync(), 6)  # named: no search


def test_a_configuration_that_does_not_fit_into_memory_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))

    def roomy(x: Any, *, gib: int = 0) -> DeviceOp[Any]:
        room = api.empty((1 << 20, max(gib << 8, 1)))
        return room.then(lambda _: scale(api.empty(x.shape).partition((64,)), x, 2.0)).first().unpartition()

    x = api.ones((64,)).sync()
    fast = ct.autotune([{"gib": 1 << 20}, {"gib": 0}], bench=QUICK)(ct.composite(roomy))
    np.testing.assert_array_equal(fast(x).to_numpy().sync(), 2)
    assert fast.choices[0].config == {"gib": 0}
    never = ct.autotune([{"gib": 1 << 20}, {"gib": 1 << 21}], bench=QUICK)(ct.composite(roomy))
    with pytest.raises(TuningError, match=r"no configuration can be used\n  gib=1048576: .*OUT_OF_MEMORY"):
        never(x).sync()


def test_a_choice_depends_on_numbers_beside_tensors_in_a_tuple() -> None:
    x, y = api.ones((100,), f32).sync(), api.ones((120,), f32).sync()
    keys = [key_of(Space(()), (argument,), {}) for argument in ((x, 2), (y, 2), (x, 3), (x,))]
    assert keys[0] == keys[1]  # extents are rounded up
    assert len(set(keys)) == 3


def test_a_search_refuses_what_it_cannot_call_again() -> None:
    fast = searched([{"tile": 64}, {"tile": 128}])
    with pytest.raises(ArgumentTypeError, match="an operation runs once"):
        fast(api.ones((4096,)), api.zeros((4096,)).sync())
    with pytest.raises(GenericsError, match=r"keyword-only parameters \(tile, wrong\), got 'x'"):
        searched([{"x": 64}, {"x": 128}])


def test_the_fastest_configuration_may_be_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*arguments: Any) -> composites.CompositeChoice:
        return composites.CompositeChoice({}, "", None)

    monkeypatch.setattr(composites, "search", search)
    fast = searched([{"wrong": 1.0}, {}])
    np.testing.assert_array_equal(fast(api.ones((64,)).sync(), api.zeros((64,)).sync()).to_numpy().sync(), 4)
