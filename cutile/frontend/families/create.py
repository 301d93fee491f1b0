"""Calls that make new tiles: constants, and counted numbers."""

from __future__ import annotations

import ast
from typing import Any

from cutile.dtypes import f4e2m1fnx2, i32
from cutile.frontend.expect import dtype_of, shape_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, is_number, materialize
from cutile.frontend.registry import operation
from cutile.frontend.values import describe, is_tile
from cutile.ir.constant import Constant
from cutile.ops.create import Iota


@operation
def constant(frame: Frame, value: Any, shape: Any, dtype: Any) -> Any:
    if not is_number(value):
        frame.type_error(
            f"constant: the value must be known when the kernel is compiled, got {describe(value)}",
            remedy="The value comes first: ct.constant(value, shape, dtype)."
            if isinstance(value, tuple)
            else "Use ct.broadcast(value, shape) for a value known when the kernel runs.",
        )
    element = dtype_of(frame, dtype, "constant")
    extents = () if shape == () else shape_of(frame, shape, "constant")
    if element is f4e2m1fnx2 and value != 0:
        frame.type_error(
            "constant: f4e2m1fnx2 holds pairs, and one number is none, but for 0",
            remedy="Pack a constant of ct.f4e2m1fn: ct.constant(value, shape, ct.f4e2m1fn).pack().",
        )
    if element.is_integer and isinstance(value, float):
        frame.type_error(
            f"constant: {element} holds whole numbers, and {value!r} is a float",
            remedy=f"Write {int(value)}." if value.is_integer() else "Give a float dtype, such as ct.f32.",
        )
    if element.is_bool:
        return frame.emit(Constant(value=bool(value), dtype=element, shape=extents))
    return materialize(frame, value, element, extents)


@operation
def iota(frame: Frame, shape: Any, dtype: Any = i32, start: Any = 0, step: Any = 1) -> Any:
    extents = shape_of(frame, shape, "iota")
    if len(extents) != 1:
        frame.type_error(f"iota: the shape must have one axis, got {extents}", remedy="Reshape the result.")
    counted = frame.emit(Iota(length=extents[0], dtype=dtype_of(frame, dtype, "iota")))
    for kind, value, neutral in ((ast.Mult, step, 1), (ast.Add, start, 0)):
        name = "start" if kind is ast.Add else "step"
        scalar = is_number(value) or (is_tile(value) and value.tile.is_scalar)
        if not scalar or isinstance(value, bool):
            frame.type_error(
                f"iota: expected an integer for the {name}, got {describe(value)}",
                remedy="It counts by ct.iota(shape, dtype, start, step): numbers, or scalars of the dtype.",
            )
        if is_tile(value) or value != neutral:
            counted = binary(frame, kind, counted, value)
    return counted
