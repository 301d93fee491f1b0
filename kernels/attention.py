"""Attention: softmax(scale * q @ k^T) @ v, head by head, without its matrix of scores (FlashAttention)."""

import math

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, Tile, api, bf16, f16, f32
from kernels.example import Array, Arrays, Case, Example, Problem, Tensors

LOG2_E = 1.4426950408889634
HIDDEN, LOW = float("-inf"), -1e30  # LOW is finite: no difference of two tops is NaN where a row has seen no key


def add_keys(scores: Tile, value: Tile, by_two: Tile, top: Tile, total: Tile, acc: Tile) -> tuple[Tile, Tile, Tile]:
    """Add some keys' values, weighed by 2 ** (by_two * scores), to what the keys before them came to."""
    above = ct.max_tile(top, ct.reduce_max(scores, 1).reshape(top.shape) * by_two)
    weights = ct.exp2(ct.fma(scores, ct.broadcast(by_two, scores.shape), ct.broadcast(-above, scores.shape)), ftz=True)
    fade = ct.exp2(top - above, ftz=True)
    total = total * fade + ct.reduce_sum(weights, 1).reshape(top.shape)
    return above, total, ct.mma(weights.astype(value.dtype), value, acc * fade)


@ct.entry
def attention(o: Mut, q: Tensor, k: Tensor, v: Tensor, scale: f32, *, BN: Const = 128, CAUSAL: Const = 0):
    """o = softmax(scale * q @ k^T) @ v for each head, of tensors (heads, rows, width) and tiles (1, BM, width).

    Causal, the last row of q sees every key, and each row before it one key less.
    """
    _, BM, D = o.shape
    h, i, _ = ct.get_tile_block_id()
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    seen, whole, end = ct.broadcast(k.shape[1], (BM, 1)), k.shape[1] // BN, ct.ceil_div(k.shape[1], BN)
    if CAUSAL:
        first = i * BM + k.shape[1] - q.shape[1]  # the last key that this tile's first row sees
        seen = ct.min_tile(seen, ct.iota((BM,)).reshape((BM, 1)) + (first + 1))
        whole, end = min(whole, max(first + 1, 0) // BN), min(end, max(first + BM + BN - 1, 0) // BN)
    for j in range(whole):
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, BN, D), (h, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(whole, end):  # keys that not every row sees
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        scores = ct.select(ct.iota((BN,)).reshape((1, BN)) + j * BN < seen, scores, HIDDEN)
        value = ct.load_tile(v, (1, BN, D), (h, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    o.store((acc * (1.0 / total)).astype(o.dtype).reshape((1, BM, D)))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    causal: bool = False,
    rows: int = 128,
    keys: int = 128,
) -> DeviceOp[Tensor]:
    """Return the op that yields the attention of `q` over `k` and `v`, with the scale 1 / sqrt(width).

    Args:
        q: queries of shape (heads, rows, width), f16 or bf16; lent to the op.
        k, v: keys and values of shape (heads, keys, width), of q's dtype.
        out: where the result goes, of q's shape and dtype; a new tensor by default.
        causal: whether a row sees keys up to its own place alone, counted from the end.
        rows, keys: of a tile; a GPU with warpgroup products wants a multiple of 64 rows.

    Example:
        >>> one = api.ones((1, 4, 16), f16).sync()
        >>> attend(one, one, one, rows=4, keys=16).sync().to_numpy().sync().ravel()[:2]
        array([1., 1.], dtype=float16)
    """
    o = api.empty(q.shape, q.dtype) if out is None else out
    scale = 1 / math.sqrt(q.shape[2])
    tiles = o.partition((1, rows, q.shape[2]))
    return attention(tiles, q, k, v, scale, BN=keys, CAUSAL=int(causal)).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    heads, rows, keys, width = case.shape
    inputs = (case.random(rng, heads, count, width) for count in (rows, keys, keys))
    return Problem(outputs=(case.poison(heads, rows, width),), inputs=tuple(inputs))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (o,), (q, k, v) = outputs, inputs
    rows, keys = (128, 128) if case.tile is None else case.tile
    op = attend(q, k, v, out=o, rows=rows, keys=keys)
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the attention of each head in float64, over all keys."""
    q, k, v = (each.astype(np.float64) for each in problem.inputs)
    return (attention_of(q, k, v, causal=False),)


def attention_of(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    """The same by NumPy; causal, a row sees the keys up to its own place, counted from the end."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    if causal:
        rows, keys = scores.shape[1:]
        scores = np.where(np.tril(np.ones((rows, keys), bool), keys - rows), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return weights @ v / weights.sum(axis=2, keepdims=True)


CASES = (
    Case((2, 100, 150, 32), f16, tile=(64, 64)),  # edges of rows and of keys
    Case((1, 128, 256, 64), bf16),
)

EXAMPLE = Example(
    name="attention",
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
