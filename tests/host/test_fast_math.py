"""Launches with `CompileOptions(fast_math=...)`: results differ as stated, and by no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile import CompileOptions, api, f32, f64
from cutile.ops import elementwise
from tests.support.values import ulps_from


@ct.entry
def blend(y: ct.Mut, x: ct.Tensor, a: f32):
    t = ct.load_tile_like(x, y)
    y.store(t * a + y.load())


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
def test_contracted_sums_are_rounded_once(device: Device, dtype: Any) -> None:
    """As `exact.fused` has it, to the bit; by default they are rounded twice, which differs."""
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal(4096).astype(dtype) for _ in range(2))
    z = (z * 1e-3 - x * dtype(np.float32(1.1))).astype(dtype)  # so that what a product's rounding loses counts
    a = dtype(np.float32(1.1))

    def launched(options: CompileOptions) -> Any:
        y = api.from_numpy(z).sync()
        kernel = blend if dtype is np.float32 else blend_f64
        kernel(y.mut.partition((1024,)), api.from_numpy(x).sync(), float(a)).compile_options(options).sync()
        return y.to_numpy().sync()

    twice, once = x * a + z, elementwise.fused(x, np.full_like(x, a), z)
    np.testing.assert_array_equal(launched(CompileOptions()), twice)
    taken = twice if device.kind == "sim" else once  # a simulated device walks the IR, which no option changes
    np.testing.assert_array_equal(launched(CompileOptions(fast_math=("contract",))), taken)
    assert (twice != once).mean() > 0.5


@ct.entry
def blend_f64(y: ct.Mut, x: ct.Tensor, a: f64):
    t = ct.load_tile_like(x, y)
    y.store(t * a + y.load())


@ct.entry
def fast_forms(q: ct.Mut, r: ct.Mut, e: ct.Mut, x: ct.Tensor, d: ct.Tensor):
    t, u = ct.load_tile_like(x, q), ct.load_tile_like(d, q)
    q.store(t / u)
    r.store(ct.sqrt(u))
    e.store(ct.exp(t))


def test_fast_forms_are_within_the_stated_ulps(device: Device) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-87, 88, 8192).astype(np.float32)
    d = np.exp(rng.uniform(-80, 80, 8192)).astype(np.float32)
    x[:64] = np.linspace(-1, 1, 64)
    given = [api.from_numpy(each).sync() for each in (x, d)]
    results = [api.empty((8192,), f32).sync() for _ in range(3)]
    arguments: list[Any] = [*(each.mut.partition((1024,)) for each in results), *given]
    fast_forms(*arguments).compile_options(CompileOptions(fast_math=True)).sync()
    q, r, e = (each.to_numpy().sync() for each in results)
    wide, below = x.astype(np.float64), d.astype(np.float64)
    normal = np.abs(wide / below) > 2.0**-126
    assert ulps_from(q, wide / below)[normal].max() <= 2
    assert ulps_from(r, np.sqrt(below)).max() <= 2
    assert (ulps_from(e, np.exp(wide)) <= 2 + 1.25 * np.abs(wide)).all()


def test_the_interpreter_and_the_reference_take_no_part(host: Device) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(64).astype(np.float32)
    z = (-x * np.float32(1.1)).astype(np.float32)
    a = float(np.float32(1.1))
    options = CompileOptions(fast_math=True)
    for way in ("interpreted", "reference"):
        y = api.from_numpy(z).sync()
        with ct.use_backend("reference"):
            op = blend(y.mut.partition((16,)), api.from_numpy(x).sync(), a).compile_options(options)
            (op.interpret() if way == "interpreted" else op).sync()
        np.testing.assert_array_equal(y.to_numpy().sync(), x * np.float32(a) + z)
