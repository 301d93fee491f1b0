"""Tensor maps: descriptors with which TMA copies tiles of a tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.context import PrimaryContext

__all__ = ("encode_tensor_map",)

_BYTES = 128  # of a `CUtensorMap`

_ELEMENTS = {
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "tf32": "TFLOAT32",
    "f64": "FLOAT64",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def encode_tensor_map(
    context: PrimaryContext,
    element: str,
    address: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    step: int = 1,
) -> bytes:
    """See `Driver.encode_tensor_map`. Elements outside of the tensor are zeros."""
    encoded: Any = context.call(
        cu.cuTensorMapEncodeTiled,
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[element]}"),
        len(extents),
        address,
        [cu.cuuint64_t(extent) for extent in extents],
        [cu.cuuint64_t(stride) for stride in strides],
        [cu.cuuint32_t(extent) for extent in box],
        [cu.cuuint32_t(step if axis == 1 else 1) for axis in range(len(extents))],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle]}"),
        # The L2 cache fetches 128 bytes at once, as many as a row of a swizzled copy has. The bytes beside them are
        # often for another thread block, at the other half of the cache. With 256 bytes, products of few rows by a
        # matrix of 8192 x 8192 took 1 to 4 % more time on an H200, and a product of 4096 cubed took the same time.
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        # NONE fills with zeros; the other choice is NaNs.
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(int(encoded.getPtr()), _BYTES)
