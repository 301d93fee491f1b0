"""Generated text to machine code.

Numba turns the generated function into LLVM IR. `toolchain.py` turns that into a cubin. `ATTEMPTS` lists the further
builds of a kernel that spills.
"""

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from cuda_async.locks import new_lock
from cutile.backend.cuda.budget import registers
from cutile.backend.cuda.intrinsics.fragment import POINTER, frag
from cutile.backend.cuda.intrinsics.llvm import I32, ir, threads_at_barriers
from cutile.backend.cuda.intrinsics.numba_pipeline import numba_library
from cutile.backend.cuda.intrinsics.tma import MAP, TENSOR_MAP
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.cuda.tensor_map import MAP_ALIGNMENT
from cutile.backend.cuda.toolchain import compile_ir, link, read_log
from cutile.backend.gpu.layout_assignment import MAX_MMA_WARPS
from cutile.backend.interface import Attempt, Executable, Parameter, Source, Target
from cutile.errors import CompilationError

_nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")

TMA_LOAD = "shared::cluster.global"
"""The state spaces in the PTX of a load by TMA: from global to shared memory (PTX ISA, "cp.async.bulk.tensor")."""

_NUMBA: Final = new_lock()
"""The lock for steps that only one thread at a time may do: Numba's typing, and printing LLVM IR.

NVVM and the linker run without the lock, for several kernels at once.
"""


def parameter_type(parameter: Parameter) -> Any:
    """The Numba type of a kernel's parameter."""
    if parameter.kind == "tensor_map":
        return TENSOR_MAP
    # A workspace and a report are addresses, like tensors. A fragment of 0 elements is a scalar.
    return POINTER if parameter.kind in ("pointer", "workspace", "report") else frag(parameter.dtype, 0)


def _as_kernel(function: Any, source: Source) -> None:
    """Turn Numba's C function into an entry point.

    It loses its result, and gets launch bounds and attributes of its parameters.
    """
    facts = source.facts
    # Only tensors ("pointer"): `noalias` follows from the ownership of arguments. Workspace and report are no
    # arguments.
    pointers = [i for i, p in enumerate(source.parameters) if p.kind == "pointer"] if facts["noalias"] else []
    maps = [i for i, p in enumerate(source.parameters) if p.kind == "tensor_map"]
    void = ir.VoidType()
    # A kernel returns nothing: each `ret` of Numba's function becomes `ret void`.
    for block in function.blocks:
        if isinstance(block.terminator, ir.Ret):
            block.instructions.pop()
            block.terminator = None
            ir.IRBuilder(block).ret_void()
    function.ftype = ir.FunctionType(void, function.ftype.args)
    function.type = ir.PointerType(function.ftype)
    function.return_value = ir.ReturnValue(function, void)
    function.linkage = ""  # in LLVM's text: external
    _nvvm.set_cuda_kernel(function)
    # `min_blocks` is 0 where the compiler is free to choose the number of registers.
    threads, min_blocks, cluster = facts["threads"], facts["min_blocks"], facts.get("cluster", 1)
    _nvvm.set_launch_bounds(function, (threads, min_blocks) if min_blocks else (threads,))
    for position in pointers:
        function.args[position].attributes.add("noalias")
    # A tensor map is a parameter by value. `grid_constant` (below) says that the kernel does not change it, so that its
    # address is taken without a copy to local memory.
    for position in maps:
        function.args[position].attributes.add("byval")
        function.args[position].attributes.align = MAP_ALIGNMENT
    module = function.module
    if facts.get("rolled"):  # warp-specialised by `pipeline/rules.py`, whose producer runs the kernel's own loops
        _keep_loads_rolled(function)
    if maps:  # NVVM counts parameters from 1 here
        _annotate(function, "grid_constant", module.add_metadata([I32(position + 1) for position in maps]))
    if cluster > 1:  # as an attribute of the code (PTX `.reqnctapercluster`): launches need not state it
        for axis, blocks in zip("xyz", (cluster, 1, 1), strict=True):
            _annotate(function, f"cluster_dim_{axis}", I32(blocks))
    # Numba's environment of the function, which some versions of numba-cuda emit. A kernel does not use it.
    for environment in [value for value in module.global_values if "NumbaEnv" in value.name]:
        del module.globals[environment.name]


def _keep_loads_rolled(function: Any) -> None:
    """Forbid LLVM to unroll loops that load by TMA.

    The producer has few registers, and an unrolled loop would spill them.
    """
    module = function.module
    positions = {block: position for position, block in enumerate(function.blocks)}
    for position, block in enumerate(function.blocks):
        # Numba keeps blocks in the order of the bytecode. So a branch to an earlier block, or to its own, ends a loop,
        # whose body is all blocks from there to here. A branch's other operand, its condition, is no block.
        end = position + 1
        header = min((positions.get(target, end) for target in block.terminator.operands), default=end)
        if any(map(_loads_by_tma, function.blocks[header:end])):
            rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
            # LLVM tells loops apart by a node whose first operand is the node itself. llvmlite returns the same node
            # for equal operands. So the position makes a new node for each loop, and its operands are replaced
            # afterwards.
            loop = module.add_metadata([rolled, I32(position)])
            loop.operands = (loop, rolled)
            block.terminator.set_metadata("llvm.loop", loop)


def _loads_by_tma(block: Any) -> bool:
    calls = (op.callee for op in block.instructions if isinstance(op, ir.CallInstr))
    return any(isinstance(callee, ir.InlineAsm) and TMA_LOAD in callee.asm for callee in calls)


def _annotate(function: Any, name: str, value: Any) -> None:
    """Add a property that LLVM IR has no attribute for (NVVM IR, "nvvm.annotations")."""
    module = function.module
    annotation = module.add_metadata((function, ir.MetaDataString(module, name), value))
    module.get_named_metadata("nvvm.annotations").add(annotation)


def _define(source: Source) -> Any:
    """Run the generated file and return its kernel, a Python function for Numba.

    The text is the emitter's: imports of intrinsics and one function.
    """
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
        # In a warp-specialised kernel the consumers alone (`computing` threads) meet at the barriers of a block.
        with _NUMBA, threads_at_barriers(source.facts.get("computing", 0)):
            types = tuple(parameter_type(parameter) for parameter in source.parameters)
            library = numba_library(_define(source), name, types, arch)
            _as_kernel(library.get_function(name), source)
            # `llvm_replace` rewrites what llvmlite prints and NVVM does not read.
            texts = [str(_nvvm.llvm_replace(text)) for text in library.llvm_strs]
    except Exception as error:
        raise CompilationError(f"{name}: Numba: {type(error).__name__}: {error}\n{source.text}") from error
    if arch.major < 10:  # NVVM reads LLVM 7's IR, in which `byval` has no type; from 10.0 on it reads a recent LLVM's
        texts = [text.replace(f"byval({MAP})", "byval") for text in texts]
    return texts


@cache
def _libdevice() -> bytes:
    return bytes(_nvvm.LibDevice().get())


def libraries_of(modules: Sequence[str]) -> list[bytes]:
    """The bitcode whose functions modules call: libdevice's names begin with `__nv_`."""
    return [_libdevice()] if any("__nv_" in module for module in modules) else []


def build(source: Source, target: Target) -> Executable:
    """Compile generated text for an architecture.

    Raises:
        CompilationError: Numba, NVVM or the linker refused it.
    """
    arch = architecture(target.arch)
    try:
        modules = to_llvm(source, arch)
        cubin, log = link(compile_ir(modules, arch, libraries_of(modules)), arch)
    except CompilationError as error:
        error.add_note(f"while compiling {source.entry} for {arch.name}")
        raise
    return Executable(
        target, cubin, source.entry, source.parameters, {**source.facts, **asdict(read_log(log))}, source.text, log
    )


def _may_have_more_registers(built: Executable) -> bool:
    """Whether the compiler chose fewer registers than threads may have."""
    facts = built.facts
    most = registers(architecture(built.target.arch), facts["threads"], 1)
    return not facts["min_blocks"] and facts["registers"] < most


ATTEMPTS = (
    # Lowering estimates from its count of registers how many thread blocks fit a multiprocessor, and asks for as many.
    Attempt(
        "{min_blocks} blocks to a multiprocessor would spill {spills} bytes: not asked for",
        when=lambda built: "may_have_fewer_blocks" in built.facts,
        facts={"min_blocks": 0},
        always=True,
    ),
    # ptxas 13.5 compiled code that spills 2.6 KB with 128 registers for 32 registers: `.maxntid` was 288 to 640, but
    # not 384. Up to 256 threads it takes all registers that a thread may have. So it does where `.minnctapersm` is 1.
    Attempt(
        "{registers} registers would spill {spills} bytes: compiled again for one block to a multiprocessor",
        when=_may_have_more_registers,
        facts={"min_blocks": 1},
    ),
    Attempt(
        "with {warps} warps {spills} bytes would spill: {more_warps} taken",
        when=lambda built: "more_warps" in built.facts,
        options={"num_worker_warps": MAX_MMA_WARPS},
    ),
)
"""Attempts to compile a kernel that spills. What the user's options fix, none of them changes (`emit`)."""
