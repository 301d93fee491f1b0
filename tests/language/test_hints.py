"""Hints change no result: how far loads run ahead, and whether TMA may do them."""

from __future__ import annotations

import numpy as np
import pytest

from cutile.dtypes import bf16
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

PRODUCT = """
def product(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((32, 16)), y.partition((16, 32))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (32, 32), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        a = ct.load_view_tko(part_x, (i, k){left})
        acc = ct.mma(a, part_y.load_pipelined((k, j){right}), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("left", "right"),
    [("", ""), (", latency=1", ", 1"), (", latency=2", ""), ("", ", 9"), (", tma=ct.tma.DISABLED", "")],
)
def test_a_product_is_the_same_with_hints(left: str, right: str, backend: str) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-3, 4, shape).astype(bf16.numpy) for shape in ((64, 112), (112, 96)))
    z = np.zeros((64, 96), np.float32)
    launch(kernel(PRODUCT.format(left=left, right=right)), (z, (32, 32)), x, y, backend=backend)
    np.testing.assert_array_equal(z, x.astype(np.float32) @ y.astype(np.float32))
