"""Numba's passes for generated text: the machine code is that of all passes, and Numba stays unchanged."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import pytest

from cutile.backend.cuda import build
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.cuda.toolchain import compile_ir, link
from cutile.backend.interface import DEFAULT_OPTIONS
from cutile.dtypes import bf16, i32
from cutile.errors import CompilationError
from cutile.ir.core import Function
from tests.backend.cuda.programs import HOPPER, gemm_program, written
from tests.support.programs import mut, scalar, tensor

BRANCHES = """
def branches(y: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, y)
    i = 0
    while i < n:
        if i % 3 == 0:
            t = t * 2.0
        else:
            t = t + 1.0
        i += 1
        if i > 100:
            break
    y.store(t)
"""


def every_pass(function: Any, name: str, kinds: tuple[Any, ...], arch: Architecture) -> Any:
    """The code library that `numba.cuda` makes with all its passes."""
    compiler: Any = importlib.import_module("numba.cuda.compiler")
    types: Any = importlib.import_module("numba.cuda").types
    compilation = compiler.compile_cuda(
        function, types.void, kinds, cc=arch.capability, abi="c", abi_info={"abi_name": name}, nvvm_options={"opt": 3}
    )
    return compilation.library


def machine_code(function: Function) -> bytes:
    arch = architecture(HOPPER.arch)
    source = BACKEND.emit(BACKEND.lower(function, HOPPER, DEFAULT_OPTIONS), HOPPER, DEFAULT_OPTIONS)
    modules = build.to_llvm(source, arch)
    return link(compile_ir(modules, arch, build.libraries_of(modules)), arch)[0]


@pytest.mark.parametrize("name", ["branches", pytest.param("gemm", marks=pytest.mark.slow)])
def test_machine_code_is_that_of_every_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "gemm":
        function = gemm_program(bf16, (128, 64), 64)
    else:
        function = written(BRANCHES, {"y": mut(256), "x": tensor(1), "n": scalar(i32)})
    ours = machine_code(function)
    monkeypatch.setattr(build, "numba_library", every_pass)
    assert machine_code(function) == ours


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_and_numbas_context_are_as_they_were(collecting: bool) -> None:
    context: Any = importlib.import_module("numba.cuda.descriptor").cuda_target.target_context
    function = written(BRANCHES, {"y": mut(64), "x": tensor(1), "n": scalar(i32)})
    source = BACKEND.emit(BACKEND.lower(function, HOPPER, DEFAULT_OPTIONS), HOPPER, DEFAULT_OPTIONS)
    broken = type(source)(
        "def branches(y):\n    return no_such_name\n", "branches", source.parameters, {}, source.facts
    )
    try:
        if not collecting:
            gc.disable()
        build.to_llvm(source, architecture(HOPPER.arch))
        assert gc.isenabled() == collecting
        with pytest.raises(CompilationError):
            build.to_llvm(broken, architecture(HOPPER.arch))
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
    assert "refresh" not in vars(context)


def test_types_of_many_registers_have_names() -> None:
    """A product by warpgroups yields 64 sums, each extracted from a type that is written once."""
    source = BACKEND.emit(
        BACKEND.lower(gemm_program(bf16, (128, 128), 64), HOPPER, DEFAULT_OPTIONS), HOPPER, DEFAULT_OPTIONS
    )
    (text,) = build.to_llvm(source, architecture(HOPPER.arch))
    assert '%"64 x float" = type {float, ' in text
    assert max(map(len, (line for line in text.splitlines() if "extractvalue" in line))) < 100
