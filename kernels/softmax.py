"""Softmax over the rows of a matrix. Each row is read once and held as a tile; bound by memory."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Mut, Tensor, api, bf16, f16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def softmax(y: Mut, x: Tensor):
    """Each row of y is exp(row - its maximum) over their sum; a tile holds whole rows."""
    rows = y.shape[0]
    t = ct.convert_tile(ct.load_tile_like(x, y), f32)
    e = ct.exp(t - ct.reduce_max(t, 1).reshape((rows, 1)))
    y.store(ct.convert_tile(e / ct.reduce_sum(e, 1).reshape((rows, 1)), y.dtype))


def row_softmax(x: ct.Tensor, *, out: ct.Tensor | None = None, rows: int = 1) -> DeviceOp[ct.Tensor]:
    """Return the op that yields the softmax of each row of `x`.

    Args:
        x: float16, bfloat16 or float32 tensor of shape (m, n); lent to the op. A row has to fit a tile block.
        out: where the result goes, of x's shape and dtype; a new tensor by default.
        rows: rows per tile block.

    Example:
        >>> row_softmax(api.zeros((1, 4), f32).sync()).sync().to_numpy().sync()
        array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    y = api.empty(x.shape, x.dtype) if out is None else out
    return softmax(y.partition((rows, x.shape[1])), x).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    return Problem(outputs=(case.poison(*case.shape),), inputs=(case.random(rng, *case.shape),))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (y,), (x,) = outputs, inputs
    op = row_softmax(x, out=y) if case.tile is None else row_softmax(x, out=y, rows=case.tile[0])
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the softmax of each row in float64."""
    e = problem.inputs[0].astype(np.float64)
    e -= e.max(axis=1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=1, keepdims=True)
    return (e,)


CASES = (
    Case((64, 1024)),
    Case((1, 1)),
    Case((33, 1000)),  # a row that is no power of two
    Case((10, 96), tile=(4, 96)),  # several rows to a tile, and an edge
    Case((16, 256), f16),
    Case((16, 256), bf16),
)

EXAMPLE = Example(
    name="softmax",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 2 * case.shape[0] * case.shape[1] * case.dtype.bits // 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
