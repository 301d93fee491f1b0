"""Random numbers: what their distributions are, by the same tests on the CPU and on a GPU; what a seed fixes."""

from __future__ import annotations

import gc
import importlib
import threading
import time
import weakref
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from cuda_async import Device, LaunchError
from cuda_async.testing import SimDriver
from cutile import api, bf16, f16, f32, f64, i32
from cutile.errors import ArgumentError, ArgumentTypeError

COUNT = 200_000
ALPHA = 1e-4  # seeds are fixed, so this is a choice of what to call suspicious and no rate of failure


def uniform(seed: int, dtype: Any, count: int = COUNT) -> Any:
    return api.rand((count,), seed, dtype).to_numpy().sync()


def normal(seed: int, dtype: Any, count: int = COUNT) -> Any:
    return api.randn(2.0, 3.0, (count,), seed, dtype).to_numpy().sync()


@pytest.fixture(scope="module")
def stats() -> Any:
    """scipy.stats, which has no stubs and takes a second to import: not at collection."""
    return importlib.import_module("scipy.stats")


def check_independence(x: Any, y: Any) -> None:
    """No correlation between neighbours, numbers further apart, or two seeds: each r is within 4.5 sigma of 0."""
    limit = 4.5 / np.sqrt(len(x))
    for lag in (1, 2, 4, 1000, 1 << 16):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < limit, lag
    assert abs(np.corrcoef(x, y)[0, 1]) < limit


@pytest.mark.parametrize("dtype", [f32, f64])
def test_uniform_numbers(device: Device, dtype: Any, stats: Any) -> None:
    x, y = uniform(1, dtype).astype(np.float64), uniform(2, dtype).astype(np.float64)
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 4.5 * np.sqrt(1 / 12 / COUNT)
    assert abs(x.var() - 1 / 12) < 4.5 * np.sqrt(1 / 180 / COUNT)
    assert stats.kstest(x, "uniform").pvalue > ALPHA
    check_independence(x, y)
    bits = np.bincount((x * 256).astype(int), minlength=256)
    assert stats.chisquare(bits).pvalue > ALPHA


@pytest.mark.parametrize("dtype", [f32, f64])
def test_normal_numbers(device: Device, dtype: Any, stats: Any) -> None:
    x, y = normal(1, dtype).astype(np.float64), normal(2, dtype).astype(np.float64)
    assert abs(x.mean() - 2) < 4.5 * 3 / np.sqrt(COUNT)
    assert abs(x.var() - 9) < 4.5 * 9 * np.sqrt(2 / COUNT)
    assert stats.kstest((x - 2) / 3, "norm").pvalue > ALPHA
    check_independence(x, y)


def test_the_largest_uniform_number_is_below_one(device: Device) -> None:
    x = uniform(3, f32, 1 << 24)  # of 2**24 numbers in (0, 1], one is 1 more often than not
    assert x.max() < 1
    assert x.min() >= 0


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_narrow_types_are_rounded(device: Device, dtype: Any) -> None:
    wide = api.randn(0.0, 1.0, (99,), 5).to_numpy().sync()
    np.testing.assert_array_equal(api.randn(0.0, 1.0, (99,), 5, dtype).to_numpy().sync(), wide.astype(dtype.numpy))
    if dtype is f16:
        np.testing.assert_array_equal(api.randn_f16(0, 1, (99,), 5).to_numpy().sync(), wide.astype(np.float16))


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("draw", [api.rand, partial(api.randn, 0.0, 1.0)], ids=["rand", "randn"])
def test_a_seed_fixes_the_numbers(device: Device, draw: Any, dtype: Any) -> None:
    shape = (3, 5, 7001)  # an odd number of them, and more than one chunk
    a, b, c = (draw(shape, seed, dtype).to_numpy().sync() for seed in (9, 9, 10))
    assert a.shape == shape
    np.testing.assert_array_equal(a, b)
    assert (a != c).mean() > 0.99
    on_other_stream = draw(shape, 9, dtype).to_numpy().sync_on(device.new_stream())
    np.testing.assert_array_equal(a, on_other_stream)


def test_without_a_seed_each_run_differs(device: Device) -> None:
    a, b = (api.rand((1000,)).to_numpy().sync() for _ in range(2))
    assert (a != b).mean() > 0.99
    a, b = (api.randn(0, 1, (1000,)).to_numpy().sync() for _ in range(2))
    assert (a != b).mean() > 0.99


@pytest.mark.parametrize("count", [1, 2, 3, 65535, 65536, 65537, 131073])
def test_any_number_of_numbers(device: Device, count: int) -> None:
    for op in (api.rand((count,), 1), api.randn(0, 1, (count,), 1)):
        x = op.sync()
        assert x.shape == (count,)
        assert len(np.unique(x.to_numpy().sync())) > 0.98 * count


def test_no_axes_and_no_spread(device: Device) -> None:
    assert 0 <= api.rand((), 1).to_numpy().sync() < 1
    np.testing.assert_array_equal(api.randn(4, 0, (3,), 1).to_numpy().sync(), [4, 4, 4])


def test_the_numbers_do_not_depend_on_the_workers(host: Device, sim_device: Device) -> None:
    with host:
        a = api.rand((300_001,), 4).to_numpy().sync()
    with sim_device:
        b = api.rand((300_001,), 4).to_numpy().sync()
    np.testing.assert_array_equal(a, b)


def test_a_graph_draws_no_numbers(device: Device) -> None:
    with pytest.raises(LaunchError, match="drawing random numbers cannot be part of a graph"):
        api.rand((4,)).graph_on(device.new_stream())


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "seed": (lambda: api.rand((3,), -1), ArgumentError, r"rand: seed: expected 0 to 2\*\*64 - 1, got -1"),
    "large": (lambda: api.rand((3,), 1 << 64), ArgumentError, "rand: seed"),
    "float seed": (
        lambda: api.rand((3,), cast("Any", 1.5)),
        ArgumentTypeError,
        "rand: seed: expected an integer or None",
    ),
    "narrow": (lambda: api.rand((3,), dtype=f16), ArgumentTypeError, "expected f32 or f64, got f16"),
    "integer": (lambda: api.randn(0, 1, (3,), dtype=i32), ArgumentTypeError, "floating-point type, got i32"),
    "std": (lambda: api.randn(0, -1, (3,)), ArgumentError, "randn: std: expected a standard deviation"),
    "nan": (lambda: api.randn(float("nan"), 1, (3,)), ArgumentError, "randn: mean: expected a finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(host: Device, case: str) -> None:
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()


def test_threads_do_not_mix_draws_of_one_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams borrowed from one handle share a generator, and have a submission lock each."""
    pytest.importorskip("cuda.pathfinder")
    from cuda_async.driver.cuda import curand

    calls: list[tuple[int, str]] = []

    def call(name: str, *arguments: Any) -> None:
        calls.append((threading.get_ident(), name))
        time.sleep(0.001)  # as a call of the library, which releases the GIL

    monkeypatch.setattr(curand, "_library", lambda: None)
    monkeypatch.setattr(curand, "_call", call)
    generator = curand.Generator(0, 2)
    calls.clear()

    def draw() -> None:
        for _ in range(10):
            generator.uniform(0, 64, 32, 1)
            generator.normal(0, 64, 64, 1, 0.0, 1.0)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    draws = [calls[at : at + 3] for at in range(0, len(calls), 3)]
    assert len(draws) == 80
    for seed, offset, numbers in draws:
        assert seed[0] == offset[0] == numbers[0]
        assert numbers[1] in ("curandGenerateUniform", "curandGenerateNormalDouble")


def test_devices_share_no_generator_of_a_default_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of a borrowed context has the number of another one, and streams of the same handles."""
    pytest.importorskip("cuda.pathfinder")
    from cuda_async.driver.cuda import curand

    monkeypatch.setattr(curand, "_library", lambda: None)
    monkeypatch.setattr(curand, "_call", mock.Mock())
    primary, borrowed = SimDriver(), SimDriver()
    assert primary.properties.ordinal == borrowed.properties.ordinal
    for handle in (0, 1, 2, 4096):
        generator = curand.Generator.of(primary, handle)
        assert curand.Generator.of(primary, handle) is generator
        assert curand.Generator.of(borrowed, handle) is not generator
    reference = weakref.ref(curand.Generator.of(borrowed, 0))
    del borrowed, generator
    gc.collect()
    assert reference() is None, "the next context at the address would get it"
