"""Numba's way from a generated function to LLVM IR, with only the passes it needs.

Generated text is calls of intrinsics, loops, branches and assignments. Numba has passes for closures, `with`, `raise`,
literals, inlining and array expressions. They find nothing in such text, but each walks the whole function. Without
them the machine code is the same to the byte (docs/benchmarks/compile has the time that this saves).
"""

import importlib
from typing import Any

from cutile.backend.common.numba_analyses import fast_analyses, no_collection
from cutile.backend.cuda.target import Architecture
from cutile.backend.cuda.toolchain import import_numba_cuda

import_numba_cuda()  # first: an import of a part would fail with a NumPy that numba-cuda does not know


def _of(module: str) -> Any:
    """A module of numba-cuda, which has no types."""
    return importlib.import_module(f"numba.cuda.{module}")


_compiler: Any = _of("compiler")
_analysis: Any = _of("core.analysis")
_base: Any = _of("core.base")
_machinery: Any = _of("core.compiler_machinery")
_postproc: Any = _of("core.postproc")
_ssa: Any = _of("core.ssa")
_typed: Any = _of("core.typed_passes")
_untyped: Any = _of("core.untyped_passes")
_types: Any = _of("types")
_utils: Any = _of("utils")
_target: Any = _of("descriptor").cuda_target
_flags: Any = _of("flags").CUDAFlags
_convention: Any = _of("core.callconv").CUDACABICallConv
_lock: Any = _of("core.compiler_lock").global_compiler_lock


@_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _TypeInference(_typed.NopythonTypeInference):
    """Type inference that looks for new registrations only before and after it runs.

    Numba would look for them at each call that it types. Typing a call may register an implementation, which later
    passes look up.
    """

    _name = "cutile_type_inference"

    def run_pass(self, state: Any) -> Any:
        context = _target.target_context
        context.refresh()
        # An attribute of this object hides the method. Numba's lock is held, so no other compilation can miss a
        # registration meanwhile.
        context.refresh = _nothing
        try:
            return _typed.NopythonTypeInference.run_pass(self, state)
        finally:
            del context.refresh
            context.refresh()


def _nothing() -> None:
    """Do nothing, in place of a refresh."""


class _Pipeline(_compiler.CUDACompiler):
    """`CUDACompiler` without passes for Python that generated text does not have."""

    def define_pipelines(self) -> list[Any]:
        passes = _machinery.PassManager("cutile")
        for pass_ in (
            _compiler.CUDATranslateBytecode,
            _untyped.FixupArgs,
            _untyped.IRProcessing,
            _untyped.ReconstructSSA,
            _TypeInference,
            _typed.PreLowerStripPhis,
            _typed.IRLegalization,
            _compiler.CreateLibrary,
            _compiler.CUDANativeLowering,
            _compiler.CUDABackend,
        ):
            passes.add_pass(pass_, pass_.__name__)
        passes.finalize()
        return [passes]


def numba_library(function: Any, name: str, types: tuple[Any, ...], arch: Architecture) -> Any:
    """The code library with a function's LLVM IR for an architecture.

    Args:
        function: a Python function, generated.
        name: of the symbol.
        types: Numba's types of its parameters.
        arch: the architecture.
    """
    flags = _flags()
    flags.no_compile = True  # only LLVM IR is asked for: `build.py` links it
    flags.no_cpython_wrapper = True  # nobody calls the function from Python
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"  # no exceptions: division by zero gives what NumPy gives
    flags.compute_capability = arch.capability
    typing, target = _target.typing_context, _target.target_context
    # The modules in which `fast_analyses` replaces functions, and Numba's type of functions.
    fast = fast_analyses(_analysis, _ssa, _postproc, _types.Function, _base)
    # The override has Numba look up implementations for CUDA, and not for the CPU.
    with _lock, no_collection(), fast, _utils.numba_target_override():
        result = _compiler.compile_extra(
            typingctx=typing,
            targetctx=target,
            func=function,
            args=types,
            return_type=_types.void,
            flags=flags,
            locals={},
            pipeline_class=_Pipeline,
            call_conv=_convention(target),  # of C: a kernel returns nothing, and takes its parameters as they are
            abi_info={"abi_name": name},
        )
        result.library.finalize()  # functions of linked libraries may then be dropped where nobody calls them
    return result.library
