"""The language: one file per family, one class per operation, each with its types, its checks and its NumPy meaning."""

from cutile.ops import arith, cast, compare, create, grid, math, matmul, memory, reduce, rounding, shape
from cutile.ops.registry import OPS

__all__ = (
    "OPS",
    "arith",
    "cast",
    "compare",
    "create",
    "grid",
    "math",
    "matmul",
    "memory",
    "reduce",
    "rounding",
    "shape",
)
