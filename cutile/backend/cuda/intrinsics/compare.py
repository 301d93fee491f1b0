"""Comparisons and selection on fragments; the lesser and greater of integers.

A comparison with a NaN is false, except `ne`, which is true.

`lesser` and `greater` avoid a fault of NVIDIA's linker. nvJitLink before 13.4 joins `max(max(a, -b), c)` of 32-bit
integers into one instruction for Hopper, and drops the sign of the operand in the middle: -2 * b becomes 2 * b. It does
not join a comparison and a selection in PTX. Of the linkers tried, 13.0.88, 13.1.115, 13.2.51, 13.2.86 and 13.3.33 have
the fault; 13.4.52, 13.4.92 and 13.5.37 do not.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import I32, asm, widen
from cutile.backend.cuda.toolchain import linker_version
from cutile.dtypes import DTypeLike, bool_

MIN_SOUND_LINKER = (13, 4)
"""The first version of nvJitLink that keeps the sign."""


@cache
def drops_signs() -> bool:
    """Whether the linker at hand has the fault."""
    return linker_version() < MIN_SOUND_LINKER


def lesser(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """The lesser of two integers."""
    return _pick(b, dtype, x, y, "lt")


def greater(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """The greater of two integers."""
    return _pick(b, dtype, x, y, "gt")


def _pick(b: Any, dtype: DTypeLike, x: Any, y: Any, relation: str) -> Any:
    """`x` if it is less than ("lt"), or greater than ("gt"), `y`; else `y`."""
    signed = dtype.is_signed
    if dtype.is_integer and dtype.bits <= 32 and drops_signs():
        if dtype.bits == 32:
            return _compare_and_select(b, x, y, relation, signed)
        extend = b.sext if signed else b.zext  # narrower integers too: the PTX below has 32 bits
        return b.trunc(_compare_and_select(b, extend(x, I32), extend(y, I32), relation, signed), x.type)
    compare = b.icmp_signed if signed else b.icmp_unsigned
    return b.select(compare("<" if relation == "lt" else ">", x, y), x, y)


def _compare_and_select(b: Any, x: Any, y: Any, relation: str, signed: bool) -> Any:
    kind = "s32" if signed else "u32"
    # Inline PTX (PTX ISA, "setp" and "selp"), since NVVM would make `max` of a comparison and a selection in LLVM IR.
    # The linker would join that: see the docstring of this file.
    text = f"{{ .reg .pred p; setp.{relation}.{kind} p, $1, $2; selp.b32 $0, $1, $2, p; }}"
    return asm(b, I32, [x, y], text, "=r,r,r")


PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""llvmlite's predicate of each comparison."""


@cache
def compare(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x, y)`: bools, for the operation `name` of `cutile.ops.compare`."""
    predicate = PREDICATES[name]

    def element(b: Any, x: Any, y: Any) -> Any:
        if dtype.is_float:  # f16 and bf16 are integers in registers (`llvm.py`): they are compared as f32
            x, y = widen(b, dtype, x), widen(b, dtype, y)
            return (b.fcmp_unordered if name == "ne" else b.fcmp_ordered)(predicate, x, y)
        return (b.icmp_signed if dtype.is_signed else b.icmp_unsigned)(predicate, x, y)

    return elementwise(name, (dtype, dtype), bool_, n, element)


@cache
def select(dtype: DTypeLike, n: int) -> Any:
    """`f(condition, x, y)`: x where the condition is true, else y."""

    def element(b: Any, condition: Any, x: Any, y: Any) -> Any:
        return b.select(condition, x, y)

    return elementwise("select", (bool_, dtype, dtype), dtype, n, element)
