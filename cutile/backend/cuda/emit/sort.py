"""Sorts, the largest elements, and elements by their places along an axis."""

from collections.abc import Callable
from typing import Any

from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.gpu.emitter import Expression, Intrinsic
from cutile.ir.core import Op
from cutile.ops import sort

PLACED = ("axis=", "offset=", "fence=")

EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    # Not "sort": so is the module called.
    sort.Sort: emitter(
        Intrinsic(
            "sort.sort",
            ("dtype", "layout", "axis=", "descending=", "by_double=", "offset=", "fence="),
            stem="sort_along",
        )
    ),
    sort.TopK: emitter(Intrinsic("sort.top_k", ("dtype", "source", "layout", "axis=", "k=", "offset=", "fence="))),
    sort.TakeAlongAxis: emitter(Intrinsic("sort.take_along_axis", ("dtype", "source", "layout", *PLACED))),
}
