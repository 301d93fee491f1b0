"""Fragments without operands: constants, and indices along an axis."""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack
from cutile.backend.cuda.intrinsics.llvm import I32, asm, i32c, number, register_type
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike


def constant(value: bool | int | float, dtype: DTypeLike, n: int) -> Any:
    """`f()`: every element is `value`."""

    def generate(b: Any, _: list[Any]) -> Any:
        return pack(b, [number(dtype, value)] * max(n, 1), n)

    function = intrinsic("constant", frag(dtype, n), [], generate)

    def element(_builder: Any) -> Any:
        return number(dtype, value)

    function.element = element  # for functions of scalars, which reductions and scans apply
    return function


@cache
def iota(dtype: DTypeLike, layout: Layout) -> Any:
    """`f()`: every element is its own index, in a tile of one axis."""

    def generate(b: Any, _: list[Any]) -> Any:
        # A move that LLVM does not see through (PTX ISA, "mov"). If LLVM knew the bits, it would make an `or` of the
        # thread's part and a constant. It does not reorder sums of an `or`, so a loop would keep a register for each
        # element, in place of one for all.
        first = asm(b, I32, [Coordinates(b, layout).thread_part(0)], "mov.b32 $0, $1;", "=r,r")
        indices = [b.add(first, i32c(offset)) if offset else first for (offset,) in layout.offsets]
        kind = register_type(dtype)
        if dtype.bits < 32:
            indices = [b.trunc(index, kind) for index in indices]
        elif dtype.bits > 32:
            indices = [b.zext(index, kind) for index in indices]
        return pack(b, indices, layout.registers)

    return intrinsic("iota", frag(dtype, layout.registers), [], generate)
