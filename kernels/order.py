"""Sorted rows with the places of their elements, and the largest elements of each row in one pass over memory."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import CompileOptions, Const, Mut, Tensor, api, bf16, i32
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def sorted_rows(values: Mut, places: Mut, x: Tensor):
    """Each row of x in ascending order, and the former place of each element; a tile holds whole rows."""
    t = ct.load_tile_like(x, values)
    values.store(ct.sort(t, 1))
    places.store(ct.argsort(t, 1))


@ct.entry
def largest(values: Mut, places: Mut, x: Tensor, *, BN: Const = 4096, P: Const = 0, C: Const = 0, U: Const = 4):
    """The largest elements of one row, and their places. The row is read in P pieces of BN columns, U at once.

    The pieces are the rows of a matrix. First, the largest element of each of its columns is found. The k largest
    elements of the row are in columns whose largest element is not below the k-th largest of these. If there are at
    most C such columns, only they are read again.
    """
    row, k = ct.get_tile_block_id()[0], values.shape[1]
    if P < 2:  # the row is one piece
        best, where = ct.top_k(piece(x, row, 0, BN), k)
    elif C == 0:  # k is large, so that nearly every piece has some of them
        best, where = in_pieces(x, row, k, P, BN)
    else:
        top = ct.constant(float("-inf"), (1, BN), x.dtype)
        for j in range(0, (P - 1) // U * U, U):
            highest = piece(x, row, j, BN)
            for u in ct.static_range(1, U):  # these loads are under way together
                highest = ct.maxf(highest, piece(x, row, j + u, BN), nan=True)
            top = ct.maxf(top, highest, nan=True)
        for j in ct.static_range((P - 1) // U * U, P - 1):
            top = ct.maxf(top, piece(x, row, j, BN), nan=True)
        last = ct.maxf(top, piece(x, row, P - 1, BN), nan=True)
        top = ct.select((P - 1) * BN + ct.iota((BN,))[None, :] < x.shape[1], last, top)
        highest, columns = ct.top_k(top, C)
        least = ct.extract(highest, (0, k - 1), (1, 1))
        if ct.reduce_sum((~(top < least)).astype(i32)) <= C:
            columns = ct.sort(columns, 1)  # candidates keep the order of their places
            candidates = (columns + BN * ct.iota((P,))[:, None]).reshape((1, P * C))
            t = ct.gather(x, (ct.broadcast(row, (1, P * C)), candidates), padding_value=float("-inf"))
            best, order = ct.top_k(t, k)
            where = ct.take_along_axis(candidates, order, 1)
        else:  # many equal elements, or NaN
            best, where = in_pieces(x, row, k, P, BN)
    values.store(best)
    places.store(where)


def piece(x: Tensor, row: int, j: int, BN: int) -> ct.Tile:
    """Piece j of a row; padding is -inf, so that it comes last."""
    return ct.load_tile(x, (1, BN), (row, j), ct.padding.NEG_INF)


def in_pieces(x: Tensor, row: int, k: int, P: int, BN: int) -> tuple[ct.Tile, ct.Tile]:
    """The largest elements of a row and their places. A piece that has none of them is only read."""
    best, where = ct.top_k(piece(x, row, 0, BN), k)
    least = ct.reduce_min(best)
    for j in range(1, P):
        t = piece(x, row, j, BN)
        if not (ct.reduce_max(t, nan=True) <= least):
            more, its = ct.top_k(t, k)
            best, order = ct.top_k(ct.cat(best, more, 1), k)
            where = ct.take_along_axis(ct.cat(where, its + j * BN, 1), order, 1)
            least = ct.reduce_min(best)
    return best, where


def order_of_rows(x: ct.Tensor, *, rows: int = 1) -> DeviceOp[tuple[ct.Tensor, ct.Tensor]]:
    """Return the op that yields each row of `x` in ascending order, and the places of its elements.

    Args:
        x: tensor of shape (m, n); lent to the op. A row has to fit the registers of a tile block: on a GPU 16384
            elements of 32 bits.
        rows: rows per tile block.

    Returns:
        The sorted rows, and i32 of the same shape. Equal elements keep their order, and NaN is last.

    Example:
        >>> values, places = order_of_rows(api.arange(4, i32).sync().reshape((1, 4))).sync()
        >>> places.to_numpy().sync()
        array([[0, 1, 2, 3]], dtype=int32)
    """
    values, places = api.empty(x.shape, x.dtype), api.empty(x.shape, i32)
    tile = (rows, x.shape[1])
    op = sorted_rows(values.partition(tile), places.partition(tile), x)
    return op.map(lambda out: (out.values.unpartition(), out.places.unpartition()))


WARPS, MIN_WIDE = 8, 4096
"""`largest` uses WARPS warps if a piece has at least MIN_WIDE columns."""
MAX_SEARCHED = 128
"""The largest k for which columns are searched. With a larger one, nearly every piece has some of the k elements."""


def search_of(n: int, k: int, bits: int, piece: int | None = None) -> dict[str, int]:
    """The generics with which `largest` finds the `k` largest of `n` elements of `bits` bits.

    Measured on an H200, 4096 rows of 128256 columns: 8 of bf16 take 0.31 ms in pieces of 4096 and 0.35 ms in pieces of
    8192; 64 take 0.46 and 0.41 ms.
    """
    widest = 8192 if k > 16 and (bits <= 16 or k > MAX_SEARCHED) else 4096
    width = piece or min(widest, 1 << (n - 1).bit_length())
    columns = max(16, 1 << (2 * k - 1).bit_length())
    searched = k <= MAX_SEARCHED and 4 * columns <= width
    return {"BN": width, "P": -(-n // width), "C": columns if searched else 0}


def largest_of_rows(x: ct.Tensor, k: int, *, piece: int | None = None) -> DeviceOp[tuple[ct.Tensor, ct.Tensor]]:
    """Return the op that yields the `k` largest elements of each row of `x`, the largest first, and their places.

    Args:
        x: tensor of floats of shape (m, n); lent to the op.
        k: how many elements; at most the columns of a piece.
        piece: columns that are read at once; by default as `search_of` chooses.

    Returns:
        Tensors of shape (m, k), of the dtype of `x` and of i32. Of equal elements the first comes first; NaN counts as
        larger than every number.

    Example:
        >>> values, places = largest_of_rows(api.arange(4, bf16).sync().reshape((1, 4)), 2, piece=4).sync()
        >>> places.to_numpy().sync()
        array([[3, 2]], dtype=int32)
    """
    values, places = (api.empty((x.shape[0], k), dtype) for dtype in (x.dtype, i32))
    search = search_of(x.shape[1], k, x.dtype.bits, piece)
    op = largest(values.partition((1, k)), places.partition((1, k)), x, **search)
    if search["BN"] >= MIN_WIDE:
        op = op.compile_options(CompileOptions(num_worker_warps=WARPS))
    return op.map(lambda out: (out.values.unpartition(), out.places.unpartition()))


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n = case.shape
    k = case.tile[1] if case.tile else 8
    x = case.random(rng, m, n)
    return Problem(outputs=(case.poison(m, k),), inputs=(x,))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (y,), (x,) = outputs, inputs
    k = y.shape[1]
    places = api.empty((x.shape[0], k), i32)
    op = largest(y.partition((1, k)), places.partition((1, k)), x, **search_of(x.shape[1], k, x.dtype.bits, 256))
    return op.map(lambda out: (out.values.unpartition(),))


def reference(problem: Problem) -> Arrays:
    """Return the largest elements of each row in float64."""
    k = problem.outputs[0].shape[1]
    x = problem.inputs[0].astype(np.float64)
    np.negative(x, out=x)
    x.sort(axis=1)
    return (-x[:, :k],)


CASES = (
    Case((7, 1000)),  # pieces that a row does not fill
    Case((5, 900), bf16, tile=(1, 64)),
)

EXAMPLE = Example(
    name="order",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: case.shape[0] * case.shape[1] * case.dtype.bits // 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
