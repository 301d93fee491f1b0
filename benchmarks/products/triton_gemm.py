# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# (the peers ship no types)
"""A product in Triton, for comparison, in a file of its own because Triton reads its kernels' source from the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


@triton.jit
def _gemm(x, y, z, M, N, K, xm, xk, yk, yn, zm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    # Row tiles go in groups of G, so that their right operands are still in the cache.
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    first = pid // (G * across) * G
    high = min(tl.cdiv(M, BM) - first, G)
    i, j = first + pid % (G * across) % high, pid % (G * across) // high
    rows, columns, ks = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    at_x = x + (rows % M)[:, None] * xm + ks[None, :] * xk
    at_y = y + ks[:, None] * yk + (columns % N)[None, :] * yn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = tl.load(at_x, ks[None, :] < K - k * BK, 0.0)
        right = tl.load(at_y, ks[:, None] < K - k * BK, 0.0)
        acc = tl.dot(left, right, acc)
        at_x += BK * xk
        at_y += BK * yk
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(z + rows[:, None] * zm + columns[None, :], acc.to(z.dtype.element_ty), inside)


def launcher(x: Any, y: Any, z: Any) -> Callable[[], object]:
    """A function that computes z = x @ y on torch tensors, with the tutorial's tiles for Hopper."""
    (m, k), n = x.shape, y.shape[1]
    small = m * n < 132 * 128 * 256
    rows, columns, warps, stages = (64, 128, 4, 4) if small else (128, 256, 8, 3)
    grid = (triton.cdiv(m, rows) * triton.cdiv(n, columns),)
    strides = (*x.stride(), *y.stride(), z.stride(0))
    return lambda: _gemm[grid](
        x, y, z, m, n, k, *strides, BM=rows, BN=columns, BK=64, G=8, num_warps=warps, num_stages=stages
    )
