# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Decoding with latent keys (MLA) for `benchmarks.loops`: all heads share keys, whose first columns are the values."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.cases import Arms, GraphArm, Loop, TorchArm, drawn, poisoned
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, Tile, api, f32
from kernels.attention import HIDDEN, LOG2_E, LOW
from kernels.decode import combine, share


def add_keys(scores: Tile, value: Tile, by_two: Tile, top: Tile, totals: Tile, acc: Tile) -> tuple[Tile, Tile, Tile]:
    """As in `kernels.attention`, but `totals` adds up weights element by element, for a sum of the row at the end.

    A row is divided among warpgroups, so a sum of each row in each iteration would need an exchange between them.
    """
    above = ct.max_tile(top, ct.reduce_max(scores, 1).reshape(top.shape) * by_two)
    weights = ct.exp2(ct.fma(scores, ct.broadcast(by_two, scores.shape), ct.broadcast(-above, scores.shape)), ftz=True)
    fade = ct.exp2(top - above, ftz=True)
    totals = ct.fma(totals, ct.broadcast(fade, scores.shape), weights)
    return above, totals, ct.mma(weights.astype(value.dtype), value, acc * fade)


@ct.entry
def latent(part: Mut, lse: Mut, q: Tensor, k: Tensor, scale: f32, *, TURNED: Const = 64, BN: Const = 64):
    """Attention of q (sequences, heads, width + TURNED) over one of several equal parts of the keys of each sequence.

    Keys k are (sequences, keys, width + TURNED); their first `width` columns are the values, and the last TURNED have
    the rotary embedding. Results are as in `kernels.decode.decode_part`: part (sequences, heads, parts * width), lse
    (sequences, heads, parts).
    """
    _, BM, D = part.shape
    b, i, s = ct.get_tile_block_id()
    still = ct.load_tile(q, (1, BM, D), (b, i, 0)).reshape((BM, D))
    turned = ct.load_tile(q, (1, BM, TURNED), (b, i, D // TURNED)).reshape((BM, TURNED))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, totals, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, D), f32)
    parts, tiles = ct.get_num_tile_blocks()[2], ct.ceil_div(k.shape[1], BN)
    first, end = tiles * s // parts, tiles * (s + 1) // parts
    whole = min(end, k.shape[1] // BN)
    for j in range(first, whole):
        value = ct.load_tile(k, (1, BN, D), (b, j, 0)).reshape((BN, D))
        key = ct.load_tile(k, (1, BN, TURNED), (b, j, D // TURNED)).reshape((BN, TURNED))
        scores = ct.mma(still, value.transpose(), ct.constant(0, (BM, BN), f32))
        scores = ct.mma(turned, key.transpose(), scores)
        top, totals, acc = add_keys(scores, value, by_two, top, totals, acc)
    for j in range(whole, end):  # keys past the last one
        value = ct.load_tile(k, (1, BN, D), (b, j, 0)).reshape((BN, D))
        key = ct.load_tile(k, (1, BN, TURNED), (b, j, D // TURNED)).reshape((BN, TURNED))
        scores = ct.mma(still, value.transpose(), ct.constant(0, (BM, BN), f32))
        scores = ct.mma(turned, key.transpose(), scores)
        seen = ct.broadcast(ct.iota((BN,)).reshape((1, BN)) + j * BN < k.shape[1], (BM, BN))
        top, totals, acc = add_keys(ct.select(seen, scores, HIDDEN), value, by_two, top, totals, acc)
    total = ct.reduce_sum(totals, 1).reshape((BM, 1))
    part.store(share(acc, total).reshape((1, BM, D)).astype(part.dtype))
    lse.store((top + ct.log2(total)).reshape((1, BM, 1)))


def decode_latent(o: Tensor, q: Tensor, k: Tensor, scale: float, parts: int, rows: int = 64) -> DeviceOp[Any]:
    """The op that computes o (sequences, heads, width) by parts of the keys, and combines these."""
    sequences, heads, width = o.shape
    lse = api.empty((sequences, heads, parts), f32).partition((1, rows, 1))
    if parts == 1:  # the only part is the result
        return latent(o.mut.partition((1, rows, width)), lse, q, k, scale, TURNED=q.shape[2] - width)
    part = api.empty((sequences, heads, parts * width), f32).partition((1, rows, width))
    split = latent(part, lse, q, k, scale, TURNED=q.shape[2] - width)
    tiles = o.mut.partition((1, 1, width))
    return split.then(lambda done: combine(tiles, done[0].unpartition(), done[1].unpartition(), PARTS=parts))


WIDTH, TURNED = 512, 64


def latent_arms(torch: Any, sequences: int, heads: int, keys: int, parts: int) -> Arms:
    """Decoding with latent keys, beside the reading of the keys as torch adds them up."""
    q, k = drawn(torch, sequences, heads, WIDTH + TURNED), drawn(torch, sequences, keys, WIDTH + TURNED)
    out, ours = poisoned(torch, sequences, heads, WIDTH)
    scale = 1 / math.sqrt(WIDTH + TURNED)
    exact = torch.empty(out.shape, device="cuda", dtype=torch.float64)
    for sequence, rows in enumerate(q):
        wide = k[sequence].double()
        exact[sequence] = torch.softmax(rows.double() @ wide.T * scale, -1) @ wide[:, :WIDTH]
    torch.cuda.synchronize()
    op = decode_latent(ours, api.from_dlpack(q), api.from_dlpack(k), scale, parts)
    words = k.view(torch.float32)
    peer = TorchArm(torch, "torch.sum of keys", lambda: torch.sum(words) is not None and exact, exact)
    return GraphArm([op], out, exact), [peer]


CASES = (
    Loop(
        "decode-latent",
        "decoding, 128 heads of 64 sequences over 8192 latent keys of width 512 and 64, bf16",
        2 * 64 * 128 * 8192 * (2 * WIDTH + TURNED),
        partial(latent_arms, sequences=64, heads=128, keys=8192, parts=1),
    ),
)
