"""The shipped kernels, and kernels of text, as IR and as cubins, without a device."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from cutile import config
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.build import to_llvm
from cutile.backend.cuda.target import architecture
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.interface import CompileOptions, Executable, Source, Target
from cutile.compile.driver import machine_code
from cutile.dtypes import DTypeLike, f32, i32
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.core import Function
from cutile.ir.types import Type
from cutile.passes.pipeline import run_passes
from kernels import mlp
from kernels.gemm import gemm
from kernels.row_min import row_min
from kernels.saxpy import saxpy
from kernels.softmax import softmax
from kernels.vector_add import vector_add
from tests.support.programs import mut, program, scalar, tensor

HOPPER = Target("cuda", "sm_90a")
AMPERE = Target("cuda", "sm_80")
BLACKWELL = Target("cuda", "sm_100a")


def shipped(kernel: Any, parameters: Mapping[str, Type], *, unsafe: bool = False, **generics: Any) -> Function:
    """The IR of a shipped kernel after the neutral passes; generics that are not given have their defaults."""
    function = kernel.__wrapped__
    every: dict[str, Any] = {**(function.__kwdefaults__ or {}), **generics}
    return run_passes(build(function, take_source(function), parameters, every, unsafe=unsafe).function)


def written(text: str, parameters: Mapping[str, Type], *, unsafe: bool = False, **generics: Any) -> Function:
    """The IR of a kernel of text after the neutral passes."""
    return run_passes(program(text, parameters, unsafe=unsafe, **generics))


def saxpy_program(*tile: int) -> Function:
    """y = a * x + y in f32."""
    return shipped(saxpy, {"y": mut(*tile), "a": scalar(), "x": tensor(len(tile))})


def vector_add_program() -> Function:
    """z = x + y in f32."""
    return shipped(vector_add, {"z": mut(1024), "x": tensor(1), "y": tensor(1)})


def softmax_program(rows: int, columns: int, dtype: DTypeLike = f32) -> Function:
    """Softmax of whole rows."""
    return shipped(softmax, {"y": mut(rows, columns, dtype=dtype), "x": tensor(2, dtype)})


def gemm_program(dtype: DTypeLike, tile: tuple[int, int], depth: int) -> Function:
    """z = x @ y."""
    return shipped(gemm, {"z": mut(*tile, dtype=dtype), "x": tensor(2, dtype), "y": tensor(2, dtype)}, BK=depth)


def row_min_program(rows: int) -> Function:
    """The row minima, by iota and select."""
    return shipped(row_min, {"lowest": mut(rows), "column": mut(rows, dtype=i32), "x": tensor(2)}, BN=128)


def mlp_programs() -> dict[str, Function]:
    """The kernels between the products of a classifier's training."""
    scores = {"gradient": mut(64, 10), "loss": mut(64), "scores": tensor(2), "truth": tensor(2), "share": scalar()}
    return {
        "cross_entropy": shipped(mlp.cross_entropy, scores),
        "relu_gradient": shipped(mlp.relu_gradient, {"y": mut(64, 64), "hidden": tensor(2)}),
        "descend": shipped(mlp.descend, {"weight": mut(64, 64), "gradient": tensor(2), "rate": scalar()}),
    }


def lowered(function: Function, target: Target = HOPPER, **options: Any) -> Function:
    """After `lower`."""
    return BACKEND.lower(function, target, CompileOptions(**options))


def source(function: Function, target: Target = HOPPER, **options: Any) -> Source:
    """After `emit`."""
    return BACKEND.emit(lowered(function, target, **options), target, CompileOptions(**options))


def tensor_maps(text: Source) -> list[TensorMap]:
    """The tensor maps that a kernel takes, in the order of its parameters."""
    return [parameter.map for parameter in text.parameters if isinstance(parameter.map, TensorMap)]


def compiled(function: Function, arch: str = "sm_90a", **options: Any) -> Executable:
    """After `build`, and the attempts at a kernel that spills."""
    target, given = Target("cuda", arch), CompileOptions(**options)
    return machine_code(function, source(function, target, **options), target, given, BACKEND.build, config.load())


def ptx(function: Function, arch: str = "sm_90a") -> str:
    """A kernel's PTX, which NVVM writes if it is not asked for the linker's form."""
    nvvm: Any = importlib.import_module("cuda.bindings.nvvm")
    unit = nvvm.create_program()
    try:
        for text in to_llvm(source(function, Target("cuda", arch)), architecture(arch)):
            nvvm.add_module_to_program(unit, text.encode(), len(text.encode()), "kernel")
        nvvm.compile_program(unit, 1, [f"-arch=compute_{arch.removeprefix('sm_')}"])
        code = bytearray(nvvm.get_compiled_result_size(unit))
        nvvm.get_compiled_result(unit, code)
        return code.decode().rstrip("\0")
    finally:
        nvvm.destroy_program(unit)


@cache
def nvdisasm() -> Path:
    """The disassembler."""
    files = metadata.files("nvidia-cuda-nvdisasm") or []
    (found,) = (each for each in files if each.name in ("nvdisasm", "nvdisasm.exe"))
    return Path(str(found.locate()))


_LATEST: dict[bytes, str] = {}
"""The latest disassembly: tests look at the same kernel more than once."""


def disassembly(executable: Executable, folder: Path) -> str:
    """The machine code as text."""
    if executable.image not in _LATEST:
        image = folder / "kernel.cubin"
        image.write_bytes(executable.image)
        # "-ndf": without the analysis of where values go, which is a third of its time and changes no line of kernels.
        command = [nvdisasm(), "-c", "-ndf", image]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
        _LATEST.clear()
        _LATEST[executable.image] = text
    return _LATEST[executable.image]


def innermost_loop(executable: Executable, name: str, folder: Path) -> int:
    """The number of instructions of the innermost loop with the most of this name."""
    places: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    lines: list[str] = []
    for line in disassembly(executable, folder).splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            places[label[1]] = len(lines)
        elif re.match(r"\s+/\*\w+\*/", line):
            lines.append(line)
            if (back := re.search(r"\bBRA\b.*`\((\.L_\w+)\)", line)) and back[1] in places:
                loops.append((places[back[1]], len(lines)))

    def of_that_name(loop: tuple[int, int]) -> int:
        return sum(name in line for line in lines[slice(*loop)])

    begin, end = max(loops, key=lambda loop: (of_that_name(loop), loop[0] - loop[1]))
    return end - begin


def instructions(executable: Executable, folder: Path) -> Counter[str]:
    """How often each instruction occurs, by its first word: `HMMA`, `LDG`."""
    text = disassembly(executable, folder)
    return Counter(re.findall(r"^\s*(?:/\*\w+\*/)?\s*(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)", text, re.MULTILINE))
