# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Cases of products for `benchmarks.loops`: with a softmax of their rows, with few tiles, with a few too many."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.cases import Arms, GraphArm, Loop, OurArm, TorchArm, drawn, poisoned
from benchmarks.loops.cublaslt import fastest
from benchmarks.loops.ordinary import plain_arm
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, f32

LOG2_E = 1.4426950408889634
SCALE = 1 / 8

# -- kernels --------------------------------------------------------------------------------------


@ct.entry
def product_softmax(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = the softmax of each row of x @ w, all of whose columns are one tile."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    power = ct.exp2((acc - ct.reduce_max(acc, 1).reshape((BM, 1))) * LOG2_E, ftz=True)
    z.store((power * (1.0 / ct.reduce_sum(power, 1).reshape((BM, 1)))).astype(z.dtype))


@ct.entry
def product_parts(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """Each z[s] is the product of a share of x's columns with as many rows of w."""
    _, BM, BN = z.shape
    s, i, j = ct.get_tile_block_id()
    parts, steps = ct.get_num_tile_blocks()[0], ct.ceil_div(x.shape[1], BK)
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(steps * s // parts, steps * (s + 1) // parts):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    z.store(acc.reshape(z.shape))


@ct.entry
def added(z: Mut, parts: Tensor, *, PARTS: Const):
    """z = the sum of all parts, in their order."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for s in ct.static_range(PARTS):
        acc = acc + ct.load_tile(parts, (1, BM, BN), (s, i, j)).reshape((BM, BN))
    z.store(acc.astype(z.dtype))


def by_parts(z: Tensor, x: Tensor, w: Tensor, parts: int, tile: tuple[int, int] = (128, 128)) -> DeviceOp[Any]:
    """x @ w by two kernels: the products of `parts` shares of K, and their sum."""
    shares = api.empty((parts, *z.shape), f32)
    op = product_parts(shares.partition((1, *tile)), x, w)
    return op.first().unpartition().then(lambda done: added(z.mut.partition((4, 256)), done, PARTS=parts))


# -- arms -----------------------------------------------------------------------------------------


def softmax_arms(torch: Any, rows: int, columns: int, depth: int) -> Arms:
    """A softmax of rows behind a product, beside our plain product, and torch's two kernels."""
    x, w = drawn(torch, rows, depth, scale=SCALE), drawn(torch, depth, columns, scale=SCALE)
    out, ours = poisoned(torch, rows, columns)
    plain = plain_arm(torch, x, w)
    exact = torch.softmax(plain.exact, 1)
    torch.cuda.synchronize()
    op = product_softmax(ours.mut.partition((128, columns)), api.from_dlpack(x), api.from_dlpack(w))
    return OurArm(op, out, exact), [plain, TorchArm(torch, "torch", lambda: torch.softmax((x @ w).float(), 1), exact)]


def parts_arms(torch: Any, size: int, depth: int, parts: int) -> Arms:
    """Split-K by hand, beside our plain product, which divides K by itself, and cuBLAS."""
    x, w = drawn(torch, size, depth, scale=SCALE), drawn(torch, depth, size, scale=SCALE)
    out, ours = poisoned(torch, size, size)
    plain = plain_arm(torch, x, w)
    torch.cuda.synchronize()
    op = by_parts(ours, api.from_dlpack(x), api.from_dlpack(w), parts)
    peers = [TorchArm(torch, "cublas", lambda: x @ w, plain.exact), plain]
    return GraphArm(op, out, plain.exact), peers


def uneven_arms(torch: Any, rows: int, columns: int, depth: int) -> Arms:
    """Our plain product with some more tiles than multiprocessors, beside cuBLAS and cuBLASLt's fastest."""
    x, w = drawn(torch, rows, depth, scale=SCALE), drawn(torch, depth, columns, scale=SCALE)
    plain = plain_arm(torch, x, w)
    plain.name = "cutile"
    torch.cuda.synchronize()
    peers = [
        TorchArm(torch, "cublaslt's fastest", fastest(torch, x, w), plain.exact),
        TorchArm(torch, "cublas", lambda: x @ w, plain.exact),
    ]
    return plain, peers


CASES = (
    Loop(
        "softmax",
        "softmax of the rows of x @ w, 65536 x 256 x 4096, bf16",
        2 * 65536 * 256 * 4096,
        partial(softmax_arms, rows=65536, columns=256, depth=4096),
    ),
    Loop(
        "parts",
        "x @ w in 8 parts of K by hand, 512 x 512 x 16384, bf16",
        2 * 512 * 512 * 16384,
        partial(parts_arms, size=512, depth=16384, parts=8),
    ),
    Loop(
        "uneven",
        "x @ w, 1536 x 3072 x 8192, bf16",
        2 * 1536 * 3072 * 8192,
        partial(uneven_arms, rows=1536, columns=3072, depth=8192),
    ),
)
