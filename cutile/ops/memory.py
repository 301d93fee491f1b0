"""Tiles from and to memory.

Loads pad with zeros past the edges of a tensor. Stores drop the elements past them.

A tile index counts in tiles: index `i` with extent `t` covers the elements `i * t` to before `(i + 1) * t`.
"""

from __future__ import annotations

import math

from cutile.dtypes import i32
from cutile.errors import KernelTypeError
from cutile.ir.core import ANY_MUT, ANY_TENSOR, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type

MAX_EXTENT = 2**31 - 1 - 2**20
"""The largest extent of a tensor that a launch takes. Rounded up to a whole number of tiles, each of up to 2**20
elements, it fits an i32."""


class TensorDim(Op, name="tensor_dim", spelled=("num_tiles", "get_tensor_shape")):
    """The extent of a tensor along an axis, as an i32 scalar.

    Examples:
        >>> run(lambda x: x + ct.get_tensor_shape(x_in)[0], [1, 2, 3], dtype="i32")
        [4, 5, 6]
    """

    x: Value = operand(ANY_TENSOR)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rank = self.x.tensor.rank
        if not 0 <= self.axis < rank:
            raise KernelTypeError(f"axis {self.axis} of a tensor with {rank} axes")
        return (TileType(i32),)


class LoadTile(
    Op,
    name="load_tile",
    spelled=(
        "load_tile", "load_tile_like", "load_tensor", "Tensor.load_tile", "Partition.load", "Partition.load_index",
        "MappedPartitionMut.load",
    ),
    effect=Effect.READ,
):  # fmt: skip
    """The tile of `shape` at the tile index `index` (one integer scalar per axis).

    Elements past the edges are zeros, also for an index far outside of the tensor.

    Two hints change no result. `latency` is how many iterations of its loop the load may run ahead; 0 means as many as
    there is room for. `bulk` says whether a GPU's TMA unit may load the tile.

    Examples:
        >>> run(lambda x: x + x, [1.0, 2.0])
        [2.0, 4.0]
    """

    x: Value = operand(ANY_TENSOR)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    latency: int = attribute(default=0)
    bulk: bool = attribute(default=True)

    def infer(self) -> tuple[Type, ...]:
        rank = self.x.tensor.rank
        if len(self.shape) != rank or len(self.index) != rank:
            raise KernelTypeError(
                f"load: a tensor of rank {rank} takes a tile of rank {rank} and {rank} indices, "
                f"got a tile of shape {self.shape} and {len(self.index)} indices"
            )
        return (TileType(self.x.tensor.dtype, self.shape),)


class LoadMut(Op, name="load_mut", spelled=("load_tile_mut", "Mut.load"), effect=Effect.READ):
    """This block's own tile; zeros past the edges.

    Examples:
        >>> run(lambda x: x * x, [2.0, 3.0])
        [4.0, 9.0]
    """

    x: Value = operand(ANY_MUT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.mut.tile_type,)


def store_remedy(tile: tuple[int, ...], partition: tuple[int, ...], dtype: str) -> str:
    """The remedy where a value to store does not have the type of a partition's tiles.

    Args:
        tile: the shape of the value.
        partition: the shape of the partition's tiles.
        dtype: the partition's dtype, as a kernel names it.

    Example:
        >>> store_remedy((16,), (4, 4), "y.dtype")
        'Reshape it: value.reshape((4, 4)).'
    """
    if tile == partition:
        return f"Convert it: ct.convert_tile(value, {dtype})."
    if math.prod(tile) == math.prod(partition):
        return f"Reshape it: value.reshape({partition})."
    pairs = list(zip(reversed(tile), reversed(partition), strict=False))
    if len(tile) <= len(partition) and all(size in (1, extent) for size, extent in pairs):
        return f"Broadcast it: value.broadcast({partition})."
    return f"Compute a tile of the shape {partition}, or cut the tensor into tiles of {tile} before the launch."


class StoreMut(Op, name="store_mut", spelled=("store_tile", "Mut.store"), effect=Effect.WRITE):
    """Write this block's own tile; elements past the edges are dropped.

    Examples:
        >>> run(lambda x: -x, [2.0, 3.0])
        [-2.0, -3.0]
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        expected = self.x.mut.tile_type
        if self.value.type != expected:
            remedy = store_remedy(self.value.tile.shape, expected.shape, f"{self.x.name or 'y'}.dtype")
            raise KernelTypeError(f"store: the tile must be {expected}, got {self.value.type}", remedy=remedy)
        return ()
