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
"""Columns of a tile block of `add_rows`."""
ELEMENTS = 8192
"""Elements of the rows that a tile block loads in one iteration."""


@ct.entry
def layer_norm_rows(
    dx: Mut, sums: Mut, dy: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, *, AT_ONCE: Const = 1
):
    """dx of some rows, and their sums for the gradients of the weights and, in the second n columns, of the bias."""
    rows, n = dx.shape
    first = rows // AT_ONCE * ct.get_tile_block_id()[0]
    out, total = dx.partition_mut((AT_ONCE, n)), sums.partition_mut((1, n))
    weights = ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]
    dw, db = ct.constant(0, (1, n), f32), ct.constant(0, (1, n), f32)
    for k in range(min(rows // AT_ONCE, ct.ceil_div(x.shape[0], AT_ONCE) - first)):
        t = ct.load_tile(x, (AT_ONCE, n), (first + k, 0)).astype(f32)
        d = ct.load_tile(dy, (AT_ONCE, n), (first + k, 0)).astype(f32)
        scale = ct.load_tile(rstd, (AT_ONCE,), (first + k,))[:, None]
        normed = (t - ct.load_tile(mean, (AT_ONCE,), (first + k,))[:, None]) * scale
        dw, db = dw + ct.reduce_sum(d * normed, 0)[None, :], db + ct.reduce_sum(d, 0)[None, :]
        g = d * weights
        along, middle = ct.reduce_sum(g * normed, 1)[:, None] / n, ct.reduce_sum(g, 1)[:, None] / n
        out.store(((g - middle - normed * along) * scale).astype(dx.dtype), (k, 0))
    total.store(dw, (0, 0))
    total.store(db, (0, 1))


@ct.entry
def rms_norm_rows(dx: Mut, sums: Mut, dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor, *, AT_ONCE: Const = 1):
    """dx of some rows, and their sums for the gradient of the weights."""
    rows, n = dx.shape
    first = rows // AT_ONCE * ct.get_tile_block_id()[0]
    out = dx.partition_mut((AT_ONCE, n))
    weights = ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]
    dw = ct.constant(0, (1, n), f32)
    for k in range(min(rows // AT_ONCE, ct.ceil_div(x.shape[0], AT_ONCE) - first)):
        t = ct.load_tile(x, (AT_ONCE, n), (first + k, 0)).astype(f32)
        d = ct.load_tile(dy, (AT_ONCE, n), (first + k, 0)).astype(f32)
        scale = ct.load_tile(rstd, (AT_ONCE,), (first + k,))[:, None]
        normed = t * scale
        dw = dw + ct.reduce_sum(d * normed, 0)[None, :]
        g = d * weights
        along = ct.reduce_sum(g * normed, 1)[:, None] / n
        out.store(((g - normed * along) * scale).astype(dx.dtype), (k, 0))
    sums.store(dw)


@ct.entry
def add_rows(y: Mut, x: Tensor, *, R: Const = 32):
    """The sums of the columns of x, R rows at a time."""
    part = x.partition((R, y.shape[1]))
    total = ct.constant(0, (R, y.shape[1]), f32)
    for k in range(ct.num_tiles(part, 0)):
        total = total + part.load((k, ct.get_tile_block_id()[1]))
    y.store(ct.reduce_sum(total, 0)[None, :].astype(y.dtype))


def rows_of_blocks(m: int, blocks: int, at_once: int) -> int:
    """Rows of a tile block, a multiple of `at_once`, so that m rows take at most `blocks` tile blocks.

    Example:
        >>> rows_of_blocks(10, 4, 2)
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
        dy: the gradient of the norm's result, of x's shape and dtype; all tensors are lent to the op.
        x: the norm's operand, of shape (m, n); f32, f16 or bf16. A row has to fit a tile block.
        w: the weights, of shape (n,).
        rstd: 1 / deviation of each row, or 1 / root mean square: f32 of shape (m,).
        mean: of each row, f32 of shape (m,).
        out: where both results go, of x's and w's dtypes; new tensors by default.
        blocks: tile blocks that share the rows; one for each multiprocessor or core by default.
        at_once: rows that a tile block loads in one iteration; as many as have 8192 elements by default.

    Example:
        >>> x, one = api.ones((4, 8), f32).sync(), api.ones((8,), f32).sync()
        >>> dx, sums = norm_backward(x, x, one, api.ones((4,), f32).sync()).sync()
        >>> dx.to_numpy().sync()[0, :3], sums.to_numpy().sync()[0, :3]
        (array([0., 0., 0.], dtype=float32), array([4., 4., 4.], dtype=float32))
    """
    m, n = x.shape
    count = 1 if mean is None else 2
    dx, grads = out or (api.empty(x.shape, x.dtype), api.empty((count, n), w.dtype))
    at_once = at_once or max(1, ELEMENTS // n)
    rows = rows_of_blocks(m, blocks or x.device.properties.multiprocessor_count, at_once)
    sums = api.empty((-(-m // rows), count * n), f32).partition((1, count * n))
    tiles = dx.partition((rows, n))
    if mean is None:
        by_rows = rms_norm_rows(tiles, sums, dy, x, w, rstd, AT_ONCE=at_once)
    else:
        by_rows = layer_norm_rows(tiles, sums, dy, x, w, mean, rstd, AT_ONCE=at_once)

    def add(outputs: tuple[Any, ...]) -> DeviceOp[tuple[Tensor, Tensor]]:
        row = grads.reshape((1, count * n)).partition((1, COLUMNS))
        total = add_rows(row, outputs[1].unpartition()).first()
        return total.map(lambda tiles: (outputs[0].unpartition(), tiles.unpartition().reshape((count, n))))

    return by_rows.then(add)


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, count = case.shape
    dy, x, w = case.random(rng, m, n), case.random(rng, m, n), case.random(rng, n)
    wide = x.astype(np.float64)
    mean = wide.mean(1) if count > 1 else np.zeros(m)
    rstd = 1 / np.sqrt(((wide - mean[:, None]) ** 2).mean(1) + 1e-5)
    numbers = (rstd, mean)[:count]
    return Problem(
        outputs=(case.poison(m, n), case.poison(count, n)),
        inputs=(dy, x, w, *(each.astype(np.float32) for each in numbers)),
    )


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
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
    Case((11, 96, 2), tile=(3, 2)),  # the last tile block has fewer rows, and one alone at the end
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
