"""Text to machine code: Numba makes LLVM IR of the generated function, NVVM LTO-IR, nvJitLink a cubin.

LTO-IR, never PTX: fed PTX, nvJitLink silently drops instructions that need the whole program. What the linker says is
read and kept, since some of its remarks (C75xx: an instruction serialised or ignored) mean slow code, and a spill or a
stack frame does too. Nothing here needs a device or a driver.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import POINTER, frag, types
from cutile.backend.cuda.intrinsics.llvm import ir
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.interface import Executable, Parameter, Source, Target
from cutile.errors import CompilationError

_compiler: Any = importlib.import_module("numba.cuda.compiler")
_nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
_linker: Any = importlib.import_module("cuda.bindings.nvjitlink")
_nvvm_bindings: Any = importlib.import_module("cuda.bindings.nvvm")

LINK_OPTIONS = ("-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1", "-Xptxas=-v")
NVVM_OPTIONS: Mapping[str, Any] = {"opt": 3, "fma": 0, "ftz": 0, "prec-div": 1, "prec-sqrt": 1}


@dataclass(frozen=True)
class Report:
    """What the linker said of a kernel.

    Attributes:
        registers: per thread.
        stack: bytes of stack frame per thread; 0 in good code.
        spills: bytes stored to and loaded from the stack for want of registers.
        remarks: the C75xx lines: instructions serialised or ignored.
    """

    registers: int
    stack: int
    spills: int
    remarks: tuple[str, ...]


def read_log(log: str) -> Report:
    """The figures in a linker's log.

    Example:
        >>> read_log("0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\\nUsed 40 registers")
        Report(registers=40, stack=0, spills=12, remarks=())
    """

    def total(pattern: str) -> int:
        return sum(int(each) for each in re.findall(pattern, log))

    remarks = tuple(line.strip() for line in log.splitlines() if re.search(r"\bC75\d\d\b", line))
    registers = max((int(each) for each in re.findall(r"Used (\d+) registers", log)), default=0)
    return Report(registers, total(r"(\d+) bytes stack frame"), total(r"(\d+) bytes spill (?:stores|loads)"), remarks)


def parameter_type(parameter: Parameter) -> Any:
    """The Numba type of a kernel's plain parameter."""
    return POINTER if parameter.kind == "pointer" else frag(parameter.dtype, 0)


def _as_kernel(function: Any, threads: int, min_blocks: int, noalias: Sequence[int]) -> None:
    """Turn Numba's C function into an entry point: no result, a launch bound, what is known of its pointers."""
    void = ir.VoidType()
    for block in function.blocks:
        if isinstance(block.terminator, ir.Ret):
            block.instructions.pop()
            block.terminator = None
            ir.IRBuilder(block).ret_void()
    function.ftype = ir.FunctionType(void, function.ftype.args)
    function.type = ir.PointerType(function.ftype)
    function.return_value = ir.ReturnValue(function, void)
    function.linkage = ""
    _nvvm.set_cuda_kernel(function)
    _nvvm.set_launch_bounds(function, (threads, min_blocks) if min_blocks else (threads,))
    for position in noalias:
        function.args[position].attributes.add("noalias")
    module = function.module
    for each in [each for each in module.global_values if "NumbaEnv" in each.name]:
        del module.globals[each.name]


def _define(source: Source) -> Any:
    """Run the generated file and return its kernel, a Python function that Numba will read."""
    scope: dict[str, Any] = {"__name__": f"cutile.generated.{source.entry}"}
    exec(compile(source.text, f"<cutile {source.entry}>", "exec"), scope)
    return scope[source.entry]


def to_lto(source: Source, arch: Architecture) -> bytes:
    """The kernel as LTO-IR.

    Raises:
        CompilationError: Numba or NVVM refused it.
    """
    name = source.entry
    try:
        compiled = _compiler.compile_cuda(
            _define(source),
            types.void,
            tuple(parameter_type(each) for each in source.parameters),
            cc=arch.capability,
            abi="c",
            abi_info={"abi_name": name},
            nvvm_options=dict(NVVM_OPTIONS),
        )
        library = compiled.library
        facts = source.facts
        noalias = [i for i, each in enumerate(source.parameters) if each.kind == "pointer"] if facts["noalias"] else []
        _as_kernel(library.get_function(name), facts["threads"], facts["min_blocks"], noalias)
        return bytes(library.get_ltoir(cc=arch.capability))
    except Exception as error:
        raise CompilationError(f"{name}: {type(error).__name__}: {error}") from error


def link(code: bytes, arch: Architecture) -> tuple[bytes, str]:
    """A cubin and the linker's log, from LTO-IR.

    Raises:
        CompilationError: the linker refused it; the message is its error log.
    """
    options = [f"-arch={arch.name}", *LINK_OPTIONS]
    handle = _linker.create(len(options), options)
    try:
        try:
            _linker.add_data(handle, _linker.InputType.LTOIR, code, len(code), "kernel")
            _linker.complete(handle)
        except Exception as error:
            text = bytearray(_linker.get_error_log_size(handle))
            _linker.get_error_log(handle, text)
            raise CompilationError(f"nvJitLink: {text.decode(errors='replace').rstrip(chr(0))}") from error
        cubin = bytearray(_linker.get_linked_cubin_size(handle))
        _linker.get_linked_cubin(handle, cubin)
        log = bytearray(_linker.get_info_log_size(handle))
        if log:
            _linker.get_info_log(handle, log)
        return bytes(cubin), log.decode(errors="replace").rstrip("\0")
    finally:
        _linker.destroy(handle)


def build(source: Source, target: Target) -> Executable:
    """Compile generated text for an architecture.

    Raises:
        CompilationError: Numba, NVVM or the linker refused it.
    """
    arch = architecture(target.arch)
    cubin, log = link(to_lto(source, arch), arch)
    report = read_log(log)
    facts = dict(source.facts) | {
        "registers": report.registers,
        "stack": report.stack,
        "spills": report.spills,
        "remarks": report.remarks,
    }
    return Executable(target, cubin, source.entry, source.parameters, facts, source.text, log)


def toolchain_version() -> str:
    """The versions of everything that turns text into a cubin."""
    metadata: Any = importlib.import_module("importlib.metadata")
    packages = ("numba", "numba-cuda", "llvmlite")
    parts = [f"{each} {metadata.version(each)}" for each in packages]
    parts.append("nvvm " + ".".join(map(str, _nvvm_bindings.version())))
    parts.append("nvjitlink " + ".".join(map(str, _linker.version())))
    return ", ".join(parts)
