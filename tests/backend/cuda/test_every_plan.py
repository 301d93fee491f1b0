"""The pipelines of every plan of the library's products on Hopper, for any tile that may be chosen."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Pipeline
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f16, f32, i8, i32
from cutile.ir.core import Function
from cutile.ir.types import TensorType, Type
from kernels.gemm import gemm
from kernels.gemm_choice import HOPPER
from kernels.gemm_fused import gemm_fused
from kernels.gemm_variants import gemm_batched, gemm_integers, gemm_stacked, gemm_tf32
from tests.backend.cuda.programs import lowered, shipped, written
from tests.support.programs import mut, tensor

FEW = tuple(product((8, 16), (64, 128, 256)))
TILES = FEW + tuple(product(HOPPER.rows, HOPPER.columns))


def turned(dtype: DTypeLike) -> TensorType:
    """A transposed view."""
    return TensorType(dtype, (None, None), (1, None), 16)


def made(kernel: Any, tile: tuple[int, int], dtype: DTypeLike, out: DTypeLike, y: TensorType, **more: Any) -> Function:
    x = tensor(2, dtype)
    types: dict[str, Type] = {"z": mut(*tile, dtype=out), "x": x, "y": y}
    if kernel is gemm_batched:
        types = {"z": mut(1, *tile, dtype=out), "x": tensor(3, dtype), "y": tensor(3, dtype)}
    if kernel is gemm_fused:
        types |= {"bias": tensor(1, dtype), "residual": x}
    return shipped(kernel, types, BK=HOPPER.depth * 16 // dtype.bits, **more)


PRODUCTS: dict[str, tuple[Any, DTypeLike, DTypeLike, bool, dict[str, Any]]] = {
    "bf16": (gemm, bf16, bf16, False, {}),
    "f16, right by columns": (gemm, f16, f32, True, {}),
    "fused": (gemm_fused, bf16, bf16, False, {"BIAS": 1, "RESIDUAL": 1, "ACTIVATION": 2}),
    "stacked": (gemm_stacked, bf16, bf16, False, {"TALL": 4}),
    "batched": (gemm_batched, bf16, bf16, False, {}),
    "tf32": (gemm_tf32, f32, f32, True, {}),
    "fp8": (gemm, f8e4m3fn, bf16, True, {}),
    "fp8, fast sums": (gemm_fused, f8e4m3fn, bf16, True, {"BIAS": 0, "RESIDUAL": 0, "FAST_ACC": 1}),
    "int8": (gemm_integers, i8, i32, True, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_rings_neither_deadlock_nor_overwrite(name: str) -> None:
    kernel, dtype, out, by_columns, more = PRODUCTS[name]
    pipelines = 0
    for tile in TILES:
        function = made(kernel, tile, dtype, out, turned(dtype) if by_columns else tensor(2, dtype), **more)
        for cluster in (1, 2):
            plan = lowered(function, num_cta_in_cga=cluster)
            turns = check_function(plan)
            check_layouts(plan)
            has_pipeline = any(isinstance(op, Pipeline) for op in plan.walk())
            assert (turns > 10) is has_pipeline, (tile, cluster)
            pipelines += has_pipeline
    assert pipelines > len(TILES)


BATCH_IN_A_TILE = """
def f(z: Mut, x: Tensor, y: Tensor):
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(ct.num_tiles(x.partition((2, 64, 64)), 2)):
        acc = ct.mma(ct.load_tile(x, (2, 64, 64), (b, i, k)), ct.load_tile(y, (2, 64, 64), (b, k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def test_a_batch_in_one_tile_has_no_such_ring() -> None:
    x = tensor(3, bf16)
    function = written(BATCH_IN_A_TILE, {"z": mut(2, 64, 64, dtype=bf16), "x": x, "y": x})
    assert check_function(lowered(function)) == 0
