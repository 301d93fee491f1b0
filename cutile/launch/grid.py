"""The grid of a launch, and extents that a signature gives one name.

The grid is inferred from the partitions, or given; equal to what exact ones say, within prefix ones. Extents are named
as in `x: Tensor[f32, "m", "k"], w: Tensor[f32, "k", "n"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.errors import ArgumentError, LaunchError
from cutile.frontend.signature import Signature
from cutile.launch.views import Grid, TiledView


def refuse_disagreement(signature: Signature, checked: Sequence[Any]) -> None:
    """Compare the extents of one name.

    Args:
        signature: the kernel's.
        checked: its arguments, of which tensors have a shape.

    Raises:
        ArgumentError: two differ; names both arguments and both axes.
    """
    for name, position, axis, other, other_axis in signature.agreements:
        this, two = checked[position], checked[other]
        if this.shape[axis] != two.shape[other_axis]:
            first, second = signature.parameters[position].title, signature.parameters[other].title
            raise ArgumentError(
                f"{signature.name}: the extent {name!r} is {this.shape[axis]} along axis {axis} of argument {first!r} "
                f"(shape {this.shape}), but {two.shape[other_axis]} along axis {other_axis} of argument {second!r} "
                f"(shape {two.shape})"
            )


def launch_grid(kernel: str, requested: Grid | None, outputs: Sequence[tuple[str, TiledView]]) -> Grid:
    """The grid to launch.

    Raises:
        LaunchError: partitions disagree with one another or with the grid given, or there is neither.
    """
    inferred: Grid | None = None
    source = ""
    for name, view in outputs:
        if not view.exact:
            continue
        grid = view.grid
        if inferred is not None and grid != inferred:
            what = "tile blocks" if view.map is not None else "tiles"
            raise LaunchError(
                f"{kernel}: the partitions disagree on the grid: {source!r} has {inferred} {what}, "
                f"{name!r} has {grid}. Give each tile block one tile of every output; what all of them add to "
                "is a ct.Global, or an output with one element for each, summed afterwards"
            )
        inferred, source = grid, name
    prefixes = [(name, view.grid) for name, view in outputs if not view.exact]
    if requested is None:
        if inferred is None:
            why = "no partition tells it"
            if prefixes:
                why = f"{prefixes[0][0]!r} is a partial-coverage partition, which takes any prefix of {prefixes[0][1]}"
            raise LaunchError(f"{kernel}: launch grid required: {why}; give it with .grid((x, y, z))")
        requested = inferred
    elif inferred is not None and requested != inferred:
        raise LaunchError(
            f"{kernel}: the launch grid {requested} does not match the inferred partition grid {inferred} of "
            f"{source!r}, of which each tile has one tile block. Leave .grid(...) out, or cut {source!r} into as many "
            "tiles; a block goes through several tiles of what it reads in a loop"
        )
    for name, most in prefixes:
        for axis in range(3):
            if requested[axis] > most[axis]:
                raise LaunchError(
                    f"{kernel}: the launch grid {requested} exceeds the partial-coverage partition grid {most} of "
                    f"{name!r} on axis {axis}"
                )
    return requested


def check_grid(kernel: str, grid: object) -> Grid:
    """A grid as given by a caller: one to three extents, each at least 1.

    Raises:
        LaunchError: it is no grid, or empty.
    """
    items = (grid,) if isinstance(grid, int) else grid
    if not isinstance(items, tuple | list) or not 1 <= len(items) <= 3:  # pyright: ignore[reportUnknownArgumentType]
        raise LaunchError(f"{kernel}: the grid must be 1 to 3 integers, got {grid!r}")
    extents: list[int] = []
    for item in items:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, int) or isinstance(item, bool):
            raise LaunchError(f"{kernel}: the grid must be 1 to 3 integers, got {grid!r}")
        extents.append(item)
    if min(extents) < 1:
        raise LaunchError(f"{kernel}: the grid {tuple(extents)} is empty: every extent must be at least 1")
    x, y, z = (*extents, 1, 1, 1)[:3]
    if x * y * z >= 2**31:
        raise LaunchError(f"{kernel}: the grid {(x, y, z)} has {x * y * z} tile blocks, more than 2**31 - 1")
    return x, y, z
