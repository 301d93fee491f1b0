"""Products of experts: each tile of rows is multiplied by the matrix of its expert, from a list in memory."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors, product_flops


@ct.entry
def experts(z: Mut, x: Tensor, w: Tensor, expert: Tensor, *, BK: Const = 64):
    """z = x @ w[e] for each tile of rows, with `e` from the list `expert`; an `e` out of range gives zeros."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    e = ct.load_tile(expert, (1,), (i,)).reshape(())
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(x.partition((BM, BK)), 1)):
        right = ct.load_tile(w, (1, BK, BN), (e, k, j)).reshape((BK, BN))
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), right, acc)
    z.store(acc.astype(z.dtype))


@ct.entry
def chosen_rows(z: Mut, x: Tensor, rows: Tensor):
    """z = x[rows], in tiles of one row; a row number out of range gives zeros."""
    i, j, _ = ct.get_tile_block_id()
    row = ct.load_tile(rows, (1,), (i,)).reshape(())
    z.store(ct.load_tile(x, z.shape, (row, j)))


AT_ONCE = 4096
"""Elements of a row that a tile block copies at most."""


def grouped(
    x: Tensor,
    w: Tensor,
    expert: Tensor,
    *,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    tile: tuple[int, int] = (128, 256),
) -> DeviceOp[Tensor]:
    """Return the op that yields the product of each tile of x's rows with the matrix of its expert.

    Args:
        x: tensor of shape (m, k), f16 or bf16, the rows of each expert padded to whole tiles; lent to the op.
        w: the experts' matrices, of shape (experts, k, n) and x's dtype.
        expert: the number of the expert of each tile of rows, i32.
        rows: numbers of the rows of x to multiply, i32, in the order of the result; all rows of x by default. They are
            copied first, which costs the time to read and write them.
        out: where the result goes, of shape (m, n); a new tensor by default.
        tile: rows and columns of a tile.

    Example:
        >>> x, w = api.ones((32, 16), f16).sync(), api.ones((3, 16, 16), f16).sync()
        >>> which = api.arange(2, ct.i32).sync()
        >>> grouped(x, w, which, tile=(16, 16)).sync().to_numpy().sync()[31, 0]
        np.float16(16.0)
        >>> grouped(x, w, which, rows=which, tile=(16, 16)).sync().to_numpy().sync().shape
        (2, 16)
    """
    z = api.empty(((x if rows is None else rows).shape[0], w.shape[2]), x.dtype) if out is None else out
    if rows is None:
        return experts(z.partition(tile), x, w, expert).first().unpartition()
    chosen = api.empty((rows.shape[0], x.shape[1]), x.dtype).partition((1, min(x.shape[1], AT_ONCE)))
    copied = chosen_rows(chosen, x, rows).first().unpartition()
    return copied.then(lambda left: experts(z.partition(tile), left, w, expert)).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, k, count = case.shape
    rows = _tile(case)[0]
    expert = rng.integers(0, count, -(-m // rows)).astype(np.int32)
    return Problem(outputs=(case.poison(m, n),), inputs=(case.random(rng, m, k), case.random(rng, count, k, n), expert))


def _tile(case: Case) -> tuple[int, int]:
    return (128, 256) if case.tile is None else (case.tile[0], case.tile[1])


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (z,), (x, w, expert) = outputs, inputs
    return grouped(x, w, expert, out=z, tile=_tile(case)).map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64."""
    x, w, expert = problem.inputs
    rows = 1 << (-(-x.shape[0] // expert.size) - 1).bit_length()  # rows of a tile, which is a power of two
    tiles = [x[i * rows : (i + 1) * rows].astype(np.float64) @ w[e].astype(np.float64) for i, e in enumerate(expert)]
    return (np.concatenate(tiles),)


def _nbytes(case: Case) -> int:
    m, n, k, count = case.shape
    return (m * k + count * k * n + m * n) * case.dtype.bits // 8


CASES = (
    Case((100, 130, 70, 3), f16, tile=(32, 64)),  # edges everywhere
    Case((256, 256, 128, 8), bf16),
)

EXAMPLE = Example(
    name="experts",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=_nbytes,
    flops=product_flops,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
