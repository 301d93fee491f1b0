"""Comparisons by upstream's names, and selection. The operators compare as NumPy does; they differ in `!=` alone."""

from __future__ import annotations

from cutile.language.mark import operation
from cutile.language.markers import cmp_ordering as CmpOrdering
from cutile.language.markers import predicate as Predicate
from cutile.tile import Tile, outside_kernel


@operation
def eq_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x == y`, false where either is NaN."""
    outside_kernel("eq_tile")


@operation
def ne_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x` is less or greater than `y`: false where either is NaN. (`!=` is true there.)"""
    outside_kernel("ne_tile")


@operation
def lt_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x < y`, false where either is NaN."""
    outside_kernel("lt_tile")


@operation
def le_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x <= y`, false where either is NaN."""
    outside_kernel("le_tile")


@operation
def gt_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x > y`, false where either is NaN."""
    outside_kernel("gt_tile")


@operation
def ge_tile(x: Tile | float, y: Tile | float) -> Tile:
    """`x >= y`, false where either is NaN."""
    outside_kernel("ge_tile")


@operation
def cmpi(x: Tile | int, y: Tile | int, predicate: Predicate) -> Tile:
    """A comparison of integers."""
    outside_kernel("cmpi")


@operation
def cmpf(
    x: Tile | float, y: Tile | float, predicate: Predicate, cmp_ordering: CmpOrdering = CmpOrdering.ORDERED
) -> Tile:
    """A comparison of floats; where either is NaN, false if ORDERED and true if UNORDERED."""
    outside_kernel("cmpf")


@operation
def select(condition: Tile, x: Tile | float, y: Tile | float) -> Tile:
    """`x` where `condition` is true, else `y`; the three broadcast."""
    outside_kernel("select")
