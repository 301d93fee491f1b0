"""Partitions inside a kernel: tensors as grids of tiles, to read and to write."""

from __future__ import annotations

from typing import Any

from cutile.language.facts import Subscriptable
from cutile.language.mapped import PartitionIndex
from cutile.language.token import Token
from cutile.tile import Tile, outside_kernel


class Partition(Subscriptable):
    """A tensor seen as a grid of tiles, inside a kernel.

    Example:
        >>> @ct.entry
        ... def copy(y: ct.Mut, x: ct.Tensor):
        ...     part = x.partition(y.shape)
        ...     y.store(part.load(ct.get_tile_block_id()[: y.ndim]))
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of one tile.

        Example:
            >>> run(lambda x: x + x_in.partition((1,)).shape[0], [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Partition.shape")

    @property
    def dtype(self) -> Any:
        """The element type.

        Example:
            >>> run(lambda x: x + ct.constant(1, x.shape, x_in.partition((1,)).dtype), [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Partition.dtype")

    def load(self, index: tuple[int | Tile, ...] | int | Tile | PartitionIndex) -> Tile:
        """The tile at a tile index, padded past the edges of the tensor.

        The index must name a tile, and is checked: the compiler proves it, has the launch check it, or leaves a check
        in the kernel.

        Example:
            >>> run(lambda x: x + ct.reduce_sum(x_in.partition((2,)).load(1), 0), [1.0, 2.0, 3.0])
            [4.0, 5.0, 6.0]
        """
        outside_kernel("Partition.load")

    def inside(self, index: tuple[int | Tile, ...] | int | Tile | PartitionIndex) -> Tile:
        """Which elements of the tile at an index lie within the tensor: a tile of bool.

        The other elements of a loaded tile are padding. Zeros add nothing to a sum; but `t - mean` is not zero there.
        So mask the padding before it is combined with elements of the tensor.

        Example:
            >>> @ct.entry
            ... def centre(y: ct.Mut, x: ct.Tensor):
            ...     part = x.partition((8,))  # of 5 elements
            ...     t, real = part.load(0), part.inside(0)
            ...     mean = ct.reduce_sum(t, 0) / ct.get_tensor_shape(x)[0]
            ...     y.store(ct.reduce_sum(ct.select(real, (t - mean) ** 2, 0.0), 0).reshape((1,)))
            >>> x = ct.api.arange(5, ct.f32).sync()
            >>> centre(ct.api.zeros((1,)).partition((1,)), x).first().unpartition().sync().numpy().tolist()
            [10.0]
        """
        outside_kernel("Partition.inside")

    def load_index(self, index: PartitionIndex) -> Tile:
        """`load` at an index that a mapped partition minted.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
            ...     part = x.partition(z.shape)
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * part.load_index(index), index)
            >>> z, x = ct.api.zeros((5,)).sync(), ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("Partition.load_index")

    def load_pipelined(self, index: tuple[int | Tile, ...] | int | Tile, latency: int | None = None) -> Tile:
        """`load`, with a hint: how many iterations of its loop it may run ahead.

        `latency` is at least 1, or None for no hint. See `Latency`.

        Example:
            >>> @ct.entry
            ... def total(y: ct.Mut, x: ct.Tensor):
            ...     part, sum_ = x.partition((4,)), ct.constant(0.0, (4,), ct.f32)
            ...     for i in range(ct.num_tiles(part, 0)):
            ...         sum_ += part.load_pipelined(i, latency=3)
            ...     y.store(ct.reduce_sum(sum_, 0).reshape((1,)))
            >>> x = ct.api.arange(10, ct.f32).sync()
            >>> total(ct.api.zeros((1,)).partition((1,)), x).first().unpartition().to_numpy().sync().tolist()
            [45.0]
        """
        outside_kernel("Partition.load_pipelined")

    def load_unchecked(self, index: tuple[int | Tile, ...] | int | Tile) -> Tile:
        """`load` without the check: padding where there is no such tile.

        For kernels that say `@entry(unsafe=True)`.

        Example:
            >>> run(lambda x: x_in.partition((2,)).load_unchecked(1), [1.0, 2.0], unsafe=True)
            [0.0, 0.0]
        """
        outside_kernel("Partition.load_unchecked")


class PartitionMut(Partition):
    """A grid of tiles to read and write.

    It covers the block's own tile (`y.partition_mut`), or the whole tensor (`y.partition_full_mut`).

    Example:
        >>> @ct.entry
        ... def negate(y: ct.Mut, x: ct.Tensor):
        ...     part, source = y.partition_mut((1, 8)), x.partition((1, 8))
        ...     first, column, _ = ct.get_tile_block_id()
        ...     for row in range(ct.num_tiles(part, 0)):
        ...         part.store(-source.load((first * y.shape[0] + row, column)), (row, 0))
    """

    def store(self, value: Tile | float, index: tuple[int | Tile, ...] | int | Tile) -> Token:
        """Write the tile at a tile index, which is checked.

        Elements past the edges are dropped.

        Example:
            >>> @ct.entry
            ... def ramp(y: ct.Mut):
            ...     part = y.partition_mut((1,))
            ...     for i in range(ct.num_tiles(part, 0)):
            ...         part.store(ct.broadcast(i, (1,)), i)
            >>> ramp(ct.api.zeros((3,), ct.i32).partition((3,))).first().unpartition().to_numpy().sync().tolist()
            [0, 1, 2]
        """
        outside_kernel("PartitionMut.store")

    def store_index(self, value: Tile | float, index: PartitionIndex) -> Token:
        """`store` at an index that a mapped partition minted.

        Example:
            >>> @ct.entry(unsafe=True)
            ... def both(z: ct.MappedPartitionMut, y: ct.Mut):
            ...     whole = y.partition_full_mut(z.shape)
            ...     for index in z.iter_indices():
            ...         z.store(ct.constant(1.0, z.shape, z.dtype), index)
            ...         whole.store_index(ct.constant(2.0, z.shape, y.dtype), index)
        """
        outside_kernel("PartitionMut.store_index")

    def store_unchecked(self, value: Tile | float, index: tuple[int | Tile, ...] | int | Tile) -> Token:
        """`store` without the check: where there is no such tile, nothing is written.

        For kernels that say `@entry(unsafe=True)`.

        Example:
            >>> @ct.entry(unsafe=True)
            ... def ramp(y: ct.Mut):
            ...     part = y.partition_mut((1,))
            ...     for i in range(5):                                     # two too many: they go nowhere
            ...         part.store_unchecked(ct.broadcast(i, (1,)), i)
            >>> ramp(ct.api.zeros((3,), ct.i32).partition((3,))).first().unpartition().to_numpy().sync().tolist()
            [0, 1, 2]
        """
        outside_kernel("PartitionMut.store_unchecked")


__all__ = (
    "Partition",
    "PartitionMut",
)
