"""saxpy: y = a * x + y, the smallest useful kernel. Bound by memory: two reads and one write per element."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Mut, Tensor, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors

FACTOR = 1.25


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor):
    """y = a * x + y, one tile per partition of y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


def axpy(y: ct.Tensor, a: float, x: ct.Tensor, *, tile: int = 2048) -> DeviceOp[ct.Tensor]:
    """Return the op that computes `y = a * x + y` in place and yields `y`.

    Args:
        y: float32 tensor of shape (n,); lent to the op, and written.
        a: the factor.
        x: float32 tensor of shape (n,); lent to the op.
        tile: elements per tile block.

    Example:
        >>> from cutile import api
        >>> x = api.arange(5, f32).sync()
        >>> y = api.ones((5,), f32).sync()
        >>> axpy(y, 2.0, x).sync().to_numpy().sync()
        array([1., 3., 5., 7., 9.], dtype=float32)
    """
    return saxpy(y.partition((tile,)), a, x).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    (n,) = case.shape
    return Problem(outputs=(case.random(rng, n),), inputs=(case.random(rng, n),))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (y,), (x,) = outputs, inputs
    op = axpy(y, FACTOR, x) if case.tile is None else axpy(y, FACTOR, x, tile=case.tile[0])
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return `a * x + y` in float64."""
    (y,), (x,) = problem.outputs, problem.inputs
    result = np.multiply(x, FACTOR, dtype=np.float64)
    result += y
    return (result,)


CASES = (
    Case((1 << 16,)),
    Case((1,)),
    Case((1000,), tile=(96,)),  # a tile that is no power of two, and an edge
    Case((4097,), tile=(4096,)),
)

EXAMPLE = Example(
    name="saxpy",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 3 * case.shape[0] * case.dtype.bits // 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
