"""By which instruction each product of a lowered kernel is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.layout_assignment import is_tile
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import StagedMma
from cutile.backend.cuda.ops.mma import Dot, SimtMma, Wgmma
from cutile.backend.cuda.panels import STEP_BYTES
from cutile.backend.cuda.smem_sizes import tensor_cores
from cutile.backend.cuda.target import Architecture
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.dtypes import DTypeLike, f16, f32, f64, tf32
from cutile.ir.core import Function, Op
from cutile.ops.matmul import Mma

FMA = "FMA f32 on the CUDA cores"


def _wgmma(left: DTypeLike, right: DTypeLike, sums: DTypeLike, columns: int) -> str:
    """An instruction of warpgroups (PTX ISA, `wgmma.mma_async`)."""
    form = MMA_ATOMS[left]
    names = " x ".join(dict.fromkeys((form.name, MMA_ATOMS[right].name)))
    return f"wgmma m64n{columns}k{STEP_BYTES * 8 // left.bits} {names} -> {sums}"


def _mma_sync(left: DTypeLike, right: DTypeLike, sums: DTypeLike, arch: Architecture, depth: int) -> str:
    """An instruction of one warp (PTX ISA, `mma.sync`)."""
    capability = (arch.major, arch.minor)
    if left is f64:
        tall = next(each for each in (16, 8, 4) if depth % each == 0)
        return f"mma.sync m16n8k{tall} f64 -> f64" if capability >= (9, 0) else "mma.sync m8n8k4 f64 -> f64"
    # There are no products of 8-bit floats before sm_89, nor of single warps on sm_90: they are converted to f16.
    converted = left.is_float8 and (capability < (8, 9) or arch.major == 9)
    of = [f16] if converted else list(dict.fromkeys((left, right)))
    names = " x ".join(each.name for each in of)
    was = f", converted from {left}" if converted else ""
    return f"mma.sync m16n8k{STEP_BYTES * 8 // of[0].bits} {names} -> {sums}{was}"


def _grouped(op: Wgmma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    columns = layout.cover[0 if op.exchanged else 1]
    notes = ["operands exchanged, for few rows"] if op.exchanged else []
    if op.promoted:
        notes.append(f"added up in f32, {op.promoted} columns at a time")
    if op.crosswise:
        notes.append("the left operand transposed by way of registers")
    return _wgmma(op.left_dtype, op.right_dtype, op.acc.tile.dtype, op.promoted or columns), notes


def _dot(op: Dot, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    notes = ["left operand in registers"] if op.from_registers else []
    return _wgmma(op.left_dtype, op.right_dtype, op.acc_dtype, layout.cover[1]), notes


def _outer(op: SimtMma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    return FMA, ()


def _staged(op: StagedMma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    if not tensor_cores(op.dtype):
        return FMA, ()
    dtype = tf32 if op.rounds else op.dtype
    notes = ["f32 rounded to tf32"] if op.rounds else []
    return _mma_sync(dtype, tf32 if op.rounds else op.other, op.acc.tile.dtype, arch, op.depth), notes


def _plain(op: Mma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    left, right = op.a.tile, op.b.tile
    notes = ["not pipelined: each step waits for its loads"]
    if not tensor_cores(left.dtype):
        return FMA, notes
    return _mma_sync(left.dtype, right.dtype, op.acc.tile.dtype, arch, left.shape[-1]), notes


_INSTRUCTIONS: dict[type[Op], Callable[[Any, Layout, Architecture], tuple[str, Sequence[str]]]] = {
    Wgmma: _grouped,
    Dot: _dot,
    SimtMma: _outer,
    StagedMma: _staged,
    Mma: _plain,
}


def products(function: Function, arch: Architecture) -> list[str]:
    """A line for each product: its result, its instruction, how it is fed.

    Products with one line and one instruction are one: a loop that was rotated has a copy of each.
    """
    layouts = layouts_of(function)
    lines: dict[str, None] = {}
    for op in function.walk():
        describe = _INSTRUCTIONS.get(type(op))
        if describe is None:
            continue
        instruction, notes = describe(op, layouts[op.attributes["layout"]], arch)
        # Products of one shape may be copies, whose results are named apart: `acc`, `acc_1`.
        named = op.result.name or next((x.name for x in op.operands if is_tile(x) and x.name), "product")
        name = named.rstrip("0123456789").rstrip("_")
        place = f" (line {op.location.line})" if op.location else ""
        lines["; ".join([f"{name}{place}: {instruction}", *notes])] = None
    return list(lines)


def is_f32_by_fma(function: Function) -> bool:
    """Whether an f32 product goes by FMA where tf32 would take the tensor cores."""
    return any(
        isinstance(op, SimtMma)
        or (isinstance(op, StagedMma) and op.dtype is f32 and not op.rounds)
        or (isinstance(op, Mma) and op.a.tile.dtype is f32)
        for op in function.walk()
    )
