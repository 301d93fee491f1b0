"""Vector addition: z = x + y, of any dtype. Bound by memory: two reads and one write per element."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Mut, Tensor, api, bf16, f16, f64
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def vector_add(z: Mut, x: Tensor, y: Tensor):
    """z = x + y, one tile per partition of z."""
    z.store(ct.load_tile_like(x, z) + ct.load_tile_like(y, z))


def add(x: ct.Tensor, y: ct.Tensor, *, out: ct.Tensor | None = None, tile: int = 2048) -> DeviceOp[ct.Tensor]:
    """Return the op that yields `x + y`.

    Args:
        x: tensor of shape (n,); lent to the op.
        y: tensor of x's shape and dtype; lent to the op.
        out: where the result goes; a new tensor by default.
        tile: elements per tile block.

    Example:
        >>> from cutile import f32
        >>> x = api.arange(4, f32).sync()
        >>> add(x, x).sync().to_numpy().sync()
        array([0., 2., 4., 6.], dtype=float32)
    """
    z = api.empty(x.shape, x.dtype) if out is None else out
    return vector_add(z.partition((tile,)), x, y).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    (n,) = case.shape
    return Problem(outputs=(case.poison(n),), inputs=(case.random(rng, n), case.random(rng, n)))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (z,), (x, y) = outputs, inputs
    op = add(x, y, out=z) if case.tile is None else add(x, y, out=z, tile=case.tile[0])
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return `x + y` in float64."""
    x, y = problem.inputs
    return (np.add(x, y, dtype=np.float64),)


CASES = (
    Case((1 << 16,)),
    Case((1,)),
    Case((1000,), tile=(96,)),
    Case((4097,), f16),
    Case((4097,), bf16),
    Case((4097,), f64),
)

EXAMPLE = Example(
    name="vector_add",
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
