"""Comparisons and selection on fragments; the lesser and greater of integers.

A NaN compares false, but for `ne`.

Lesser and greater go around a fault of NVIDIA's linker. nvJitLink before 13.4 joins `max(max(a, -b), c)` of 32-bit
integers into one instruction for Hopper and drops the sign of the one in the middle: -2 * b becomes 2 * b. It does not
join what compares first and picks then, in PTX. Of the linkers tried, 13.0.88, 13.1.115, 13.2.51, 13.2.86 and 13.3.33
do this; 13.4.52, 13.4.92 and 13.5.37 do not.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import I32, asm, widen
from cutile.backend.cuda.toolchain import linker_version
from cutile.dtypes import DTypeLike, bool_

MENDED = (13, 4)
"""The first linker that keeps the sign."""


@cache
def drops_signs() -> bool:
    """Whether the linker at hand has the fault."""
    return linker_version() < MENDED


def lesser(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """The lesser of two integers."""
    return _pick(b, dtype, x, y, "lt")


def greater(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """The greater of two integers."""
    return _pick(b, dtype, x, y, "gt")


def _pick(b: Any, dtype: DTypeLike, x: Any, y: Any, relation: str) -> Any:
    signed = dtype.is_signed
    if dtype.is_integer and dtype.bits <= 32 and drops_signs():
        if dtype.bits == 32:
            return _apart(b, x, y, relation, signed)
        widen = b.sext if signed else b.zext
        return b.trunc(_apart(b, widen(x, I32), widen(y, I32), relation, signed), x.type)
    compare = b.icmp_signed if signed else b.icmp_unsigned
    return b.select(compare("<" if relation == "lt" else ">", x, y), x, y)


def _apart(b: Any, x: Any, y: Any, relation: str, signed: bool) -> Any:
    kind = "s32" if signed else "u32"
    # In PTX, so that NVVM does not make a `max` of it, which the linker would join (see the file's begin).
    text = f"{{ .reg .pred p; setp.{relation}.{kind} p, $1, $2; selp.b32 $0, $1, $2, p; }}"
    return asm(b, I32, [x, y], text, "=r,r,r")


PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@cache
def compare(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x, y)`: bools, for the operation `name` of `cutile.ops.compare`."""
    predicate = PREDICATES[name]

    def one(b: Any, x: Any, y: Any) -> Any:
        if dtype.is_float:
            x, y = widen(b, dtype, x), widen(b, dtype, y)
            return (b.fcmp_unordered if name == "ne" else b.fcmp_ordered)(predicate, x, y)
        return (b.icmp_signed if dtype.is_signed else b.icmp_unsigned)(predicate, x, y)

    return elementwise(name, (dtype, dtype), bool_, n, one)


@cache
def select(dtype: DTypeLike, n: int) -> Any:
    """`f(condition, x, y)`: x where the condition is true, else y."""

    def one(b: Any, condition: Any, x: Any, y: Any) -> Any:
        return b.select(condition, x, y)

    return elementwise("select", (bool_, dtype, dtype), dtype, n, one)
