"""Matrix products of other operands: batches, 8-bit integers, tf32. Each differs from `gemm` in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, f32, i32, tf32
from kernels.gemm_choice import Choice, choose, how_they_lie


@ct.entry
def gemm_batched(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    """z[b] = x[b] @ y[b], accumulated in float32."""
    _, BM, BN = z.shape
    part_x, part_y = x.partition((1, BM, BK)), y.partition((1, BK, BN))
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 2)):
        acc = ct.mma(part_x.load((b, i, k)).reshape((BM, BK)), part_y.load((b, k, j)).reshape((BK, BN)), acc)
    z.store(ct.convert_tile(acc, z.dtype).reshape((1, BM, BN)))


@ct.entry
def gemm_stacked(z: Mut, x: Tensor, y: Tensor, *, TALL: Const, BK: Const = 64):
    """z = x @ y for products that are stacked one below the other; each has TALL whole tiles of rows of z."""
    BM, BN = z.shape
    part_x = x.partition((BM, BK))
    i, j, _ = ct.get_tile_block_id()
    steps = ct.num_tiles(part_x, 1)
    above = i // TALL * steps  # tiles of right operands above this product's
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(steps):
        acc = ct.mma(part_x.load((i, k)), ct.load_tile(y, (BK, BN), (above + k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def gemm_integers(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 128):
    """z = x @ y of 8-bit integers, exact in int32."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), i32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(acc)


@ct.entry
def gemm_tf32(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 32):
    """z = x @ y of f32 rounded to tf32, accumulated in float32."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        a, b = ct.convert_tile(part_x.load((i, k)), tf32), ct.convert_tile(part_y.load((k, j)), tf32)
        acc = ct.mma(a, b, acc)
    z.store(acc)


def batched_matmul(x: ct.Tensor, y: ct.Tensor, *, out: ct.Tensor | None = None) -> DeviceOp[ct.Tensor]:
    """Return the op that yields `x[b] @ y[b]` for each `b`.

    Args:
        x: float16, bfloat16 or float32 tensor of shape (batch, m, k); lent to the op.
        y: tensor of shape (batch, k, n) and x's dtype; lent to the op.
        out: where the result goes, of shape (batch, m, n); a new tensor of x's dtype by default.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> x = api.arange(4, f32).reshape((2, 1, 2)).sync()
        >>> y = api.ones((2, 2, 1), f32).sync()
        >>> batched_matmul(x, y).sync().to_host_vec().sync()
        array([1., 5.], dtype=float32)
    """
    if x.ndim != 3 or y.ndim != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise ct.ArgumentError(f"batched_matmul: expected shapes (b, m, k) and (b, k, n), got {x.shape} and {y.shape}")
    batch, m, k = x.shape
    n = y.shape[2]
    best = choose(m, n, k, x.dtype, x.device, batch=batch)
    if not stackable(x, y, best) or (out is not None and not out.is_contiguous()):
        z = api.empty((batch, m, n), x.dtype) if out is None else out
        return gemm_batched(z.partition((1, best.rows, best.columns)), x, y, BK=best.depth).first().unpartition()
    if out is not None:
        return stacked(x, y, out.reshape((batch * m, n)).mut.partition((best.rows, best.columns)), best).map(
            lambda _: out
        )
    made = api.empty((batch * m, n), x.dtype).partition((best.rows, best.columns))
    return stacked(x, y, made, best).first().unpartition().reshape((batch, m, n))


def stackable(x: ct.Tensor, y: ct.Tensor, tile: Choice) -> bool:
    """Whether a batch of products can be computed as products of matrices that are stacked in whole tiles."""
    return x.shape[1] % tile.rows == 0 == x.shape[2] % tile.depth and x.is_contiguous() and y.is_contiguous()


def stacked(x: ct.Tensor, y: ct.Tensor, z: Any, tile: Choice) -> ct.KernelOp:
    """The launch of `gemm_stacked`; `z` is a partition of the stacked matrices of the result."""
    (_, m, k), n = x.shape, y.shape[2]
    return gemm_stacked(z, x.reshape((-1, k)), y.reshape((-1, n)), TALL=m // tile.rows, BK=tile.depth)


def integer_matmul(
    x: ct.Tensor,
    y: ct.Tensor,
    *,
    out: ct.Tensor | None = None,
    tile: tuple[int, int] | None = None,
    depth: int | None = None,
) -> DeviceOp[ct.Tensor]:
    """Return the op that yields the exact product of 8-bit integers as int32.

    Args:
        x: i8 or u8 tensor of shape (m, k); lent to the op.
        y: tensor of shape (k, n) and x's dtype; lent to the op.
        out: where the result goes, of shape (m, n) and int32; a new tensor by default.
        tile: rows and columns of the result per tile block; by default as `gemm_choice` chooses.
        depth: columns of x per step; by default as `gemm_choice` chooses.

    Example:
        >>> x = api.ones((2, 3), ct.i8).sync()
        >>> integer_matmul(x, x.transpose()).sync().to_host_vec().sync()
        array([3, 3, 3, 3], dtype=int32)
    """
    best = choose(x.shape[0], y.shape[1], x.shape[1], x.dtype, x.device, lie=how_they_lie(x, y))
    z = api.empty((x.shape[0], y.shape[1]), i32) if out is None else out
    return _launched(gemm_integers, z, x, y, best, tile, depth)


def tf32_matmul(
    x: ct.Tensor,
    y: ct.Tensor,
    *,
    out: ct.Tensor | None = None,
    tile: tuple[int, int] | None = None,
    depth: int | None = None,
) -> DeviceOp[ct.Tensor]:
    """Return the op that yields `x @ y` with both rounded to tf32: 11 bits of precision, at several times the speed.

    Args:
        x: float32 tensor of shape (m, k); lent to the op.
        y: float32 tensor of shape (k, n); lent. For speed, at least one of x and y should be contiguous along k.
        out: where the result goes, of shape (m, n) and float32; a new tensor by default.
        tile: rows and columns of the result per tile block; by default as `gemm_choice` chooses.
        depth: columns of x per step; by default as `gemm_choice` chooses.

    Example:
        >>> x = api.full(1.0001, (2, 2), f32).sync()
        >>> tf32_matmul(x, x).sync().to_host_vec().sync()
        array([2., 2., 2., 2.], dtype=float32)
    """
    best = choose(x.shape[0], y.shape[1], x.shape[1], tf32, x.device, lie=how_they_lie(x, y))
    z = api.empty((x.shape[0], y.shape[1]), f32) if out is None else out
    return _launched(gemm_tf32, z, x, y, best, tile, depth)


def _launched(
    kernel: Callable[..., ct.KernelOp],
    z: ct.Tensor | DeviceOp[ct.Tensor],
    x: ct.Tensor,
    y: ct.Tensor,
    best: Choice,
    tile: tuple[int, int] | None,
    depth: int | None,
) -> DeviceOp[ct.Tensor]:
    """The op that yields `z`, computed with the best configuration, or with `tile` and `depth` if they are given."""
    op = kernel(z.partition(tile or (best.rows, best.columns)), x, y, BK=depth or best.depth)
    if tile is None and best.options is not None:
        op = op.compile_options(best.options)
    return op.first().unpartition()
