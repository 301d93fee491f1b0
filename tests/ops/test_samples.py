"""Every operation, dtype by dtype, on every backend: the result is NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cutile.dtypes import DTypeLike
from cutile.ops import OPS
from tests.samples import arith, cast, compare, grid, math, pointer, reduce, shape, sort
from tests.samples.row import Row
from tests.samples.values import CASES
from tests.support.draw import draw, ulps_between
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

MODULES = (arith, cast, compare, grid, math, pointer, reduce, shape, sort)
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


WITH_VALUES = [row for module in (arith, cast, compare, math) for row in module.ROWS]
"""What test_values.py and test_conversion.py compile for the CPU with every dtype; here it is a way to write it."""
AT_ONCE = 7
"""Dtypes that share a kernel. Compiling a small one takes as long as compiling some operations more."""

Results = list[tuple[Any, Any]]
"""What a kernel gave and what NumPy gives, for each dtype."""


def text_of(row: Row, count: int) -> str:
    """A kernel that computes the row's expression for each of so many dtypes, of inputs and an output of its own."""
    first = (0,) * len(row.shape)
    parameters = ", ".join(f"out_{i}: Mut, x_in_{i}: Tensor, y_in_{i}: Tensor" for i in range(count))
    lines = [f"def sample({parameters}):"]
    for i in range(count):
        lines += [
            f"    out, x_in, y_in = out_{i}, x_in_{i}, y_in_{i}",
            f"    x, y = ct.load_tile(x_in, {row.shape}, {first}), ct.load_tile(y_in, {row.shape}, {first})",
            f"    out.store({row.expression})",
        ]
    return "\n".join(lines) + "\n"


def run(row: Row, dtypes: Sequence[DTypeLike], backend: str) -> Results:
    """Compute a row for some of its dtypes, in one kernel. Which numbers a dtype is given its place in the row says."""
    shape = row.result_shape or row.shape
    seeds = [100 * row.dtypes.index(dtype) for dtype in dtypes]
    inputs = [
        tuple(draw(dtype, row.shape, row.domain, seed + each) for each in (0, 1))
        for dtype, seed in zip(dtypes, seeds, strict=True)
    ]
    outputs = [np.full(shape, 77).astype((row.result or dtype).numpy) for dtype in dtypes]
    arguments = [each for out, (x, y) in zip(outputs, inputs, strict=True) for each in ((out, shape), x, y)]
    launch(kernel(text_of(row, len(dtypes))), *arguments, backend=backend)
    with np.errstate(all="ignore"):
        return [
            (out, np.asarray(row.numpy(x, y)).astype(out.dtype)) for out, (x, y) in zip(outputs, inputs, strict=True)
        ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_sample(row: Row, backend: str) -> None:
    every = row.dtypes
    if backend == "cpu":  # each compiles for a second: a row takes every fifth dtype, and the next rows the others
        every = every[:1] if row in WITH_VALUES else every[ROWS.index(row) % 5 :: 5] or every[:1]
    for start in range(0, len(every), AT_ONCE):
        dtypes = every[start : start + AT_ONCE]
        for dtype, (got, wanted) in zip(dtypes, run(row, dtypes, backend), strict=True):
            error = ulps_between(got, wanted)
            assert error <= row.ulps, f"{dtype}: {error} ulp, {row.ulps} allowed\ngot    {got}\nwanted {wanted}"


def test_every_operation_has_a_sample() -> None:
    missing = OPS.keys() - {row.op for row in ROWS} - {case.op for case in CASES} - TESTED_ELSEWHERE
    assert not missing, f"no sample in tests/samples for: {', '.join(sorted(missing))}"
