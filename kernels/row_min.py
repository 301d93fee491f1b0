"""The smallest element of each row and its column: the last step of a nearest-neighbour search."""

import numpy as np

import cutile as ct
from cuda_async import Device, DeviceOp
from cutile import Const, Mut, Tensor, api, f32, i32
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def row_min(lowest: Mut, column: Mut, x: Tensor, *, BN: Const = 128):
    """lowest[i] is the minimum of row i of x, and column[i] the first column that holds it."""
    (rows,) = lowest.shape
    part = x.partition((rows, BN))
    i, _, _ = ct.get_tile_block_id()
    best = ct.constant(float("inf"), (rows,), f32)
    where = ct.constant(0, (rows,), i32)
    for j in range(ct.num_tiles(part, 1)):
        columns = (ct.iota((BN,)) + j * BN).reshape((1, BN))
        # Past the last column the load pads with zeros, which may be smaller than the row's minimum.
        tile = ct.select(columns < x.shape[1], part.load((i, j)), float("inf"))
        low = ct.reduce_min(tile, 1)
        first = ct.reduce_min(ct.select(tile <= low.reshape((rows, 1)), columns, x.shape[1]), 1)
        better = low < best
        best = ct.select(better, low, best)
        where = ct.select(better, first, where)
    lowest.store(best)
    column.store(where)


def tile_for(columns: int, device: Device, rows: int | None = None) -> tuple[int, int]:
    """Rows and columns of a tile, for rows of `columns` elements; `rows` is kept if it is given.

    A GPU takes whole rows up to 4096 columns, so that a tile block waits for memory once. On an H200, for 8192 rows of
    4096 columns, tiles of 1 by 4096 took 41.9 us, of 16 by 128 47.2 us, and a copy of as many bytes 35.6 us.

    Example:
        >>> tile_for(1000, Device.host())
        (16, 128)
    """
    if device.kind != "cuda":
        return rows or 16, 128
    wide = min(max(128, 1 << (columns - 1).bit_length()), 4096)
    tall = rows or max(1, 1024 // wide)
    while wide > 128 and tall * wide > 8192:  # more elements do not fit the threads' registers
        wide //= 2
    return tall, wide


def row_minimum(
    x: ct.Tensor, *, out: Tensors | None = None, rows: int | None = None
) -> DeviceOp[tuple[ct.Tensor, ct.Tensor]]:
    """Return the op that yields the smallest element of each row of `x` and the first column that holds it.

    Args:
        x: float32 tensor of shape (m, n), without NaN; lent to the op.
        out: where the results go, float32 and int32 of shape (m,); new tensors by default.
        rows: rows per tile block; by default as `tile_for` chooses.

    Example:
        >>> x = api.arange(6, f32).reshape((2, 3)).sync()
        >>> lowest, column = row_minimum(x).sync()
        >>> lowest.to_numpy().sync(), column.to_numpy().sync()
        (array([0., 3.], dtype=float32), array([0, 0], dtype=int32))
    """
    m = x.shape[0]
    rows, wide = tile_for(x.shape[1], x.device, rows)
    lowest, column = (api.empty((m,), f32), api.empty((m,), i32)) if out is None else out
    op = row_min(lowest.partition((rows,)), column.partition((rows,)), x, BN=wide)
    return op.map(lambda done: (done.lowest.unpartition(), done.column.unpartition()))


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n = case.shape
    outputs = (case.poison(m), np.full(m, -1, np.int32))
    return Problem(outputs=outputs, inputs=(np.round(case.random(rng, m, n), 1),))  # rounded: ties to break


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (x,) = inputs
    if case.tile is None:
        return row_minimum(x, out=outputs).map(tuple)
    return row_minimum(x, out=outputs, rows=case.tile[0]).map(tuple)


def reference(problem: Problem) -> Arrays:
    """Return the minima in float64, and the first columns that hold them."""
    (x,) = problem.inputs
    return x.min(axis=1).astype(np.float64), x.argmin(axis=1)


CASES = (
    Case((64, 512)),
    Case((1, 1)),
    Case((37, 1000), tile=(8,)),  # edges both ways
)

EXAMPLE = Example(
    name="row_min",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: case.shape[0] * case.shape[1] * 4 + case.shape[0] * 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
