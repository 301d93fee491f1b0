"""The demo kernels as IR, lowered and written for a CPU that is only a name."""

from __future__ import annotations

import textwrap
from typing import Any

from cutile.backend.cpu.backend import BACKEND
from cutile.backend.interface import DEFAULT_OPTIONS, CompileOptions, Source, Target
from cutile.dtypes import DTypeLike, f32
from cutile.ir.core import Function
from cutile.ir.types import Type
from cutile.passes.pipeline import run_passes
from tests.support.programs import mut, program, scalar, tensor

TARGET = Target("cpu", "a-machine", 2)

SAXPY = """
    def saxpy(y: Mut, a: f32, x: Tensor):
        y.store(a * ct.load_tile_like(x, y) + y.load())
"""
SOFTMAX = """
    def softmax(y: Mut, x: Tensor):
        rows = y.shape[0]
        t = ct.load_tile_like(x, y)
        e = ct.exp(t - ct.reduce_max(t, 1).reshape((rows, 1)))
        y.store(e / ct.reduce_sum(e, 1).reshape((rows, 1)))
"""


def function(text: str, parameters: dict[str, Type], **generics: Any) -> Function:
    """The IR of a kernel after the target-neutral passes."""
    return run_passes(program(textwrap.dedent(text).lstrip(), parameters, **generics))


def lowered(text: str, parameters: dict[str, Type], **generics: Any) -> Function:
    """The loops of a kernel."""
    return BACKEND.lower(function(text, parameters, **generics), TARGET, CompileOptions())


def source(
    text: str, parameters: dict[str, Type], options: CompileOptions = DEFAULT_OPTIONS, **generics: Any
) -> Source:
    """The generated file of a kernel."""
    return BACKEND.emit(lowered(text, parameters, **generics), TARGET, options)


def saxpy_types(*tile: int, dtype: DTypeLike = f32) -> dict[str, Type]:
    """Parameters of `SAXPY`."""
    return {"y": mut(*tile, dtype=dtype), "a": scalar(dtype), "x": tensor(len(tile), dtype)}


def softmax_types(*tile: int) -> dict[str, Type]:
    """Parameters of `SOFTMAX`."""
    return {"y": mut(*tile), "x": tensor(2)}


def gemm_types(*tile: int, dtype: DTypeLike = f32) -> dict[str, Type]:
    """Parameters of `GEMM`."""
    return {"z": mut(*tile, dtype=dtype), "x": tensor(2, dtype), "y": tensor(2, dtype)}
