"""Raw pointers as launch arguments: an address, and the dtype of what is there where the argument knows it."""

from __future__ import annotations

import operator
from typing import Any

from cutile.compile.facts import PointerFacts
from cutile.dtypes import DTypeMeta
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.frontend.parameters import Parameter

MOST = 2**64


class Pointer(int):
    """An address. Nothing holds what is there, and nothing orders the launch behind its other users.

    Attributes:
        facts: what specialization needs to know of it; None where the signature says what it leads to.
    """

    facts: PointerFacts | None


def check_pointer(kernel: str, parameter: Parameter, argument: Any) -> Pointer:
    """An argument as a pointer: what `tensor.device_pointer()` gives, or an address.

    Raises:
        ArgumentTypeError: it is neither, or leads to another dtype than the signature says.
        ArgumentError: it is no address.
    """
    dtype = getattr(argument, "dtype", None)
    try:
        address = operator.index(argument)
    except TypeError:
        remedy = "; pass its pointer: x.device_pointer()" if hasattr(argument, "device_pointer") else ""
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} must be a pointer, got {type(argument).__qualname__}{remedy}"
        ) from None
    if isinstance(argument, bool) or not 0 <= address < MOST:
        raise ArgumentError(f"{kernel}: argument {parameter.title!r} must be an address, got {argument!r}")
    if not isinstance(dtype, DTypeMeta):  # a plain number
        dtype = None
    declared = parameter.dtype
    if isinstance(declared, DTypeMeta) and dtype is not None and dtype is not declared:
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} must be a pointer to {declared}, got one to {dtype}; "
            "pass int(pointer) to have its bits read as such"
        )
    if declared is None and dtype is None:
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} does not know what it leads to; pass tensor.device_pointer(), or "
            f"declare it: {parameter.title}: Ptr[f32]"
        )
    made = Pointer(address)
    made.facts = PointerFacts(dtype) if dtype is not None and not isinstance(declared, DTypeMeta) else None  # type: ignore[arg-type]
    return made
