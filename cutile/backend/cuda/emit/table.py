"""Operation to emitter: what `kernel.py` looks up.

A test compares it with the language's operations.
"""

from collections.abc import Callable
from typing import Any

from cutile.backend.cuda import ops
from cutile.backend.cuda.emit import debug, elementwise, matmul, memory, pipeline, reduce
from cutile.backend.cuda.emit.generic import emitter
from cutile.ir.core import Op

Emitter = Callable[[Any, Any], Any]

DECLARED: dict[type[Op], Emitter] = {
    op: emitter(op.intrinsic) for name in ops.__all__ if hasattr(op := getattr(ops, name), "intrinsic")
}
"""Those of this backend's operations that say themselves which intrinsic they become."""

EMITTERS: dict[type[Op], Emitter] = {
    **DECLARED,
    **debug.EMITTERS,
    **elementwise.EMITTERS,
    **matmul.EMITTERS,
    **memory.EMITTERS,
    **pipeline.EMITTERS,
    **reduce.EMITTERS,
}
