"""Reductions and scans along one axis, also by a function of scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cutile.language.declare import operation
from cutile.language.markers import nan as Nan
from cutile.language.markers import reverse as Reverse
from cutile.tile import Tile

T = TypeVar("T", Tile, tuple[Any, ...])


@operation
def reduce_sum(x: Tile, axis: int) -> Tile:
    """The sum along a constant `axis`, which the result lacks.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile without the axis, of the dtype of `x`. Floats are added in any order, f16 and bf16 in f32; integers
        wrap.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x + ct.reduce_sum(x, 0), [1.0, 2.0])
        [4.0, 5.0]
    """
    ...


@operation
def reduce_prod(x: Tile, axis: int) -> Tile:
    """The product along a constant `axis`, which the result lacks.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile without the axis, of the dtype of `x`. Floats are multiplied in any order, f16 and bf16 in f32;
        integers wrap.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x + ct.reduce_prod(x, 0), [2.0, 3.0])
        [8.0, 9.0]
    """
    ...


@operation
def reduce_max(x: Tile, axis: int, nan: Nan | bool = False) -> Tile:
    """The largest element along a constant `axis`, which the result lacks.

    NaN is dropped; with `nan` it propagates.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        nan: whether NaN propagates.

    Returns:
        A tile without the axis, of the dtype of `x`.

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
def reduce_min(x: Tile, axis: int, nan: Nan | bool = False) -> Tile:
    """The least element along a constant `axis`, which the result lacks.

    NaN is dropped; with `nan` it propagates.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        nan: whether NaN propagates.

    Returns:
        A tile without the axis, of the dtype of `x`.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: x - ct.reduce_min(x, 0), [1.0, 3.0])
        [0.0, 2.0]
    """
    ...


@operation
def reduce(x: T, axis: int, identity: Any, function: Callable[[Any, Any], Any]) -> T:
    """A tile reduced along a constant `axis` by a function of two scalars.

    The result lacks the axis.

    The function must associate, and `identity` must change nothing; the elements stay in order. A tuple of tiles is
    reduced together: the function then takes two tuples of scalars and returns one, and `identity` is a tuple too.

    Args:
        x: a tile, or a tuple of tiles of one shape.
        axis: a constant; negative ones count from the end.
        identity: a constant, or a tuple of one for each tile.
        function: of two scalars, or of two tuples of scalars; a `def` or a `lambda`.

    Returns:
        A tile without the axis, or a tuple of these.

    Raises:
        KernelTypeError: the function's result is not of the type of its arguments, or reads what changes in the
            kernel.

    Example:
        >>> def larger(a, b):                       # the larger value, and where it is first; the first NaN
        ...     first = (a[0] == b[0]) & (a[1] < b[1])
        ...     return a if (a[0] > b[0]) | (a[0] != a[0]) | first else b
        >>> @ct.entry
        ... def argmax(where: ct.Mut, x: ct.Tensor):
        ...     t = x.load_tile((8,), (0,))
        ...     value, index = ct.reduce((t, ct.iota((8,))), 0, (float("-inf"), 8), larger)
        ...     where.store(index.reshape((1,)))
    """
    ...


@operation
def scan(x: T, axis: int, reverse: Reverse, identity: Any, function: Callable[[Any, Any], Any]) -> T:
    """The running results of a function along a constant `axis`.

    Each element's own is included; else as `reduce`.

    With `ct.reverse.REVERSE` they run from the last element to the first.

    Args:
        x: a tile, or a tuple of tiles of one shape.
        axis: a constant; negative ones count from the end.
        reverse: from which end it begins.
        identity: a constant, or a tuple of one for each tile.
        function: of two scalars, or of two tuples of scalars; a `def` or a `lambda`.

    Returns:
        A tile of the shape of `x`, or a tuple of these.

    Raises:
        KernelTypeError: the function's result is not of the type of its arguments, or reads what changes in the
            kernel.

    Example:
        >>> run(lambda x: ct.scan(x, 0, ct.reverse.REVERSE, 1.0, lambda a, b: a * b), [2.0, 3.0, 4.0])
        [24.0, 12.0, 4.0]
    """
    ...


@operation
def scan_sum(x: Tile, axis: int, reverse: Reverse = Reverse.FORWARD, identity: float = 0) -> Tile:
    """The running sums along a constant `axis`, each element's own included.

    Args:
        x: a tile of numbers.
        axis: a constant; negative ones count from the end.
        reverse: from which end it begins.
        identity: a constant: what the sums begin with.

    Returns:
        A tile of the shape and dtype of `x`.

    Raises:
        KernelTypeError: there is no such axis, or `x` is of bools.

    Example:
        >>> run(lambda x: ct.scan_sum(x, 0), [1.0, 2.0, 3.0])
        [1.0, 3.0, 6.0]
    """
    ...


__all__ = (
    "reduce",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "scan",
    "scan_sum",
)
