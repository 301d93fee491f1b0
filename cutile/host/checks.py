"""Checks of what callers of `cutile.api` hand in.

The error names the function, what was expected, and what came.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike, as_dtype, f4e2m1fnx2
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.shapes import as_shape

__all__ = ("DTypeSpec", "element_type", "finite", "float_type", "new_shape", "number_type")

DTypeSpec = DTypeLike | str | np.dtype[Any] | type[Any]
"""How a caller names an element type: `f32`, `"f32"` or a NumPy dtype."""


def element_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The element type that `dtype` names.

    Raises:
        ArgumentTypeError: there is none.
    """
    try:
        return as_dtype(dtype)
    except TypeError as error:
        hint = "; a shape is one argument, such as (4, 8)" if isinstance(dtype, int) else ""
        raise ArgumentTypeError(f"{function}: dtype: {error}{hint}") from None


def float_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The floating-point type that `dtype` names.

    Those that are only stored are among them.

    Raises:
        ArgumentTypeError: it names another, or none.
    """
    element = element_type(dtype, function)
    if element.format is None:
        raise ArgumentTypeError(f"{function}: dtype: expected a floating-point type, got {element.name}")
    return element


def number_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The type of single numbers that `dtype` names.

    Raises:
        ArgumentTypeError: it names another, or none.
    """
    element = element_type(dtype, function)
    if element is f4e2m1fnx2:
        raise ArgumentTypeError(
            f"{function}: dtype: f4e2m1fnx2 holds pairs, not numbers; make f4e2m1fn and put them together in a kernel "
            "with ct.pack, or take the bytes: tensor.reinterpret(f4e2m1fnx2, shape)"
        )
    return element


def new_shape(shape: Any, function: str) -> tuple[int, ...]:
    """The shape of a tensor to be made.

    Raises:
        ArgumentTypeError: it is none.
        ArgumentError: an extent is 0, negative or too large.
    """
    try:
        return as_shape(shape)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{function}: shape: expected an extent or a sequence of extents such as (4, 8), got {shape!r}"
        ) from None
    except ArgumentError as error:
        raise ArgumentError(f"{function}: {error}") from None


def finite(value: Any, argument: str, function: str) -> float:
    """A number that is neither infinite nor NaN.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: it is infinite or NaN.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{function}: {argument}: expected a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ArgumentError(f"{function}: {argument}: expected a finite number, got {value!r}")
    return number
