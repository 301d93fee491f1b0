"""SwiGLU: silu(x @ gate) * (x @ up), two products in one loop that share their loads of x."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors

LOG2_E = 1.4426950408889634


@ct.entry
def swiglu(z: Mut, x: Tensor, gate: Tensor, up: Tensor, *, BK: Const = 64):
    """z = silu(x @ gate) * (x @ up), added up in float32."""
    BM, BN = z.shape
    part_x, part_gate, part_up = x.partition((BM, BK)), gate.partition((BK, BN)), up.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    gates, ups = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        rows = part_x.load((i, k))
        gates = ct.mma(rows, part_gate.load((k, j)), gates)
        ups = ct.mma(rows, part_up.load((k, j)), ups)
    silu = ct.true_div(gates, 1.0 + ct.exp2(-LOG2_E * gates, ftz=True))
    z.store(ct.convert_tile(silu * ups, z.dtype))


def gated(
    x: Tensor, gate: Tensor, up: Tensor, *, out: Tensor | None = None, tile: tuple[int, int] = (128, 128)
) -> DeviceOp[Tensor]:
    """Return the op that yields silu(x @ gate) * (x @ up).

    Args:
        x: tensor of shape (m, k), f16 or bf16; lent to the op.
        gate, up: weights of shape (k, n), of x's dtype.
        out: where the result goes, of shape (m, n); a new tensor by default.
        tile: rows and columns of a tile.

    Example:
        >>> one = api.ones((16, 16), f16).sync()
        >>> gated(one, one, one, tile=(16, 16)).sync().to_numpy().sync()[0, 0]
        np.float16(256.0)
    """
    z = api.empty((x.shape[0], gate.shape[1]), x.dtype) if out is None else out
    return swiglu(z.partition(tile), x, gate, up).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, k = case.shape
    x, gate, up = (case.random(rng, *shape) for shape in ((m, k), (k, n), (k, n)))
    return Problem(outputs=(case.poison(m, n),), inputs=(x, gate, up))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (z,), (x, gate, up) = outputs, inputs
    tile = (128, 128) if case.tile is None else (case.tile[0], case.tile[1])
    return gated(x, gate, up, out=z, tile=tile).map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64."""
    x, gate, up = (each.astype(np.float64) for each in problem.inputs)
    gates = x @ gate
    return (gates / (1 + np.exp(-gates)) * (x @ up),)


def _nbytes(case: Case) -> int:
    m, n, k = case.shape
    return (m * k + 2 * k * n + m * n) * case.dtype.bits // 8


CASES = (
    Case((100, 130, 70), f16, tile=(64, 64)),  # edges everywhere
    Case((128, 256, 128), bf16),
)

EXAMPLE = Example(
    name="swiglu",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=_nbytes,
    flops=lambda case: 4 * case.shape[0] * case.shape[1] * case.shape[2],
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
