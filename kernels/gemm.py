"""Matrix product: z = x @ y, accumulated in float32. Bound by arithmetic."""

from typing import Any, NamedTuple

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, bf16, f16, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors, product_flops
from kernels.gemm_choice import Facts, choose, how_they_lie, may_be_halved
from kernels.gemm_fused import ACTIVATIONS, Activation, gemm_fused


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


def matmul(
    x: ct.Tensor,
    y: ct.Tensor,
    *,
    out: ct.Tensor | None = None,
    bias: ct.Tensor | None = None,
    activation: Activation = "none",
    residual: ct.Tensor | None = None,
    use_fast_acc: bool = False,
    tile: tuple[int, int] | None = None,
    depth: int | None = None,
    options: ct.CompileOptions | None = None,
) -> DeviceOp[ct.Tensor]:
    """Return the op that yields `activation(x @ y + bias) + residual`; omitted parts are left out.

    Args:
        x: float16, bfloat16, float32 or 8-bit float tensor of shape (m, k), contiguous along one of its axes; lent.
        y: tensor of shape (k, n) and x's dtype; it may be a transposed view of a tensor of shape (n, k). Lent.
        out: where the result goes, of shape (m, n); a new tensor of x's dtype by default, of bfloat16 for 8-bit floats.
        bias: a tensor of shape (n,), added to each row; lent.
        activation: "relu", "gelu" (by tanh), "silu" or "none".
        residual: a tensor of shape (m, n), added at the end; lent.
        use_fast_acc: leave the sums of 8-bit floats to the tensor cores, which on Hopper keep about 14 bits of a sum.
        tile: rows and columns of the result per tile block; by default as `gemm_choice` chooses.
        depth: columns of x per step; by default as `gemm_choice` chooses.
        options: hints for the compiler; by default those of the chosen tile, and none with a given `tile`.

    Raises:
        ValueError: the shapes do not fit, or there is no such activation.

    Example:
        >>> x = api.arange(4, f32).reshape((2, 2)).sync()
        >>> matmul(x, x).sync().to_numpy().sync()
        array([[ 2.,  3.],
               [ 6., 11.]], dtype=float32)
        >>> matmul(x, x, residual=x, activation="relu").sync().to_numpy().sync()
        array([[ 2.,  4.],
               [ 8., 14.]], dtype=float32)
    """
    fused = bias is not None, residual is not None, bool(use_fast_acc)
    plain = activation == "none" and fused == _NOTHING
    chip = x.device.properties
    facts = x.spec(), y.spec(), None if out is None else out.spec()
    key = *facts, chip.arch, chip.multiprocessor_count, fused, plain
    cut = _cuts.get(key) or _cut(key, x, y, out)
    if not plain:
        _check_fused(cut.shape, bias, residual)
    part = (api.empty(cut.shape, cut.dtype) if out is None else out).partition(tile or cut.tile)
    step = depth or cut.depth
    if plain:
        op = gemm(part, x, y, BK=step)
    else:
        if activation not in ACTIVATIONS:
            raise ct.ArgumentError(f"matmul: activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        flags = {
            "BIAS": int(bias is not None),
            "RESIDUAL": int(residual is not None),
            "ACTIVATION": ACTIVATIONS[activation],
            "FAST_ACC": int(use_fast_acc),
        }
        # A part that its flag leaves out is not read, so any tensor may take its place.
        op = gemm_fused(part, x, y, y if bias is None else bias, y if residual is None else residual, BK=step, **flags)
    if options is None and tile is None:
        options = cut.options
    if options is not None:
        op = op.compile_options(options)
    return op.first().unpartition()


def facts_of(
    x: ct.Tensor,
    y: ct.Tensor,
    out: ct.Tensor | None,
    *,
    bias: bool = False,
    residual: bool = False,
    fast: bool = False,
    alone: bool = True,
) -> Facts:
    """Facts for `choose` about a product's tensors and its epilogue."""
    lie = how_they_lie(x, y)
    in_pieces = x.device.arch == "sm_90a" and lie != "otherwise"  # the epilogue is done some columns at a time
    held = 2 if residual and not in_pieces else 1
    if lie.endswith("across") and x.dtype.bits == 8 and (bias or residual):
        held = 3  # here the epilogue is done for the whole tile at once
    return {"held": held, "lie": lie, "halves": may_be_halved(x, y, out), "fast": fast, "three": alone}


class _Cut(NamedTuple):
    """Shape and dtype of a product's result, and the tile that the product is cut into."""

    shape: tuple[int, int]
    dtype: type[ct.DType]
    tile: tuple[int, int]
    depth: int
    options: ct.CompileOptions | None


_MAX_CUTS = 1024
"""Kinds of products whose cut is remembered, because choosing takes longer than a launch on a GPU."""

_cuts: dict[tuple[Any, ...], _Cut] = {}

_NOTHING = False, False, False
"""Neither a bias, nor a residual, nor fast sums."""


def _cut(key: tuple[Any, ...], x: ct.Tensor, y: ct.Tensor, out: ct.Tensor | None) -> _Cut:
    """Choose the tile of a product, and remember it.

    Args:
        key: the facts of the tensors, those of the device, and the epilogue.
        x, y, out: as for `matmul`.

    Raises:
        ValueError: the shapes of the operands do not fit.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise ct.ArgumentError(f"matmul: expected shapes (m, k) and (k, n), got {x.shape} and {y.shape}")
    m, n = x.shape[0], y.shape[1]
    *_, (bias, residual, fast), plain = key
    facts = facts_of(x, y, out, bias=bias, residual=residual, fast=fast, alone=plain)
    best = choose(m, n, x.shape[1], x.dtype, x.device, **facts)
    dtype = bf16 if x.dtype in (ct.f8e4m3fn, ct.f8e5m2) else x.dtype
    cut = _Cut((m, n), dtype, (best.rows, best.columns), best.depth, best.options)
    if len(_cuts) >= _MAX_CUTS:
        _cuts.clear()
    _cuts[key] = cut
    return cut


def _check_fused(shape: tuple[int, int], bias: ct.Tensor | None, residual: ct.Tensor | None) -> None:
    """Refuse a bias or a residual that does not fit a result of this shape. Raises ValueError."""
    m, n = shape
    if bias is not None and bias.shape != (n,):
        raise ct.ArgumentError(f"matmul: bias: expected the shape {(n,)}, got {bias.shape}")
    if residual is not None and residual.shape != (m, n):
        raise ct.ArgumentError(f"matmul: residual: expected the shape {(m, n)}, got {residual.shape}")


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
    Case((5, 192, 4096), bf16, tile=(16, 64, 64)),  # few rows; on a GPU this uses split-K
)

EXAMPLE = Example(
    name="gemm",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: _elements(case) * case.dtype.bits // 8,
    flops=product_flops,
    cases=CASES,
)


def _elements(case: Case) -> int:
    m, n, k = case.shape
    return m * k + k * n + m * n


main = EXAMPLE.main

if __name__ == "__main__":
    main()
