"""Tensors of rank 0, which hold one number: read, written and updated, alone and beside others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

BODIES = {
    "load_tile": ("y.store(x.load_tile((), ()) * 2.0)", 6.0),
    "like": ("y.store(ct.load_tile_like(x, y) + y.load())", 4.0),
    "partition": ("y.store(x.partition(()).load(()) + ct.reduce_sum(ct.iota((4,)).astype(f32)))", 9.0),
    "gather": ("y.store(y.load() + ct.gather(x, ()))", 4.0),
    "scatter": ("ct.scatter(y, (), ct.gather(x, ()) * 5.0)", 15.0),
    "atomic": ("ct.atomic_add(y, (), x.load_tile((), ()))", 4.0),
    "shape": ("y.store(y.load() + len(x.shape) + len(y.shape) + y.ndim)", 1.0),
}


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_one_number_in_memory(backend: str) -> None:
    """Each way in a `Mut` of its own, in one kernel."""
    outputs = ", ".join(f"y_{name}: Mut" for name in BODIES)
    lines = [f"    {body.replace('y.', f'y_{name}.').replace('(y,', f'(y_{name},').replace(', y)', f', y_{name})')}"
             for name, (body, _) in BODIES.items()]  # fmt: skip
    text = f"def k({outputs}, x: Tensor):\n" + "\n".join(lines) + "\n"
    results = [np.array(1.0, np.float32) for _ in BODIES]
    launch(kernel(text), *((each, ()) for each in results), np.array(3.0, np.float32), backend=backend)
    assert [float(each) for each in results] == [wanted for _, wanted in BODIES.values()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_number_beside_tiles(backend: str) -> None:
    """Of a launch over several tiles, each reads it."""
    y, scale = np.arange(10, dtype=np.float32), np.array(0.5, np.float32)
    launch(kernel("def k(y: Mut, x: Tensor):\n    y.store(y.load() * x.load_tile((), ()))\n"), (y, (4,)), scale,
           backend=backend)  # fmt: skip
    np.testing.assert_array_equal(y, np.arange(10) * 0.5)
