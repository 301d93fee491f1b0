"""Operation to emitter: what `kernel.py` looks up, and what a test compares with the language's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.backend.cuda.emit import (
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
    roles,
    rounding,
    shape,
    view,
)
from cutile.ir.core import Op

Emitter = Callable[[Any, Any], Any]

EMITTERS: dict[type[Op], Emitter] = {
    **arith.EMITTERS,
    **atomic.EMITTERS,
    **cast.EMITTERS,
    **compare.EMITTERS,
    **create.EMITTERS,
    **debug.EMITTERS,
    **grid.EMITTERS,
    **math.EMITTERS,
    **matmul.EMITTERS,
    **memory.EMITTERS,
    **pointer.EMITTERS,
    **reduce.EMITTERS,
    **roles.EMITTERS,
    **rounding.EMITTERS,
    **shape.EMITTERS,
    **view.EMITTERS,
}
