"""`tile[:, None]` adds axes of extent 1, as in NumPy, on every backend."""

from __future__ import annotations

import numpy as np
import pytest

import cutile as ct
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_an_outer_sum(backend: str) -> None:
    text = (
        "def f(z: Mut, x: Tensor, y: Tensor):\n"
        "    a, b = ct.load_tile(x, (4,), (0,)), ct.load_tile(y, (6,), (0,))\n"
        "    z.store(a[:, None] + b[None, :] * a[..., np.newaxis][:])\n"
    )
    x, y, z = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float32), np.zeros((4, 6), np.float32)
    launch(kernel(text), (z, (4, 6)), x, y, backend=backend)
    np.testing.assert_array_equal(z, x[:, None] + y[None] * x[:, None])


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(
    "brackets", [":", "...", ":, None", "None, ..., None", "..., None, :", "None, :, :", ":, None, ...", "None"]
)
def test_the_shape_is_numpys(brackets: str, interpreted: bool) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = eval(f"x[{brackets}]")
    text = (
        "def f(y: Mut, x: Tensor):\n"
        f"    t = ct.load_tile(x, (2, 3), (0, 0))[{brackets}]\n"
        f"    ct.static_assert(t.shape == {view.shape})\n"
        "    y.store(t.reshape((6,)))\n"
    )
    if interpreted:
        text = text.replace(f"    ct.static_assert(t.shape == {view.shape})\n", "")
    y = np.zeros(6, np.float32)
    launch(kernel(text), (y, (6,)), x, backend="interpret" if interpreted else "reference")
    np.testing.assert_array_equal(y, view.ravel())


@pytest.mark.parametrize("brackets", ["0", "1:", "None, :, :", "..., ...", "x"])
def test_brackets_mean_nothing_else(brackets: str) -> None:
    text = f"def f(y: Mut, x: Tensor):\n    y.store(ct.load_tile(x, (4,), (0,))[{brackets}])\n"
    for backend in ("reference", "interpret"):
        with pytest.raises(ct.KernelTypeError, match="cannot be indexed with"):
            launch(kernel(text), (np.zeros(4, np.float32), (4,)), np.zeros(4, np.float32), backend=backend)
