"""The language: one file per family, one class per operation.

A class has its types, its checks and its NumPy meaning. `OPS` has all of them by name.
"""

from cutile.ops.registry import OPS

__all__ = ("OPS",)
