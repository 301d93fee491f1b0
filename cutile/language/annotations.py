"""The annotations of kernel parameters. They are read from the source text and never evaluated.

x: Tensor                    any dtype, rank and layout; taken from the argument
x: Tensor[f32, Dyn, K]       facts that the launch checks; `Dyn` (or -1) is a dynamic extent, `K` a generic
y: Mut                       a partitioned tensor, one tile per tile block, written by it alone
y: Mut[Tensor[E, BM, BN]]    the same with facts; the extents are the partition's
z: MappedPartitionMut        a partitioned tensor, a stream of tiles per tile block; facts as for `Mut`
a: f32                       a scalar
*, BK: Const = 64            a compile-time constant
*, S: Shape                  a compile-time tuple of them, as in `y: Mut[Tensor[f32, S]]`; `S[0]` is a constant
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cutile.language.markers import padding
from cutile.language.tokens import Token
from cutile.tile import Tile, outside_kernel

Dyn: Final = -1
"""A dynamic extent: a launch argument, so a change of it does not recompile."""

OWNED: Final = 0
"""In a map: the stream leaves this axis out, and each of its items owns all tiles along it."""

if TYPE_CHECKING:
    Const = int
    Shape = tuple[int, ...]
else:

    class Shape:
        """A compile-time tuple of integers: `S: Shape` declares a generic, `Tensor[f32, S]` has that shape."""

    class Const:
        """A compile-time integer. `BM: Const` as a type parameter or keyword-only parameter declares a generic."""


class Subscriptable:
    """Lets `Tensor[f32, Dyn, 128]` stand as an annotation that is evaluated: it means itself."""

    def __class_getitem__(cls, facts: Any) -> type:
        return cls


class Partition:
    """A tensor seen as a grid of tiles, inside a kernel.

    Example:
        >>> @ct.entry
        ... def copy(y: ct.Mut, x: ct.Tensor):
        ...     part = x.partition(y.shape)
        ...     y.store(part.load(ct.get_tile_block_id()[: y.ndim]))
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of one tile."""
        outside_kernel("Partition.shape")

    @property
    def dtype(self) -> Any:
        """The element type."""
        outside_kernel("Partition.dtype")

    def load(self, index: tuple[int, ...] | int | PartitionIndex) -> Tile:
        """The tile at a tile index, padded past the edges of the tensor.

        The index is checked: it must name a tile. The compiler proves that, has the launch check it, or leaves a check
        in the kernel.
        """
        outside_kernel("Partition.load")

    def load_index(self, index: PartitionIndex) -> Tile:
        """`load` at an index that a mapped partition minted."""
        outside_kernel("Partition.load_index")

    def load_pipelined(self, index: tuple[int, ...] | int, latency: int = 1) -> Tile:
        """`load`, with a hint: the load may be begun `latency` turns of the loop around ahead."""
        outside_kernel("Partition.load_pipelined")

    def load_unchecked(self, index: tuple[int, ...] | int) -> Tile:
        """`load` without the check, in kernels that say `@entry(unsafe=True)`: padding where there is no such tile."""
        outside_kernel("Partition.load_unchecked")


class PartitionMut(Partition):
    """Tiles to read and write: of the block's own tile (`y.partition_mut`), or of the whole tensor.

    Example:
        >>> @ct.entry
        ... def negate(y: ct.Mut, x: ct.Tensor):
        ...     part, source = y.partition_mut((1, 8)), x.partition((1, 8))
        ...     first, column, _ = ct.get_tile_block_id()
        ...     for row in range(ct.num_tiles(part, 0)):
        ...         part.store(-source.load((first * y.shape[0] + row, column)), (row, 0))
    """

    def store(self, value: Tile, index: tuple[int, ...] | int) -> Token:
        """Write the tile at a tile index, which is checked; what lies past the edges is dropped."""
        outside_kernel("PartitionMut.store")

    def store_index(self, value: Tile, index: PartitionIndex) -> Token:
        """`store` at an index that a mapped partition minted."""
        outside_kernel("PartitionMut.store_index")

    def store_unchecked(self, value: Tile, index: tuple[int, ...] | int) -> Token:
        """`store` without the check, in kernels that say `@entry(unsafe=True)`: where there is no tile, nothing."""
        outside_kernel("PartitionMut.store_unchecked")


class Tensor(Subscriptable):
    """A read-only tensor parameter: `x: Tensor`.

    Example:
        >>> @ct.entry
        ... def double(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2.0 * ct.load_tile_like(x, y))
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: constants where declared so, else i32 scalars."""
        outside_kernel("Tensor.shape")

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`."""
        outside_kernel("Tensor.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        outside_kernel("Tensor.ndim")

    def partition(self, shape: tuple[int, ...], padding: padding = padding.ZERO) -> Partition:
        """The tensor as a grid of tiles of `shape`; `padding` is what loads give past its edges."""
        outside_kernel("Tensor.partition")

    def partition_permuted(self, shape: tuple[int, ...], dim_map: tuple[int, ...]) -> Partition:
        """The tensor as a grid of tiles with other axes: axis `k` of a tile, and of an index, is axis `dim_map[k]`."""
        outside_kernel("Tensor.partition_permuted")

    def load_tile(self, shape: tuple[int, ...], index: tuple[int, ...]) -> Tile:
        """The tile of `shape` at a tile index; zeros past the edges."""
        outside_kernel("Tensor.load_tile")


class Mut(Subscriptable):
    """A partitioned tensor parameter: this tile block's own tile of it, to read and write.

    Example:
        >>> @ct.entry
        ... def increment(y: ct.Mut):
        ...     y.store(y.load() + 1)
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The partition's shape: constants."""
        outside_kernel("Mut.shape")

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`."""
        outside_kernel("Mut.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        outside_kernel("Mut.ndim")

    def load(self) -> Tile:
        """This block's tile; zeros past the edges of the tensor."""
        outside_kernel("Mut.load")

    def store(self, value: Tile) -> None:
        """Write this block's tile; what lies past the edges of the tensor is dropped."""
        outside_kernel("Mut.store")

    def partition_mut(self, shape: tuple[int, ...]) -> PartitionMut:
        """This block's own tile as a grid of smaller tiles: index 0 is where the block's tile begins.

        Where `shape` does not divide the tile, the last tiles end with it: the next block's elements stay untouched.
        """
        outside_kernel("Mut.partition_mut")

    def partition_full_mut(self, shape: tuple[int, ...]) -> PartitionMut:
        """The whole tensor as a grid of tiles, in kernels that say `@entry(unsafe=True)`.

        That no two blocks write one element, or one reads what another writes, is for the author to see to.
        """
        outside_kernel("Mut.partition_full_mut")


class PartitionIndex:
    """An index that a mapped partition minted: of a tile that this block alone writes. Usable for loads, too."""

    def coords(self) -> tuple[int, ...]:
        """The tile's coordinates, one per axis."""
        outside_kernel("PartitionIndex.coords")

    def components(self) -> tuple[Any, ...]:
        """One component per axis; that of an OWNED axis is a range of components to loop over.

        `z.store` takes a tuple of components of one index; elsewhere a component is an integer.
        """
        outside_kernel("PartitionIndex.components")


class MappedPartitionMut(Subscriptable):
    """A persistent output: `z: MappedPartitionMut`. Each of a fixed number of tile blocks goes over many tiles.

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

    @property
    def shape(self) -> tuple[int, ...]:
        """The partition's shape: constants."""
        outside_kernel("MappedPartitionMut.shape")

    @property
    def dtype(self) -> Any:
        """The element type."""
        outside_kernel("MappedPartitionMut.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        outside_kernel("MappedPartitionMut.ndim")

    def iter_indices(self) -> Iterable[PartitionIndex]:
        """This block's indices: all blocks together mint each tile's once."""
        outside_kernel("MappedPartitionMut.iter_indices")

    def iter_indices_with(self, other: MappedPartitionMut) -> Iterable[PartitionIndex]:
        """One stream for two outputs that are mapped alike and have as many tiles; its indices are good for both."""
        outside_kernel("MappedPartitionMut.iter_indices_with")

    def iter_indices_within(self, ranges: Sequence[tuple[int, int]]) -> Iterable[PartitionIndex]:
        """The tiles of a part: `(first, count)` along each axis, in tiles; a literal count of -1 is the rest."""
        outside_kernel("MappedPartitionMut.iter_indices_within")

    def iter_indices_within_with(
        self, ranges: Sequence[tuple[int, int]], other: MappedPartitionMut
    ) -> Iterable[PartitionIndex]:
        """`iter_indices_within` for two outputs."""
        outside_kernel("MappedPartitionMut.iter_indices_within_with")

    def load(self, index: PartitionIndex | tuple[Any, ...]) -> Tile:
        """The tile at a minted index; zeros past the edges of the tensor."""
        outside_kernel("MappedPartitionMut.load")

    def store(self, value: Tile, index: PartitionIndex | tuple[Any, ...]) -> Token:
        """Write the tile at a minted index (or components of one, and any tile along OWNED axes)."""
        outside_kernel("MappedPartitionMut.store")
