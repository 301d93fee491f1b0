"""Attention in which each row sees its own range of keys, for packed sequences (concatenated in one tensor)."""

import math

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32
from kernels.attention import LOG2_E, LOW, add_keys, hide
from kernels.example import Array, Arrays, Case, Example, Problem, Tensors


@ct.entry
def packed(o: Mut, q: Tensor, k: Tensor, v: Tensor, since: Tensor, until: Tensor, scale: f32, *, BN: Const = 128):
    """o = softmax(scale * q @ k^T) @ v for each head, where row r sees the keys from since[r] up to until[r], excluded.

    Neither may fall as r grows. So the first and the last row of a tile decide which keys some row sees, and which keys
    all rows see.
    """
    _, BM, D = o.shape
    h, i, _ = ct.get_tile_block_id()
    g = h // (q.shape[0] // k.shape[0])  # the head of k and v: several heads of q may share one
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    seen_from = ct.load_tile(since, (BM,), (i,)).reshape((BM, 1))
    seen_to = ct.load_tile(until, (BM,), (i,)).reshape((BM, 1))
    upper, lower = i * BM, min(i * BM + BM, q.shape[1]) - 1  # the tile's first row, and its last
    first = ct.load_tile(since, (1,), (upper,)).reshape(()) // BN
    part = ct.ceil_div(ct.load_tile(since, (1,), (lower,)).reshape(()), BN)
    whole = ct.load_tile(until, (1,), (upper,)).reshape(()) // BN
    end = ct.ceil_div(ct.load_tile(until, (1,), (lower,)).reshape(()), BN)
    for j in range(first, min(part, end)):  # keys that some row does not see, before or behind its range
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = hide(ct.mma(rows, key, ct.constant(0, (BM, BN), f32)), j, seen_from, seen_to)
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(part, whole):
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    for j in range(max(part, whole), end):  # keys behind the range of some row
        key = ct.load_tile(k, (1, BN, D), (g, j, 0)).reshape((BN, D)).transpose()
        scores = hide(ct.mma(rows, key, ct.constant(0, (BM, BN), f32)), j, seen_from, seen_to)
        value = ct.load_tile(v, (1, BN, D), (g, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    o.store((acc * (1.0 / total)).astype(o.dtype).reshape((1, BM, D)))


def ranges(lengths: Array, *, causal: bool) -> tuple[Array, Array]:
    """The range of keys that each row of packed sequences sees, if each has as many rows as keys: its start and end.

    Example:
        >>> ranges(np.array([2, 3]), causal=True)
        (array([0, 0, 2, 2, 2], dtype=int32), array([1, 2, 3, 4, 5], dtype=int32))
    """
    ends: Array = np.cumsum(lengths)
    since = np.repeat(ends - lengths, lengths)
    until: Array = np.arange(1, int(ends[-1]) + 1) if causal else np.repeat(ends, lengths)
    return since.astype(np.int32), until.astype(np.int32)


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    since: Tensor,
    until: Tensor,
    *,
    out: Tensor | None = None,
    tile: tuple[int, int] = (128, 128),
) -> DeviceOp[Tensor]:
    """Return the op that yields the attention of `q` over `k` and `v`, with the scale 1 / sqrt(width).

    Args:
        q: queries of shape (heads, rows, width), f16 or bf16; lent to the op.
        k, v: keys and values of shape (heads, keys, width), of q's dtype; they may have fewer heads, each of which
            several heads of q share.
        since, until: i32 of shape (rows,), neither of which ever falls. Each row sees the keys from `since` up to
            `until`, excluded; at least one. `ranges` makes them from the lengths of sequences.
        out: where the result goes, of q's shape and dtype; a new tensor by default.
        tile: rows and keys of a tile.

    Example:
        >>> one, bounds = api.ones((1, 4, 16), f16).sync(), ranges(np.array([1, 3]), causal=False)
        >>> since, until = (api.from_numpy(each).sync() for each in bounds)
        >>> attend_packed(one, one, one, since, until, tile=(4, 16)).sync().to_numpy().sync().ravel()[:2]
        array([1., 1.], dtype=float16)
    """
    o = api.empty(q.shape, q.dtype) if out is None else out
    tiles = o.partition((1, tile[0], q.shape[2]))
    op = packed(tiles, q, k, v, since, until, 1 / math.sqrt(q.shape[2]), BN=tile[1])
    return op.first().unpartition()


LENGTHS = (30, 5, 1, 64)
"""Lengths of the sequences of a case, in proportion to its rows."""


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    heads, rows, width = case.shape
    ends = np.cumsum(LENGTHS) * rows // sum(LENGTHS)
    bounds = ranges(np.diff(ends, prepend=0), causal=True)
    return Problem(
        (case.poison(heads, rows, width),), (*(case.random(rng, heads, rows, width) for _ in range(3)), *bounds)
    )


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    tile = (128, 128) if case.tile is None else (case.tile[0], case.tile[1])
    return attend_packed(*inputs, out=outputs[0], tile=tile).map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the attention of each head in float64."""
    q, k, v, since, until = problem.inputs
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / math.sqrt(q.shape[2])
    keys = np.arange(int(k.shape[1]))
    scores = np.where((keys >= since[:, None]) & (keys < until[:, None]), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return (weights @ v.astype(np.float64) / weights.sum(axis=2, keepdims=True),)


CASES = (
    Case((2, 150, 32), f16, tile=(32, 32)),
    Case((1, 200, 64), bf16, tile=(64, 64)),
)

EXAMPLE = Example(
    name="packed",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 4 * case.shape[0] * case.shape[1] * case.shape[2] * case.dtype.bits // 8,
    flops=lambda case: 2 * case.shape[0] * case.shape[1] ** 2 * case.shape[2],
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
