"""Attention: softmax(scale * q @ k^T) @ v, head by head, without its matrix of scores (FlashAttention)."""

import math

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import CompileOptions, Const, Mut, Tensor, Tile, api, bf16, f16, f32, i32
from kernels.example import Array, Arrays, Case, Example, Problem, Tensors

LOG2_E = 1.4426950408889634
FEW_ROWS = 1024
"""Up to so many rows, causal: tiles of 192 rows waste more beyond the diagonal than three warpgroups gain."""
MAX_CAP = 50
"""Up to this cap a weight is at most 2**73, which bf16 can hold, and f32 can add 2**54 of them without overflow."""
HIDDEN, LOW = float("-inf"), -1e30  # LOW is finite: the difference of two maxima is no NaN if no key was seen


def add_keys(scores: Tile, value: Tile, by_two: Tile, top: Tile, total: Tile, acc: Tile) -> tuple[Tile, Tile, Tile]:
    """Add a tile of keys to a running softmax: `top`, `total`, `acc` are a row's maximum, sum and weighted values."""
    above = ct.max_tile(top, ct.reduce_max(scores, 1).reshape(top.shape) * by_two)
    weights = ct.exp2(ct.fma(scores, ct.broadcast(by_two, scores.shape), ct.broadcast(-above, scores.shape)), ftz=True)
    fade = ct.exp2(top - above, ftz=True)
    total = total * fade + ct.reduce_sum(weights, 1).reshape(top.shape)
    return above, total, ct.mma(weights.astype(value.dtype), value, acc * fade)


def add_bounded_keys(scores: Tile, value: Tile, by_two: Tile, total: Tile, acc: Tile) -> tuple[Tile, Tile]:
    """The same for scores whose powers cannot overflow: no maximum is needed. Returns the new total and acc."""
    weights = ct.exp2(scores * by_two, ftz=True)
    total = total + ct.reduce_sum(weights, 1).reshape(total.shape)
    return total, ct.mma(weights.astype(value.dtype), value, acc)


def hide(scores: Tile, j: int, since: Tile | None, seen: Tile | None) -> Tile:
    """The scores of tile `j` of keys; HIDDEN for keys that a row does not see: before `since`, or from `seen` on."""
    keys = ct.iota((scores.shape[1],)).reshape((1, scores.shape[1])) + j * scores.shape[1]
    if since is None:
        return scores if seen is None else ct.select(keys < seen, scores, HIDDEN)
    return ct.select(keys >= since if seen is None else (keys >= since) & (keys < seen), scores, HIDDEN)


@ct.entry
def attention(
    o: Mut,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: f32,
    *,
    BN: Const = 128,
    CAUSAL: Const = 0,
    WINDOW: Const = 0,
    CAP: Const = 0,
):
    """o = softmax(scale * q @ k^T) @ v for each head, of tensors (heads, rows, width) and tiles (1, BM, width).

    With CAUSAL, the last row of q sees every key, each row before it one key less, and with WINDOW the last WINDOW of
    these. If CAP is not 0, scores x are capped to CAP * tanh(x / CAP).
    """
    _, BM, D = o.shape
    h, i, _ = ct.get_tile_block_id()
    g = h // (q.shape[0] // k.shape[0])  # the head of k and v: several heads of q may share one
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = ct.constant(CAP * LOG2_E, (), f32) if CAP else scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    part_of_cap, bounded = scale * (1.0 / max(CAP, 1)), 0 < CAP <= MAX_CAP and v.dtype is bf16
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    seen, whole, end = ct.broadcast(k.shape[1], (BM, 1)), k.shape[1] // BN, ct.ceil_div(k.shape[1], BN)
    since, first, part = ct.constant(0, (BM, 1), i32), 0, 0
    if CAUSAL:
        last = i * BM + k.shape[1] - q.shape[1]  # the last key that this tile's first row sees
        limit = ct.iota((BM,)).reshape((BM, 1)) + (last + 1)
        seen = ct.min_tile(seen, limit)
        whole, end = min(whole, max(last + 1, 0) // BN), min(end, max(last + BM + BN - 1, 0) // BN)
        if WINDOW:
            since = limit - WINDOW
            first = max(last + 1 - WINDOW, 0) // BN
            part = min(max(last + BM - WINDOW + BN - 1, 0) // BN, end)
    limits = None if WINDOW >= BM + BN else seen  # in a wide window no tile of keys needs both masks
    for j in range(first, part):  # keys that only earlier rows of the tile still see
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        scores = hide(ct.tanh(scores * part_of_cap) if CAP else scores, j, since, limits)
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        if bounded:
            total, acc = add_bounded_keys(scores, value, by_two, total, acc)
        else:
            top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(part, whole):
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        scores = ct.tanh(scores * part_of_cap) if CAP else scores
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        if bounded:
            total, acc = add_bounded_keys(scores, value, by_two, total, acc)
        else:
            top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(max(part, whole), end):  # keys that not every row sees
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        scores = hide(ct.tanh(scores * part_of_cap) if CAP else scores, j, None, seen)
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        if bounded:
            total, acc = add_bounded_keys(scores, value, by_two, total, acc)
        else:
            top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    o.store((acc * (1.0 / total)).astype(o.dtype).reshape((1, BM, D)))


def tile_of(width: int, rows: int, *, causal: bool) -> tuple[int, int]:
    """Rows and keys of a tile, for heads of this width, as many as fit the registers of a thread block.

    With heads of width 64 three warpgroups fit, with width 256 two with half as many keys. docs/benchmarks/loops has
    the speed of each on an H200.
    """
    if width > 128:
        return 128, 64
    return (192, 128) if width <= 64 and not (causal and rows <= FEW_ROWS) else (128, 128)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    causal: bool = False,
    window: int = 0,
    capped: int = 0,
    tile: tuple[int, int] | None = None,
) -> DeviceOp[Tensor]:
    """Return the op that yields the attention of `q` over `k` and `v`, with the scale 1 / sqrt(width).

    Args:
        q: queries of shape (heads, rows, width), f16 or bf16; lent to the op.
        k, v: keys and values of shape (heads, keys, width), of q's dtype; they may have fewer heads, each of which
            several heads of q share.
        out: where the result goes, of q's shape and dtype; a new tensor by default.
        causal: whether a row sees only the keys up to its own position; the last row has the position of the last key.
        window: how many keys a row sees, the last at its own position; 0 for all. Only with `causal`.
        capped: scores x become capped * tanh(x / capped), on a GPU within 2**-11; 0 for no cap.
        tile: rows and keys of a tile, by default as `tile_of` chooses; `wgmma` (Hopper) needs a multiple of 64 rows.

    Raises:
        ValueError: heads do not divide among those of k and v, or a window is not causal.

    Example:
        >>> one = api.ones((1, 4, 16), f16).sync()
        >>> attend(one, one, one, tile=(4, 16)).sync().to_numpy().sync().ravel()[:2]
        array([1., 1.], dtype=float16)
    """
    if q.shape[0] % k.shape[0]:
        raise ValueError(f"attend: {q.shape[0]} heads of q do not divide among {k.shape[0]} of k and v")
    if window and not causal:
        raise ValueError(f"attend: a window of {window} keys ends with a row's own place: pass causal=True")
    o = api.empty(q.shape, q.dtype) if out is None else out
    scale = 1 / math.sqrt(q.shape[2])
    rows, keys = tile_of(q.shape[2], q.shape[1], causal=causal) if tile is None else tile
    tiles = o.partition((1, rows, q.shape[2]))
    op = attention(tiles, q, k, v, scale, BN=keys, CAUSAL=int(causal), WINDOW=window, CAP=capped)
    if capped:  # `tanh.approx`: one instruction for each score in place of some twenty
        op = op.compile_options(CompileOptions(fast_math=("tanh",)))
    return op.first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    heads, rows, keys, width = case.shape
    inputs = (case.random(rng, heads, count, width) for count in (rows, keys, keys))
    return Problem(outputs=(case.poison(heads, rows, width),), inputs=tuple(inputs))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (o,), (q, k, v) = outputs, inputs
    tile = None if case.tile is None else (case.tile[0], case.tile[1])
    op = attend(q, k, v, out=o, tile=tile)
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the attention of each head in float64, over all keys."""
    q, k, v = (each.astype(np.float64) for each in problem.inputs)
    return (attention_of(q, k, v, causal=False),)


def attention_of(q: Array, k: Array, v: Array, *, causal: bool, window: int = 0, capped: int = 0) -> Array:
    """The attention of `attend` by NumPy, for arrays of shape (heads, rows or keys, width)."""
    k, v = (np.repeat(each, q.shape[0] // k.shape[0], axis=0) for each in (k, v))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    scores = capped * np.tanh(scores / capped) if capped else scores
    if causal:
        rows, keys = scores.shape[1:]
        visible = np.tril(np.ones((rows, keys), bool), keys - rows)
        if window:
            visible &= ~np.tril(np.ones((rows, keys), bool), keys - rows - window)
        scores = np.where(visible, scores, -np.inf)
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
