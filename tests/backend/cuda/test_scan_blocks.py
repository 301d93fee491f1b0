"""Scans of whole arrays, compiled for GPUs."""

from __future__ import annotations

import dataclasses
import operator

import pytest

from cutile.dtypes import DTypeLike, f32, i32, i64, u64
from cutile.host.kernels import scan_kernel, scan_sizes
from tests.backend.cuda.programs import compiled, shipped
from tests.backend.cuda.test_compile import ARCHITECTURES, assert_clean
from tests.support.programs import mut, tensor


@pytest.mark.parametrize(
    ("dtype", "arch"), [*((f32, arch) for arch in ARCHITECTURES), (i32, "sm_90a"), (i64, "sm_90a")], ids=str
)
def test_a_scan_of_an_array_spills_nothing(dtype: DTypeLike, arch: str) -> None:
    """With the warps and the occupancy of `api.scan`."""
    state = dataclasses.replace(tensor(1, u64), stable=False)
    tile, _ = scan_sizes(1, dtype)
    types = {"y": mut(tile, dtype=dtype), "x": tensor(1, dtype), "state": state}
    function = shipped(scan_kernel(operator.add, 0), types)
    executable = compiled(function, arch, num_worker_warps=8, occupancy=4 if dtype.bits <= 32 else 3)
    assert_clean(executable)
