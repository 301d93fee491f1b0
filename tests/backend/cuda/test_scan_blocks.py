"""Scans of whole arrays, compiled for GPUs."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import pytest

from cutile.dtypes import f32, i64, u64
from cutile.host.kernels import TILE_BYTES, scan_kernel
from tests.backend.cuda.programs import compiled, shipped
from tests.backend.cuda.test_compile import ARCHITECTURES, assert_clean
from tests.support.programs import mut, tensor


@pytest.mark.parametrize(("arch", "dtype"), [*((arch, f32) for arch in ARCHITECTURES), ("sm_90a", i64)], ids=str)
def test_a_scan_of_an_array_spills_nothing(arch: str, dtype: Any) -> None:
    state = dataclasses.replace(tensor(1, u64), stable=False)
    tile = TILE_BYTES * 8 // dtype.bits
    function = shipped(
        scan_kernel(operator.add, 0), {"y": mut(tile, dtype=dtype), "x": tensor(1, dtype), "state": state}
    )
    executable = compiled(function, arch)
    assert_clean(executable)
    if dtype is f32:  # two thread blocks fit a multiprocessor: one loads while the other waits
        assert executable.facts["registers"] * executable.facts["threads"] <= 32768
