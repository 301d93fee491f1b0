"""Scalar arguments: Python and NumPy numbers to the plain numbers that a parameter's dtype can hold."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from cutile.conversion import fits, short
from cutile.dtypes import DTypeLike, f4e2m1fnx2
from cutile.errors import ArgumentError, ArgumentTypeError

Number = bool | int | float

EVERY_FLOAT = float(np.finfo(np.float16).max)  # up to here no float dtype has to be asked


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
        return value if -EVERY_FLOAT <= value <= EVERY_FLOAT else _in_range(value, dtype, kernel, name)
    value = raw_scalar(value, kernel, name, f"a scalar of {dtype.name}")
    if isinstance(value, bool):
        if kind != "bool":
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a scalar of {dtype}, got {value!r}")
        return value
    if kind == "bool":
        if value in (0, 1):
            return bool(value)
        raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a bool (or 0 or 1), got {short(value)}")
    if kind in ("float", "storage"):
        return _in_range(value, dtype, kernel, name)
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be an integer ({dtype}), got {value!r}")
        value = int(value)
    info = np.iinfo(dtype.numpy)
    if not info.min <= value <= info.max:
        raise ArgumentError(f"{kernel}: argument {name!r} must fit {dtype} ({info.min} to {info.max}), got {value}")
    return value


def _in_range(value: float, dtype: DTypeLike, kernel: str, name: str) -> float:
    """`value` as a float, unless it is finite and the dtype makes an infinity of it. Raises ArgumentError."""
    if not fits(value, dtype):
        held = "inf" if value > 0 else "-inf"
        raise ArgumentError(
            f"{kernel}: argument {name!r} must fit {dtype}, got {short(value)}, which would become {held}: pass "
            f"float('{held}') if that is meant, or declare the scalar as f64"
        )
    return float(value)
