# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Products of 8-bit floats with scales of blocks for `benchmarks.loops`: plain, and of experts."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.cases import Arms, Loop, OurArm, TorchArm, drawn, poisoned
from cutile import Const, Mut, Tensor, Tile, api, f8e4m3fn, f32

# -- kernels --------------------------------------------------------------------------------------


def add_scaled(acc: Tile, left: Tile, right: Tile, scale: Tile) -> Tile:
    """acc + left @ right^T, scaled row by row."""
    part = ct.mma(left, right.transpose(), ct.constant(0, acc.shape, f32))
    return ct.fma(part, ct.broadcast(scale, acc.shape), acc)


@ct.entry
def scaled(z: Mut, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor, *, BK: Const = 128, BLOCKS: Const = 2):
    """z = x @ w^T of 8-bit floats, with a scale for each 128 elements of a row of x, and for each 128 x 128 of w.

    Scales have shapes (K / 128, rows) and (columns / 128, K / 128). A tile is BLOCKS (one or two) blocks of w wide; two
    blocks share the loads of x.
    """
    BM, BN = z.shape[0], z.shape[1] // BLOCKS
    i, j, _ = ct.get_tile_block_id()
    first, second = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        left, by = ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(of_x, (1, BM), (k, i)).reshape((BM, 1))
        scale = by * ct.load_tile(of_w, (1, 1), (BLOCKS * j, k))
        first = add_scaled(first, left, ct.load_tile(w, (BN, BK), (BLOCKS * j, k)), scale)
        if BLOCKS == 2:
            scale = by * ct.load_tile(of_w, (1, 1), (2 * j + 1, k))
            second = add_scaled(second, left, ct.load_tile(w, (BN, BK), (2 * j + 1, k)), scale)
    both = ct.cat((first.astype(z.dtype), second.astype(z.dtype)), 1)
    z.store(both if BLOCKS == 2 else first.astype(z.dtype))


@ct.entry
def scaled_experts(z: Mut, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor, expert: Tensor, *, BK: Const = 128):
    """The same with two blocks, and with w[e] and its scales for each tile of rows; `e` is from the list `expert`."""
    BM, BN = z.shape[0], z.shape[1] // 2
    i, j, _ = ct.get_tile_block_id()
    e = ct.load_tile(expert, (1,), (i,)).reshape(())
    first, second = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        left, by = ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(of_x, (1, BM), (k, i)).reshape((BM, 1))
        scale = by * ct.load_tile(of_w, (1, 1, 1), (e, 2 * j, k)).reshape((1, 1))
        right = ct.load_tile(w, (1, BN, BK), (e, 2 * j, k)).reshape((BN, BK))
        first = add_scaled(first, left, right, scale)
        scale = by * ct.load_tile(of_w, (1, 1, 1), (e, 2 * j + 1, k)).reshape((1, 1))
        right = ct.load_tile(w, (1, BN, BK), (e, 2 * j + 1, k)).reshape((BN, BK))
        second = add_scaled(second, left, right, scale)
    z.store(ct.cat((first.astype(z.dtype), second.astype(z.dtype)), 1))


# -- arms -----------------------------------------------------------------------------------------

TILE = (192, 128)
EXPERT_TILE = (128, 256)
"""The number of rows has to be a multiple of a tile's."""
BLOCK = 128
"""Elements of K that share a scale; a scale of w is for as many columns, too."""
EXPERTS = 8


def drawn_eight(torch: Any, *shape: int) -> tuple[Any, Tensor]:
    """Normal numbers in 8 bits: torch's tensor, and ours over the same memory."""
    numbers = drawn(torch, *shape).to(torch.float8_e4m3fn)
    return numbers, api.from_dlpack(numbers.view(torch.uint8)).reinterpret(f8e4m3fn, shape)


def exact_product(x: Any, w: Any, of_x: Any, of_w: Any) -> Any:
    """x @ w^T in float64, with their scales."""
    wide = w.double() * of_w.double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (x.double() * of_x.double().T.repeat_interleave(BLOCK, 1)) @ wide.T


def torch_product(torch: Any, x: Any, w: Any, of_x: Any, of_w: Any, out: Any = None) -> Any:
    """Torch's product with the same scales."""
    return torch._scaled_mm(x, w.T, scale_a=of_x.T, scale_b=of_w.T, out_dtype=torch.bfloat16, out=out)


def scaled_arms(torch: Any, m: int, n: int, k: int) -> Arms:
    """Beside torch's product with such scales."""
    (x, left), (w, right) = drawn_eight(torch, m, k), drawn_eight(torch, n, k)
    scales = [torch.rand(*shape, device="cuda") + 0.5 for shape in ((k // BLOCK, m), (n // BLOCK, k // BLOCK))]
    exact = exact_product(x, w, *scales)
    out, ours = poisoned(torch, m, n)
    torch.cuda.synchronize()
    inputs = left, right, *map(api.from_dlpack, scales)
    op = scaled(ours.mut.partition(TILE), *inputs, BLOCKS=TILE[1] // BLOCK)
    return OurArm(op, out, exact), [TorchArm(torch, "torch", lambda: torch_product(torch, x, w, *scales), exact)]


def expert_arms(torch: Any, m: int, n: int, k: int) -> Arms:
    """Products of experts, beside torch's one by one, and beside ours of as much arithmetic with one matrix."""
    (x, left), (w, right) = drawn_eight(torch, m, k), drawn_eight(torch, EXPERTS, n, k)
    first = api.from_dlpack(w[0].view(torch.uint8)).reinterpret(f8e4m3fn, (n, k))
    of_x = torch.rand(k // BLOCK, m, device="cuda") + 0.5
    of_w = torch.rand(EXPERTS, n // BLOCK, k // BLOCK, device="cuda") + 0.5
    tiles = torch.multinomial(torch.ones(EXPERTS, device="cuda"), m // EXPERT_TILE[0], replacement=True).sort().values
    counts = torch.bincount(tiles, minlength=EXPERTS).tolist()
    ends = [EXPERT_TILE[0] * end for end in itertools.accumulate(counts, initial=0)]
    rows_of = {e: slice(*rows) for e, rows in enumerate(itertools.pairwise(ends)) if rows[0] < rows[1]}
    shares = [(e, rows, of_x[:, rows].contiguous()) for e, rows in rows_of.items()]
    exact = torch.cat([exact_product(x[rows], w[e], of_rows, of_w[e]) for e, rows, of_rows in shares])
    (out, ours), (plain_out, plain), (theirs, _) = (poisoned(torch, m, n) for _ in range(3))
    torch.cuda.synchronize()
    scales = api.from_dlpack(of_x), api.from_dlpack(of_w)
    op = scaled_experts(ours.mut.partition(EXPERT_TILE), left, right, *scales, api.from_dlpack(tiles.to(torch.int32)))
    peer = scaled(plain.mut.partition(EXPERT_TILE), left, first, scales[0], api.from_dlpack(of_w[0]))

    def one_by_one() -> Any:
        for e, rows, of_rows in shares:
            torch_product(torch, x[rows], w[e], of_rows, of_w[e], theirs[rows])
        return theirs

    return OurArm(op, out, exact), [
        TorchArm(torch, "torch, one by one", one_by_one, exact),
        OurArm(peer, plain_out, exact_product(x, w[0], of_x, of_w[0]), "ours of one matrix"),
    ]


def case(name: str, what: str, arms: Any, m: int, n: int, k: int) -> Loop:
    """A case of products with scales of blocks."""
    return Loop(name, f"{what}, {m} x {n} x {k}, f8e4m3fn", 2 * m * n * k, partial(arms, m=m, n=n, k=k))


CASES = (
    case("scaled", "x @ w^T with scales of blocks", scaled_arms, 8192, 8192, 4096),
    case("scaled-deep", "x @ w^T with scales of blocks", scaled_arms, 4096, 7168, 16384),
    case("scaled-experts", f"x @ w[e]^T of {EXPERTS} experts with scales of blocks", expert_arms, 8192, 8192, 4096),
)
