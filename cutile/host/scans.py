"""Scans of whole arrays, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from cuda_async import DeviceOp
from cutile.block_scan import scan_blocks
from cutile.dtypes import DTypeLike, f32, u64
from cutile.entry import Kernel, entry
from cutile.errors import ArgumentError
from cutile.host.creation import Empty, Full
from cutile.host.tensor import Tensor as HostTensor
from cutile.language import Const, Mut, SharedMut, Tensor, load_tile_like, reduce, reverse
from cutile.language import scan as scan_of_tile

__all__ = ("scan_op",)

TILE_BYTES = 32768
"""Of a tile block. Tiles of so many bytes are the fastest on an H200, and a CPU's cache has room for one."""


@cache
def _kernel(function: Callable[[Any, Any], Any], identity: Any) -> Kernel:
    """The kernel of a function, which is compiled once for each element type."""

    @entry
    def array_scan(y: Mut, x: Tensor, state: SharedMut, *, WIDE: Const = 0):
        """y[i] = function(y[i - 1], x[i]), in f32 where WIDE is 1."""
        tile = load_tile_like(x, y).astype(f32 if WIDE else y.dtype)
        inside = scan_of_tile(tile, 0, reverse.FORWARD, identity, function)
        before = scan_blocks(state, reduce(tile, 0, identity, function), identity, function)
        y.store(function(before, inside).astype(y.dtype))

    return array_scan


def scan_op(
    x: HostTensor, function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeLike, what: str
) -> DeviceOp[HostTensor]:
    """An op that yields the running results of a function over a tensor of one axis.

    Raises:
        ArgumentError: `x` has another number of axes.
    """
    if len(x.shape) != 1:
        raise ArgumentError(
            f"{what}: expected a tensor of one axis, got one of shape {x.shape}; reshape((-1,)) it, or scan rows in a "
            "kernel: ct.cumsum(tile, 1), ct.scan(tile, 1, ...)"
        )
    result = Empty(x.shape, dtype)
    if not x.shape[0]:
        return result
    tile = TILE_BYTES * 8 // max(dtype.bits, 32)
    blocks = -(-x.shape[0] // tile)
    state = Full((4 * blocks,), u64, np.zeros((), np.uint64), "zeros")
    launch = _kernel(function, identity)(result.partition((tile,)), x, state, WIDE=int(dtype.is_half))
    return launch.first().unpartition()
