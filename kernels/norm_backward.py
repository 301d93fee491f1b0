"""The gradients of layer norm and RMS norm: of x, of the weights and of the bias.

The gradients of weights and bias are sums over all rows. Each tile block loops over some consecutive rows and stores
the sums over these; a second kernel adds up the sums of all tile blocks. So the order of the additions is fixed, and
results repeat to the bit.
"""

from typing import Any

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors

COLUMNS = 64
"""Columns of a tile block of `add_rows`: a row of 64 f32 is two cache lines."""
ELEMENTS = 8192
"""Elements of the rows that a tile block loads in one iteration: 32 KiB of f32 of each operand."""


@ct.entry
def layer_norm_rows(
    dx: Mut, sums: Mut, dy: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, *, ROWS: Const = 1
):
    """dx of a tile block's rows; in `sums` their part of dw and, in the second n columns, of db."""
    rows, n = dx.shape
    first_tile = rows // ROWS * ct.get_tile_block_id()[0]
    out, total = dx.partition_mut((ROWS, n)), sums.partition_mut((1, n))
    weights = ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]
    dw, db = ct.constant(0, (1, n), f32), ct.constant(0, (1, n), f32)
    # The last tile block has fewer iterations. Rows past the last one are loaded as zeros: they add nothing to sums.
    for k in range(min(rows // ROWS, ct.ceil_div(x.shape[0], ROWS) - first_tile)):
        t = ct.load_tile(x, (ROWS, n), (first_tile + k, 0)).astype(f32)
        d = ct.load_tile(dy, (ROWS, n), (first_tile + k, 0)).astype(f32)
        scale = ct.load_tile(rstd, (ROWS,), (first_tile + k,))[:, None]
        normed = (t - ct.load_tile(mean, (ROWS,), (first_tile + k,))[:, None]) * scale
        dw, db = dw + ct.reduce_sum(d * normed, 0)[None, :], db + ct.reduce_sum(d, 0)[None, :]
        g = d * weights
        mean_gx, mean_g = ct.reduce_sum(g * normed, 1)[:, None] / n, ct.reduce_sum(g, 1)[:, None] / n
        out.store(((g - mean_g - normed * mean_gx) * scale).astype(dx.dtype), (k, 0))
    total.store(dw, (0, 0))
    total.store(db, (0, 1))


@ct.entry
def rms_norm_rows(dx: Mut, sums: Mut, dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor, *, ROWS: Const = 1):
    """dx of a tile block's rows, and in `sums` their part of dw."""
    rows, n = dx.shape
    first_tile = rows // ROWS * ct.get_tile_block_id()[0]
    out = dx.partition_mut((ROWS, n))
    weights = ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]
    dw = ct.constant(0, (1, n), f32)
    # The last tile block has fewer iterations. Rows past the last one are loaded as zeros: they add nothing to sums.
    for k in range(min(rows // ROWS, ct.ceil_div(x.shape[0], ROWS) - first_tile)):
        t = ct.load_tile(x, (ROWS, n), (first_tile + k, 0)).astype(f32)
        d = ct.load_tile(dy, (ROWS, n), (first_tile + k, 0)).astype(f32)
        scale = ct.load_tile(rstd, (ROWS,), (first_tile + k,))[:, None]
        normed = t * scale
        dw = dw + ct.reduce_sum(d * normed, 0)[None, :]
        g = d * weights
        mean_gx = ct.reduce_sum(g * normed, 1)[:, None] / n
        out.store(((g - normed * mean_gx) * scale).astype(dx.dtype), (k, 0))
    sums.store(dw)


@ct.entry
def add_rows(y: Mut, x: Tensor, *, R: Const = 32):
    """The sums of the columns of x, R rows at a time.

    There are R running sums a column, which are added up once at the end.
    """
    part = x.partition((R, y.shape[1]))
    total = ct.constant(0, (R, y.shape[1]), f32)
    for k in range(ct.num_tiles(part, 0)):
        total = total + part.load((k, ct.get_tile_block_id()[1]))
    y.store(ct.reduce_sum(total, 0)[None, :].astype(y.dtype))


def rows_per_block(m: int, blocks: int, at_once: int) -> int:
    """Rows of a tile block, a multiple of `at_once`, so that m rows take at most `blocks` tile blocks.

    Example:
        >>> rows_per_block(10, 4, 2)
        4
    """
    return max(1, -(-m // (blocks * at_once))) * at_once


def norm_backward(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    rstd: Tensor,
    mean: Tensor | None = None,
    *,
    out: Tensors | None = None,
    blocks: int | None = None,
    at_once: int | None = None,
) -> DeviceOp[tuple[Tensor, Tensor]]:
    """Return the op that yields the gradients of a layer norm, or of an RMS norm if there is no `mean`.

    The first result is dx. The second has shape (2, n), with the gradients of the weights and of the bias; for an RMS
    norm it has shape (1, n).

    Args:
        dy: the gradient of the norm's result, of x's shape and dtype. All tensors are lent to the op; the second of
            `out` only once the op runs.
        x: the norm's operand, of shape (m, n); f32, f16 or bf16. A row has to fit a tile block.
        w: the weights, of shape (n,).
        rstd: 1 / deviation of each row, or 1 / root mean square: f32 of shape (m,).
        mean: the mean of each row, f32 of shape (m,); None for an RMS norm.
        out: where both results go, of x's and w's dtypes; new tensors by default.
        blocks: the most tile blocks that share the rows; by default one for each multiprocessor or core.
        at_once: rows that a tile block loads in one iteration; by default as many as fit `ELEMENTS`, at least one.

    Raises:
        ArgumentError: rows have no elements.

    Example:
        >>> x, w = api.ones((4, 8), f32).sync(), api.ones((8,), f32).sync()
        >>> dx, sums = norm_backward(x, x, w, api.ones((4,), f32).sync()).sync()
        >>> dx.to_numpy().sync()[0, :3], sums.to_numpy().sync()[0, :3]
        (array([0., 0., 0.], dtype=float32), array([4., 4., 4.], dtype=float32))
    """
    m, n = x.shape
    if not n:
        raise ct.ArgumentError(f"norm_backward: argument 'x' has shape {x.shape}; expected rows of one element or more")
    gradients = 1 if mean is None else 2
    dx, grads = out or (api.empty(x.shape, x.dtype), api.empty((gradients, n), w.dtype))
    at_once = at_once or max(1, ELEMENTS // n)
    rows = rows_per_block(m, blocks or x.device.multiprocessor_count, at_once)
    sums = api.empty((-(-m // rows), gradients * n), f32).partition((1, gradients * n))
    tiles = dx.partition((rows, n))
    if mean is None:
        partial_sums = rms_norm_rows(tiles, sums, dy, x, w, rstd, ROWS=at_once)
    else:
        partial_sums = layer_norm_rows(tiles, sums, dy, x, w, mean, rstd, ROWS=at_once)

    def add(outputs: tuple[Any, ...]) -> DeviceOp[tuple[Tensor, Tensor]]:
        grad_tiles = grads.reshape((1, gradients * n)).partition((1, COLUMNS))
        total = add_rows(grad_tiles, outputs[1].unpartition()).first()
        return total.map(lambda row: (outputs[0].unpartition(), row.unpartition().reshape((gradients, n))))

    return partial_sums.then(add)


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, gradients = case.shape  # 1 gradient of n elements for RMS norm, 2 for layer norm, which has a bias
    dy, x, w = case.random(rng, m, n), case.random(rng, m, n), case.random(rng, n)
    wide = x.astype(np.float64)
    mean = wide.mean(1) if gradients > 1 else np.zeros(m)
    rstd = 1 / np.sqrt(((wide - mean[:, None]) ** 2).mean(1) + 1e-5)
    numbers = (rstd, mean)[:gradients]
    return Problem(
        outputs=(case.poison(m, n), case.poison(gradients, n)),
        inputs=(dy, x, w, *(each.astype(np.float32) for each in numbers)),
    )


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    # `tile` of these cases: the most tile blocks, and the rows of an iteration.
    blocks, at_once = (None, None) if case.tile is None else case.tile
    return norm_backward(*inputs, out=outputs, blocks=blocks, at_once=at_once)


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64."""
    dy, x, w, rstd, *mean = (each.astype(np.float64) for each in problem.inputs)
    normed = (x - (mean[0][:, None] if mean else 0)) * rstd[:, None]
    g = dy * w
    dx = g - normed * (g * normed).mean(1, keepdims=True) - (g.mean(1, keepdims=True) if mean else 0)
    sums = ((dy * normed).sum(0), *((dy.sum(0),) if mean else ()))
    return dx * rstd[:, None], np.stack(sums)


CASES = (
    Case((11, 96, 2), tile=(3, 2)),  # blocks of 4, 4 and 3 rows; the last iteration has one row of two
    Case((9, 64, 1), bf16),
)

EXAMPLE = Example(
    name="norm_backward",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 3 * case.shape[0] * case.shape[1] * case.dtype.bits // 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
