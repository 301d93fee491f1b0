"""Calls of matrix products."""

from __future__ import annotations

import math
from typing import Any

from cutile.dtypes import i8, u8
from cutile.frontend.derived import Language, Term, value_of
from cutile.frontend.expect import flag_of, marker_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape
from cutile.frontend.registry import operation
from cutile.ir.core import Value
from cutile.language import markers
from cutile.ops.cast import Bitcast
from cutile.ops.matmul import ACCUMULATORS, Mma, MmaScaled


@operation
def mma(frame: Frame, a: Any, b: Any, acc: Any, use_fast_acc: Any = False) -> Any:
    tiles = [tile_of(frame, each, "mma") for each in (a, b, acc)]
    fast = flag_of(frame, use_fast_acc, "mma: use_fast_acc")
    return frame.emit(Mma(a=tiles[0], b=tiles[1], acc=tiles[2], use_fast_acc=fast))


@operation
def mmaf(frame: Frame, a: Any, b: Any, acc: Any, use_fast_acc: Any = False) -> Any:
    tiles = [tile_of(frame, each, "mmaf") for each in (a, b, acc)]
    for tile in tiles[:2]:
        if tile.tile.dtype.format is None:
            frame.type_error(f"mmaf: expected tiles of floats, got {tile.type}", remedy="Use ct.mmai for integers.")
    fast = flag_of(frame, use_fast_acc, "mmaf: use_fast_acc")
    return frame.emit(Mma(a=tiles[0], b=tiles[1], acc=tiles[2], use_fast_acc=fast))


def _read_as(frame: Frame, tile: Value, sign: Any) -> Value:
    """A tile of bytes whose bits are read as signed or unsigned, as `sign` says.

    None leaves the tile as it is.
    """
    if tile.tile.dtype not in (i8, u8):
        frame.type_error(f"mmai: expected tiles of i8 or u8, got {tile.type}", remedy="Use ct.mma for other types.")
    if sign is None:
        return tile
    wanted = i8 if marker_of(frame, sign, markers.signedness, "mmai") is markers.signedness.SIGNED else u8
    return tile if tile.tile.dtype is wanted else frame.emit(Bitcast(x=tile, dtype=wanted))


@operation
def mmai(frame: Frame, a: Any, b: Any, acc: Any, a_signedness: Any = None, b_signedness: Any = None) -> Any:
    left = _read_as(frame, tile_of(frame, a, "mmai"), a_signedness)
    right = _read_as(frame, tile_of(frame, b, "mmai"), b_signedness)
    return frame.emit(Mma(a=left, b=right, acc=tile_of(frame, acc, "mmai")))


@operation
def mmaf_scaled(frame: Frame, a: Any, b: Any, acc: Any, a_scale: Any, b_scale: Any) -> Any:
    tiles = [tile_of(frame, each, "mmaf_scaled") for each in (a, b, acc, a_scale, b_scale)]
    return frame.emit(MmaScaled(*tiles))


@operation
def matmul(frame: Frame, a: Any, b: Any) -> Any:
    ct = Language(frame)
    left, right = (Term(frame, tile_of(frame, factor, "matmul")) for factor in (a, b))
    for term, name in ((left, "a"), (right, "b")):
        if not term.shape:
            frame.type_error(f"matmul: {name} is a number, {term.dtype}", remedy="Multiply by numbers with *.")
        if term.dtype not in ACCUMULATORS:
            known = ", ".join(dtype.name for dtype in ACCUMULATORS)
            frame.type_error(
                f"matmul: {term.dtype} has no matrix product; there are those of {known}",
                remedy=f"Convert the tile: {name}.astype(ct.f32).",
            )
    row, column = len(left.shape) == 1, len(right.shape) == 1
    left = ct.reshape(left, (1, *left.shape)) if row else left
    right = ct.reshape(right, (*right.shape, 1)) if column else right
    if left.shape[-1] != right.shape[-2]:
        shapes = f"{a.tile.shape} and {b.tile.shape}"
        frame.type_error(
            f"matmul: the shapes {shapes} do not fit",
            remedy="The last extent of a is the last but one of b, or its only one.",
        )
    batch = broadcast_shape(frame, [left.shape[:-2], right.shape[:-2]], "matmul")
    rows, columns = left.shape[-2], right.shape[-1]
    together = (math.prod(batch),) if batch else ()  # mma takes one axis of batches
    factors = [
        ct.reshape(ct.broadcast(factor, (*batch, *factor.shape[-2:])), (*together, *factor.shape[-2:]))
        for factor in (left, right)
    ]
    accumulator = ACCUMULATORS[left.dtype][0]
    start = ct.constant(0, (*together, rows, columns), accumulator)
    product = ct.mma(*factors, start)
    shape = (*batch, *(() if row else (rows,)), *(() if column else (columns,)))
    product = ct.reshape(product, shape)
    return value_of(product.astype(left.dtype) if left.dtype.computes and left.dtype.is_float else product)
