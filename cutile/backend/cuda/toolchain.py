"""NVVM and nvJitLink: LLVM IR to LTO-IR to a cubin, with what they have to say.

No device, no driver.

LTO-IR, never PTX: fed PTX, nvJitLink silently drops instructions that need the whole program. The linker's log is read,
since some of its remarks (C75xx: an instruction serialised or ignored) mean slow code, and a spill or a stack frame
does too.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutile.backend.cuda.target import Architecture
from cutile.errors import CompilationError

_nvvm: Any = importlib.import_module("cuda.bindings.nvvm")
_linker: Any = importlib.import_module("cuda.bindings.nvjitlink")

# f32 as IEEE has it: every operation rounds by itself, denormals count, division and square root to nearest.
NVVM_OPTIONS = ("-opt=3", "-gen-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")
LINK_OPTIONS = ("-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1", "-Xptxas=-v", "-no-cache")
"""Without its own cache, from which the linker serves machine code and says nothing of spills: ours keeps both."""


def import_numba_cuda() -> None:
    """Import numba-cuda as a first compilation would, also with a NumPy it rejects.

    One that it does not know.

    numba-cuda 0.30.4 registers `np.row_stack`, which NumPy 2.5 has no more, for kernels that call it; ours call nothing
    of NumPy's. So the name is there while that file is imported, as the function that it was another name of, and gone
    again before anybody else can come to rely on it. It also makes a `timedelta64` without a unit, which is deprecated
    in 2.5: a warning that no user can heed, and an error where warnings are errors.
    """
    numpy: Any = np
    lacking = "row_stack" not in vars(numpy)  # to ask `hasattr` is to be warned of the name, before 2.5
    if lacking:
        numpy.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The 'generic' unit for NumPy timedelta", DeprecationWarning)
            importlib.import_module("numba.cuda")
            importlib.import_module("numba.cuda.np.arrayobj")
            _import_array_functions()
    finally:
        if lacking:
            with suppress(AttributeError):  # another thread was faster
                del numpy.row_stack


def _import_array_functions() -> None:
    """Import Numba's functions of arrays without SciPy.

    Numba imports it to find out whether there is a BLAS.

    That takes 0.1 s before the first kernel. What it decides is how `np.convolve` multiplies on a GPU, where no BLAS
    can be called: by a loop, as if there were none.
    """
    linalg: Any = importlib.import_module("numba.cuda.np.linalg")
    ensure = linalg.ensure_blas
    linalg.ensure_blas = _no_blas
    try:
        functions: Any = importlib.import_module("numba.cuda.np.arraymath")
        functions.ensure_blas = ensure
    finally:
        linalg.ensure_blas = ensure


def _no_blas() -> None:
    raise ImportError("no BLAS on a GPU")


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


def linker_version() -> tuple[int, int]:
    """The version of the nvJitLink that is found, major and minor.

    The installed one, or a CUDA toolkit's.
    """
    major, minor = _linker.version()
    return int(major), int(minor)


def _text(size: int, fill: Callable[[Any, bytearray], Any], handle: Any) -> str:
    """What a getter of the bindings writes into a buffer."""
    buffer = bytearray(max(size, 1))
    fill(handle, buffer)
    return buffer.decode(errors="replace").rstrip("\0").strip()


def compile_ir(modules: Sequence[str], arch: Architecture, libraries: Sequence[bytes] = ()) -> bytes:
    """LLVM IR as LTO-IR for an architecture.

    From `libraries`, bitcode, only what is called is taken.

    Raises:
        CompilationError: NVVM refused it; the message is its log.
    """
    program = _nvvm.create_program()
    options = [f"-arch=compute_{arch.name.removeprefix('sm_')}", *NVVM_OPTIONS]
    try:
        for text in modules:
            data = text.encode()
            _nvvm.add_module_to_program(program, data, len(data), "kernel")
        for library in libraries:
            _nvvm.lazy_add_module_to_program(program, library, len(library), "library")
        try:
            _nvvm.compile_program(program, len(options), options)
        except Exception as error:
            size = _nvvm.get_program_log_size(program)
            log = _text(size, _nvvm.get_program_log, program)
            raise CompilationError(f"NVVM: {error}: {log}") from error
        code = bytearray(_nvvm.get_compiled_result_size(program))
        _nvvm.get_compiled_result(program, code)
        return bytes(code)
    finally:
        _nvvm.destroy_program(program)


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
            size = _linker.get_error_log_size(handle)
            log = _text(size, _linker.get_error_log, handle)
            raise CompilationError(f"nvJitLink: {error}: {log}") from error
        cubin = bytearray(_linker.get_linked_cubin_size(handle))
        _linker.get_linked_cubin(handle, cubin)
        size = _linker.get_info_log_size(handle)
        return bytes(cubin), _text(size, _linker.get_info_log, handle) if size else ""
    finally:
        _linker.destroy(handle)
