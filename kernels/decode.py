"""Attention of few rows over many keys, as in text generation: keys are split in parts, whose results are combined."""

import math
from functools import partial
from typing import Any

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, Tile, api, bf16, f16, f32
from kernels.attention import HIDDEN, LOG2_E, LOW, add_keys, attention_of
from kernels.example import Arrays, Case, Example, Problem, Tensors

MAX_PARTS = 256
"""The most parts of the keys: `combine` reads the results of all parts again."""
START = 2
"""Fixed cost of a part, in tiles of keys: the wait for the first tile, and the writing of the result."""


def share(acc: Tile, total: Tile) -> Tile:
    """A part's result, acc / total; zeros for a part without keys."""
    return acc * ct.select(total > 0, 1.0 / total, 0.0)


@ct.entry
def decode_part(part: Mut, lse: Mut, q: Tensor, k: Tensor, v: Tensor, scale: f32, *, BN: Const = 128):
    """Attention of q (heads, rows, width) over one of several equal parts of the keys k and values v, for each head.

    `part`, of shape (heads, rows, parts * width) in tiles (1, BM, width), gets the result of part s in tile column s.
    `lse`, of shape (heads, rows, parts), gets the weight of each row in part s, as a logarithm of base 2.
    """
    _, BM, D = part.shape
    h, i, s = ct.get_tile_block_id()
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    parts, tiles = ct.get_num_tile_blocks()[2], ct.ceil_div(k.shape[1], BN)
    first, end = tiles * s // parts, tiles * (s + 1) // parts
    whole = min(end, k.shape[1] // BN)
    for j in range(first, whole):
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, BN, D), (h, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(whole, end):  # keys past the last one
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        seen = ct.broadcast(ct.iota((BN,)).reshape((1, BN)) + j * BN < k.shape[1], (BM, BN))
        value = ct.load_tile(v, (1, BN, D), (h, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(ct.select(seen, scores, HIDDEN), value, by_two, top, total, acc)
    part.store(share(acc, total).reshape((1, BM, D)))
    lse.store((top + ct.log2(total)).reshape((1, BM, 1)))


@ct.entry
def decode_paged(
    part: Mut,
    lse: Mut,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: Tensor,
    counts: Tensor,
    scale: f32,
    *,
    HEADS: Const,
    BN: Const,
):
    """As `decode_part`, for keys and values in pages (page, head, BN, width), of sequences with HEADS heads each.

    Sequence b has counts[b] keys; pages[b, j] is the number of the page that has its keys from j * BN on.
    """
    _, BM, D = part.shape
    h, i, s = ct.get_tile_block_id()
    b, g = h // HEADS, h % HEADS
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    count = ct.load_tile(counts, (1,), (b,)).reshape(())
    parts, tiles = ct.get_num_tile_blocks()[2], ct.ceil_div(count, BN)
    first, end = tiles * s // parts, tiles * (s + 1) // parts
    whole = min(end, count // BN)
    for j in range(first, whole):
        page = ct.load_tile(pages, (1, 1), (b, j)).reshape(())
        key = ct.load_tile(k, (1, 1, BN, D), (page, g, 0, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, 1, BN, D), (page, g, 0, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(whole, end):  # keys past the last one
        page = ct.load_tile(pages, (1, 1), (b, j)).reshape(())
        key = ct.load_tile(k, (1, 1, BN, D), (page, g, 0, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        seen = ct.broadcast(ct.iota((BN,)).reshape((1, BN)) + j * BN < count, (BM, BN))
        value = ct.load_tile(v, (1, 1, BN, D), (page, g, 0, 0)).reshape((BN, D))
        top, total, acc = add_keys(ct.select(seen, scores, HIDDEN), value, by_two, top, total, acc)
    part.store(share(acc, total).reshape((1, BM, D)))
    lse.store((top + ct.log2(total)).reshape((1, BM, 1)))


@ct.entry
def combine(o: Mut, part: Tensor, lse: Tensor, *, PARTS: Const):
    """o = the mean of the parts' results, weighted by 2 ** lse, in tiles (1, 1, width)."""
    D = o.shape[2]
    h, i, _ = ct.get_tile_block_id()
    weights = ct.load_tile(lse, (1, 1, PARTS), (h, i, 0)).reshape((PARTS, 1))
    weights = ct.exp2(weights - ct.reduce_max(weights, 0).reshape((1, 1)), ftz=True)
    shares = ct.load_tile(part, (1, 1, PARTS * D), (h, i, 0)).reshape((PARTS, D))
    total = ct.reduce_sum(weights, 0).reshape((1, 1))
    o.store((ct.reduce_sum(shares * weights, 0).reshape((1, D)) / total).astype(o.dtype).reshape((1, 1, D)))


def parts_of(heads: int, tiles: int, units: int) -> int:
    """The number of parts into which to split the keys of each head.

    A part costs its tiles and START. All parts of all heads run in waves of `units`; the least total time wins.

    Args:
        heads: heads, each with its own parts.
        tiles: tiles of keys of a head.
        units: multiprocessors of the device.

    Example:
        >>> parts_of(8, 1024, 132), parts_of(64, 128, 132), parts_of(1000, 128, 132), parts_of(1, 3, 132)
        (16, 2, 3, 3)
    """

    def seconds(parts: int) -> float:
        return -(-heads * parts // units) * (-(-tiles // parts) + START)

    return min(range(1, min(tiles, MAX_PARTS) + 1), key=seconds)


def decode(
    q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None, parts: int = 0, rows: int = 64, keys: int = 128
) -> DeviceOp[Tensor]:
    """Return the op that yields the attention of `q` over `k` and `v`, with the scale 1 / sqrt(width).

    Args:
        q: queries of shape (heads, rows, width), f16 or bf16; lent to the op. If several heads share keys and values,
            pass their queries of one position as rows of one head.
        k, v: keys and values of shape (heads, keys, width), of q's dtype.
        out: where the result goes, of q's shape and dtype; a new tensor by default.
        parts: parts into which the keys are split, so that heads * parts tile blocks keep all multiprocessors busy; 0
            leaves it to `parts_of`.
        rows, keys: extents of a tile.

    Example:
        >>> one = api.ones((1, 4, 16), f16).sync()
        >>> decode(one, one, one, parts=2, rows=4, keys=2).sync().to_numpy().sync().ravel()[:2]
        array([1., 1.], dtype=float16)
    """
    heads, count, width = q.shape
    parts = parts or parts_of(heads, -(-k.shape[1] // keys), q.device.multiprocessor_count)
    o = api.empty(q.shape, q.dtype) if out is None else out
    part = api.empty((heads, count, parts * width), f32).partition((1, rows, width))
    lse = api.empty((heads, count, parts), f32).partition((1, rows, 1))
    split = decode_part(part, lse, q, k, v, 1 / math.sqrt(width), BN=keys)
    return split.then(partial(_combined, o.partition((1, 1, width)), parts)).first().unpartition()


def decode_of_pages(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: Tensor,
    counts: Tensor,
    *,
    out: Tensor | None = None,
    parts: int = 0,
    rows: int = 64,
) -> DeviceOp[Tensor]:
    """As `decode`, for sequences whose keys and values are in pages.

    Args:
        q: queries of shape (sequences * heads, rows, width), f16 or bf16; lent to the op.
        k, v: pages of shape (pages, heads, keys, width), of q's dtype.
        pages: i32 of shape (sequences, maximum of pages): the numbers of each sequence's pages, in order.
        counts: i32 of shape (sequences,): the number of keys of each sequence, at least one.
        out: where the result goes, of q's shape and dtype; a new tensor by default.
        parts: parts into which the keys of each sequence are split; 0 leaves it to `parts_of`, for the longest
            sequence that `pages` can hold.
        rows: rows of a tile.

    Example:
        >>> q, page = api.ones((2, 4, 16), f16).sync(), api.ones((3, 2, 16, 16), f16).sync()
        >>> which, counts = (api.from_numpy(np.array(x, np.int32)).sync() for x in ([[2, 0]], [20]))
        >>> decode_of_pages(q, page, page, which, counts, rows=4).sync().to_numpy().sync().ravel()[:2]
        array([1., 1.], dtype=float16)
    """
    heads, count, width = q.shape
    parts = parts or parts_of(heads, pages.shape[1], q.device.multiprocessor_count)
    o = api.empty(q.shape, q.dtype) if out is None else out
    part = api.empty((heads, count, parts * width), f32).partition((1, rows, width))
    lse = api.empty((heads, count, parts), f32).partition((1, rows, 1))
    scale = 1 / math.sqrt(width)
    split = decode_paged(part, lse, q, k, v, pages, counts, scale, HEADS=k.shape[1], BN=k.shape[2])
    return split.then(partial(_combined, o.partition((1, 1, width)), parts)).first().unpartition()


def _combined(o: Any, parts: int, done: Any) -> DeviceOp[Any]:
    """The op that combines the parts' results into `o`."""
    shares, weights = done[0].unpartition(), done[1].unpartition()
    return combine(o, shares, weights, PARTS=parts)


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    heads, rows, keys, width, _ = case.shape
    inputs = (case.random(rng, heads, count, width) for count in (rows, keys, keys))
    return Problem(outputs=(case.poison(heads, rows, width),), inputs=tuple(inputs))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (o,), (q, k, v) = outputs, inputs
    rows, keys = (64, 128) if case.tile is None else case.tile
    op = decode(q, k, v, out=o, parts=case.shape[4], rows=rows, keys=keys)
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the attention of each head in float64."""
    q, k, v = (each.astype(np.float64) for each in problem.inputs)
    return (attention_of(q, k, v, causal=False),)


CASES = (
    Case((2, 8, 500, 64, 3), f16, tile=(64, 64)),  # the last part ends within a tile of keys
    Case((3, 8, 256, 32, 2), bf16, tile=(64, 128)),
)

EXAMPLE = Example(
    name="decode",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 2 * case.shape[0] * case.shape[3] * (case.shape[1] + case.shape[2]) * case.dtype.bits // 8,
    flops=lambda case: 4 * case.shape[0] * case.shape[1] * case.shape[2] * case.shape[3],
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
