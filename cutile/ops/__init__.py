"""Operations of the IR: one file per family, one class per operation.

A class has the types, the checks and the NumPy meaning of its operation. `OPS` has all classes by name.
"""

from cutile.ops.registry import OPS

__all__ = ("OPS",)
