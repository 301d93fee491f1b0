"""`tile[:, None]`: axes of extent 1 added to a tile, as in NumPy.

Brackets mean nothing else on a tile.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.values import describe
from cutile.frontend.weak import of_weak
from cutile.ir.core import Value
from cutile.ops.shape import Reshape

_WHOLE = slice(None)


def with_new_axes(frame: Frame, tile: Value, items: Sequence[Any], node: ast.AST | None = None) -> Value:
    """The tile indexed with whole slices, `None`s and at most one `...`.

    Raises:
        KernelTypeError: there is anything else between the brackets.
    """
    shape = tile.tile.shape
    plain = all(each is None or each is ... or (isinstance(each, slice) and each == _WHOLE) for each in items)
    slices = sum(isinstance(each, slice) for each in items)
    dots = sum(each is ... for each in items)
    if not plain or dots > 1 or slices > len(shape):
        frame.type_error(
            f"{describe(tile)} cannot be indexed with [] but to add axes, as in tile[:, None]",
            node,
            "ct.extract(tile, index, shape) cuts pieces out of it, ct.reduce_sum(tile, axis) and its kin reduce, and "
            "ct.gather(x, index) chooses elements in memory.",
        )
    left = iter(shape)
    extents: list[int] = []
    for item in items:
        if item is ...:
            extents += [next(left) for _ in range(len(shape) - slices)]
        else:
            extents.append(1 if item is None else next(left))
    extents += left  # as if `...` stood at the end
    if tuple(extents) == shape:
        return tile
    return of_weak(frame, frame.emit(Reshape(x=tile, shape=tuple(extents))), tile)
