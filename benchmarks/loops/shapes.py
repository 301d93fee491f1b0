# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Cases of products for `benchmarks.loops`: with a softmax in the epilogue, with few tiles, and with uneven waves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.cases import Arms, GraphArm, Loop, OurArm, TorchArm, drawn, poisoned
from benchmarks.loops.cublaslt import fastest
from benchmarks.loops.ordinary import plain_arm, plain_op
from benchmarks.products.peers import recorded
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, f32

LOG2_E = 1.4426950408889634
SCALE = 1 / 8

# -- kernels --------------------------------------------------------------------------------------


@ct.entry
def product_softmax(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = the softmax of each row of x @ w; a tile has whole rows."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    power = ct.exp2((acc - ct.reduce_max(acc, 1).reshape((BM, 1))) * LOG2_E, ftz=True)
    z.store((power * (1.0 / ct.reduce_sum(power, 1).reshape((BM, 1)))).astype(z.dtype))


@ct.entry
def product_parts(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = the products of equal shares of K, one below the other: z has as many rows as x for each share."""
    BM, BN = z.shape
    row, j, _ = ct.get_tile_block_id()
    rows, steps = ct.ceil_div(x.shape[0], BM), ct.ceil_div(x.shape[1], BK)
    s, i, parts = row // rows, row % rows, ct.get_num_tile_blocks()[0] // rows
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(steps * s // parts, steps * (s + 1) // parts):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    z.store(acc)


@ct.entry
def added(z: Mut, parts: Tensor, *, PARTS: Const):
    """z = the sum of all parts; all of them are loaded before the first is added."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    z.store(ct.reduce_sum(ct.load_tile(parts, (PARTS, BM, BN), (0, i, j)), 0).astype(z.dtype))


def by_parts(
    z: Tensor,
    x: Tensor,
    w: Tensor,
    parts: int,
    tile: tuple[int, int] = (64, 128),
) -> DeviceOp[Any]:
    """x @ w by two kernels: the products of `parts` shares of K, and their sum.

    The rows of z have to be a multiple of the rows of a tile.
    """
    rows, columns = z.shape
    op = product_parts(api.empty((parts * rows, columns), f32).partition(tile), x, w)
    shares = op.first().unpartition().map(lambda done: done.reshape((parts, rows, columns)))
    return shares.then(lambda done: added(z.mut.partition((4, 256)), done, PARTS=parts))


# -- arms -----------------------------------------------------------------------------------------


def softmax_arms(torch: Any, rows: int, columns: int, depth: int) -> Arms:
    """A softmax in the epilogue of a product, beside our plain product, and torch's two kernels."""
    x, w = drawn(torch, rows, depth, scale=SCALE), drawn(torch, depth, columns, scale=SCALE)
    out, ours = poisoned(torch, rows, columns)
    plain = plain_arm(torch, x, w)
    exact = torch.softmax(plain.exact, 1)
    torch.cuda.synchronize()
    op = product_softmax(ours.mut.partition((128, columns)), api.from_dlpack(x), api.from_dlpack(w))
    return OurArm(op, out, exact), [plain, TorchArm(torch, "torch", lambda: torch.softmax((x @ w).float(), 1), exact)]


def sets_of(torch: Any, rows: int, columns: int, depth: int) -> tuple[list[Any], list[Any], Any, list[Tensor], Any]:
    """Several sets of operands, which do not fit the L2 cache together.

    Returns:
        Left operands, right operands, the results as torch's tensor and as ours, and the exact results.
    """
    sets = -(-ROTATED // (2 * depth * (rows + columns)))
    lefts = [drawn(torch, rows, depth, scale=SCALE) for _ in range(sets)]
    rights = [drawn(torch, depth, columns, scale=SCALE) for _ in range(sets)]
    out, _ = poisoned(torch, sets, rows, columns)
    exact = torch.stack([x.double() @ w.double() for x, w in zip(lefts, rights, strict=True)])
    torch.cuda.synchronize()
    return lefts, rights, out, [api.from_dlpack(each) for each in out], exact


def of_sets(torch: Any, rows: int, columns: int, depth: int, parts: int, *, best: bool) -> Arms:
    """A product of several sets of operands, beside cuBLAS and, if `best`, cuBLASLt's fastest algorithm.

    Ours is split-K by hand with `parts` parts, beside our plain product as well. With `parts` 0 ours is the plain
    product.
    """

    def ours(name: str, op: Callable[..., DeviceOp[Any]]) -> OurArm:
        lefts, rights, out, results, exact = sets_of(torch, rows, columns, depth)
        operands = ((z, api.from_dlpack(x), api.from_dlpack(w)) for z, x, w in zip(results, lefts, rights, strict=True))
        return GraphArm((op(*each) for each in operands), out, exact, name)

    def theirs(name: str, product_of: Callable[[list[Any], list[Any]], Callable[..., Any]]) -> TorchArm:
        lefts, rights, out, _, exact = sets_of(torch, rows, columns, depth)
        product = product_of(lefts, rights)

        def call() -> Any:
            for result, x, w in zip(out, lefts, rights, strict=True):
                product(x, w, out=result)
            return out

        return TorchArm(torch, name, recorded(torch, call), exact)

    plain = ours("our plain product" if parts else "cutile", plain_op)
    peers: list[OurArm | TorchArm] = [theirs("cublas", lambda *_: torch.mm)]
    if best:
        peers.insert(0, theirs("cublaslt's fastest", partial(fastest, torch)))
    if not parts:
        return plain, peers
    return ours("cutile", partial(by_parts, parts=parts)), [*peers, plain]


ROTATED = 1 << 28
"""Bytes of all sets of operands together: five times the L2 cache."""


def rotated(name: str, what: str, rows: int, columns: int, depth: int, parts: int, *, best: bool = False) -> Loop:
    """A case of several sets of operands."""
    sets = -(-ROTATED // (2 * depth * (rows + columns)))
    arms = partial(of_sets, rows=rows, columns=columns, depth=depth, parts=parts, best=best)
    return Loop(name, f"{what}, {rows} x {columns} x {depth}, bf16", 2 * sets * rows * columns * depth, arms)


CASES = (
    Loop(
        "softmax",
        "softmax of the rows of x @ w, 65536 x 256 x 4096, bf16",
        2 * 65536 * 256 * 4096,
        partial(softmax_arms, rows=65536, columns=256, depth=4096),
    ),
    rotated("parts", "x @ w in 4 parts of K by hand", 512, 512, 16384, 4),
    rotated("uneven", "x @ w", 1536, 3072, 8192, 0, best=True),
)
