"""RMS norm of a sum, also as 8-bit floats with scales, and gated activations: the kernels between products.

Each row is read once and held as a tile.
"""

from typing import Literal

import numpy as np

import cutile as ct
from cuda_async import DeviceOp
from cutile import Mut, Tensor, api, bf16, f8e4m3fn, f32
from kernels.example import Arrays, Case, Example, Problem, Tensors

GROUP = 128
"""Elements of a row that share a scale."""
LARGEST = 448.0
"""The largest number of f8e4m3fn."""
LEAST = 1e-12
"""The least maximum from which a scale is computed, so that the scale of a row of zeros is not zero."""


@ct.entry
def add_rms_norm(y: Mut, total: Mut, x: Tensor, residual: Tensor, w: Tensor, eps: f32):
    """total = x + residual; y = its rows, each divided by its root mean square, times w."""
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(f32) + ct.load_tile_like(residual, y).astype(f32)
    total.store(t.astype(total.dtype))
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    y.store((t * scale * ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]).astype(y.dtype))


@ct.entry
def add_rms_norm_rows(y: Mut, by: Mut, total: Mut, x: Tensor, residual: Tensor, w: Tensor, eps: f32):
    """As `add_rms_norm`, with y in 8-bit floats: y times `by`, a scale for each row, is the norm."""
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(f32) + ct.load_tile_like(residual, y).astype(f32)
    total.store(t.astype(total.dtype))
    t = t * ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    t = t * ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]
    top = ct.max_tile(ct.reduce_max(abs(t), 1), LEAST)
    by.store(top / LARGEST)
    y.store((t * (LARGEST / top)[:, None]).astype(y.dtype))


@ct.entry
def add_rms_norm_groups(y: Mut, by: Mut, total: Mut, x: Tensor, residual: Tensor, w: Tensor, eps: f32):
    """As `add_rms_norm_rows`, with a scale for each 128 elements of a row."""
    rows, n = y.shape
    t = ct.load_tile_like(x, y).astype(f32) + ct.load_tile_like(residual, y).astype(f32)
    total.store(t.astype(total.dtype))
    t = t * ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    t = (t * ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]).reshape((rows, n // GROUP, GROUP))
    top = ct.max_tile(ct.reduce_max(abs(t), 2), LEAST)
    by.store(top / LARGEST)
    y.store((t * (LARGEST / top)[:, :, None]).reshape((rows, n)).astype(y.dtype))


@ct.entry
def silu_times(y: Mut, a: Tensor, b: Tensor):
    """y = silu(a) * b"""
    t = ct.load_tile_like(a, y).astype(f32)
    y.store((ct.true_div(t, 1.0 + ct.exp(-t)) * ct.load_tile_like(b, y).astype(f32)).astype(y.dtype))


def summed_rms_norm(
    x: Tensor,
    residual: Tensor,
    w: Tensor,
    eps: float,
    *,
    scales: Literal["row", "group"] | None = None,
    out: Tensors | None = None,
) -> DeviceOp[Tensors]:
    """Return the op that yields y = rms_norm(x + residual) * w, its scales if there are any, and x + residual.

    With `scales`, y is of f8e4m3fn, and y times its scale is the norm.

    Args:
        x, residual: tensors of shape (m, n) and one dtype; f32, f16 or bf16; all are lent to the op. A row has to fit a
            tile block.
        w: the weights, of shape (n,).
        eps: added to the mean of the squares.
        scales: "row" for one scale for each row, of shape (m,); "group" for one for each 128 elements of a row, of
            shape (m, n / 128), with n a multiple of 128. Scales are f32. None: y has x's dtype, without scales.
        out: where the results go; new tensors by default.

    Example:
        >>> x, zero, w = api.ones((2, 128), f32).sync(), api.zeros((2, 128), f32).sync(), api.ones((128,), f32).sync()
        >>> y, by, total = summed_rms_norm(x, zero, w, 0.0, scales="row").sync()
        >>> y.to_numpy().sync()[0, 0], total.to_numpy().sync()[0, 0], round(448 * float(by.to_numpy().sync()[0]), 5)
        (448, np.float32(1.0), 1.0)
    """
    m, n = x.shape
    tile = (1, n)
    if scales is None:
        y, total = out or (api.empty((m, n), x.dtype), api.empty((m, n), x.dtype))
        plain = add_rms_norm(y.partition(tile), total.partition(tile), x, residual, w, eps)
        return plain.map(lambda tiles: (tiles.y.unpartition(), tiles.total.unpartition()))
    shape = (m,) if scales == "row" else (m, n // GROUP)
    y, by, total = out or (api.empty((m, n), f8e4m3fn), api.empty(shape, f32), api.empty((m, n), x.dtype))
    kernel = add_rms_norm_rows if scales == "row" else add_rms_norm_groups
    scaled = kernel(y.partition(tile), by.partition((1, *shape[1:])), total.partition(tile), x, residual, w, eps)
    return scaled.map(lambda tiles: (tiles.y.unpartition(), tiles.by.unpartition(), tiles.total.unpartition()))


def gated(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Return the op that yields silu(a) * b.

    Args:
        a, b: tensors of shape (m, n) and one dtype; f32, f16 or bf16; lent to the op.
        out: where the result goes; a new tensor by default.

    Example:
        >>> zero = api.zeros((2, 8), f32).sync()
        >>> float(gated(zero, zero).sync().to_numpy().sync().sum())
        0.0
    """
    y = api.empty(a.shape, a.dtype) if out is None else out
    return silu_times(y.partition((1, a.shape[1])), a, b).first().unpartition()


FORMS = ("gated", "plain", "row", "group")
"""Forms of the kernel; the third extent of a case is an index of this tuple."""


def _problem(case: Case, rng: np.random.Generator) -> Problem:
    m, n, form = case.shape
    x, residual, w = case.random(rng, m, n), case.random(rng, m, n), case.random(rng, n)
    if FORMS[form] == "gated":
        return Problem((case.poison(m, n),), (x, residual))
    if FORMS[form] == "plain":
        return Problem((case.poison(m, n), case.poison(m, n)), (x, residual, w))
    by = np.full((m,) if FORMS[form] == "row" else (m, n // GROUP), np.nan, np.float32)
    return Problem((np.full((m, n), np.nan, f8e4m3fn.numpy), by, case.poison(m, n)), (x, residual, w))


def _launch(case: Case, outputs: Tensors, inputs: Tensors) -> DeviceOp[Tensors]:
    form = FORMS[case.shape[2]]
    if form == "gated":
        return gated(*inputs, out=outputs[0]).map(lambda y: (y,))
    x, residual, w = inputs
    return summed_rms_norm(x, residual, w, 1e-5, scales=None if form == "plain" else form, out=outputs)


def reference(problem: Problem) -> Arrays:
    """Return the expected result in float64; a result of 8 bits is rounded to f8e4m3fn first."""
    x, residual, *w = (each.astype(np.float64) for each in problem.inputs)
    if not w:
        return (x / (1 + np.exp(-x)) * residual,)
    total = x + residual
    y = total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-5) * w[0]
    if len(problem.outputs) < 3:
        return y, total
    by = problem.outputs[1]
    parts = y.reshape(len(y), by.shape[1] if by.ndim > 1 else 1, -1)
    scale = np.abs(parts).max(2, keepdims=True) / LARGEST
    narrow = (parts / scale).astype(np.float32).astype(f8e4m3fn.numpy)
    return narrow.reshape(y.shape).astype(np.float64), scale.reshape(by.shape), total


CASES = (
    Case((3, 256, 3)),
    Case((5, 200, 1), bf16),
    Case((3, 256, 2)),
    Case((3, 256, 0)),
)

EXAMPLE = Example(
    name="norm_fused",
    problem=_problem,
    launch=_launch,
    reference=reference,
    nbytes=lambda case: 4 * case.shape[0] * case.shape[1] * case.dtype.bits // 8,
    flops=lambda case: 0,
    cases=CASES,
)

main = EXAMPLE.main

if __name__ == "__main__":
    main()
