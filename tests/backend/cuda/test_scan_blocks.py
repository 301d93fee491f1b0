"""Scans of whole arrays, compiled for GPUs."""

from __future__ import annotations

import dataclasses
import operator

import pytest

from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i8, i16, i32, i64, u64
from cutile.host.kernels import knows_scan_registers, scan_kernel, scan_sizes
from tests.backend.cuda.programs import compiled, shipped
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, tensor

SHARED_BYTES = {"sm_80": 164 << 10, "sm_89": 100 << 10, "sm_90a": 228 << 10, "sm_100a": 228 << 10}
"""Of a multiprocessor (CUDA C++ Programming Guide, "Compute Capabilities")."""


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        *((dtype, "sm_90a") for dtype in (i8, i16, i32, i64, bf16, f32, f64)),
        *((dtype, arch) for dtype in (f32, f64) for arch in ("sm_80", "sm_89")),
        (f32, "sm_100a"),
    ],
    ids=str,
)
def test_a_scan_of_an_array_spills_nothing(dtype: DTypeLike, arch: str) -> None:
    assert_scan_is_clean(dtype, dtype, arch, contiguous=True)


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@pytest.mark.parametrize(
    ("dtype", "source"),
    [
        *((bf16, f32), (f32, bf16), (f16, f32), (f32, f16), (bf16, f16), (f16, bf16)),
        *((f32, f64), (bf16, i64), (f32, i8), (i32, i64), (i32, i8), (f64, f32), (i64, bf16)),
    ],
    ids=str,
)
def test_a_scan_of_other_elements_spills_nothing(dtype: DTypeLike, source: DTypeLike, contiguous: bool) -> None:
    assert_scan_is_clean(dtype, source, "sm_90a", contiguous=contiguous)


def assert_scan_is_clean(dtype: DTypeLike, source: DTypeLike, arch: str, *, contiguous: bool) -> None:
    """With the tile, the warps and the occupancy of `api.cumsum`."""
    state = dataclasses.replace(tensor(1, u64), stable=False)
    sizes = scan_sizes(1, dtype, SHARED_BYTES[arch])
    x = tensor(1, source)
    if not contiguous:
        x = dataclasses.replace(x, strides=(None,), alignment=source.bits // 8)
    types = {"y": mut(sizes.tile, dtype=dtype), "x": x, "state": state}
    function = shipped(scan_kernel(operator.add, 0), types, WIDE=int(dtype.is_half))
    knows = knows_scan_registers(operator.add, source, dtype, contiguous=contiguous)
    occupancy = sizes.occupancy if knows else None
    assert_clean(compiled(function, arch, num_worker_warps=8, occupancy=occupancy))
