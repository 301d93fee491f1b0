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
    made: list[Number] = []
    for parameter in parameters:
        kind = parameter.kind
        if kind == "grid":
            made.append(grid[parameter.axis])
            continue
        each = checked[parameter.argument]
        if kind == "scalar":
            made.append(cast("Number", each))
            continue
        view = each.view if isinstance(each, TiledView) else cast("View", each)
        if kind == "pointer":
            made.append(view.address)
        elif kind == "extent":
            made.append(view.shape[parameter.axis])
        else:
            made.append(view.strides[parameter.axis])
    return made
