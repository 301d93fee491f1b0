"""Tensor maps as kernel parameters: descriptors in the constant bank.

A parameter of this type is a pointer in LLVM IR, marked `byval` and `grid_constant` when the function becomes a kernel
(`build.py`), so that its address is taken without a copy to local memory.
"""

import importlib
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import intrinsic, types
from cutile.backend.cuda.intrinsics.llvm import I64, VOID, asm, ir

_models: Any = importlib.import_module("numba.cuda.datamodel").models
_register_model: Any = importlib.import_module("numba.cuda.models").register_model

MAP: Any = ir.LiteralStructType([ir.ArrayType(I64, 16)])
"""The descriptor's 128 bytes in LLVM IR."""


class _TensorMap(types.Type):
    """A tensor map as a kernel's parameter."""

    def __init__(self) -> None:
        types.Type.__init__(self, name="TensorMap")


class _TensorMapModel(_models.PrimitiveModel):
    """Its LLVM type: a pointer to the descriptor."""

    def __init__(self, manager: Any, kind: Any) -> None:
        _models.PrimitiveModel.__init__(self, manager, kind, ir.PointerType(MAP))


_register_model(_TensorMap)(_TensorMapModel)

TENSOR_MAP: Any = _TensorMap()
"""The Numba type of a tensor map."""


def address(b: Any, map: Any) -> Any:
    """The generic address (i64) of a tensor map, which TMA's instructions take."""
    return b.ptrtoint(map, I64)


@cache
def prefetch() -> Any:
    """`f(map)`: bring a descriptor into its cache, ahead of the first copy."""

    def generate(b: Any, values: list[Any]) -> None:
        # A generic address, which must lie in the constant, parameter or global space (PTX ISA, "prefetch").
        asm(b, VOID, [address(b, values[0])], "prefetch.tensormap [$0];", "l,~{memory}", effect=True)

    return intrinsic("prefetch", None, [TENSOR_MAP], generate)
