"""Matrix product with a fused epilogue: z = activation(x @ y + bias) + residual, without another pass over z."""

from __future__ import annotations

from typing import Final, Literal

import cutile as ct
from cutile import Const, Mut, Tensor, f32

Activation = Literal["none", "relu", "gelu", "silu"]

ACTIVATIONS: Final[dict[Activation, int]] = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
"""Values of the generic ACTIVATION."""

RELU, GELU, SILU = 1, 2, 3
LOG2_E = 1.4426950408889634
GELU_SCALE = 2 * 0.7978845608028654 * LOG2_E
"""GELU by tanh is 0.5 v (1 + tanh(u)) with u = sqrt(2 / pi) (v + 0.044715 v^3). That equals v / (1 + exp(-2 u)): a
power of 2 and a quotient, both in their fast forms. A tanh would take more instructions, and lose small results."""


@ct.entry
def gemm_fused(
    z: Mut,
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    residual: Tensor,
    *,
    BK: Const = 64,
    BIAS: Const = 1,
    RESIDUAL: Const = 1,
    ACTIVATION: Const = 0,
    FAST_ACC: Const = 0,
):
    """z = activation(x @ y + bias) + residual; a part whose generic is 0 is left out, and its tensor not read.

    FAST_ACC leaves sums of 8-bit floats to the tensor cores.
    """
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc, use_fast_acc=FAST_ACC == 1)
    if BIAS:
        acc = acc + ct.convert_tile(bias.partition((BN,)).load((j,)).reshape((1, BN)), f32)
    if ACTIVATION == RELU:
        acc = ct.max_tile(acc, ct.constant(0, (BM, BN), f32))
    if ACTIVATION == GELU:
        acc = ct.true_div(acc, 1.0 + ct.exp2(-GELU_SCALE * (acc + 0.044715 * acc * acc * acc), ftz=True))
    if ACTIVATION == SILU:
        acc = ct.true_div(acc, 1.0 + ct.exp2(-LOG2_E * acc, ftz=True))
    if RESIDUAL:
        acc = acc + ct.convert_tile(residual.partition((BM, BN)).load((i, j)), f32)
    z.store(ct.convert_tile(acc, z.dtype))
