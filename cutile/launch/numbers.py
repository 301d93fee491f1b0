"""The plain numbers of a launch: one per parameter of the compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cutile.backend.interface import Parameter
from cutile.launch.arguments import Checked
from cutile.launch.grid import Grid
from cutile.launch.scalars import Number
from cutile.launch.views import TiledView, View


def plain_numbers(parameters: Sequence[Parameter], checked: Sequence[Checked], grid: Grid) -> list[Number]:
    """Addresses, extents, strides, scalars and the grid, in the order of `parameters`."""
    return [number_of(parameter, checked, grid) for parameter in parameters]


def number_of(parameter: Parameter, checked: Sequence[Checked], grid: Grid) -> Number:
    """The number of one parameter."""
    kind = parameter.kind
    if kind == "grid":
        return grid[parameter.axis]
    each = checked[parameter.argument]
    if kind == "scalar":
        return cast("Number", each)
    view = each.view if isinstance(each, TiledView) else cast("View", each)
    if kind == "pointer":
        return view.address
    return view.shape[parameter.axis] if kind == "extent" else view.strides[parameter.axis]
