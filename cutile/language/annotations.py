"""The annotations of kernel parameters.

They are read from the source text and never evaluated.

x: Tensor                    any dtype, rank and layout; taken from the argument
x: Tensor[f32, Dyn, K]       facts that the launch checks; `Dyn` (or -1) is a dynamic extent, `K` a generic
y: Mut                       a partitioned tensor; each tile block reads and writes its own tile alone
y: Mut[Tensor[E, BM, BN]]    the same with facts; the extents are the partition's
y: SharedMut                 a tensor that any tile block may write (`shared_mut.py`); facts as for `Tensor`
z: MappedPartitionMut        a partitioned tensor, a stream of tiles per tile block (`mapped.py`); facts as for `Mut`
x: Tensor[f32, "m", "k"]     named extents: each launch checks that all extents of one name are equal
a: f32                       a scalar; `a: f32 = 1.0` has a default value
x: Tensor | None = None      may be left out; None is a constant in the kernel
xs: tuple[Tensor, ...]       any number of tensors; `tuple[Tensor, f32]` has two items; `list[Tensor]` is a tuple
p: Params                    a named tuple or dataclass, whose fields are annotated like parameters, or with `Const`
*, BK: Const = 64            a compile-time constant: a bool, int, float, string, enum, dtype, function, tuple or None
*, MODE: Const[str]          a constant of that type
*, S: Shape                  a compile-time tuple of ints, as in `y: Mut[Tensor[f32, S]]`; `S[0]` is a constant
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cutile.language.facts import MutArgument, Subscriptable, TensorArgument
from cutile.language.markers import padding
from cutile.language.partition import Partition, PartitionMut
from cutile.tile import Tile, outside_kernel

Dyn: Final = -1
"""A dynamic extent: a launch argument. Another extent does not recompile the kernel."""

if TYPE_CHECKING:
    from typing_extensions import TypeAliasType, TypeVar

    _T = TypeVar("_T", default=int)
    Const = TypeAliasType("Const", _T, type_params=(_T,))
    Shape = tuple[int, ...]
else:

    class Shape:
        """A compile-time tuple of integers.

        `S: Shape` declares a generic, `Tensor[f32, S]` has that shape.
        """

    class Const(Subscriptable):
        """A compile-time constant.

        `BM: Const` as a type parameter or keyword-only parameter declares a generic.

        `Const[str]` and `Const[bool | None]` also say which types the constant may have.
        """


class Tensor(Subscriptable):
    """A read-only tensor parameter: `x: Tensor`.

    Example:
        >>> @ct.entry
        ... def double(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2.0 * ct.load_tile_like(x, y))
    """

    if TYPE_CHECKING:

        def __launch_argument__(self) -> TensorArgument: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: constants where the kernel is compiled for them, else i32 scalars.

        Beside a tile of another dtype, such a scalar takes the tile's dtype, as a plain number does.

        Example:
            >>> run(lambda x: x + x_in.shape[0], [1, 2, 3], dtype="i32")
            [4, 5, 6]
        """
        outside_kernel("Tensor.shape")

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`.

        Example:
            >>> run(lambda x: x + ct.constant(1, x.shape, x_in.dtype), [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Tensor.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> run(lambda x: x + x_in.ndim, [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Tensor.ndim")

    def partition(self, shape: tuple[int, ...], padding: padding = padding.ZERO) -> Partition:
        """The tensor as a grid of tiles of `shape`.

        Loads fill the elements past the tensor's edges with `padding`.

        Example:
            >>> run(lambda x: x + x_in.partition((1,)).load(2), [1.0, 2.0, 3.0])
            [4.0, 5.0, 6.0]
        """
        outside_kernel("Tensor.partition")

    def partition_permuted(self, shape: tuple[int, ...], dim_map: tuple[int, ...]) -> Partition:
        """The tensor as a grid of tiles with other axes.

        Axis `k` of a tile, and of a tile index, is axis `dim_map[k]` of the tensor.

        Example:
            >>> @ct.entry
            ... def transpose(y: ct.Mut, x: ct.Tensor):
            ...     i, j, _ = ct.get_tile_block_id()
            ...     y.store(x.partition_permuted(y.shape, (1, 0)).load((i, j)))
            >>> x, y = ct.api.arange(6, ct.i32).reshape((2, 3)).sync(), ct.api.zeros((3, 2), ct.i32).sync()
            >>> transpose(y.partition((2, 2)), x).first().unpartition().to_numpy().sync().tolist()
            [[0, 3], [1, 4], [2, 5]]
        """
        outside_kernel("Tensor.partition_permuted")

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, one per axis.

        The constant 1 where the kernel is compiled for it, else an i64 scalar.

        Example:
            >>> run(lambda x: x + x_in.strides[0], [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Tensor.strides")

    def slice(self, axis: int, start: int | Tile | None = None, stop: int | Tile | None = None) -> Tensor:
        """The elements from `start` to before `stop` along an axis.

        The slice shares the tensor's memory: nothing is copied.

        Args:
            axis: a constant; negative ones count from the end.
            start, stop: integers: constants, or scalars that the kernel computes. As in NumPy, negative ones count from
                the end, and bounds outside of the axis are clamped to it. None: the start, or the end, of the axis.

        Returns:
            A tensor of the same dtype and rank, with `stop - start` elements along the axis, or none if that is
                negative. Loads past the edges of the slice give padding, as past the edges of a tensor.

        Example:
            >>> @ct.entry
            ... def segment_sums(y: ct.Mut, x: ct.Tensor, offsets: ct.Tensor):
            ...     i = ct.get_tile_block_id()[0]
            ...     bounds = [ct.tile_to_scalar(offsets.load_tile((1,), (i + k,)).reshape(())) for k in range(2)]
            ...     segment = x.slice(0, bounds[0], bounds[1]).partition((4,))
            ...     total = ct.constant(0.0, (), ct.f32)
            ...     for k in range(ct.num_tiles(segment, 0)):
            ...         total += ct.reduce_sum(segment.load(k), 0)
            ...     y.store(total)
            >>> import numpy as np
            >>> x, offsets = ct.api.ones((10,)).sync(), ct.api.from_numpy(np.array([0, 3, 3, 10], np.int32)).sync()
            >>> segment_sums(ct.api.zeros((3,)).partition((1,)), x, offsets).first().unpartition().to_numpy().sync()
            array([3., 0., 7.], dtype=float32)
        """
        outside_kernel("Tensor.slice")

    def load_tile(self, shape: tuple[int, ...], index: tuple[int | Tile, ...], padding: padding = padding.ZERO) -> Tile:
        """The tile of `shape` at a tile index; `padding` past the edges.

        The index counts tiles of `shape`, one integer per axis. See `cutile.load_tile`.

        Example:
            >>> run(lambda x: x + ct.reduce_sum(x_in.load_tile((2,), (1,)), 0), [1.0, 2.0, 3.0])
            [4.0, 5.0, 6.0]
        """
        outside_kernel("Tensor.load_tile")


class Mut(Subscriptable):
    """A partitioned tensor parameter: `y: Mut`.

    A tile block reads and writes its own tile of it.

    Example:
        >>> @ct.entry
        ... def increment(y: ct.Mut):
        ...     y.store(y.load() + 1)
    """

    if TYPE_CHECKING:

        def __launch_argument__(self) -> MutArgument: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The partition's shape: constants.

        `ct.get_tensor_shape(y)` gives the extents of the whole tensor.

        Example:
            >>> run(lambda x: x + result.shape[0], [1.0, 2.0])
            [3.0, 4.0]
        """
        outside_kernel("Mut.shape")

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`.

        Example:
            >>> run(lambda x: (x / 2).astype(result.dtype), [1.0, 2.0])
            [0.5, 1.0]
        """
        outside_kernel("Mut.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> run(lambda x: x + result.ndim, [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Mut.ndim")

    @property
    def index(self) -> tuple[int, ...]:
        """The tile index of this block's own tile in the partition: one number per axis.

        With up to three axes these are the numbers of `ct.get_tile_block_id()`. A grid has three axes at most. For a
        tensor with more, the third axis of the grid counts the tiles along axis 2 and all further axes of the tensor,
        the last axis fastest.

        Example:
            >>> @ct.entry
            ... def number(y: ct.Mut):
            ...     a, b, c, d = y.index
            ...     y.store(1000 * a + 100 * b + 10 * c + d)
            >>> y = ct.api.zeros((1, 2, 2, 2), ct.i32).partition((1, 2, 1, 1))
            >>> number(y).first().unpartition().to_numpy().sync().ravel()
            array([ 0,  1, 10, 11,  0,  1, 10, 11], dtype=int32)
        """
        outside_kernel("Mut.index")

    def load(self) -> Tile:
        """This block's tile; zeros past the edges of the tensor.

        Example:
            >>> @ct.entry
            ... def increment(y: ct.Mut):
            ...     y.store(y.load() + 1.0)
            >>> increment(ct.api.arange(3, ct.f32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
            [1.0, 2.0, 3.0]
        """
        outside_kernel("Mut.load")

    def store(self, value: Tile | float) -> None:
        """Write this block's tile; elements past the edges of the tensor are dropped.

        Example:
            >>> @ct.entry
            ... def number(y: ct.Mut):
            ...     y.store(ct.broadcast(ct.get_tile_block_id()[0], y.shape))
            >>> number(ct.api.zeros((5,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
            [0, 0, 1, 1, 2]
        """
        outside_kernel("Mut.store")

    def inside(self) -> Tile:
        """Which elements of this block's tile lie within the tensor: a tile of bool.

        See `Partition.inside`.

        Example:
            >>> @ct.entry
            ... def mark(y: ct.Mut):
            ...     y.store(ct.reduce_sum(y.inside().astype(ct.i32), 0) + y.load())
            >>> mark(ct.api.zeros((5,), ct.i32).partition((4,))).first().unpartition().sync().numpy().tolist()
            [4, 4, 4, 4, 1]
        """
        outside_kernel("Mut.inside")

    def partition_mut(self, shape: tuple[int, ...]) -> PartitionMut:
        """This block's own tile as a grid of smaller tiles.

        Index 0 is where the block's tile begins.

        `shape` need not divide the block's tile. The last tiles end where the block's tile ends, so the next block's
        elements stay untouched. `ct.num_tiles` counts the tiles that exist: fewer for a block at the tensor's edge.

        Example:
            >>> @ct.entry
            ... def ramps(y: ct.Mut):
            ...     part = y.partition_mut((2,))
            ...     for i in range(ct.num_tiles(part, 0)):
            ...         part.store(ct.broadcast(i, (2,)), i)
            >>> ramps(ct.api.zeros((6,), ct.i32).partition((3,))).first().unpartition().to_numpy().sync().tolist()
            [0, 0, 1, 0, 0, 1]
        """
        outside_kernel("Mut.partition_mut")

    def partition_full_mut(self, shape: tuple[int, ...]) -> PartitionMut:
        """The whole tensor as a grid of tiles, in kernels that say `@entry(unsafe=True)`.

        Nothing checks that no two blocks write the same element, nor that no block reads an element that another one
        writes. The kernel's author must ensure both.

        Example:
            >>> @ct.entry(unsafe=True)
            ... def backwards(y: ct.Mut):
            ...     whole = y.partition_full_mut(y.shape)
            ...     i, last = ct.get_tile_block_id()[0], ct.num_tiles(whole, 0) - 1
            ...     whole.store(ct.broadcast(i, y.shape), last - i)
            >>> backwards(ct.api.zeros((4,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
            [1, 1, 0, 0]
        """
        outside_kernel("Mut.partition_full_mut")


__all__ = (
    "Const",
    "Dyn",
    "Mut",
    "Shape",
    "Tensor",
)
