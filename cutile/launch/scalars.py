"""Scalar arguments: Python and NumPy numbers to the plain numbers that a parameter's dtype can hold."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from cutile.dtypes import DTypeLike, f4e2m1fnx2
from cutile.errors import ArgumentError, ArgumentTypeError

Number = bool | int | float


def raw_scalar(value: Any, kernel: str, name: str, wanted: str = "a number") -> Number:
    """`value` as a Python number of whatever kind; `wanted` is for the error.

    Raises:
        ArgumentTypeError: it is no number.
    """
    if isinstance(value, np.generic):
        scalar = cast("Any", value)
        value = scalar.item() if scalar.dtype.kind in "biuf" else float(scalar)  # ml_dtypes scalars
    if not isinstance(value, bool | int | float):
        raise ArgumentTypeError(
            f"{kernel}: argument {name!r} must be {wanted}, got {type(value).__name__}: {value!r}{_remedy(value)}"
        )
    return value


def _remedy(value: object) -> str:
    """What to write in place of an array, which may have one element."""
    if hasattr(value, "__kernel_input__"):
        return "; what is on the device is loaded in the kernel: annotate the parameter with Tensor"
    return "; an array of one element has .item()" if hasattr(value, "item") else ""


def plain_scalar(value: Any, dtype: DTypeLike, kernel: str, name: str) -> Number:
    """`value` as a plain number that `dtype` holds.

    Raises:
        ArgumentTypeError: it is no number, or a float where an integer is wanted.
        ArgumentError: it does not fit.
    """
    kind = dtype.kind
    if dtype is f4e2m1fnx2:
        raise ArgumentTypeError(
            f"{kernel}: argument {name!r}: f4e2m1fnx2 holds pairs, and one number is none; declare a u8, and write "
            f"ct.bitcast({name}, ct.f4e2m1fnx2)"
        )
    if type(value) is float and kind in ("float", "storage"):  # the common case
        return value
    value = raw_scalar(value, kernel, name, f"a scalar of {dtype.name}")
    if isinstance(value, bool):
        if kind != "bool":
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a scalar of {dtype}, got {value!r}")
        return value
    if kind == "bool":
        raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a bool, got {value!r}")
    if kind in ("float", "storage"):
        return float(value)
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be an integer ({dtype}), got {value!r}")
        value = int(value)
    info = np.iinfo(dtype.numpy)
    if not info.min <= value <= info.max:
        raise ArgumentError(f"{kernel}: argument {name!r} must fit {dtype} ({info.min} to {info.max}), got {value}")
    return value
