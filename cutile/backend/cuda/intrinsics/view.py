"""Memory at an address that the kernel computes."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import POINTER, frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import I8, ir
from cutile.dtypes import DTypeLike


@cache
def pointer_at(dtype: DTypeLike) -> Any:
    """`f(address)`: the base address of a tensor, from an integer of `dtype`."""

    def generate(b: Any, values: list[Any]) -> Any:
        (address,) = values
        return b.inttoptr(address, ir.PointerType(I8))

    return intrinsic("pointer_at", POINTER, [frag(dtype, 0)], generate)
