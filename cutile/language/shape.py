"""Shapes by the names of upstream, the cuTile crates for Rust.

Queries of extents, scalars as tiles, concatenation, parts of tiles, and elements in another order.

A shape is a tuple of extents. A tensor's extent is a constant if the kernel is compiled for it, else an i32 scalar.

The bodies are empty: `declare.py` says what gives a call its meaning. A composition is made of other operations, and no
backend knows it. In the examples `run` runs an expression as a kernel. Its tile `x` was loaded from the tensor `x_in`
(`tests/docs/examples.py`).
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from cutile.language.annotations import Mut, Tensor
from cutile.language.declare import composition, operation
from cutile.language.shared_mut import SharedMut
from cutile.tile import Tile

T = TypeVar("T")


@operation
def broadcast_scalar(x: Tile | float, shape: tuple[int, ...]) -> Tile:
    """A scalar repeated to `shape`.

    Args:
        x: a scalar or a number.
        shape: constant extents, each at least 1.

    Returns:
        A tile of `shape`, of the dtype of `x`.

    Raises:
        KernelTypeError: `x` has axes.

    Example:
        >>> run(lambda x: ct.broadcast_scalar(ct.reduce_max(x, 0), (3,)), [1.0, 5.0, 2.0])
        [5.0, 5.0, 5.0]
    """
    ...


@operation
def scalar_to_tile(x: Tile | float) -> Tile:
    """A scalar as a tile of shape `()`: the scalar itself.

    Args:
        x: a scalar or a number.

    Returns:
        `x`.

    Raises:
        KernelTypeError: `x` has axes.

    Example:
        >>> run(lambda x: x + ct.scalar_to_tile(ct.num_tiles(x_in.partition((2,)), 0)), [1, 2, 3], dtype="i32")
        [3, 4, 5]
    """
    ...


@operation
def tile_to_scalar(x: Tile) -> Tile:
    """A tile of shape `()` as a scalar: the tile itself.

    Args:
        x: a tile of shape `()`.

    Returns:
        `x`.

    Raises:
        KernelTypeError: `x` has axes.

    Example:
        >>> run(lambda x: x / ct.tile_to_scalar(ct.reduce_sum(x, 0)), [1.0, 3.0])
        [0.25, 0.75]
    """
    ...


@operation
def permute_array(values: tuple[T, ...], axes: tuple[int, ...]) -> tuple[T, ...]:
    """The entries of a tuple in another order.

    Entry `k` of the result is `values[axes[k]]`.

    Args:
        values: a tuple, such as a shape or an index.
        axes: constants: each position in `values` once.

    Returns:
        A tuple as long as `values`.

    Raises:
        KernelTypeError: `axes` has a position twice, lacks one, or has another length than `values`.

    Example:
        >>> run(lambda x: x.reshape(ct.permute_array((1, 4), (1, 0))).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 2.0, 3.0, 4.0]
    """
    ...


@operation
def get_tensor_shape(x: Tensor | Mut | SharedMut) -> tuple[int, ...]:
    """The extents of a whole tensor, also of a `Mut`, which is cut into tiles.

    Args:
        x: a tensor, a `Mut` or a `SharedMut`.

    Returns:
        One extent for each axis, a constant where the kernel is compiled for it, else an i32 scalar. For a `Mut` these
            are the extents of the tensor, not of the block's tile.

    Raises:
        KernelTypeError: `x` is no tensor.

    Example:
        >>> run(lambda x: x + ct.get_tensor_shape(x_in)[0], [1, 2, 3], dtype="i32")
        [4, 5, 6]
    """
    ...


@operation
def get_shape_dim(shape: tuple[int, ...], axis: int) -> int:
    """One extent of a shape: `shape[axis]`.

    Args:
        shape: a tuple of extents.
        axis: a constant; negative ones count from the end.

    Returns:
        The extent.

    Raises:
        KernelTypeError: there is no such axis.

    Example:
        >>> run(lambda x: x + ct.get_shape_dim(x_in.shape, 0), [1, 2, 3], dtype="i32")
        [4, 5, 6]
    """
    ...


@overload
def cat(x: Tile, y: Tile, axis: int) -> Tile: ...
@overload
def cat(x: tuple[Tile, ...], *, axis: int) -> Tile: ...
@overload
def cat(x: tuple[Tile, ...], y: int) -> Tile: ...
@operation
def cat(x: Any, y: Any = None, axis: int | None = None) -> Tile:
    """Tiles side by side along a constant `axis`.

    `cat(x, y, axis)` takes two tiles, `cat((x, y, z), axis)` takes any number.

    Args:
        x: a tile, or a tuple of tiles. All tiles have one dtype, and the same extents along all axes but `axis`.
        y: the second tile; after a tuple of tiles, the axis.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile whose extent along `axis` is the sum of the tiles' extents.

    Raises:
        KernelTypeError: the dtypes or the other extents differ.

    Example:
        >>> run(lambda x, y: ct.reduce_max(ct.cat(x, y, 0), 0) - x, [1.0, 2.0], [7.0, 5.0])
        [6.0, 5.0]
        >>> run(lambda x: ct.reduce_max(ct.cat((x, -x, x), 0), 0) - x, [1.0, 2.0])
        [1.0, 0.0]
    """
    ...


@operation
def extract(x: Tile, index: tuple[int | Tile, ...], shape: tuple[int, ...]) -> Tile:
    """The part at `index` of a tile that is cut into parts of `shape`.

    Args:
        x: a tile.
        index: one integer for each axis, counted in parts. A scalar outside of the tile is clamped to the nearest part.
        shape: the part's extents: constants that divide the tile's.

    Returns:
        A tile of `shape`.

    Raises:
        KernelTypeError: the shape does not divide the tile's, or a constant index is outside.

    Example:
        >>> run(lambda x: ct.extract(ct.cat(x, -x, 0), (1,), (2,)), [1.0, 2.0])
        [-1.0, -2.0]
    """
    ...


@composition()
def insert(x: Tile, part: Tile, index: tuple[int | Tile, ...]) -> Tile:
    """`x` with one part replaced by `part`; the counterpart of `extract`.

    The index counts parts of the shape of `part`.

    Args:
        x: a tile.
        part: a tile of the dtype of `x`; each extent divides that of `x`.
        index: one integer for each axis, counted in parts. A scalar outside of the tile is clamped to the nearest part.

    Returns:
        A tile of the type of `x`.

    Raises:
        KernelTypeError: the part's shape does not divide the tile's, or a constant index is outside.

    Example:
        >>> run(lambda x: ct.insert(x, ct.constant(0.0, (2,), ct.f32), (1,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 2.0, 0.0, 0.0]
    """
    ...


@composition()
def flip(x: Tile, axis: int | tuple[int, ...] | None = None) -> Tile:
    """The elements in reverse order along constant axes.

    Args:
        x: a tile.
        axis: a constant, or a tuple of them; None: all axes.

    Returns:
        A tile of the type of `x`.

    Raises:
        KernelTypeError: there is no such axis.

    Example:
        >>> run(lambda x: ct.flip(x, 0), [1.0, 2.0, 3.0])
        [3.0, 2.0, 1.0]
    """
    ...


@composition()
def roll(x: Tile, shift: int, axis: int) -> Tile:
    """The elements shifted along a constant `axis`, in a circle.

    Elements that leave the tile at one end come in at the other.

    Args:
        x: a tile.
        shift: a constant: the number of elements. A negative one shifts towards element 0.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile of the type of `x`.

    Raises:
        KernelTypeError: there is no such axis, or the shift is not constant.

    Example:
        >>> run(lambda x: ct.roll(x, 1, 0), [1.0, 2.0, 3.0])
        [3.0, 1.0, 2.0]
    """
    ...


@composition()
def repeat(x: Tile, count: int, axis: int) -> Tile:
    """Each element `count` times in a row along a constant `axis`, as `numpy.repeat`.

    Args:
        x: a tile.
        count: a constant, at least 1.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile that is `count` times as long along `axis`.

    Raises:
        KernelTypeError: there is no such axis, or the count is not constant or below 1.

    Example:
        >>> run(lambda x: ct.repeat(ct.extract(x, (0,), (2,)), 2, 0), [1.0, 2.0, 3.0, 4.0])
        [1.0, 1.0, 2.0, 2.0]
    """
    ...


@operation
def broadcast(x: Tile | float, shape: tuple[int, ...]) -> Tile:
    """A scalar, or axes of size 1, repeated to `shape`.

    Args:
        x: a tile, a scalar or a number.
        shape: constant extents, each at least 1. An axis of `x` keeps its extent, unless that is 1.

    Returns:
        A tile of `shape`, of the dtype of `x`.

    Raises:
        KernelTypeError: the shapes do not broadcast.

    Example:
        >>> run(lambda x: ct.broadcast(ct.reduce_sum(x, 0), (2,)), [1.0, 2.0])
        [3.0, 3.0]
    """
    ...


@operation
def reshape(x: Tile, shape: tuple[int, ...]) -> Tile:
    """The same elements in row-major order under another shape; one extent may be -1.

    Args:
        x: a tile.
        shape: constants whose product is the number of elements. One may be -1: it is computed from the others.

    Returns:
        A tile of `shape`, of the dtype of `x`.

    Raises:
        KernelTypeError: the elements do not fit the shape.

    Example:
        >>> run(lambda x: ct.reshape(ct.reshape(x, (2, -1)), (4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 2.0, 3.0, 4.0]
    """
    ...


@operation
def permute(x: Tile, axes: tuple[int, ...]) -> Tile:
    """The axes in another order: axis `k` of the result is axis `axes[k]` of `x`.

    Args:
        x: a tile.
        axes: constants: each axis of `x` once.

    Returns:
        A tile whose axis `k` has the extent of axis `axes[k]` of `x`.

    Raises:
        KernelTypeError: `axes` has an axis twice, lacks one, or has another length than the shape of `x`.

    Example:
        >>> run(lambda x: ct.permute(x.reshape((2, 2)), (1, 0)).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
    """
    ...


@operation
def transpose(x: Tile) -> Tile:
    """The transpose of a tile of rank 2.

    Args:
        x: a tile of two axes, M x N.

    Returns:
        A tile N x M.

    Raises:
        KernelTypeError: `x` has another number of axes.

    Example:
        >>> run(lambda x: ct.transpose(x.reshape((2, 2))).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
    """
    ...


__all__ = (
    "broadcast",
    "broadcast_scalar",
    "cat",
    "extract",
    "flip",
    "get_shape_dim",
    "get_tensor_shape",
    "insert",
    "permute",
    "permute_array",
    "repeat",
    "reshape",
    "roll",
    "scalar_to_tile",
    "tile_to_scalar",
    "transpose",
)
