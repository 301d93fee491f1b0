"""Reductions along axes, and scans along one; some by a function of the author."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cutile.language.declare import composition, operation

# Capitalised: parameters have the markers' own names, and would hide them.
from cutile.language.markers import nan as Nan
from cutile.language.markers import reverse as Reverse
from cutile.tile import Tile

T = TypeVar("T", Tile, tuple[Any, ...])
Axes = int | tuple[int, ...] | None


@operation
def reduce_sum(x: Tile, axis: Axes = None, keepdims: bool = False) -> Tile:
    """The sum along constant axes.

    Args:
        x: a tile of numbers.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, of the dtype of `x`. Floats are added in any order, f16 and bf16 in f32; integers
            wrap. A sum whose elements are all -0.0 may be 0.0 or -0.0.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x + ct.reduce_sum(x, 0), [1.0, 2.0])
        [4.0, 5.0]
        >>> run(lambda x: x - ct.reduce_sum(x.reshape((2, 2)), 0, keepdims=True).broadcast((2, 2)).reshape((4,)),
        ...     [1.0, 2.0, 3.0, 4.0])
        [-3.0, -4.0, -1.0, -2.0]
    """
    ...


@operation
def reduce_prod(x: Tile, axis: Axes = None, keepdims: bool = False) -> Tile:
    """The product along constant axes.

    Args:
        x: a tile of numbers.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, of the dtype of `x`. Floats are multiplied in any order, f16 and bf16 in f32;
            integers wrap.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x + ct.reduce_prod(x, 0), [2.0, 3.0])
        [8.0, 9.0]
    """
    ...


@operation
def reduce_max(x: Tile, axis: Axes = None, nan: Nan | bool = False, keepdims: bool = False) -> Tile:
    """The largest element along constant axes.

    NaN is ignored, unless all elements are NaN. With `nan` it propagates.

    Args:
        x: a tile of numbers.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        nan: whether NaN propagates.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, of the dtype of `x`. Of 0.0 and -0.0 it may give either.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x - ct.reduce_max(x, 0), [1.0, 3.0])
        [-2.0, 0.0]
        >>> run(lambda x: x - ct.reduce_max(x, 0, nan=True), [1.0, float("nan")])
        [nan, nan]
    """
    ...


@operation
def reduce_min(x: Tile, axis: Axes = None, nan: Nan | bool = False, keepdims: bool = False) -> Tile:
    """The least element along constant axes.

    NaN is ignored, unless all elements are NaN. With `nan` it propagates.

    Args:
        x: a tile of numbers.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        nan: whether NaN propagates.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, of the dtype of `x`. Of 0.0 and -0.0 it may give either.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x - ct.reduce_min(x, 0), [1.0, 3.0])
        [0.0, 2.0]
    """
    ...


@composition(note="each step rounds, and the order of the steps is free")
def mean(x: Tile, axis: Axes = None, keepdims: bool = False) -> Tile:
    """The mean along constant axes.

    All elements of the tile count, padding included. Where a tile is wider than the tensor's row, divide a sum instead:
    `ct.reduce_sum(t, axis) / x.shape[axis]`.

    Args:
        x: a tile of floats.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, of the dtype of `x`. f16 and bf16 are computed in f32, and rounded once.

    Raises:
        KernelTypeError: there is no such axis, or `x` is no float.

    Example:
        >>> run(lambda x: x - ct.mean(x, 0), [1.0, 2.0, 6.0])
        [-2.0, -1.0, 3.0]
    """
    ...


@composition(note="each step rounds, and the order of the steps is free")
def var(x: Tile, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tile:
    """The variance along constant axes.

    It is the mean of the squared distances from the mean, so a large mean costs no precision. All elements of the tile
    count, padding included. Where a tile is wider than the tensor's row, mask it as docs/memory.md shows.

    Args:
        x: a tile of floats.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        keepdims: whether the result keeps the axes, with an extent of 1.
        ddof: a constant: the divisor is the number of elements minus `ddof`.

    Returns:
        A tile without the axes, of the dtype of `x`. f16 and bf16 are computed in f32, and rounded once.

    Raises:
        KernelTypeError: there is no such axis, `x` is no float, or there are no more elements than `ddof`.

    Example:
        >>> run(lambda x: x + ct.var(x, 0), [10001.0, 10003.0])
        [10002.0, 10004.0]
    """
    ...


@operation
def reduce(x: T, axis: Axes, identity: Any, function: Callable[[Any, Any], Any], keepdims: bool = False) -> T:
    """A tile reduced along constant axes by a function of two scalars.

    The function must be associative. It need not be commutative: the elements stay in order. A target may combine
    `identity` with any element, and the result must be that element. The tiles of a tuple are reduced together: the
    function then takes two tuples of scalars and returns one, and `identity` is a tuple, too.

    Args:
        x: a tile, or a tuple of tiles, whose shapes broadcast.
        axis: a constant, or a tuple of them; negative ones count from the end. None: all axes.
        identity: a constant, or a tuple with one for each tile.
        function: a function of two scalars, or of two tuples of scalars: a `def`, a `lambda`, a function of the
            language or of Python's `operator`. It may read the kernel's scalars and tiles; of a tile it reads the
            element at the same place.
        keepdims: whether the result keeps the axes, with an extent of 1.

    Returns:
        A tile without the axes, or a tuple of these.

    Raises:
        KernelTypeError: the function's result is not of the type of its arguments, or the shapes do not broadcast.

    Example:
        >>> def larger(a, b):        # the larger value and its index; of equal ones the first, and the first NaN
        ...     first = (a[0] == b[0]) & (a[1] < b[1])
        ...     return a if (a[0] > b[0]) | (a[0] != a[0]) | first else b
        >>> @ct.entry
        ... def argmax(place: ct.Mut, x: ct.Tensor):
        ...     t = x.load_tile((8,), (0,))
        ...     value, index = ct.reduce((t, ct.iota((8,))), 0, (float("-inf"), 8), larger)
        ...     place.store(index.reshape((1,)))
    """
    ...


@operation
def scan(x: T, axis: int, reverse: Reverse, identity: Any, function: Callable[[Any, Any], Any]) -> T:
    """The running results of a function along a constant `axis`.

    Each result includes its own element. The function and `identity` are as for `reduce`.

    Args:
        x: a tile, or a tuple of tiles, whose shapes broadcast.
        axis: a constant; negative ones count from the end.
        reverse: the end from which the scan begins.
        identity: a constant, or a tuple with one for each tile.
        function: a function of two scalars, or of two tuples of scalars, as for `reduce`.

    Returns:
        A tile of the shape of `x`, or a tuple of these.

    Raises:
        KernelTypeError: the function's result is not of the type of its arguments, or the shapes do not broadcast.

    Example:
        >>> run(lambda x: ct.scan(x, 0, ct.reverse.REVERSE, 1.0, lambda a, b: a * b), [2.0, 3.0, 4.0])
        [24.0, 12.0, 4.0]
    """
    ...


@operation
def scan_sum(x: Tile, axis: int, reverse: Reverse = Reverse.FORWARD, identity: float = 0) -> Tile:
    """The running sums along a constant `axis`; each includes its own element.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        reverse: the end from which the scan begins.
        identity: 0, the identity of a sum; any other number is refused.

    Returns:
        A tile of the shape and dtype of `x`: the sums of `cumsum`.

    Raises:
        KernelTypeError: there is no such axis, `identity` is not 0, or `x` is of bools.

    Example:
        >>> run(lambda x: ct.scan_sum(x, 0), [1.0, 2.0, 3.0])
        [1.0, 3.0, 6.0]
    """
    ...


@operation
def cumsum(x: Tile, axis: int, reverse: bool = False) -> Tile:
    """The running sums along a constant `axis`; each includes its own element.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        reverse: whether the scan runs from the last element to the first.

    Returns:
        A tile of the shape and dtype of `x`. Sums of f16 and bf16 run in f32; integers wrap. The sums begin
            with 0.0, so that a first element of -0.0 gives 0.0.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: ct.cumsum(x, 0), [1.0, 2.0, 3.0])
        [1.0, 3.0, 6.0]
        >>> run(lambda x: ct.cumsum(x, 0, reverse=True), [1.0, 2.0, 3.0])
        [6.0, 5.0, 3.0]
    """
    ...


@operation
def cumprod(x: Tile, axis: int, reverse: bool = False) -> Tile:
    """The running products along a constant `axis`; each includes its own element.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        reverse: whether the scan runs from the last element to the first.

    Returns:
        A tile of the shape and dtype of `x`. Products of f16 and bf16 run in f32; integers wrap.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: ct.cumprod(x, 0), [1.0, 2.0, 3.0])
        [1.0, 2.0, 6.0]
    """
    ...


@operation
def cummax(x: Tile, axis: int, reverse: bool = False) -> Tile:
    """The running maxima along a constant `axis`; each includes its own element.

    From the first NaN on, all are NaN.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        reverse: whether the scan runs from the last element to the first.

    Returns:
        A tile of the shape and dtype of `x`.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: ct.cummax(x, 0), [1.0, 3.0, 2.0])
        [1.0, 3.0, 3.0]
    """
    ...


__all__ = (
    "cummax",
    "cumprod",
    "cumsum",
    "mean",
    "reduce",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "scan",
    "scan_sum",
    "var",
)
