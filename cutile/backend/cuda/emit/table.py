"""Operation to emitter: what `kernel.py` looks up, and what a test compares with the language's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.backend.cuda.emit import (
    arith,
    atomic,
    bulk,
    cast,
    compare,
    create,
    debug,
    dot,
    grid,
    group,
    math,
    matmul,
    memory,
    nearby,
    outer,
    pipeline,
    pointer,
    reading,
    reduce,
    roles,
    rounding,
    shape,
    split,
    view,
)
from cutile.ir.core import Op

Emitter = Callable[[Any, Any], Any]

EMITTERS: dict[type[Op], Emitter] = {
    **arith.EMITTERS,
    **atomic.EMITTERS,
    **bulk.EMITTERS,
    **cast.EMITTERS,
    **compare.EMITTERS,
    **create.EMITTERS,
    **debug.EMITTERS,
    **dot.EMITTERS,
    **grid.EMITTERS,
    **group.EMITTERS,
    **math.EMITTERS,
    **matmul.EMITTERS,
    **memory.EMITTERS,
    **nearby.EMITTERS,
    **outer.EMITTERS,
    **pipeline.EMITTERS,
    **pointer.EMITTERS,
    **reading.EMITTERS,
    **reduce.EMITTERS,
    **roles.EMITTERS,
    **rounding.EMITTERS,
    **shape.EMITTERS,
    **split.EMITTERS,
    **view.EMITTERS,
}
