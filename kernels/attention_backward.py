"""The gradients of attention, without its matrix of scores (FlashAttention-2)."""

import math
from typing import Any

import numpy as np

import cutile as ct
from cuda_async import DeviceOp, zip
from cutile import Const, Mut, Tensor, Tile, api, bf16, f16, f32
from kernels.example import Array, Arrays, Case, Example, Problem, Tensors

Index = tuple[int, int]
LOG2_E = 1.4426950408889634


@ct.entry
def row_terms(delta: Mut, top: Mut, do: Tensor, o: Tensor, lse: Tensor, *, D: Const):
    """For each row: delta = sum(do * o), and top = log2(e) * lse, so that 2 ** (log2(e) * score - top) is a weight."""
    _, BM = delta.shape
    h, i, _ = ct.get_tile_block_id()
    product = ct.load_tile(do, (1, BM, D), (h, i, 0)).astype(f32) * ct.load_tile(o, (1, BM, D), (h, i, 0)).astype(f32)
    delta.store(ct.reduce_sum(product, 2))
    top.store(LOG2_E * ct.load_tile_like(lse, top))


def tile_of(x: Tensor, rows: int, width: int, h: int, i: int) -> Tile:
    """Some rows of a head."""
    return ct.load_tile(x, (1, rows, width), (h, i, 0)).reshape((rows, width))


def weigh(scores: Tile, by_two: Tile, top: Tile, seen: Tile | None) -> Tile:
    """The weights of the forward pass, 2 ** (by_two * scores - top); 0 for keys that a row does not see."""
    shape = scores.shape
    weights = ct.exp2(ct.fma(scores, ct.broadcast(by_two, shape), ct.broadcast(-top, shape)), ftz=True)
    return weights if seen is None else ct.select(seen, weights, 0.0)


def add_rows(
    by_v: Tile, key: Tile, value: Tile, rows: Tile, d_rows: Tile, by_two: Tile, top: Tensor, delta: Tensor, at: Index,
    seen: Tile | None,
) -> tuple[Tile, Tile]:  # fmt: skip
    """The gradients of the scores of a tile, of shape (keys, rows), and dv's sum `by_v` with the tile's part added."""
    BN, BM = key.shape[0], rows.shape[0]
    none = ct.constant(0, (BN, BM), f32)
    scores, d_weights = ct.mma(key, rows.transpose(), none), ct.mma(value, d_rows.transpose(), none)
    weights = weigh(scores, by_two, ct.load_tile(top, (1, BM), at), seen)
    by_v = ct.mma(weights.astype(value.dtype), d_rows, by_v)
    return (weights * (d_weights - ct.load_tile(delta, (1, BM), at))).astype(key.dtype), by_v


@ct.entry
def attention_dk_dv(
    dk: Mut, dv: Mut, q: Tensor, k: Tensor, v: Tensor, do: Tensor, top: Tensor, delta: Tensor, scale: f32, *,
    BM: Const = 64, CAUSAL: Const = 0, GROUP: Const = 1,
):  # fmt: skip
    """dk and dv: a tile block has a tile of keys, and loops over the rows that see them."""
    _, BN, D = dk.shape
    h, j, _ = ct.get_tile_block_id()
    key, value, by_two = tile_of(k, BN, D, h, j), tile_of(v, BN, D, h, j), scale * LOG2_E
    by_k, by_v, end = ct.constant(0, (BN, D), f32), ct.constant(0, (BN, D), f32), ct.ceil_div(q.shape[1], BM)
    past = k.shape[1] - q.shape[1] - j * BN  # row i sees the first i + past of these keys, and one more
    first = min(max(-past, 0) // BM, end) if CAUSAL else 0
    whole = min(ct.ceil_div(max(BN - 1 - past, 0), BM), end) if CAUSAL else 0
    for each in range(GROUP):
        g = h * GROUP + each  # a head of q
        for i in range(first, whole):  # rows that do not see all of these keys
            rows, d_rows = tile_of(q, BM, D, g, i), tile_of(do, BM, D, g, i)
            seen = ct.iota((BN,)).reshape((BN, 1)) <= ct.iota((BM,)).reshape((1, BM)) + (i * BM + past)
            d_scores, by_v = add_rows(by_v, key, value, rows, d_rows, by_two, top, delta, (g, i), seen)
            by_k = ct.mma(d_scores, rows, by_k)
        for i in range(whole, end):
            rows, d_rows = tile_of(q, BM, D, g, i), tile_of(do, BM, D, g, i)
            d_scores, by_v = add_rows(by_v, key, value, rows, d_rows, by_two, top, delta, (g, i), None)
            by_k = ct.mma(d_scores, rows, by_k)
    dv.store(by_v.astype(dv.dtype).reshape((1, BN, D)))
    dk.store((by_k * scale).astype(dk.dtype).reshape((1, BN, D)))


@ct.entry
def attention_dq(
    dq: Mut, q: Tensor, k: Tensor, v: Tensor, do: Tensor, top: Tensor, delta: Tensor, scale: f32, *,
    BN: Const = 64, CAUSAL: Const = 0, GROUP: Const = 1,
):  # fmt: skip
    """dq: a tile block has a tile of rows, and loops over the keys that these see."""
    _, BM, D = dq.shape
    h, i, _ = ct.get_tile_block_id()
    rows, d_rows, none = tile_of(q, BM, D, h, i), tile_of(do, BM, D, h, i), ct.constant(0, (BM, BN), f32)
    tops = ct.load_tile(top, (1, BM), (h, i)).reshape((BM, 1))
    deltas = ct.load_tile(delta, (1, BM), (h, i)).reshape((BM, 1))
    by_q, by_two = ct.constant(0, (BM, D), f32), scale * LOG2_E
    ends, whole, end = ct.broadcast(k.shape[1], (BM, 1)), k.shape[1] // BN, ct.ceil_div(k.shape[1], BN)
    if CAUSAL:
        first = i * BM + k.shape[1] - q.shape[1]  # the last key that this tile's first row sees
        ends = ct.min_tile(ends, ct.iota((BM,)).reshape((BM, 1)) + (first + 1))
        whole, end = min(whole, max(first + 1, 0) // BN), min(end, max(first + BM + BN - 1, 0) // BN)
    for j in range(whole):
        key, value = tile_of(k, BN, D, h // GROUP, j), tile_of(v, BN, D, h // GROUP, j)
        scores, d_weights = ct.mma(rows, key.transpose(), none), ct.mma(d_rows, value.transpose(), none)
        d_scores = weigh(scores, by_two, tops, None) * (d_weights - deltas)
        by_q = ct.mma(d_scores.astype(k.dtype), key, by_q)
    for j in range(whole, end):  # keys that not every row sees
        key, value = tile_of(k, BN, D, h // GROUP, j), tile_of(v, BN, D, h // GROUP, j)
        scores, d_weights = ct.mma(rows, key.transpose(), none), ct.mma(d_rows, value.transpose(), none)
        weights = weigh(scores, by_two, tops, ct.iota((BN,)).reshape((1, BN)) + j * BN < ends)
        by_q = ct.mma((weights * (d_weights - deltas)).astype(k.dtype), key, by_q)
    dq.store((by_q * scale).astype(dq.dtype).reshape((1, BM, D)))


@ct.entry(unsafe=True)
def attention_gradients(
    dk: Mut, dv: Mut, dq: Mut, q: Tensor, k: Tensor, v: Tensor, do: Tensor, top: Tensor, delta: Tensor, scale: f32, *,
    BM: Const = 64, CAUSAL: Const = 0, GROUP: Const = 1,
):  # fmt: skip
    """As `attention_dk_dv`, and adds dq without the scale to the whole tensor `dq`, in an order that varies."""
    _, BN, D = dk.shape
    h, j, _ = ct.get_tile_block_id()
    key, value, by_two = tile_of(k, BN, D, h, j), tile_of(v, BN, D, h, j), scale * LOG2_E
    by_k, by_v, end = ct.constant(0, (BN, D), f32), ct.constant(0, (BN, D), f32), ct.ceil_div(q.shape[1], BM)
    past, sums = k.shape[1] - q.shape[1] - j * BN, dq.partition_full_mut((1, BM, D))
    first = min(max(-past, 0) // BM, end) if CAUSAL else 0
    whole = min(ct.ceil_div(max(BN - 1 - past, 0), BM), end) if CAUSAL else 0
    for each in range(GROUP):
        g = h * GROUP + each  # a head of q
        for i in range(first, whole):
            rows, d_rows = tile_of(q, BM, D, g, i), tile_of(do, BM, D, g, i)
            seen = ct.iota((BN,)).reshape((BN, 1)) <= ct.iota((BM,)).reshape((1, BM)) + (i * BM + past)
            d_scores, by_v = add_rows(by_v, key, value, rows, d_rows, by_two, top, delta, (g, i), seen)
            by_q = ct.mma(d_scores.transpose(), key, ct.constant(0, (BM, D), f32))
            by_k = ct.mma(d_scores, rows, by_k)
            ct.atomic_red_view_tko(sums, by_q.reshape((1, BM, D)), (g, i, 0), ct.atomic.ADDF)
        for i in range(whole, end):
            rows, d_rows = tile_of(q, BM, D, g, i), tile_of(do, BM, D, g, i)
            d_scores, by_v = add_rows(by_v, key, value, rows, d_rows, by_two, top, delta, (g, i), None)
            by_q = ct.mma(d_scores.transpose(), key, ct.constant(0, (BM, D), f32))
            by_k = ct.mma(d_scores, rows, by_k)
            ct.atomic_red_view_tko(sums, by_q.reshape((1, BM, D)), (g, i, 0), ct.atomic.ADDF)
    dv.store(by_v.astype(dv.dtype).reshape((1, BN, D)))
    dk.store((by_k * scale).astype(dk.dtype).reshape((1, BN, D)))


@ct.entry
def scaled(dq: Mut, sums: Tensor, scale: f32):
    """dq = scale * sums, in dq's dtype."""
    dq.store((ct.load_tile_like(sums, dq) * scale).astype(dq.dtype))


def attend_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    out: Tensors | None = None,
    causal: bool = False,
    repeats: bool = True,
    rows: int = 128,
    keys: int = 128,
    step: int = 64,
) -> DeviceOp[Tensors]:
    """Return the op that yields dq, dk and dv.

    Args:
        do: the gradient of `o`; all tensors are lent to the op.
        q, k, v, o: operands and result of `kernels.attention`, of shape (heads, rows, width). A head of k and v may
            belong to several consecutive heads of q.
        lse: the logarithm of the sum of exp(score) of each row: (heads, rows), f32.
        out: where dq, dk and dv go; new tensors by default.
        causal: whether a row sees only the keys up to its own position; the last row has the position of the last key.
        repeats: whether the same inputs give the same bits. If not, two of seven products are saved: each tile of keys
            adds its part of dq in memory, in f32, in an order that varies.
        rows, keys, step: rows of a tile of dq, keys of a tile of dk and dv, and rows or keys of the tiles looped over.
    """
    dq, dk, dv = out or tuple(api.empty(x.shape, x.dtype) for x in (q, k, v))
    heads, count, width = q.shape
    scale, group, tiles = 1 / math.sqrt(width), heads // k.shape[0], -(-k.shape[1] // keys)
    top, delta = api.empty((heads, count), f32), api.empty((heads, count), f32)
    terms = row_terms(delta.partition((1, 16)), top.partition((1, 16)), do, o, lse, D=width)
    options = {"CAUSAL": int(causal), "GROUP": group}

    def in_order(operands: tuple[Any, ...]) -> DeviceOp[Tensors]:
        by_keys = attention_dk_dv(
            dk.partition((1, keys, width)), dv.partition((1, keys, width)), *operands, **options, BM=step
        )
        by_rows = attention_dq(dq.partition((1, rows, width)), *operands, **options, BN=step)
        return zip(by_keys, by_rows).map(lambda two: tuple(x.unpartition() for x in (two[1][0], *two[0][:2])))

    def as_they_come(operands: tuple[Any, ...]) -> DeviceOp[Tensors]:
        # The grid is that of the tiles of keys, so the partition of the sums has as many tiles; the kernel adds to all
        # rows, whichever tile is its own.
        share = -(-count // (tiles * step)) * step
        sums = api.zeros((heads, tiles * share, width), f32)
        outputs = dk.partition((1, keys, width)), dv.partition((1, keys, width))

        def add(sums: Tensor) -> DeviceOp[Any]:
            return attention_gradients(*outputs, sums.partition((group, share, width)), *operands, **options, BM=step)

        def finish(made: tuple[Any, ...]) -> DeviceOp[Tensors]:
            by_q = scaled(dq.partition((1, 16, width)), made[2].unpartition(), scale).first()
            return by_q.map(lambda x: (x.unpartition(), made[0].unpartition(), made[1].unpartition()))

        return sums.then(add).then(finish)

    form = in_order if repeats else as_they_come
    return terms.then(lambda made: form((q, k, v, do, made[1].unpartition(), made[0].unpartition(), scale)))


def reference(problem: Problem) -> Arrays:
    """Return dq, dk and dv in float64, over all keys."""
    do, q, k, v = (each.astype(np.float64) for each in problem.inputs[:4])
    return gradients_of(do, q, k, v, causal=False)


def gradients_of(do: Array, q: Array, k: Array, v: Array, *, causal: bool) -> Arrays:
    """dq, dk and dv by NumPy; the arguments are those of `attend_backward`."""
    group, scale = q.shape[0] // k.shape[0], 1 / math.sqrt(q.shape[2])
    k, v = k.repeat(group, 0), v.repeat(group, 0)
    weights, _ = weights_of(q, k, causal=causal)
    d_weights = do @ v.transpose(0, 2, 1)
    d_scores = scale * weights * (d_weights - (weights * d_weights).sum(2, keepdims=True))
    by_head = (d_scores.transpose(0, 2, 1) @ q, weights.transpose(0, 2, 1) @ do)
    return d_scores @ k, *(x.reshape(-1, group, *x.shape[1:]).sum(1) for x in by_head)


def weights_of(q: Array, k: Array, *, causal: bool) -> tuple[Array, Array]:
    """The weights of each row, and the logarithm of the sum of exp(score), by NumPy."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    if causal:
        rows, keys = scores.shape[1:]
        scores = np.where(np.tril(np.ones((rows, keys), bool), keys - rows), scores, -np.inf)
    top = scores.max(axis=2, keepdims=True)
    lse = top + np.log(np.exp(scores - top).sum(axis=2, keepdims=True))
    return np.exp(scores - lse), lse[:, :, 0]


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    heads, rows, keys, width = case.shape
    do, q, k, v = (case.random(rng, heads, count, width) for count in (rows, rows, keys, keys))
    weights, lse = weights_of(q.astype(np.float64), k.astype(np.float64), causal=False)
    o = (weights @ v.astype(np.float64)).astype(case.dtype.numpy)
    outputs = tuple(case.poison(*x.shape) for x in (q, k, v))
    return Problem(outputs=outputs, inputs=(do, q, k, v, o, lse.astype(np.float32)))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    rows, keys = (128, 128) if case.tile is None else case.tile
    return attend_backward(*inputs, out=outputs, rows=rows, keys=keys, repeats=case.dtype is f16)


CASES = (
    Case((2, 100, 150, 32), f16, tile=(64, 64)),  # edges of rows and of keys
    Case((2, 100, 150, 32), bf16, tile=(64, 64)),  # sums as they come
    Case((1, 128, 256, 64), f16),
)

EXAMPLE = Example(
    name="attention_backward",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 4 * case.shape[0] * case.shape[3] * (case.shape[1] + case.shape[2]) * case.dtype.bits // 8,
    flops=lambda case: 10 * case.shape[0] * case.shape[1] * case.shape[2] * case.shape[3],
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
