"""Lowered IR to the text of a Python file that Numba compiles.

The text is readable, and the same input gives the same bytes.
"""

from cutile.backend.cuda.emit.kernel import emit

__all__ = ("emit",)
