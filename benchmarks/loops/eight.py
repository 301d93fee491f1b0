# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Attention of 8-bit floats for `benchmarks.loops`, beside our own of bf16."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.attention import exact_rows
from benchmarks.loops.cases import Arms, Loop, OurArm, drawn, poisoned
from cutile import Const, Mut, Tensor, Tile, api, f8e4m3fn, f32
from kernels.attention import LOG2_E, LOW, attention, hide, tile_of

RAISED = 8.0
"""The base-2 logarithm of a factor on weights, so that they use the range of the type, up to 448; weights below 2**-17
of the largest become 0."""

ROWS, KEYS = 128, 192
"""Rows and keys of a tile. 128 keys are 0.984 as fast, 160 0.978, 64 0.81 (`docs/benchmarks/loops/attention.md`)."""


def add_keys(scores: Tile, value: Tile, by_two: Tile, top: Tile, total: Tile, acc: Tile) -> tuple[Tile, Tile, Tile]:
    """As in `kernels.attention`, with weights in 8 bits; the tensor cores add up their products (`use_fast_acc`)."""
    above = ct.max_tile(top, ct.reduce_max(scores, 1).reshape(top.shape) * by_two)
    shift = ct.broadcast(RAISED - above, scores.shape)
    weights = ct.exp2(ct.fma(scores, ct.broadcast(by_two, scores.shape), shift), ftz=True)
    fade = ct.exp2(top - above, ftz=True)
    total = total * fade + ct.reduce_sum(weights, 1).reshape(top.shape)
    return above, total, ct.mma(weights.astype(value.dtype), value, acc * fade, use_fast_acc=True)


@ct.entry
def attention_f8(o: Mut, q: Tensor, k: Tensor, v: Tensor, scale: f32, by: f32, *, BN: Const = 128):
    """o = by * softmax(scale * q @ k^T) @ v^T of f8e4m3fn, head by head, with v as (heads, width, keys)."""
    _, BM, D = o.shape
    h, i, _ = ct.get_tile_block_id()
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    whole, end = k.shape[1] // BN, ct.ceil_div(k.shape[1], BN)
    for j in range(whole):
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, D, BN), (h, 0, j)).reshape((D, BN)).transpose()
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(whole, end):  # keys past the last one
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        scores = hide(scores, j, ct.constant(0, (BM, 1), ct.i32), ct.broadcast(k.shape[1], (BM, 1)))
        value = ct.load_tile(v, (1, D, BN), (h, 0, j)).reshape((D, BN)).transpose()
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    o.store((acc * (by / total)).astype(o.dtype).reshape((1, BM, D)))


def eight_arms(torch: Any, heads: int, rows: int, width: int) -> Arms:
    """Attention of 8-bit floats, beside ours of the same numbers in bf16."""
    eight = torch.float8_e4m3fn
    q, k, v = (drawn(torch, heads, rows, width).to(eight) for _ in range(3))
    wide = [each.to(torch.bfloat16) for each in (q, k, v)]
    exact = exact_rows(torch, wide[0], wide[1], wide[2], False, 0)
    out, ours = poisoned(torch, heads, rows, width)
    wide_out, ours_wide = poisoned(torch, heads, rows, width)
    across = v.view(torch.uint8).transpose(1, 2).contiguous()
    torch.cuda.synchronize()
    bytes_ = (each.view(torch.uint8) for each in (q, k, across))
    inputs = [api.from_dlpack(each).reinterpret(f8e4m3fn, tuple(each.shape)) for each in bytes_]
    scale, tile = 1 / math.sqrt(width), tile_of(width, rows, causal=False)
    op = attention_f8(ours.mut.partition((1, ROWS, width)), *inputs, scale, 1.0, BN=KEYS)
    tiles = ours_wide.mut.partition((1, tile[0], width))
    wide_inputs = [api.from_dlpack(each) for each in wide]
    plain = attention(tiles, *wide_inputs, scale, BN=tile[1])
    return OurArm(op, out, exact), [OurArm(plain, wide_out, exact, "ours of bf16")]


CASES = (
    Loop(
        "attention-f8",
        "attention forward, 16 heads x 16384, width 128, full, f8e4m3fn",
        4 * 16 * 16384**2 * 128,
        partial(eight_arms, heads=16, rows=16384, width=128),
        allowed=4e-2,  # weights are rounded to 4 bits
    ),
)
