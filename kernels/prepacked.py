"""Products with prepacked weights: whole numbers of 8 or 4 bits in the order in which Hopper's products read them.

A thread of a product has four numbers of each 16 of K: in lane q of four, numbers 2q, 2q + 1, 2q + 8 and 2q + 9 (PTX
ISA, "wgmma", registers of matrix A). With column-major weights it loads them two at a time, and separates bytes.
Prepacked, the numbers of a thread are adjacent, and each word of 16 bits has two or four of them. So a thread loads 8
or 16 bytes at once, and one instruction extracts two numbers from their words. Marlin (Frantar et al., 2024) stores
weights in this way.
"""

from dataclasses import replace

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, Tile, api, bf16, f16, f32
from kernels import quantised
from kernels.example import Array, Arrays, Case, Problem, Tensors
from kernels.quantised import DOWN, FEW_ROWS, GROUP, small

QUAD = 4
"""Lanes that share a row of an operand (PTX ISA, "wgmma")."""


def number(bits: Tile, by: Tile, first: int, zero: int) -> Tile:
    """(bits / first - zero) * by, rounded once; in bf16 times DOWN. Arguments as for `small`."""
    if by.dtype is bf16:
        return small(bits, by, first, zero)
    return ((bits.astype(f32) / first - zero) * by.astype(f32)).astype(by.dtype)


def by_depth(numbers: Tile) -> Tile:
    """Bring numbers from the order of lanes into the order of K."""
    BN, K = numbers.shape
    return ct.permute(numbers.reshape((BN, QUAD, K // 16, 2, 2)), (0, 2, 3, 1, 4)).reshape((BN, K))


@ct.entry
def prepacked_weights(
    z: Mut, x: Tensor, w: Tensor, scale: Tensor, *, BITS: Const = 8, GROUPS: Const = 1, LEFT: Const = 1
):
    """z = x @ (w * scale)^T for w of `prepack`; GROUPS groups of 64 of K of w are loaded at once, and LEFT of x."""
    BM, BN = z.shape
    WORDS = GROUP * BITS // 16
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(w.shape[1], GROUPS * WORDS)):
        groups = ct.load_tile(w, (BN, GROUPS * WORDS), (j, k))
        for h in ct.static_range(GROUPS // LEFT):
            left = ct.load_tile(x, (BM, LEFT * GROUP), (i, GROUPS // LEFT * k + h))
            for g in ct.static_range(LEFT):
                scales = ct.load_tile(scale, (1, BN), (GROUPS * k + LEFT * h + g, j))
                by = scales.reshape((BN, 1)).broadcast((BN, WORDS))
                words = ct.extract(groups, (0, LEFT * h + g), (BN, WORDS))
                upper = words >> 8
                if BITS == 8:
                    lower, upper = number(words & 255, by, 1, 128), number(upper, by, 1, 128)
                    right = ct.cat((by_depth(lower), by_depth(upper)), 1)
                else:
                    a, b = number(words & 15, by, 1, 8), number(words & 240, by, 16, 8)
                    c, d = number(upper & 15, by, 1, 8), number(upper & 240, by, 16, 8)
                    lower, upper = ct.cat((by_depth(a), by_depth(b)), 1), ct.cat((by_depth(c), by_depth(d)), 1)
                    right = ct.cat((lower, upper), 1)
                acc = ct.mma(ct.extract(left, (0, g), (BM, GROUP)), right.transpose(), acc)
    z.store((acc * (1 / DOWN if x.dtype is bf16 else 1.0)).astype(z.dtype))


def prepack(w: Array) -> Array:
    """Return weights of `kernels.quantised` in the order of `prepacked_weights`.

    Args:
        w: weights of shape (n, k) and int8, or (n, k / 2) and uint8 with two of 4 bits in a byte; k a multiple of 64.

    Returns:
        As many bytes, of shape (n, k / 2) or (n, k / 4) and uint16. The words of each 64 of K have the order (lane of
        4, group of 16, half of 8, neighbour of 2). A word has a number and the one 32 further on; with 4 bits those 16,
        32 and 48 further on.

    Example:
        >>> prepack(np.arange(64, dtype=np.int8).reshape(1, 64))[0, :6].tolist()
        [41088, 41345, 43144, 43401, 45200, 45457]
    """
    if w.dtype == np.int8:
        bits, numbers = 8, (w.view(np.uint8) ^ 128).reshape(len(w), -1, GROUP)
    else:
        halves = w.reshape(len(w), -1, GROUP // 2)
        bits, numbers = 4, np.concatenate((halves & 15, halves >> 4), 2)
    parts = 16 // bits
    split = numbers.reshape(len(w), -1, parts, GROUP // parts // 16, 2, QUAD, 2).astype(np.uint16)
    words = np.zeros_like(split[:, :, 0])
    for part in range(parts):
        words |= split[:, :, part] << np.uint16(part * bits)
    return words.transpose(0, 1, 4, 2, 3, 5).reshape(len(w), -1)


def prepacked(
    x: Tensor,
    w: Tensor,
    scale: Tensor,
    *,
    out: Tensor | None = None,
    tile: tuple[int, int] = (256, 128),
    groups: int = 2,
) -> DeviceOp[Tensor]:
    """Return the op that yields the product of x with weights of `prepack`.

    Args:
        x: tensor of shape (m, k), f16 or bf16, k a multiple of 64 times `groups`; lent to the op.
        w: weights of `prepack`, of shape (n, k / 2) for 8 bits or (n, k / 4) for 4, u16.
        scale: scales of shape (k / 64, n) and x's dtype. In bf16 each has to be zero, or between 2**-92 and 2**32.
        out: where the result goes, of shape (m, n); a new tensor by default.
        tile: rows and columns of a tile.
        groups: groups of 64 of K that are loaded at once.

    Example:
        >>> x, scale = api.ones((16, 128), bf16), api.ones((2, 16), bf16)
        >>> w = api.from_numpy(prepack(np.ones((16, 128), np.int8)))
        >>> prepacked(x.sync(), w.sync(), scale.sync(), tile=(16, 16)).sync().to_numpy().sync()[0, 0]
        128
    """
    z = api.empty((x.shape[0], w.shape[0]), x.dtype) if out is None else out
    # With few rows x is small, and separate waits for its parts would cost more than their earlier arrival saves.
    constants = {"BITS": 16 * w.shape[1] // x.shape[1], "GROUPS": groups, "LEFT": groups if tile[0] < FEW_ROWS else 1}
    return prepacked_weights(z.partition(tile), x, w, scale, **constants).first().unpartition()


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    problem = quantised.EXAMPLE.problem(case, rng)
    x, w, scale = problem.inputs
    return Problem(problem.outputs, (x, prepack(w), scale))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    tile = (256, 128) if case.tile is None else (case.tile[0], case.tile[1])
    return prepacked(*inputs, out=outputs[0], tile=tile).map(lambda result: (result,))


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64; the words are unpacked number by number."""
    x, w, scale = problem.inputs
    bits = 16 * w.shape[1] // x.shape[1]
    exact = np.zeros((len(w), x.shape[1]))
    for k in range(x.shape[1]):
        group, within = divmod(k, GROUP)
        part, within = divmod(within, GROUP * bits // 16)
        sixteen, within = divmod(within, 16)
        half, within = divmod(within, 8)
        lane, neighbour = divmod(within, 2)
        word = ((lane * (GROUP * bits // 256) + sixteen) * 2 + half) * 2 + neighbour
        words = w[:, group * GROUP * bits // 16 + word].astype(np.int64)
        exact[:, k] = (words >> part * bits) % (1 << bits) - (1 << bits - 1)
    return (x.astype(np.float64) @ (exact * np.repeat(scale.astype(np.float64), GROUP, axis=0).T).T,)


CASES = (
    Case((40, 72, 256, 8), f16, tile=(32, 64)),  # edges of rows and columns
    Case((40, 72, 256, 4), f16, tile=(32, 64)),
    Case((256, 128, 128, 8), bf16),
    Case((40, 72, 256, 4), bf16, tile=(32, 64)),
)

EXAMPLE = replace(
    quantised.EXAMPLE, name="prepacked", problem=_problem, launch=_launch, reference=reference, cases=CASES
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
