"""Every operation, dtype by dtype, on every backend: the result is NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile.dtypes import DTypeLike
from cutile.ops import OPS
from tests.samples import arith, cast, compare, grid, math, pointer, reduce, shape
from tests.samples.row import Row
from tests.samples.values import CASES
from tests.support.draw import draw, ulps_between
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

MODULES = (arith, cast, compare, grid, math, pointer, reduce, shape)
ROWS = [row for module in MODULES for row in module.ROWS]
TESTED_ELSEWHERE = {
    "for", "while", "if", "yield",               # tests/properties, tests/language
    "store_pointer", "atomic_rmw", "atomic_cas", "print", "assert",  # tests/language
    "load_tile", "load_mut", "store_mut",        # tests/language
    "mma", "mma_scaled",                         # tests/ops/test_products.py
    "load_view", "store_view", "tensor_view",  # tests/language/test_partitions.py
    "check_tile", "check_index", "assume_within", "assume_bounds", "assume_div_by",  # tests/passes/test_bounds.py
    "assume_same_elements",
}  # fmt: skip


def run(row: Row, dtype: DTypeLike, backend: str, seed: int) -> tuple[Any, Any]:
    x, y = (draw(dtype, row.shape, row.domain, seed + each) for each in (0, 1))
    first = (0,) * len(row.shape)
    text = (
        "def sample(out: Mut, x_in: Tensor, y_in: Tensor):\n"
        f"    x, y = ct.load_tile(x_in, {row.shape}, {first}), ct.load_tile(y_in, {row.shape}, {first})\n"
        f"    out.store({row.expression})\n"
    )
    shape = row.result_shape or row.shape
    result = np.full(shape, 77).astype((row.result or dtype).numpy)
    launch(kernel(text), (result, shape), x, y, backend=backend)
    with np.errstate(all="ignore"):
        wanted = np.asarray(row.numpy(x, y)).astype(result.dtype)
    return result, wanted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_sample(row: Row, backend: str) -> None:
    for position, dtype in enumerate(row.dtypes):
        got, wanted = run(row, dtype, backend, 100 * position)
        error = ulps_between(got, wanted)
        assert error <= row.ulps, f"{dtype}: {error} ulp, {row.ulps} allowed\ngot    {got}\nwanted {wanted}"


def test_every_operation_has_a_sample() -> None:
    missing = OPS.keys() - {row.op for row in ROWS} - {case.op for case in CASES} - TESTED_ELSEWHERE
    assert not missing, f"no sample in tests/samples for: {', '.join(sorted(missing))}"
