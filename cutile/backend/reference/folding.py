"""Reductions and scans by a function of scalars: its operations walked on whole slices, from one end to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cutile.backend.reference.memory import Array
from cutile.ir.control import Yield
from cutile.ir.core import Block, Value
from cutile.ops.reduce import Folding, Scan


def apply(body: Block, arguments: Sequence[Array]) -> list[Array]:
    """What the body yields for every element of the arguments, which have one shape."""
    values: dict[Value, Array] = dict(zip(body.arguments, arguments, strict=True))
    shape = arguments[0].shape
    for op in body.operations:
        operands = [np.broadcast_to(values[each], shape) for each in op.operands]
        if isinstance(op, Yield):
            return operands
        with np.errstate(all="ignore"):
            result: Any = op.reference(*operands)
        values[op.result] = np.asarray(result)
    raise AssertionError("a body ends with a yield")


def fold(op: Folding, tiles: Sequence[Array]) -> list[Array]:
    """The results of a reduction or scan."""
    columns = [np.moveaxis(tile, op.axis, 0) for tile in tiles]
    held = [
        np.full(column.shape[1:], np.asarray(identity).astype(column.dtype))
        for column, identity in zip(columns, op.identities, strict=True)
    ]
    places = range(len(columns[0]))
    if not isinstance(op, Scan):
        for place in places:
            held = apply(op.body, [*held, *(column[place] for column in columns)])
        return held
    made = [np.empty_like(column) for column in columns]
    for place in reversed(places) if op.reverse else places:
        held = apply(op.body, [*held, *(column[place] for column in columns)])
        for result, each in zip(made, held, strict=True):
            result[place] = each
    return [np.moveaxis(result, 0, op.axis) for result in made]
