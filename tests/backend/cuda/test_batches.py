"""Batched products: tensors of three axes, with tiles of one matrix."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Dot, TileIndex
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f32
from cutile.ir.core import Function
from cutile.ir.types import TensorType, Type
from cutile.ops.shape import Permute, Reshape
from kernels.gemm_variants import gemm_batched
from tests.backend.cuda.programs import compiled, lowered, shipped, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, tensor

BATCH = """
def f(z: Mut, x: Tensor, y: Tensor):
    _, BM, BN = z.shape
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), ct.f32)
    for k in range(ct.num_tiles(x.partition((1, BM, 64)), 2)):
        left = ct.load_tile(x, (1, BM, 64), (b, i, k)).reshape((BM, 64))
        right = ct.load_tile(y, (1, 64, BN), (b, k, j)).reshape((64, BN))
        acc = ct.mma(left, right, acc)
    z.store(ct.convert_tile(acc, z.dtype).reshape((1, BM, BN)))
"""


def transposed_batch(dtype: DTypeLike) -> TensorType:
    """A batch of transposed matrices: axis 1 is contiguous."""
    return TensorType(dtype, (None, None, None), (None, 1, None), 16)  # aligned to 16 bytes, as TMA needs


def types(tile: tuple[int, int], dtype: DTypeLike = bf16, /, **others: Type) -> dict[str, Type]:
    return {"z": mut(1, *tile, dtype=dtype), "x": tensor(3, dtype), "y": tensor(3, dtype)} | others


def refusal(function: Function) -> str:
    return dict(lowered(function).facts.get("refused", ())).get("specialised warps", "")


@pytest.mark.parametrize(
    ("x", "y", "boxes"),
    [
        (tensor(3, bf16), tensor(3, bf16), [((1, 128, 64), (0, 1, 2)), ((1, 64, 64), (0, 1, 2))]),
        (tensor(3, bf16), transposed_batch(bf16), [((1, 128, 64), (0, 1, 2)), ((1, 64, 256), (0, 2, 1))]),
        (transposed_batch(bf16), tensor(3, bf16), [((1, 64, 64), (0, 2, 1)), ((1, 64, 64), (0, 1, 2))]),
    ],
)
def test_tma_loads_one_matrix_of_a_batch(x: TensorType, y: TensorType, boxes: list[Any]) -> None:
    function = written(BATCH, types((128, 256), x=x, y=y))
    assert refusal(function) == ""
    maps = [each.map for each in source(function).parameters if each.kind == "tensor_map"]
    assert maps == [TensorMap(box, 128, order) for box, order in boxes]
    plan = lowered(function)
    assert check_function(plan) > 10
    product = next(op for op in plan.walk() if isinstance(op, Dot))
    left, right = (SmemLayout(*each.smem_layout) for each in buffer_types((product.left, product.right)))
    assert (left.k_major, right.k_major) == (x.unit_axis == 2, y.unit_axis == 1)


def test_a_tensor_map_has_five_axes_at_most() -> None:
    for axes, reason in ((5, ""), (6, "the left operand's tensor has more than 5 axes")):
        leading = (axes - 3) * "1, ", (axes - 3) * "0, "
        text = BATCH.replace("x, (1,", f"x, ({leading[0]}1,").replace("(b, i, k)", f"({leading[1]}b, i, k)")
        text = text.replace("ct.num_tiles(x.partition((1, BM, 64)), 2)", "3")  # axis 2 is not K there
        assert refusal(written(text, types((128, 256), x=tensor(axes, bf16)))) == reason


def test_tile_blocks_of_one_matrix_are_neighbours() -> None:
    plan = lowered(shipped(gemm_batched, types((128, 256)), BK=64))
    indices = [op for op in plan.walk() if isinstance(op, TileIndex)]
    # The raster order is within a matrix. Axis 0, the batch, is the slowest.
    assert {(op.rows, op.columns) for op in indices} == {(1, 2)}
    assert {op.axis for op in indices} == {0, 1, 2}


@pytest.mark.parametrize(
    ("dtype", "tile", "depth", "y"),
    [
        (bf16, (128, 256), 64, tensor(3, bf16)),
        (bf16, (16, 64), 64, tensor(3, bf16)),
        (f8e4m3fn, (128, 192), 128, transposed_batch(f8e4m3fn)),
        (f8e4m3fn, (128, 128), 128, tensor(3, f8e4m3fn)),
        (f32, (128, 128), 32, tensor(3, f32)),
    ],
    ids=str,
)
def test_every_kind_of_product_takes_batches(
    dtype: DTypeLike, tile: tuple[int, int], depth: int, y: TensorType
) -> None:
    out = bf16 if dtype is f8e4m3fn else dtype
    function = shipped(gemm_batched, types(tile, dtype, z=mut(1, *tile, dtype=out), y=y), BK=depth)
    assert refusal(function) == ""
    assert check_function(lowered(function)) > 10
    assert_clean(compiled(function))


def test_batches_take_split_k_and_an_operand_that_all_share() -> None:
    shared = BATCH.replace(
        "ct.load_tile(y, (1, 64, BN), (b, k, j)).reshape((64, BN))", "ct.load_tile(y, (64, BN), (k, j))"
    )
    for text, others in ((BATCH, {}), (shared, {"y": tensor(2, bf16)})):
        function = written(text, types((64, 128), bf16, **others))
        assert refusal(function) == ""
        for pieces in (4, 12):  # added up in a cluster, and through a workspace
            assert check_function(lowered(function, num_pieces=pieces)) > 10
    plan = lowered(written(shared, types((64, 128), y=tensor(2, bf16))), num_cta_in_cga=2)
    assert plan.facts["cluster"] == 2  # two matrices of the batch share the tiles of y
    assert check_function(plan) > 10


def test_matrices_may_be_transposed_behind_the_reshape() -> None:
    text = BATCH.replace(
        "(1, BM, 64), (b, i, k)).reshape((BM, 64))", "(1, 64, BM), (b, k, i)).reshape((64, BM)).transpose()"
    )
    plan = lowered(written(text, types((128, 128))))
    assert check_function(plan) > 10
    assert not any(isinstance(op, Permute) for op in plan.walk())
    # None of the operands: one for each subtile of the result.
    assert len([op for op in plan.walk() if isinstance(op, Reshape)]) <= 4


LOADED = "ct.load_tile(x, (1, BM, 64), (b, i, k)).reshape((BM, 64))"


@pytest.mark.parametrize(
    ("reason", "left"),
    [
        ("is reshaped by more than", "ct.load_tile(x, (1, BM // 2, 128), (b, i, k)).reshape((BM, 64))"),
        (
            "is not loaded in the loop",
            "ct.permute(ct.load_tile(x, (1, 64, BM), (b, k, i)), (0, 2, 1)).reshape((BM, 64))",
        ),
        (
            "is used before it is reshaped",
            "t.reshape((BM, 64)); acc += ct.reduce_sum(t.astype(ct.f32), 2).reshape((BM, 1))",
        ),
    ],
)
def test_what_is_no_matrix_of_a_batch_is_refused(reason: str, left: str) -> None:
    text = BATCH.replace("left =", "t = ct.load_tile(x, (1, BM, 64), (b, i, k))\n        left =").replace(LOADED, left)
    assert f"the left operand {reason}" in refusal(written(text, types((128, 128))))


def test_a_tensor_whose_batch_axis_has_stride_1_is_refused() -> None:
    x = TensorType(bf16, (None, None, None), (1, None, None), 16)
    assert "no axis of the left operand's tensor" in refusal(written(BATCH, types((128, 128), x=x)))
