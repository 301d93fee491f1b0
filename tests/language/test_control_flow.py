"""Python in kernels: each sample means what Python makes of it on NumPy arrays, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.samples.control import SAMPLES
from tests.samples.control_sample import PLAIN
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

KERNEL = """

def sample(out: Mut, x: Tensor, n: i32, m: i32):
    out.store(f(ct.load_tile_like(x, out), n, m))
"""


def meant(text: str, x: Any, n: int, m: int) -> Any:
    """What Python makes of it."""
    scope: dict[str, Any] = {"ct": PLAIN, "__name__": __name__}
    exec(text, scope)
    with np.errstate(all="ignore"):
        return scope["f"](x.copy(), np.int32(n), np.int32(m))


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample(name: str, backend: str) -> None:
    sample = SAMPLES[name]
    compiled = kernel(sample.text + KERNEL, __name__=__name__)
    for n, m in sample.calls:
        x = np.arange(-3, 13, dtype=np.int32)
        out = np.full(16, 77, np.int32)
        launch(compiled, (out, (8,)), x, n, m, backend=backend)
        wanted = np.concatenate([meant(sample.text, x[:8], n, m), meant(sample.text, x[8:], n, m)])
        np.testing.assert_array_equal(out, wanted, err_msg=f"n={n}, m={m}")
