"""Convolution as products: for each place (r, s) of a filter, the pixels there times its matrix of channels."""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32, i32
from kernels.example import Arrays, Case, Example, Problem, Tensors


@ct.entry
def convolution(z: Mut, x: Tensor, w: Tensor, height: i32, *, BK: Const = 64):
    """z = the sum of x[image, row + r, column + s] @ w[r, s] over all places (r, s) of a filter.

    x is (images, rows, columns, channels), with a border as wide as the filters need; z is (images * height, width,
    filters).
    """
    rows, columns, BN = z.shape
    i, j, n = ct.get_tile_block_id()
    image, row = i * rows // height, i * rows % height
    windows = ct.make_strided_view(x, (1, rows, columns, BK), (1, 1, 1, BK))
    acc = ct.constant(0, (rows * columns, BN), f32)
    for r in range(w.shape[0]):
        for s in range(w.shape[1]):
            for k in range(ct.ceil_div(x.shape[3], BK)):
                pixels = windows.load((image, row + r, j * columns + s, k)).reshape((rows * columns, BK))
                channels = ct.load_tile(w, (1, 1, BK, BN), (r, s, k, n)).reshape((BK, BN))
                acc = ct.mma(pixels, channels, acc)
    z.store(acc.astype(z.dtype).reshape(z.shape))


def convolve(
    x: Tensor, w: Tensor, *, out: Tensor | None = None, tile: tuple[int, int, int] = (8, 16, 256)
) -> DeviceOp[Tensor]:
    """Return the op that yields the convolution of images with filters.

    Args:
        x: images with a border, of shape (images, height + r - 1, width + s - 1, channels), f16 or bf16; lent.
        w: filters of shape (r, s, channels, filters), of x's dtype.
        out: where the result goes, of shape (images * height, width, filters); a new tensor by default.
        tile: rows, columns and filters of a tile; its rows divide the height.

    Example:
        >>> x, w = api.ones((1, 6, 6, 16), f16).sync(), api.ones((3, 3, 16, 16), f16).sync()
        >>> convolve(x, w, tile=(4, 4, 16)).sync().to_numpy().sync()[0, 0, 0]
        np.float16(144.0)
    """
    height, width = x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1
    z = api.empty((x.shape[0] * height, width, w.shape[3]), x.dtype) if out is None else out
    return convolution(z.partition(tile), x, w, height, BK=min(64, x.shape[3])).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    images, height, width, channels, filters, r, s = case.shape
    x = case.random(rng, images, height + r - 1, width + s - 1, channels)
    return Problem((case.poison(images * height, width, filters),), (x, case.random(rng, r, s, channels, filters)))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    (z,), (x, w) = outputs, inputs
    tile = (8, 16, 256) if case.tile is None else (case.tile[0], case.tile[1], case.tile[2])
    return convolve(x, w, out=z, tile=tile).map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64."""
    x, w = (array.astype(np.float64) for array in problem.inputs)
    height, width = x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1
    places = np.ndindex(*w.shape[:2])
    sums = sum(x[:, r : r + height, s : s + width] @ w[r, s] for r, s in places)
    return (np.reshape(sums, (-1, width, w.shape[3])),)


def _nbytes(case: Case) -> int:
    images, height, width, channels, filters, r, s = case.shape
    return (images * height * width * (channels + filters) + r * s * channels * filters) * case.dtype.bits // 8


def _flops(case: Case) -> int:
    images, height, width, channels, filters, r, s = case.shape
    return 2 * images * height * width * channels * filters * r * s


CASES = (
    Case((2, 8, 21, 40, 50, 3, 3), f16, tile=(4, 16, 32)),  # edges of columns, channels and filters
    Case((1, 16, 16, 64, 256, 3, 2), bf16),
)

EXAMPLE = Example(
    name="convolution",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=_nbytes,
    flops=_flops,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
