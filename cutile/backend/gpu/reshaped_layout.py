"""Layouts of reshaped tiles: each element stays in its register.

A basis is a step of a power of two along one axis. If that axis is cut into several, the basis becomes a step along one
of them. If several axes are joined, it becomes a step along the joined axis. So no element has to move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cutile.backend.gpu.layout import Basis, Layout, unit

__all__ = ("reshaped",)


def reshaped(layout: Layout, shape: Sequence[int], cuts: bool = True) -> Layout | None:
    """The layout of a tile in another shape, each element in the same register.

    None if an element would have to move. One axis may become several, and several may become one. For this the extents
    of the inner axes must be powers of two that the core covers, or its repetition does. Then each basis is a step of a
    power of two along one of the new axes. Without `cuts` only axes of extent 1 come and go.

    Example:
        >>> from cutile.backend.gpu.layout import blocked
        >>> print(reshaped(blocked((1, 4096), warps=4, vector=8), (1, 32, 128)))
        1x32x128: 32 each of 128 threads, core 1x8x128
    """
    for axis in reversed(range(layout.rank)):
        if layout.shape[axis] == 1:
            if layout.core[axis] != 1:
                return None  # the core extends beyond this axis: registers there would have no place in the new shape
            layout = layout.drop(axis)
    extents = [extent for extent in shape if extent != 1]
    places = _places(layout, extents) if cuts or list(layout.shape) == extents else None
    if places is None and cuts and (spread := _spread(layout)):
        new = reshaped(spread, shape)
        return new and _gathered(new)
    if places is None:
        return None

    def new_basis(basis: Basis) -> Basis:
        axis = next((axis for axis, step in enumerate(basis) if step), None)
        if axis is None:
            return (0,) * len(extents)
        place, scale, inner = places[axis]
        step = basis[axis] * scale
        for other in inner:
            if step < extents[other]:
                return unit(len(extents), other, step)
            step //= extents[other]
        return unit(len(extents), place, step)

    new = Layout(
        tuple(extents),
        tuple(map(new_basis, layout.register)),
        tuple(map(new_basis, layout.lane)),
        tuple(map(new_basis, layout.warp)),
        tuple((places[axis][0], count) for axis, count in layout.repeat),
    )
    for axis, extent in enumerate(shape):
        if extent == 1:
            new = new.insert(axis)
    return new


def _spread(layout: Layout) -> Layout | None:
    """The same layout, with register bits of the core in place of the repetition.

    None if it has no repetition, or if a count of it is no power of two.
    """
    if not layout.repeat or any(count & (count - 1) for _, count in layout.repeat):
        return None
    register, core = list(layout.register), list(layout.core)
    for axis, count in layout.repeat:
        while count > 1:
            register.append(unit(layout.rank, axis, core[axis]))
            core[axis], count = 2 * core[axis], count // 2
    return replace(layout, register=tuple(register), repeat=())


def _gathered(layout: Layout) -> Layout:
    """The same layout, with a repetition in place of its last register bits.

    A bit can do so if its step is the extent that the bases below it cover along its axis: then it stacks them. Bits
    are taken from the last one on, as long as this holds.
    """
    register, repeat = list(layout.register), list(layout.repeat)
    while register:
        axis = next(axis for axis, step in enumerate(register[-1]) if step)
        below = (*register[:-1], *layout.lane, *layout.warp)
        if register[-1][axis] != 1 << max((basis[axis].bit_length() for basis in below), default=0):
            break
        register.pop()
        count = 2 * repeat.pop(0)[1] if repeat and repeat[0][0] == axis else 2
        repeat.insert(0, (axis, count))
    return replace(layout, register=tuple(register), repeat=tuple(repeat))


Place = tuple[int, int, tuple[int, ...]]
"""For an old axis: the new axis of its largest steps, the size of an old step of 1 there, and the new axes of its
smaller steps, the innermost first."""


def _places(layout: Layout, extents: Sequence[int]) -> list[Place] | None:
    """The place of each old axis among the new ones; None if an element would move."""
    places: dict[int, Place] = {}
    repeated = {axis for axis, _ in layout.repeat}
    for old, new in _groups(layout.shape, extents) or ():
        if len(old) == len(new) == 1:
            places[old[0]] = new[0], 1, ()
        elif len(old) == 1:
            inner = [extents[axis] for axis in new[1:]]
            if any(extent & (extent - 1) for extent in inner) or layout.core[old[0]] % math.prod(inner):
                return None
            places[old[0]] = new[0], 1, tuple(reversed(new[1:]))
        elif len(new) == 1:
            if any(layout.core[axis] != layout.shape[axis] or axis in repeated for axis in old[1:]):
                return None
            for number, axis in enumerate(old):
                places[axis] = new[0], math.prod(layout.shape[other] for other in old[number + 1 :]), ()
        else:
            return None
    return [places[axis] for axis in range(layout.rank)] if len(places) == layout.rank else None


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """The axes of two shapes in the smallest groups with equal numbers of elements.

    None if the shapes have no such groups.
    """
    groups: list[tuple[list[int], list[int]]] = []
    rest_of_new: Iterator[int] = iter(range(len(new)))
    rest_of_old: Iterator[int] = iter(range(len(old)))
    for first in rest_of_old:
        old_axes, new_axes = [first], [next(rest_of_new, -1)]
        while (old_size := math.prod(old[axis] for axis in old_axes)) != (
            new_size := math.prod(new[axis] for axis in new_axes if axis >= 0)
        ):
            rest, axes = (rest_of_old, old_axes) if old_size < new_size else (rest_of_new, new_axes)
            following = next(rest, None)
            if following is None:
                return None
            axes.append(following)
        if new_axes[0] < 0:
            return None
        groups.append((old_axes, new_axes))
    return groups
