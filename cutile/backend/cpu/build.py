"""Generated text to relocatable object code, by Numba and LLVM.

Numba is imported here and in `intrinsics/` only. It types the text and writes LLVM IR. LLVM's passes and its code
generator are run from here, so that loops are vectorised once, when the C entry point has stated which pointers do not
alias. The object has one symbol, plain C parameters, and needs nothing of Python or Numba.
"""

import linecache
import re
import sys
from collections.abc import Sequence
from typing import Any

import numba.core.analysis as _analysis
import numba.core.base as _base
import numba.core.codegen as _codegen
import numba.core.compiler as _compiler
import numba.core.compiler_lock as _compiler_lock
import numba.core.compiler_machinery as _machinery
import numba.core.errors as _errors
import numba.core.postproc as _postproc
import numba.core.registry as _registry
import numba.core.serialize as _serialize
import numba.core.ssa as _ssa
import numba.core.typed_passes as _typed
import numba.core.types as _types
import numba.core.untyped_passes as _untyped

from cutile.backend.common.numba_analyses import fast_analyses, no_collection
from cutile.backend.cpu import intrinsics
from cutile.backend.cpu.intrinsics.math import LIBRARY
from cutile.backend.cpu.load import JOINS, packed_members, scratch_offsets
from cutile.backend.cpu.streaming import (
    LINE,
    LOOPS,
    STREAMING,
    Result,
    Streamed,
    mark_streaming,
    streaming_parameters,
)
from cutile.backend.cpu.target import llvm, target_machine
from cutile.backend.interface import Executable, Source, Target
from cutile.errors import CompilationError

# Numba has no types: its modules are `Any` to the type checker.
analysis: Any = _analysis
base: Any = _base
codegen: Any = _codegen
compiler: Any = _compiler
machinery: Any = _machinery
typed: Any = _typed
untyped: Any = _untyped
postproc: Any = _postproc
registry: Any = _registry
serialize: Any = _serialize
ssa: Any = _ssa
types: Any = _types
global_compiler_lock: Any = _compiler_lock.global_compiler_lock
NumbaError: Any = _errors.NumbaError

SYMBOL = "cutile_kernel"

# The names of element types in a plan, by LLVM's type. Elements of 16 and 8 bits are integers to LLVM.
_ELEMENTS = {"float": "f32", "double": "f64", "i64": "i64", "i32": "i32", "i16": "16 bits", "i8": "8 bits"}
_VECTOR = re.compile(r"(?:load|store) <(\d+) x (\w+)>")
"""A vector access to memory, as wide as its loop is vectorised."""

_RUNTIME = re.compile(rb"(?<=\0)_?(__[a-z]+(?:hf|sf|df|xf|tf|bf|ti)[23]?)(?=\0)")
"""A function of the compiler's runtime library in an object's names: `__truncdfhf2` rounds an f64 to f16."""

WRAPPING = frozenset(("add", "sub", "mul", "shl"))
"""The instructions that may be marked as never overflowing."""

# The functions that an object may call: the C library's for memory and floats, none of Python's. LLVM itself writes
# calls of the twelve in `_OF_LLVM`. It writes exp2 or ldexp in place of pow with a base that is a power of two
# (`2.0 ** x`; ldexp if x was an integer). It writes the others if the machine has no instruction for an intrinsic.
_OF_LLVM = ("sin", "cos", "fma", "fmin", "fmax", "fmod", "floor", "ceil", "rint", "trunc", "exp2", "ldexp")
_LIBRARY = frozenset(("memcpy", "memset", "memmove", *LIBRARY, *_OF_LLVM, *(f"{name}f" for name in _OF_LLVM)))


def numba_type(spec: str) -> Any:
    """The Numba type of a parameter: `"f32"`, or `"f32*"` for a pointer."""
    if spec.endswith("*"):
        return types.CPointer(numba_type(spec[:-1]))
    return getattr(intrinsics, spec)


def build(source: Source, target: Target) -> Executable:
    """Compile generated text.

    Raises:
        CompilationError: Numba or LLVM refused it; the message has the generated line.
    """
    kinds = [numba_type(spec) for spec in source.facts["signature"]]
    function = _define(source)
    with global_compiler_lock:
        module, name = _numba_module(source, function, kinds)
        module = _optimised(source, module, name)
        image: bytes = target_machine().emit_object(module)
        _refuse_lost_calls(source, image)
        vectors = _vectors(module)
    return Executable(
        target=target,
        image=image,
        entry=SYMBOL,
        parameters=source.parameters,
        facts={**source.facts, "vectors": vectors},
        source=source.text,
    )


def _define(source: Source) -> Any:
    """Run the text and return its entry function."""
    # Numba's errors quote the text, and `linecache` is where they look for the lines of a file.
    file = f"<cutile {source.entry}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "cutile_generated"}
    exec(compile(source.text, file, "exec"), namespace)
    return namespace[source.entry]


class _Pipeline(compiler.CompilerBase):
    """Numba's passes, without the passes for Python that generated code does not have.

    The missing ones are for closures, lifted loops, unrolling, overloads to be inlined, arrays to be fused. Compiling
    takes two thirds of the time that it takes with them.
    """

    def define_pipelines(self) -> list[Any]:
        passes = machinery.PassManager("cutile")
        for pass_ in (
            untyped.TranslateByteCode,
            untyped.FixupArgs,
            untyped.IRProcessing,
            untyped.ReconstructSSA,
            typed.NopythonTypeInference,
            typed.PreLowerStripPhis,
            typed.IRLegalization,
            typed.NativeLowering,
            typed.NoPythonBackend,
        ):
            passes.add_pass(pass_, pass_.__name__)
        passes.finalize()
        return [passes]


class _Library(codegen.JITCodeLibrary):
    """A library that keeps the LLVM IR as Numba writes it, except that integers wrap.

    Numba's own library optimises each module that it is given. Here `_optimised` does so once, for all linked modules.
    """

    def add_ir_module(self, ir_module: Any) -> None:
        # Numba marks signed sums and products nsw, "never overflows": LLVM may then take `p + 1 > p` for true, and
        # leave out the test that an index is in its tensor. A kernel's integers wrap, as NumPy's do.
        for function in ir_module.functions:
            for block in function.blocks:
                for instruction in block.instructions:
                    if instruction.opname in WRAPPING:
                        instruction.flags = [flag for flag in instruction.flags if flag not in ("nsw", "nuw")]
        codegen.JITCodeLibrary.add_ir_module(self, ir_module)

    def add_llvm_module(self, ll_module: Any) -> None:
        self._final_module.link_in(ll_module)


def _flags(noalias: bool) -> Any:
    flags = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True  # optimisation and object code are ours
    flags.error_model = "numpy"  # no exceptions: division by zero gives what NumPy gives
    flags.nrt = False  # nothing is allocated
    flags.noalias = noalias
    flags.forceinline = True  # into the functions of `_loops`
    return flags


def _numba_module(source: Source, function: Any, kinds: Sequence[Any]) -> tuple[Any, str]:
    """The LLVM module that Numba makes of the function, and the function's name in it."""
    cpu = registry.cpu_target
    typing_context, target_context = cpu.typing_context, cpu.target_context
    # Numba registers new intrinsics when its contexts are refreshed.
    typing_context.refresh()
    target_context.refresh()
    library = _Library(target_context.codegen(), source.entry)
    try:
        fast = fast_analyses(analysis, ssa, postproc, types.Function, base, serialize)
        with no_collection(), fast:
            result = compiler.compile_extra(
                typing_context,
                target_context,
                function,
                tuple(kinds),
                types.void,
                _flags(source.facts["noalias"]),
                {},
                library=library,
                pipeline_class=_Pipeline,
            )
    except NumbaError as error:
        raise CompilationError(f"Numba refused the generated code of {source.entry}:\n{error}") from error
    module = library._final_module
    for dependency in library._linking_libraries:
        module.link_in(dependency._get_module_for_linking(), preserve=True)
    return module, str(result.fndesc.llvm_func_name)


def _entry(source: Source, module: Any, name: str) -> str:
    """LLVM IR of the entry point, and of the functions that it calls.

    The entry point has the same four parameters for every kernel, so that native threads can call it: the address of a
    C struct with the arguments, the address of a worker's scratch memory, the first block, and the block behind the
    last. It unpacks them for a function with plain parameters, whose pointers alias nothing where the kernel says so.
    """
    scratch = source.facts["scratch"]
    kinds = [str(argument.type) for argument in module.get_function(name).arguments][2:]  # without Numba's own two
    declared = ", ".join(["ptr", "ptr", *kinds])
    members = packed_members(kinds, len(source.parameters), len(scratch))
    offsets, _ = scratch_offsets(scratch)
    unpacking = [
        f"%at{at} = getelementptr inbounds i8, ptr %scratch, i64 {offset}"
        for at, offset in enumerate(offsets, len(source.parameters) + JOINS)
    ]
    for member, at in enumerate(members):
        unpacking.append(f"%place{at} = getelementptr inbounds %arguments, ptr %packed, i32 0, i32 {member}")
        unpacking.append(f"%at{at} = load {kinds[at]}, ptr %place{at}")
    passed_on = ", ".join([*(f"{kind} %at{at}" for at, kind in enumerate(kinds[:-2])), "i64 %first", "i64 %last"])
    unpacked = "\n          ".join(unpacking)
    streamed: Streamed = {}
    if source.facts.get("streaming", False):
        results = [Result(*result) for result in source.facts["results"]]
        streamed = streaming_parameters(source.parameters, results)
    return f"""
        %arguments = type {{ {", ".join(kinds[at] for at in members)} }}
        {_loops(source, LOOPS, name, kinds, {})}
        {_loops(source, STREAMING, name, kinds, streamed) if streamed else ""}

        define void @{SYMBOL}(ptr %packed, ptr %scratch, i64 %first, i64 %last) {{
        start:
          {unpacked}
          {_streamed_if_aligned(streamed, passed_on) if streamed else ""}
          call void @{LOOPS}({passed_on})
          ret void
        }}
        declare i32 @"{name}"({declared})
    """


def _loops(source: Source, symbol: str, name: str, kinds: Sequence[str], streamed: Streamed) -> str:
    """LLVM IR of a function that calls Numba's, which is inlined into it.

    It is itself not inlined: LLVM knows `noalias` and `align` of a function's parameters, and `mark_streaming` finds
    the function by its name.

    Args:
        source: the generated text.
        symbol: the function's name.
        name: the name of Numba's function.
        kinds: LLVM's types of the parameters.
        streamed: the parameters that are multiples of a line here, as LLVM is told.
    """
    noalias = source.facts["noalias"]
    parameters: list[str] = []
    # The first two are Numba's: the places for a result and for an exception, which generated code has not.
    passed = ["ptr %result", "ptr %error"]
    rounded: list[str] = []
    for at, kind in enumerate(kinds):
        role, size = streamed.get(at, ("", 0))
        aligned = f" align {LINE}" if role == "pointer" else ""
        parameters.append(f"{kind}{' noalias' * (noalias and kind == 'ptr')}{aligned} %{at}")
        if role == "stride":  # the number stays the same, and LLVM sees that its last bits are zeros
            rounded.append(f"%rounded{at} = and {kind} %{at}, {-(LINE // size)}")
        passed.append(f"{kind} %rounded{at}" if role == "stride" else f"{kind} %{at}")
    rounding = "\n          ".join(rounded)
    return f"""
        define void @{symbol}({", ".join(parameters)}) noinline {{
        start:
          %result = alloca ptr
          %error = alloca ptr
          {rounding}
          %status = call i32 @"{name}"({", ".join(passed)})
          ret void
        }}"""


def _streamed_if_aligned(streamed: Streamed, passed: str) -> str:
    """LLVM IR that calls the streaming loops and returns, if results are aligned.

    They are if each address, and each stride in bytes, is a multiple of a line. Otherwise control goes on.
    """
    lines = ["%bits = add i64 0, 0"]  # the OR of all these numbers, whose last bits are then 0
    bits = "%bits"
    for at, (role, size) in streamed.items():
        number = f"ptrtoint ptr %at{at} to i64" if role == "pointer" else f"mul i64 %at{at}, {size}"
        lines += [f"%bytes{at} = {number}", f"%bits{at} = or i64 {bits}, %bytes{at}"]
        bits = f"%bits{at}"
    lines += [
        f"%last_bits = and i64 {bits}, {LINE - 1}",
        "%is_aligned = icmp eq i64 %last_bits, 0",
        "br i1 %is_aligned, label %aligned, label %otherwise",
        "aligned:",
        f"call void @{STREAMING}({passed})",
        # Non-temporal stores are not ordered by themselves: other threads must see them once this function returns.
        "fence seq_cst",
        "ret void",
        "otherwise:",
    ]
    return "\n          ".join(lines)


def _optimised(source: Source, module: Any, name: str) -> Any:
    """The module with the entry point, optimised, as machine code is made of it."""
    entry = llvm.parse_assembly(_entry(source, module, name))
    entry.triple, entry.data_layout = module.triple, module.data_layout
    module.link_in(entry)
    for function in module.functions:
        if not function.is_declaration and function.name != SYMBOL:
            function.linkage = "internal"  # LLVM drops it once it is inlined
    machine = target_machine()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    foreign = [
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.") and function.name not in _LIBRARY
    ]
    if foreign:
        raise CompilationError(f"the generated code of {source.entry} calls {foreign}, which no object may call")
    if source.facts.get("streaming", False) and source.facts["results"]:
        return llvm.parse_assembly(mark_streaming(str(module)))
    return module


def _refuse_lost_calls(source: Source, image: bytes) -> None:
    """Refuse an object that calls a function which a process may lack.

    The linker leaves such an address zero, and the call ends the process. The code generator writes these calls, after
    the last check of the IR. Other libraries may have brought the function into this process. But the object is kept on
    disk, for processes without these libraries. On macOS the system's own library has such functions in each process.
    """
    names = [name.decode() for name in sorted(set(_RUNTIME.findall(image)))]
    lost = [name for name in names if sys.platform != "darwin" or llvm.address_of_symbol(name) is None]
    if lost:
        raise CompilationError(
            f"the generated code of {source.entry} calls {', '.join(lost)}, which not every process has"
        )


def _vectors(module: Any) -> str:
    """The widest vector accesses of an optimised module by type: `16 x f32, 8 x f64`."""
    widest: dict[str, int] = {}
    for count, kind in _VECTOR.findall(str(module)):
        widest[kind] = max(widest.get(kind, 0), int(count))
    return ", ".join(f"{widest[kind]} x {name}" for kind, name in _ELEMENTS.items() if widest.get(kind, 0) > 1)


def assembly(source: Source) -> str:
    """The assembly that `build` would make of generated text, for people and tests."""
    with global_compiler_lock:
        module, name = _numba_module(source, _define(source), [numba_type(s) for s in source.facts["signature"]])
        text: str = target_machine().emit_assembly(_optimised(source, module, name))
    return text
