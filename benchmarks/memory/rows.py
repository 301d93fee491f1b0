# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false
# (torch ships no types that it needs)
"""Cases of `benchmarks.memory` that reduce rows: softmax, norms, cross entropy, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from benchmarks.memory import kernels as k
from benchmarks.memory.case import Array, Case, Kind, suffix, times
from cuda_async import DeviceOp
from cutile import CompileOptions, Tensor, bf16, f8e4m3fn, f32, i32
from kernels import norm_backward, norm_fused

SMALL_OPTIONS = CompileOptions(num_worker_warps=4)
"""Warps of small kernels: with the compiler's one warp, softmax of 8 x 1024 takes 1.9 us in place of 1.5."""


def softmax(columns: int, rows: int = 0, dtype: Kind = bf16, *, height: int = 1, tile: int = 0, many: int = 1) -> Case:
    """Softmax of rows."""
    kernel, options = k.padded_softmax if tile else k.softmax, CompileOptions() if many == 1 else SMALL_OPTIONS
    shape = times(rows, columns)

    def exact(xp: Any, x: Any) -> Any:
        e = xp.exp(x)  # of standard normal numbers
        return e / e.sum(1)[:, None]

    name = f"softmax {columns}{suffix(rows, tile)}"
    if many > 1:
        name = f"softmax {shape[0]} x {columns}, graph of {many}"
    return Case(name, (Array(shape, dtype),), (Array(shape, dtype),),
                lambda outs, ins: [
                    kernel(outs[0].mut.partition((height, tile or columns)), ins[0]).compile_options(options)
                ], exact, lambda torch, x: torch.softmax(x, 1), 0.95, many=many)  # fmt: skip


def softmax_backward(columns: int, rows: int = 0, dtype: Kind = bf16) -> Case:
    """The gradient of a softmax."""
    shape = times(rows, columns)
    return Case(
        f"softmax backward {columns}", (Array(shape, dtype),), (Array(shape, dtype, "positive"), Array(shape, dtype)),
        lambda outs, ins: [k.softmax_backward(outs[0].mut.partition((1, columns)), *ins)],
        lambda xp, y, dy: y * (dy - (y * dy).sum(1)[:, None]),
        lambda torch, y, dy: torch._softmax_backward_data(dy, y, 1, y.dtype), 0.93,
    )  # fmt: skip


SUMS_OPTIONS = CompileOptions(fast_math=("contract",))
"""Compile options of layer norm by sums: a square is added by one multiply-add."""


def layer_norm(columns: int, rows: int = 0, dtype: Kind = bf16, *, sums: bool = False) -> Case:
    """Layer norm with weight and bias, in three passes; in two by sums."""
    shape = times(rows, columns)

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        kernel, options = (k.layer_norm_by_sums, SUMS_OPTIONS) if sums else (k.layer_norm, CompileOptions())
        yield kernel(outs[0].mut.partition((1, columns)), *ins, 1e-5).compile_options(options)

    def exact(xp: Any, x: Any, w: Any, b: Any) -> Any:
        centred = x - x.mean(1)[:, None]
        return centred / xp.sqrt((centred * centred).mean(1) + 1e-5)[:, None] * w + b

    return Case(
        f"layer_norm{' by sums' if sums else ''} {columns}{suffix(rows)}", (Array(shape, dtype),),
        (Array(shape, dtype), Array((columns,), dtype), Array((columns,), dtype)), ops, exact,
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (columns,), w, b), 0.95,
    )  # fmt: skip


def rms_norm(columns: int, rows: int = 0, dtype: Kind = bf16, *, tile: int = 0, many: int = 1) -> Case:
    """RMS norm with weight."""
    shape = times(rows, columns)
    kernel, options = k.padded_rms_norm if tile else k.rms_norm, CompileOptions() if many == 1 else SMALL_OPTIONS
    name = f"rms_norm {columns}{suffix(rows, tile)}"
    if many > 1:
        name = f"rms_norm {shape[0]} x {columns}, graph of {many}"
    return Case(
        name, (Array(shape, dtype),), (Array(shape, dtype), Array((columns,), dtype)),
        lambda outs, ins: [
            kernel(outs[0].mut.partition((1, tile or columns)), *ins, 1e-5).compile_options(options)
        ],
        lambda xp, x, w: x / xp.sqrt((x * x).mean(1) + 1e-5)[:, None] * w,
        lambda torch, x, w: torch.nn.functional.rms_norm(x, (columns,), w, 1e-5), 0.95, many=many,
    )  # fmt: skip


PIECE, PIECE_OPTIONS = 16384, CompileOptions(num_worker_warps=8)
"""Warps of cross entropy: 64 elements a thread. `occupancy` of three blocks is up to 0.02 slower."""


def cross_entropy(columns: int, rows: int = 4096, dtype: Kind = bf16, *, piece: int = 0) -> Case:
    """The loss of each row."""
    options = CompileOptions() if piece else PIECE_OPTIONS
    piece = piece or PIECE

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        loss = k.cross_entropy(outs[0].mut.partition((1,)), *ins, B=piece, T=min(256, piece // 8))
        yield loss.compile_options(options)

    def exact(xp: Any, x: Any, target: Any) -> Any:
        return xp.log(xp.exp(x).sum(1)) - x[xp.arange(rows, device=x.device), target]

    return Case(
        f"cross_entropy {columns}{suffix(rows if rows != 4096 else 0)}", (Array((rows,), f32),),
        (Array((rows, columns), dtype), Array((rows,), i32, below=columns)),
        ops, exact,
        lambda torch, x, target: torch.nn.functional.cross_entropy(x, target.long(), reduction="none"), 0.96,
        reads=True,
    )  # fmt: skip


def cross_entropy_backward(columns: int, rows: int = 4096, dtype: Kind = bf16, *, piece: int = 4096) -> Case:
    """The gradient of the logits, from the logarithm of each row's sum, which the loss has kept."""

    def exact(xp: Any, x: Any, target: Any, log_sum: Any, g: Any) -> Any:
        dx = xp.exp(x - log_sum[:, None])
        dx[xp.arange(rows, device=x.device), target] -= 1
        return dx * g[:, None]

    def call(torch: Any, x: Any, target: Any, log_sum: Any, g: Any) -> Any:
        hit = torch.arange(columns, device=x.device) == target[:, None]
        p = torch.exp(x.float() - log_sum[:, None])
        return ((p - hit.float()) * g[:, None]).to(x.dtype)

    return Case(
        f"cross_entropy backward {columns}", (Array((rows, columns), dtype),),
        (Array((rows, columns), dtype), Array((rows,), i32, below=columns), Array((rows,), f32), Array((rows,), f32)),
        lambda outs, ins: [k.cross_entropy_backward(outs[0].mut.partition((1, piece)), *ins)], exact, call, 0.95,
    )  # fmt: skip


# -- norms, backward and with what stands around them ----------------------------------------------


def layer_norm_backward(
    columns: int, rows: int = 0, dtype: Kind = bf16, *, blocks: int = 132, at_once: int = 0
) -> Case:
    """dx, dw and db of layer norm; the mean and 1 / deviation of each row are given."""
    rows, _ = times(rows, columns)
    at_once = at_once or max(1, norm_backward.ELEMENTS // columns)
    height = norm_backward.rows_per_block(rows, blocks, at_once)

    def exact(xp: Any, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
        normed = (x - mean[:, None]) * rstd[:, None]
        g = dy * w
        dx = (g - g.mean(1)[:, None] - normed * (g * normed).mean(1)[:, None]) * rstd[:, None]
        return dx, xp.stack(((dy * normed).sum(0), dy.sum(0))).reshape(1, 2 * columns)

    def call(torch: Any, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
        numbers = mean[:, None], rstd[:, None]
        return torch.ops.aten.native_layer_norm_backward(dy, x, (columns,), *numbers, w, w, (True, True, True))

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        dx, grads, sums = outs
        yield norm_backward.layer_norm_rows(
            dx.mut.partition((height, columns)), sums.mut.partition((1, 2 * columns)), *ins, ROWS=at_once
        )
        yield norm_backward.add_rows(grads.mut.partition((1, 64)), sums)

    matrix, number = Array((rows, columns), dtype), Array((rows,), f32, "positive")
    return Case(
        f"layer_norm backward {columns}", (matrix, Array((1, 2 * columns), dtype)),
        (matrix, matrix, Array((columns,), dtype), number, number), ops, exact, call, 0.88,
        scratch=(Array((-(-rows // height), 2 * columns), f32),),
    )  # fmt: skip


def rms_norm_backward(columns: int, rows: int = 0, dtype: Kind = bf16, *, blocks: int = 132, at_once: int = 0) -> Case:
    """dx and dw of RMS norm; 1 / root mean square of each row is given."""
    rows, _ = times(rows, columns)
    at_once = at_once or max(1, norm_backward.ELEMENTS // columns)
    height = norm_backward.rows_per_block(rows, blocks, at_once)

    def exact(xp: Any, dy: Any, x: Any, w: Any, rstd: Any) -> Any:
        normed = x * rstd[:, None]
        g = dy * w
        return (g - normed * (g * normed).mean(1)[:, None]) * rstd[:, None], (dy * normed).sum(0).reshape(1, columns)

    def call(torch: Any, dy: Any, x: Any, w: Any, rstd: Any) -> Any:
        return torch.ops.aten._fused_rms_norm_backward(dy, x, (columns,), rstd[:, None], w, (True, True))

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        dx, dw, sums = outs
        yield norm_backward.rms_norm_rows(
            dx.mut.partition((height, columns)), sums.mut.partition((1, columns)), *ins, ROWS=at_once
        )
        yield norm_backward.add_rows(dw.mut.partition((1, 64)), sums)

    matrix = Array((rows, columns), dtype)
    return Case(
        f"rms_norm backward {columns}", (matrix, Array((1, columns), dtype)),
        (matrix, matrix, Array((columns,), dtype), Array((rows,), f32, "positive")), ops, exact, call, 0.88,
        scratch=(Array((-(-rows // height), columns), f32),),
    )  # fmt: skip


def add_rms_norm(columns: int, rows: int = 0, dtype: Kind = bf16, *, scales: Literal["", "row", "128"] = "") -> Case:
    """The sum of two matrices and its RMS norm, also in 8 bits with a scale for each row or each 128 of a row."""
    rows, _ = times(rows, columns)
    groups = columns // norm_fused.GROUP

    def exact(xp: Any, x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        y = total / xp.sqrt((total * total).mean(1) + 1e-5)[:, None] * w
        if not scales:
            return y, total
        parts = y.reshape(rows, 1 if scales == "row" else groups, -1)
        by = (abs(parts).max(2).values if hasattr(parts, "amax") else abs(parts).max(2)) / 448
        return (parts / by[:, :, None]).reshape(rows, columns), by.reshape(rows, -1).squeeze(), total

    def call(torch: Any, x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        y = torch.nn.functional.rms_norm(total, (columns,), w, 1e-5)
        if not scales:
            return y, total
        parts = y.float().reshape(rows, 1 if scales == "row" else groups, -1)
        by = parts.abs().amax(2, keepdim=True) / 448
        return (parts / by).reshape(rows, columns).to(torch.float8_e4m3fn), by, total

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        row = (1, columns)
        if not scales:
            yield norm_fused.add_rms_norm(*(each.mut.partition(row) for each in outs), *ins, 1e-5)
        elif scales == "row":
            y, by, total = outs
            tiles = y.mut.partition(row), by.mut.partition((1,)), total.mut.partition(row)
            yield norm_fused.add_rms_norm_rows(*tiles, *ins, 1e-5)
        else:
            y, by, total = outs
            tiles = y.mut.partition(row), by.mut.partition((1, groups)), total.mut.partition(row)
            yield norm_fused.add_rms_norm_groups(*tiles, *ins, 1e-5)

    matrix = Array((rows, columns), dtype)
    narrow, by = Array((rows, columns), f8e4m3fn), Array((rows,) if scales == "row" else (rows, groups), f32)
    name = f"add + rms_norm {columns}" + (f", fp8 by {scales}" if scales else "")
    return Case(
        name, (narrow, by, matrix) if scales else (matrix, matrix), (matrix, matrix, Array((columns,), dtype)), ops,
        exact, call, 0.93, error=(4e-2, 1e-5, 4e-3) if scales else 4e-3,
    )  # fmt: skip


def silu_times(columns: int, rows: int = 0, dtype: Kind = bf16) -> Case:
    """silu(a) * b"""
    matrix = Array(times(rows, columns), dtype)
    return Case(
        f"silu(a) * b, {columns}", (matrix,), (matrix, matrix),
        lambda outs, ins: [norm_fused.silu_times(outs[0].mut.partition((1, columns)), *ins)],
        lambda xp, a, b: a / (1 + xp.exp(-a)) * b, lambda torch, a, b: torch.nn.functional.silu(a) * b, 0.93,
    )  # fmt: skip
