"""Text to machine code.

Numba reads the generated function and makes LLVM IR, `toolchain.py` the rest.
"""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from cuda_async.locks import new_lock
from cutile.backend.cuda.intrinsics.fragment import POINTER, frag
from cutile.backend.cuda.intrinsics.llvm import I32, ir, threads_at_barriers
from cutile.backend.cuda.intrinsics.numba_pipeline import numba_library
from cutile.backend.cuda.intrinsics.tensor_map import MAP, TENSOR_MAP
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.cuda.tensor_map import MAP_ALIGNMENT
from cutile.backend.cuda.toolchain import compile_ir, link, read_log
from cutile.backend.interface import Executable, Parameter, Source, Target
from cutile.errors import CompilationError

_nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")

TMA_LOAD = "shared::cluster.global"
"""What the instruction of a load by TMA says of the way."""

_NUMBA: Final = new_lock()
"""Numba's typing and LLVM's text are made by one thread at a time; NVVM and the linker run beside each other."""


def parameter_type(parameter: Parameter) -> Any:
    """The Numba type of a kernel's parameter."""
    if parameter.kind == "tensor_map":
        return TENSOR_MAP
    return POINTER if parameter.kind in ("pointer", "workspace", "report") else frag(parameter.dtype, 0)


def _as_kernel(function: Any, source: Source) -> None:
    """Turn Numba's C function into an entry point.

    No result, its launch bounds, what is known of its parameters.
    """
    facts = source.facts
    pointers = [i for i, each in enumerate(source.parameters) if each.kind == "pointer"] if facts["noalias"] else []
    maps = [i for i, each in enumerate(source.parameters) if each.kind == "tensor_map"]
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
    threads, min_blocks, cluster = facts["threads"], facts["min_blocks"], facts.get("cluster", 1)
    _nvvm.set_launch_bounds(function, (threads, min_blocks) if min_blocks else (threads,))
    for position in pointers:
        function.args[position].attributes.add("noalias")
    for position in maps:  # they come by value, and the kernel does not change them
        function.args[position].attributes.add("byval")
        function.args[position].attributes.align = MAP_ALIGNMENT
    module = function.module
    if facts.get("rolled"):
        _keep_loads_rolled(function)
    if maps:
        _annotate(function, "grid_constant", module.add_metadata([I32(position + 1) for position in maps]))
    if cluster > 1:  # in the code itself, so that a launch need not say it
        for axis, blocks in zip("xyz", (cluster, 1, 1), strict=True):
            _annotate(function, f"cluster_dim_{axis}", I32(blocks))
    for each in [each for each in module.global_values if "NumbaEnv" in each.name]:
        del module.globals[each.name]


def _keep_loads_rolled(function: Any) -> None:
    """Have no loop unrolled in which TMA loads.

    The producer has few registers, and an unrolled loop would spill them.

    Numba keeps blocks in the order of the bytecode, so a loop leads back to a block that stands before.
    """
    module = function.module
    places = {block: place for place, block in enumerate(function.blocks)}
    for place, block in enumerate(function.blocks):
        first = min((places.get(target, place + 1) for target in block.terminator.operands), default=place + 1)
        if any(map(_loads_by_tma, function.blocks[first : place + 1])):
            rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
            loop = module.add_metadata([rolled, I32(place)])  # of its own
            loop.operands = (loop, rolled)  # LLVM tells loops apart by a node that begins with itself
            block.terminator.set_metadata("llvm.loop", loop)


def _loads_by_tma(block: Any) -> bool:
    calls = (each.callee for each in block.instructions if isinstance(each, ir.CallInstr))
    return any(isinstance(callee, ir.InlineAsm) and TMA_LOAD in callee.asm for callee in calls)


def _annotate(function: Any, name: str, value: Any) -> None:
    """Say something of a kernel that LLVM IR itself has no words for."""
    module = function.module
    mark = module.add_metadata((function, ir.MetaDataString(module, name), value))
    module.get_named_metadata("nvvm.annotations").add(mark)


def _define(source: Source) -> Any:
    """Run the generated file and return its kernel, a Python function for Numba."""
    scope: dict[str, Any] = {"__name__": f"cutile.generated.{source.entry}"}
    exec(compile(source.text, f"<cutile {source.entry}>", "exec"), scope)
    return scope[source.entry]


def to_llvm(source: Source, arch: Architecture) -> list[str]:
    """The kernel as LLVM IR.

    Raises:
        CompilationError: Numba refused the generated text.
    """
    name = source.entry
    try:
        with _NUMBA, threads_at_barriers(source.facts.get("computing", 0)):
            kinds = tuple(parameter_type(each) for each in source.parameters)
            library = numba_library(_define(source), name, kinds, arch)
            _as_kernel(library.get_function(name), source)
            texts = [str(_nvvm.llvm_replace(each)) for each in library.llvm_strs]
    except Exception as error:
        raise CompilationError(f"{name}: Numba: {type(error).__name__}: {error}\n{source.text}") from error
    if arch.major < 10:  # LLVM 7 knows `byval` without a type
        texts = [each.replace(f"byval({MAP})", "byval") for each in texts]
    return texts


@cache
def _libdevice() -> bytes:
    return bytes(_nvvm.LibDevice().get())


def libraries_of(modules: Sequence[str]) -> list[bytes]:
    """The bitcode that modules call into."""
    return [_libdevice()] if any("__nv_" in each for each in modules) else []


def _machine_code(source: Source, arch: Architecture) -> tuple[bytes, str]:
    """A cubin and the linker's log."""
    modules = to_llvm(source, arch)
    return link(compile_ir(modules, arch, libraries_of(modules)), arch)


def build(source: Source, target: Target) -> Executable:
    """Compile generated text for an architecture.

    How many blocks share a multiprocessor is what lowering hopes for, from a count of registers. Where they spill, the
    kernel is compiled anew for one block, unless the user asked for them.

    Raises:
        CompilationError: Numba, NVVM or the linker refused it.
    """
    arch = architecture(target.arch)
    try:
        cubin, log = _machine_code(source, arch)
        report = read_log(log)
        if report.spills and source.facts.get("may_have_fewer_blocks"):
            given_up = source.facts["min_blocks"]
            source = replace(source, facts={**source.facts, "min_blocks": 0})
            cubin, log = _machine_code(source, arch)
            log = f"{given_up} blocks to a multiprocessor would spill {report.spills} bytes: not asked for\n{log}"
            report = read_log(log)
    except CompilationError as error:
        error.add_note(f"while compiling {source.entry} for {arch.name}")
        raise
    facts = dict(source.facts) | {
        "registers": report.registers,
        "stack": report.stack,
        "spills": report.spills,
        "remarks": report.remarks,
    }
    return Executable(target, cubin, source.entry, source.parameters, facts, source.text, log)
