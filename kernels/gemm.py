"""Matrix product: z = x @ y, accumulated in float32 (float64 for float64). Bound by arithmetic."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def gemm(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    """z = x @ y, accumulated in float32."""
    BM, BN = z.shape  # the partition's shape: constants
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


TILE = {"cuda": (128, 128, 32), "host": (256, 512, 256)}
"""Rows, columns and depth of a tile by kind of device: fragments in registers there, a BLAS call here."""


def matmul(
    x: ct.Tensor,
    y: ct.Tensor,
    *,
    out: ct.Tensor | None = None,
    tile: tuple[int, int] | None = None,
    depth: int | None = None,
) -> DeviceOp[ct.Tensor]:
    """Return the op that yields the matrix product `x @ y`.

    Args:
        x: float16, bfloat16 or float32 tensor of shape (m, k); lent to the op.
        y: tensor of shape (k, n) and x's dtype; lent to the op.
        out: where the result goes, of shape (m, n); a new tensor of x's dtype by default.
        tile: rows and columns of z per tile block; chosen for the device by default.
        depth: columns of x per step; chosen for the device by default.

    Example:
        >>> x = api.arange(4, f32).reshape((2, 2)).sync()
        >>> matmul(x, x).sync().to_numpy().sync()
        array([[ 2.,  3.],
               [ 6., 11.]], dtype=float32)
    """
    rows, columns, step = TILE["cuda" if x.device.kind == "cuda" else "host"]
    z = api.empty((x.shape[0], y.shape[1]), x.dtype) if out is None else out
    part = z.partition(tile or (rows, columns))
    return gemm(part, x, y, BK=depth or step).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, k = case.shape
    return Problem(outputs=(case.poison(m, n),), inputs=(case.random(rng, m, k), case.random(rng, k, n)))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (z,), (x, y) = outputs, inputs
    if case.tile is None:
        op = matmul(x, y, out=z)
    else:
        rows, columns, depth = case.tile
        op = matmul(x, y, out=z, tile=(rows, columns), depth=depth)
    return op.map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return `x @ y` in float64."""
    x, y = problem.inputs
    return (x.astype(np.float64) @ y.astype(np.float64),)


CASES = (
    Case((256, 256, 256)),
    Case((1, 1, 1), tile=(16, 16, 16)),
    Case((1000, 777, 333), tile=(128, 128, 32)),  # sizes that divide nothing
    Case((200, 170, 100), tile=(96, 80, 48)),  # tiles that are no powers of two
    Case((256, 128, 320), f16, tile=(128, 128, 32)),
    Case((257, 127, 319), bf16, tile=(64, 64, 32)),
)

EXAMPLE = Example(
    name="gemm",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: _elements(case) * case.dtype.bits // 8,
    flops=lambda case: 2 * case.shape[0] * case.shape[1] * case.shape[2],
    cases=CASES,
)


def _elements(case: Case) -> int:
    m, n, k = case.shape
    return m * k + k * n + m * n


main = EXAMPLE.main

if __name__ == "__main__":
    main()
