"""The plan of a lowered kernel in the words of its field.

It is read from operations and facts; nothing is decided.
"""

from cutile.backend.cuda.explain.plan import plan
from cutile.backend.cuda.explain.resources import explain

__all__ = ("explain", "plan")
