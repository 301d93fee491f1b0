"""One step of a reduction, free to be reordered: what lets LLVM keep several vector accumulators."""

from __future__ import annotations

from typing import Any

from cutile.backend.cpu.intrinsics._seam import binary, same_type

_ANY_ORDER = ("reassoc", "nsz")


def _step(float_method: str, int_method: str) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        if str(arguments[0].type) in ("float", "double"):
            return getattr(builder, float_method)(*arguments, flags=_ANY_ORDER)
        return getattr(builder, int_method)(*arguments)

    return binary(emit, same_type)


sum_step = _step("fadd", "add")
"""The accumulator plus an element; the order of the whole sum is the compiler's choice."""
product_step = _step("fmul", "mul")
"""The accumulator times an element; the order of the whole product is the compiler's choice."""
