"""Products with quantised weights: integers of 8 or 4 bits, with one scale per column and 64 elements along K.

Weights are a matrix of shape (n, k): each row has the weights of one column of the product. 4-bit integers are stored
with 8 added, two to a byte: in each group of 64 along K, byte i has number i in its lower half and i + 32 in its upper.
"""

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, Tile, api, bf16, f16, f32, u8, u16
from kernels.example import Array, Arrays, Case, Example, Problem, Tensors, product_flops

GROUP = 64
"""Elements along K that share a scale."""
FEW_ROWS = 256
"""If a tile has fewer rows, one load of x covers all groups that one load of w has."""
UP, DOWN = 2.0**96, 2.0**-37
"""Factors of `small`: the lowest bit of a bf16 stands for 2**-133, and UP * 2**-133 is DOWN."""


def small(bits: Tile, by: Tile, first: int, zero: int) -> Tile:
    """(bits / first - zero) * by * DOWN as bf16, rounded once, for `bits` below 256 and scales from 2**-92 to 2**32.

    If only the lowest 8 bits of a bf16 are set, it is a multiple of the smallest bf16, 2**-133. So the bits need no
    conversion, and one instruction makes two weights.

    Args:
        bits: u16; multiples of `first`.
        by: the scales, bf16.
        first: the value of the lowest used bit: 1, or 16 for the upper half of a byte.
        zero: the stored number that stands for zero.
    """
    return ct.fma(ct.bitcast(bits, bf16), ct.fma(by, UP / first, -0.0), ct.fma(by, -zero * DOWN, -0.0))


@ct.entry
def int8_weights(z: Mut, x: Tensor, w: Tensor, scale: Tensor, *, GROUPS: Const = 1, LEFT: Const = 1):
    """z = x @ (w * scale)^T for w of i8. One load of w has GROUPS groups of 64 along K, one load of x has LEFT."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(w.shape[1], GROUPS * GROUP)):
        groups = ct.load_tile(w, (BN, GROUPS * GROUP), (j, k))
        for h in ct.static_range(GROUPS // LEFT):
            left = ct.load_tile(x, (BM, LEFT * GROUP), (i, GROUPS // LEFT * k + h))
            for g in ct.static_range(LEFT):
                scales = ct.load_tile(scale, (1, BN), (GROUPS * k + LEFT * h + g, j))
                by = scales.reshape((BN, 1)).broadcast((BN, GROUP))
                whole = ct.extract(groups, (0, LEFT * h + g), (BN, GROUP))
                if x.dtype is bf16:
                    right = small(ct.bitcast(whole, u8).astype(u16) ^ 128, by, 1, 128)
                else:
                    right = (whole.astype(f32) * by.astype(f32)).astype(x.dtype)
                acc = ct.mma(ct.extract(left, (0, g), (BM, GROUP)), right.transpose(), acc)
    z.store((acc * (1 / DOWN if x.dtype is bf16 else 1.0)).astype(z.dtype))


@ct.entry
def int4_weights(z: Mut, x: Tensor, w: Tensor, scale: Tensor, *, GROUPS: Const = 1, LEFT: Const = 1):
    """z = x @ (w * scale)^T for w of u8, two 4-bit integers to a byte. GROUPS and LEFT as in `int8_weights`."""
    BM, BN = z.shape
    HALF = GROUP // 2
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(w.shape[1], GROUPS * HALF)):
        groups = ct.load_tile(w, (BN, GROUPS * HALF), (j, k))
        for h in ct.static_range(GROUPS // LEFT):
            left = ct.load_tile(x, (BM, LEFT * GROUP), (i, GROUPS // LEFT * k + h))
            for g in ct.static_range(LEFT):
                scales = ct.load_tile(scale, (1, BN), (GROUPS * k + LEFT * h + g, j))
                by = scales.reshape((BN, 1)).broadcast((BN, HALF))
                both = ct.extract(groups, (0, LEFT * h + g), (BN, HALF))
                if x.dtype is bf16:
                    lower = small(both.astype(u16) & 15, by, 1, 8)
                    upper = small(both.astype(u16) & 240, by, 16, 8)
                else:
                    lower = (((both & 15).astype(f32) - 8.0) * by.astype(f32)).astype(x.dtype)
                    upper = (((both >> 4).astype(f32) - 8.0) * by.astype(f32)).astype(x.dtype)
                right = ct.cat((lower, upper), 1)
                acc = ct.mma(ct.extract(left, (0, g), (BM, GROUP)), right.transpose(), acc)
    z.store((acc * (1 / DOWN if x.dtype is bf16 else 1.0)).astype(z.dtype))


def quantised(
    x: Tensor,
    w: Tensor,
    scale: Tensor,
    *,
    out: Tensor | None = None,
    tile: tuple[int, int] = (256, 128),
    groups: int = 1,
) -> DeviceOp[Tensor]:
    """Return the op that yields the product of x with quantised weights.

    Args:
        x: tensor of shape (m, k), f16 or bf16, k a multiple of 64; lent to the op.
        w: weights of shape (n, k) and i8, or (n, k / 2) and u8.
        scale: scales of shape (k / 64, n) and x's dtype. In bf16 each has to be zero, or between 2**-92 and 2**32.
        out: where the result goes, of shape (m, n); a new tensor by default.
        tile: rows and columns of a tile.
        groups: groups of 64 along K that one load of w has. Two are faster on Hopper, and may take too many registers
            elsewhere.

    Example:
        >>> x, w, scale = api.ones((16, 64), f16), api.ones((16, 64), ct.i8), api.ones((1, 16), f16)
        >>> quantised(x.sync(), w.sync(), scale.sync(), tile=(16, 16)).sync().to_numpy().sync()[0, 0]
        np.float16(64.0)
    """
    kernel = int8_weights if w.shape[1] == x.shape[1] else int4_weights
    z = api.empty((x.shape[0], w.shape[0]), x.dtype) if out is None else out
    # With few rows x is small, and separate waits for its parts would cost more than their earlier arrival saves.
    left = groups if tile[0] < FEW_ROWS else 1
    return kernel(z.partition(tile), x, w, scale, GROUPS=groups, LEFT=left).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, k, bits = case.shape
    whole = rng.integers(0, 256, (n, k * bits // 8), np.uint8)
    scale = (rng.random((k // GROUP, n), np.float32) / 64).astype(case.dtype.numpy)
    return Problem((case.poison(m, n),), (case.random(rng, m, k), whole.view(np.int8) if bits == 8 else whole, scale))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    tile = (256, 128) if case.tile is None else (case.tile[0], case.tile[1])
    return quantised(*inputs, out=outputs[0], tile=tile).map(lambda result: (result,))


def weights(w: Array, scale: Array) -> Array:
    """Return the weights in float64, of shape (n, k)."""
    whole = w.astype(np.float64)
    if w.dtype == np.uint8:
        grouped = w.reshape(w.shape[0], -1, GROUP // 2).astype(np.int64)
        whole = np.concatenate((grouped & 15, grouped >> 4), 2).reshape(w.shape[0], -1) - 8.0
    return whole * np.repeat(scale.astype(np.float64), GROUP, axis=0).T


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64."""
    x, w, scale = problem.inputs
    return (x.astype(np.float64) @ weights(w, scale).T,)


def _nbytes(case: Case) -> int:
    m, n, k, bits = case.shape
    return (m * k + m * n) * case.dtype.bits // 8 + n * k * bits // 8


CASES = (
    Case((40, 72, 128, 8), f16, tile=(32, 64)),  # edges of rows and columns
    Case((40, 72, 128, 4), f16, tile=(32, 64)),
    Case((256, 128, 128, 8), bf16),
    Case((40, 72, 128, 4), bf16, tile=(32, 64)),
)

EXAMPLE = Example(
    name="quantised",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=_nbytes,
    flops=product_flops,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
