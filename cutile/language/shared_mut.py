"""`SharedMut`: a tensor that any tile block of a launch may write.

The launch says its grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutile.language.facts import SharedArgument, Subscriptable
from cutile.language.markers import padding
from cutile.language.partition import PartitionMut
from cutile.tile import outside_kernel


class SharedMut(Subscriptable):
    """A tensor that any tile block may read and write: `counts: SharedMut`.

    For kernels whose grid is not the tiling of an output: a sum into one element, a histogram by many blocks, a work
    list. The launch passes the tensor itself, and says the grid: `k(counts, x, grid=1000)`. Until the launch has
    finished, nothing else may use the tensor, as for a `Mut`.

    Accesses stay within the tensor. Atomic updates (`ct.atomic_add` and its kin) may name any element. A plain store is
    accepted where no two tile blocks can name the same element. That is so if its index is the tile block's index times
    at least the tile's extent, the variable of `for i in range(block, n, num_blocks)`, or a number that
    `ct.atomic_add` of a counter returned. Every other access of that tensor must then be of such elements, too.
    Anything else is an error at its line, unless the kernel says `@entry(unsafe=True)`. `op.interpret()` looks for
    races in either case.

    Sums of integers by atomic updates are exact. Sums of floats depend on the order of the blocks: their last bits
    differ from launch to launch.

    Example:
        >>> @ct.entry
        ... def total(y: ct.SharedMut, x: ct.Tensor):
        ...     part = x.partition((4,))
        ...     block, blocks = ct.get_tile_block_id()[0], ct.get_num_tile_blocks()[0]
        ...     mine = ct.constant(0, (4,), ct.i32)
        ...     for i in range(block, ct.num_tiles(part, 0), blocks):
        ...         mine += part.load(i)
        ...     ct.atomic_add(y, 0, ct.reduce_sum(mine, 0))
        >>> y, x = ct.api.zeros((1,), ct.i32).sync(), ct.api.arange(100, ct.i32).sync()
        >>> int(total(y, x, grid=3).first().sync().numpy()[0])
        4950
    """

    if TYPE_CHECKING:

        def __launch_argument__(self) -> SharedArgument: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tensor, as of a `Tensor`.

        Example:
            >>> @ct.entry
            ... def last(y: ct.SharedMut):
            ...     ct.atomic_add(y, y.shape[0] - 1, 1)
            >>> last(ct.api.zeros((3,), ct.i32), grid=2).first().sync().numpy().tolist()
            [0, 0, 2]
        """
        outside_kernel("SharedMut.shape")

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`.

        Example:
            >>> @ct.entry
            ... def count(y: ct.SharedMut):
            ...     ct.atomic_add(y, 0, ct.constant(1, (), y.dtype))
            >>> count(ct.api.zeros((1,), ct.i64), grid=5).first().sync().numpy().tolist()
            [5]
        """
        outside_kernel("SharedMut.dtype")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> @ct.entry
            ... def rank(y: ct.SharedMut):
            ...     ct.atomic_max(y, 0, y.ndim)
            >>> rank(ct.api.zeros((3,), ct.i32), grid=2).first().sync().numpy().tolist()
            [1, 0, 0]
        """
        outside_kernel("SharedMut.ndim")

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, one per axis.

        The constant 1 where the kernel is compiled for it, else an i64 scalar.

        Example:
            >>> @ct.entry
            ... def step(y: ct.SharedMut):
            ...     ct.atomic_max(y, (0, 0), y.strides[0])
            >>> int(step(ct.api.zeros((2, 5), ct.i64), grid=2).first().sync().numpy()[0, 0])
            5
        """
        outside_kernel("SharedMut.strides")

    def partition(self, shape: tuple[int, ...], padding: padding = padding.ZERO) -> PartitionMut:
        """The whole tensor as a grid of tiles of `shape`, to read and to write.

        Args:
            shape: constant extents, one for each axis.
            padding: the elements that loads give past the edges.

        Example:
            >>> @ct.entry
            ... def rows(y: ct.SharedMut):
            ...     part = y.partition((1, 4))
            ...     i = ct.get_tile_block_id()[0]
            ...     for j in range(ct.num_tiles(part, 1)):
            ...         part.store(i, (i, j))
            >>> rows(ct.api.zeros((3, 6), ct.i32), grid=3).first().sync().numpy()[:, 5].tolist()
            [0, 1, 2]
        """
        outside_kernel("SharedMut.partition")

    def partition_permuted(self, shape: tuple[int, ...], dim_map: tuple[int, ...]) -> PartitionMut:
        """The tensor as a grid of tiles with other axes, to read and to write.

        Axis `k` of a tile, and of a tile index, is axis `dim_map[k]` of the tensor.

        Example:
            >>> @ct.entry
            ... def columns(y: ct.SharedMut):
            ...     i = ct.get_tile_block_id()[0]
            ...     y.partition_permuted((1, 2), (1, 0)).store(i, (i, 0))
            >>> columns(ct.api.zeros((2, 3), ct.i32), grid=3).first().sync().numpy().tolist()
            [[0, 1, 2], [0, 1, 2]]
        """
        outside_kernel("SharedMut.partition_permuted")


__all__ = ("SharedMut",)
