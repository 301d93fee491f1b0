"""Mapped partitions.

In such an output each tile block writes a stream of tiles, at the indices that the partition mints for the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cutile.language.facts import MutArgument, Subscriptable
from cutile.language.token import Token
from cutile.tile import Tile, outside_kernel

OWNED: Final = 0
"""An entry of a map: the stream does not go along this axis. Each of its indices owns all tiles along the axis."""


class PartitionIndex(Subscriptable):
    """An index that a mapped partition minted, of a tile that this block alone writes.

    Loads take it as well, from this partition and from others.
    """

    def coords(self) -> tuple[int, ...]:
        """The tile's coordinates, one per axis.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
            ...     part = x.partition(z.shape)
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * part.load(index.coords()), index)
            >>> z, x = ct.api.zeros((5,)).sync(), ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("PartitionIndex.coords")

    def components(self) -> tuple[Any, ...]:
        """One component per axis.

        An OWNED axis has a range of components to loop over.

        `z.store` takes a tuple of components of one index; elsewhere a component is an integer.

        Example:
            >>> @ct.entry
            ... def number(z: ct.MappedPartitionMut):
            ...     for index in z.iter_indices():
            ...         row, columns = index.components()       # the second axis is the block's own: all of it
            ...         for column in columns:
            ...             z.store(ct.broadcast(10 * row + column, z.shape), (row, column))
            >>> z = ct.api.zeros((2, 3), ct.i32).sync().partition((1, 1)).map((1, ct.OWNED), 2)
            >>> number(z).first().unpartition().to_numpy().sync().tolist()
            [[0, 1, 2], [10, 11, 12]]
        """
        outside_kernel("PartitionIndex.components")


class MappedPartitionMut(Subscriptable):
    """A persistent output: `z: MappedPartitionMut`.

    There is a fixed number of tile blocks, and each goes over many tiles.

    The host maps a partition, `z.partition((64, 64)).map((4, 1), num_tile_blocks)`; the kernel loops over the indices
    that the map mints for its block, and stores at those alone.

    Example:
        >>> @ct.entry
        ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
        ...     part = x.partition(z.shape)
        ...     for index in z.iter_indices():
        ...         z.store(2.0 * part.load(index), index)
        >>> z = ct.api.zeros((8, 8)).sync()
        >>> out = double(z.partition((2, 2)).map((2, 1), 3), ct.api.ones((8, 8)).sync()).sync()
        >>> float(out.z.unpartition().to_numpy().sync().sum())
        128.0
    """

    if TYPE_CHECKING:

        def __launch_argument__(self) -> MutArgument: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The partition's shape: constants.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * x.partition(z.shape).load(index), index)
            >>> z, x = ct.api.zeros((5,)).sync(), ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("MappedPartitionMut.shape")

    @property
    def dtype(self) -> Any:
        """The element type.

        Example:
            >>> @ct.entry
            ... def fill(z: ct.MappedPartitionMut):
            ...     for index in z.iter_indices():
            ...         z.store(ct.constant(3, z.shape, z.dtype), index)
            >>> z = ct.api.zeros((5,)).sync()
            >>> fill(z.partition((2,)).map((1,), 2)).first().unpartition().to_numpy().sync().tolist()
            [3.0, 3.0, 3.0, 3.0, 3.0]
        """
        outside_kernel("MappedPartitionMut.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> @ct.entry
            ... def fill(z: ct.MappedPartitionMut):
            ...     for index in z.iter_indices():
            ...         z.store(ct.constant(z.ndim, z.shape, z.dtype), index)
            >>> z = ct.api.zeros((3,)).sync()
            >>> fill(z.partition((2,)).map((1,), 1)).first().unpartition().to_numpy().sync().tolist()
            [1.0, 1.0, 1.0]
        """
        outside_kernel("MappedPartitionMut.ndim")

    def iter_indices(self) -> Iterable[PartitionIndex]:
        """This block's indices; over all blocks, each tile's index comes once.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
            ...     part = x.partition(z.shape)
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * part.load(index), index)
            >>> z, x = ct.api.zeros((5,)).sync(), ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("MappedPartitionMut.iter_indices")

    def iter_indices_with(self, other: MappedPartitionMut) -> Iterable[PartitionIndex]:
        """`iter_indices` for two outputs with the same map and the same number of tiles.

        Each index is valid for both.

        Example:
            >>> @ct.entry
            ... def both(y: ct.MappedPartitionMut, z: ct.MappedPartitionMut):
            ...     for index in y.iter_indices_with(z):
            ...         y.store(ct.constant(1.0, y.shape, y.dtype), index)
            ...         z.store(ct.constant(2.0, z.shape, z.dtype), index)
            >>> y, z = (ct.api.zeros((3,)).sync().partition((2,)).map((1,), 2) for _ in range(2))
            >>> [each.unpartition().to_numpy().sync().tolist() for each in both(y, z).sync()]
            [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        """
        outside_kernel("MappedPartitionMut.iter_indices_with")

    def iter_indices_within(self, ranges: Sequence[tuple[int, int]]) -> Iterable[PartitionIndex]:
        """`iter_indices` over a part of the tiles.

        `ranges` has `(first, count)` for each axis, in tiles. A literal count of -1 means the rest of the axis.

        Example:
            >>> @ct.entry
            ... def middle(z: ct.MappedPartitionMut, first: ct.i32):
            ...     for index in z.iter_indices_within([(first, 2)]):       # two tiles from the `first` one
            ...         z.store(ct.constant(1, z.shape, z.dtype), index)
            >>> z = ct.api.zeros((8,), ct.i32).sync().partition((2,)).map((1,), 2)
            >>> middle(z, 1).first().unpartition().to_numpy().sync().tolist()
            [0, 0, 1, 1, 1, 1, 0, 0]
        """
        outside_kernel("MappedPartitionMut.iter_indices_within")

    def iter_indices_within_with(
        self, ranges: Sequence[tuple[int, int]], other: MappedPartitionMut
    ) -> Iterable[PartitionIndex]:
        """`iter_indices_within` for two outputs.

        Example:
            >>> @ct.entry
            ... def ends(y: ct.MappedPartitionMut, z: ct.MappedPartitionMut):
            ...     for index in y.iter_indices_within_with([(2, -1)], z):  # -1: the rest of the axis
            ...         y.store(ct.constant(1, y.shape, y.dtype), index)
            ...         z.store(ct.constant(2, z.shape, z.dtype), index)
            >>> y, z = (ct.api.zeros((6,), ct.i32).sync().partition((2,)).map((1,), 2) for _ in range(2))
            >>> [each.unpartition().to_numpy().sync().tolist() for each in ends(y, z).sync()]
            [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 2, 2]]
        """
        outside_kernel("MappedPartitionMut.iter_indices_within_with")

    def load(self, index: PartitionIndex | tuple[Any, ...]) -> Tile:
        """The tile at a minted index; zeros past the edges of the tensor.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut):
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * z.load(index), index)
            >>> z = ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2)).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("MappedPartitionMut.load")

    def store(self, value: Tile | float, index: PartitionIndex | tuple[Any, ...]) -> Token:
        """Write the tile at a minted index.

        A tuple of components of a minted index does as well. Along OWNED axes any tile is allowed.

        Example:
            >>> @ct.entry
            ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
            ...     part = x.partition(z.shape)
            ...     for index in z.iter_indices():
            ...         z.store(2.0 * part.load(index), index)
            >>> z, x = ct.api.zeros((5,)).sync(), ct.api.arange(5, ct.f32).sync()
            >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync().tolist()
            [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        outside_kernel("MappedPartitionMut.store")


__all__ = (
    "MappedPartitionMut",
    "OWNED",
    "PartitionIndex",
)
