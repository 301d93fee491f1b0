"""Comparisons and selection on fragments. A NaN compares false, but for `ne`."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import widen
from cutile.dtypes import DTypeLike, bool_

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
