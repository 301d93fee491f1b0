"""Fragments from nothing: constants, and counting along an axis."""

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

    function.element = element
    return function


@cache
def iota(dtype: DTypeLike, layout: Layout) -> Any:
    """`f()`: every element is its own index, in a tile of one axis."""

    def generate(b: Any, _: list[Any]) -> Any:
        # Were LLVM to know its bits, the thread's part plus a constant would be the `or` of both. Sums of an `or` are
        # not put in another order, so that a loop would keep a register for each element in place of one for all.
        first = asm(b, I32, [Coordinates(b, layout).thread_part(0)], "mov.b32 $0, $1;", "=r,r")
        made = [b.add(first, i32c(offset)) if offset else first for (offset,) in layout.offsets]
        kind = register_type(dtype)
        if dtype.bits < 32:
            made = [b.trunc(each, kind) for each in made]
        elif dtype.bits > 32:
            made = [b.zext(each, kind) for each in made]
        return pack(b, made, layout.registers)

    return intrinsic("iota", frag(dtype, layout.registers), [], generate)
