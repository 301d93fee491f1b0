"""The language: one file per family, one class per operation.

A class has its types, its checks and its NumPy meaning. Listed here are the families that others import as modules.
"""

from cutile.ops import (
    arith,
    atomic,
    cast,
    compare,
    create,
    debug,
    grid,
    math,
    matmul,
    memory,
    pointer,
    reduce,
    rounding,
    shape,
    sort,
)
from cutile.ops.registry import OPS

__all__ = (
    "OPS",
    "arith",
    "atomic",
    "cast",
    "compare",
    "create",
    "debug",
    "grid",
    "math",
    "matmul",
    "memory",
    "pointer",
    "reduce",
    "rounding",
    "shape",
    "sort",
)
