"""IR from kernel text, for tests of the front end, the passes and the backends' pure stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutile.dtypes import DTypeLike, f32
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.core import Function
from cutile.ir.types import MutType, TensorType, TileType, Type
from tests.support.kernels import define

GEMM = """
def gemm(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""z = x @ y, with sums in f32, as a kernel's text."""


def tensor(rank: int, dtype: DTypeLike = f32, alignment: int = 16) -> TensorType:
    """A row-major tensor of dynamic extents."""
    return TensorType(dtype, (None,) * rank, (None,) * (rank - 1) + (1,), alignment)


def mut(*tile: int, dtype: DTypeLike = f32) -> MutType:
    """A partition of a row-major tensor."""
    return MutType(tensor(len(tile), dtype), tile)


def scalar(dtype: DTypeLike = f32) -> TileType:
    """A scalar."""
    return TileType(dtype)


def program(
    text: str,
    parameters: Mapping[str, Type],
    names: dict[str, Any] | None = None,
    *,
    unsafe: bool = False,
    **generics: Any,
) -> Function:
    """The IR of a kernel, as written."""
    function = define(text, **(names or {}))
    return build(function, take_source(function), parameters, generics, unsafe=unsafe).function
