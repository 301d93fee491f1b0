"""Comparisons by upstream's names, and selection.

The operators compare as NumPy does. The functions differ only in `!=`: `ne_tile`, and `cmpf` unless UNORDERED, are
false where an operand is NaN.
"""

from __future__ import annotations

from cutile.language.declare import FLOATS, INTEGERS, composition, operation

# Capitalised: parameters have the markers' own names, and would hide them.
from cutile.language.markers import cmp_ordering as CmpOrdering
from cutile.language.markers import predicate as Predicate
from cutile.tile import Tile


@operation
def eq_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x == y`, false where either is NaN.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.eq_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [1.0, 0.0, 0.0]
    """
    ...


@operation
def ne_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x` is less or greater than `y`: false where either is NaN.

    The operator `!=` is true there.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.ne_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [0.0, 1.0, 0.0]
    """
    ...


@operation
def lt_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x < y`, false where either is NaN.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.lt_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [0.0, 1.0, 0.0]
    """
    ...


@operation
def le_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x <= y`, false where either is NaN.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.le_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [1.0, 1.0, 0.0]
    """
    ...


@operation
def gt_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x > y`, false where either is NaN.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.gt_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [0.0, 0.0, 0.0]
    """
    ...


@operation
def ge_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x >= y`, false where either is NaN.

    Args:
        x, y: of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.ge_tile(x, y).astype(ct.f32), [1.0, 1.0, float("nan")], [1.0, 2.0, 3.0])
        [1.0, 0.0, 0.0]
    """
    ...


@operation(INTEGERS)
def cmpi(x: Tile | int, y: Tile | int, predicate: Predicate) -> Tile:
    """Compare integers by a predicate.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.
        predicate: the comparison, such as LESS_THAN.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.cmpi(x, y, ct.predicate.LESS_THAN).astype(ct.u8), [1, 255], [2, 3], dtype="u8")
        [1, 0]
    """
    ...


@operation(FLOATS)
def cmpf(
    x: Tile | float, y: Tile | float, predicate: Predicate, cmp_ordering: CmpOrdering = CmpOrdering.ORDERED
) -> Tile:
    """Compare floats by a predicate.

    Where either operand is NaN, the result is false if ORDERED and true if UNORDERED.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        predicate: the comparison, such as LESS_THAN.
        cmp_ordering: the result where either operand is NaN: ORDERED for false, UNORDERED for true.

    Returns:
        A tile of bool, of the broadcast shape.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.cmpf(x, y, ct.predicate.LESS_THAN).astype(ct.f32), [1.0, float("nan")], [2.0, 2.0])
        [1.0, 0.0]
        >>> run(lambda x: ct.cmpf(x, x, ct.predicate.NOT_EQUAL, ct.cmp_ordering.UNORDERED).astype(ct.f32),
        ...     [1.0, float("nan")])
        [0.0, 1.0]
    """
    ...


@composition(FLOATS)
def isnan(x: Tile | float) -> Tile:
    """Whether each element is NaN.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of bool, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.select(ct.isnan(x), 1.0, 0.0), [1.0, float("inf"), float("-inf"), float("nan")])
        [0.0, 0.0, 0.0, 1.0]
    """
    ...


@composition(FLOATS)
def isinf(x: Tile | float) -> Tile:
    """Whether each element is infinite, of either sign.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of bool, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.select(ct.isinf(x), 1.0, 0.0), [1.0, float("inf"), float("-inf"), float("nan")])
        [0.0, 1.0, 1.0, 0.0]
    """
    ...


@composition(FLOATS)
def isfinite(x: Tile | float) -> Tile:
    """Whether each element is neither infinite nor NaN.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of bool, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.select(ct.isfinite(x), 1.0, 0.0), [1.0, float("inf"), float("-inf"), float("nan")])
        [1.0, 0.0, 0.0, 0.0]
    """
    ...


@operation
def select(condition: Tile, x: Tile | float, y: Tile | float) -> Tile:
    """`x` where `condition` is true, else `y`; the three broadcast.

    Args:
        condition: bools. A constant condition is decided when the kernel is compiled.
        x, y: of one dtype, tiles or numbers. The three shapes broadcast.

    Returns:
        A tile of the dtype of `x` and `y`, of the broadcast shape. For a constant condition it is `x` or `y` itself.

    Raises:
        KernelTypeError: the condition is not of bools, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.select(x > 1.0, x, y), [1.0, 4.0], [2.0, 3.0])
        [2.0, 4.0]
    """
    ...


__all__ = (
    "cmpf",
    "cmpi",
    "eq_tile",
    "ge_tile",
    "gt_tile",
    "isfinite",
    "isinf",
    "isnan",
    "le_tile",
    "lt_tile",
    "ne_tile",
    "select",
)
