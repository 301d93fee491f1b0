"""Calls of matrix products."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import i8, u8
from cutile.frontend.expect import flag_of, marker_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.registry import operation
from cutile.ir.core import Value
from cutile.language import markers
from cutile.ops.cast import Bitcast
from cutile.ops.matmul import Mma, MmaScaled


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
    """A tile of bytes, its bits read as signed or unsigned.

    None leaves that to its dtype.
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
