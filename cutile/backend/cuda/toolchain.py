"""NVVM and nvJitLink: LLVM IR to LTO-IR to a cubin, with their logs.

They need no device and no driver.

The linker gets LTO-IR, never PTX: from PTX, nvJitLink silently drops `setmaxnreg`. `read_log` reads the linker's log.
Some of its remarks (C75xx: an instruction serialised or ignored) mean slow code, as spills and stack frames do.
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

# Imported by name, so that their type is `Any`: the bindings are compiled modules without type stubs.
_nvvm: Any = importlib.import_module("cuda.bindings.nvvm")
_linker: Any = importlib.import_module("cuda.bindings.nvjitlink")

# f32 as in IEEE 754: every operation rounds by itself, denormals are kept, division and square root round to nearest.
NVVM_OPTIONS = ("-opt=3", "-gen-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1")
LINK_OPTIONS = ("-lto", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1", "-Xptxas=-v", "-no-cache")
"""The options of arithmetic are repeated: with LTO the linker generates the machine code. `-Xptxas=-v`: the log has
registers, spills and stack frames. `-no-cache`: from its own cache the linker returns machine code without a log. The
disk cache of kernels keeps both."""


def import_numba_cuda() -> None:
    """Import the parts of numba-cuda that a first compilation imports.

    The import also succeeds with NumPy 2.5, which is newer than numba-cuda 0.30.4.

    numba-cuda 0.30.4 registers `np.row_stack` for kernels that call it. NumPy 2.5 has no such name, and generated
    kernels call no function of NumPy. So the name is there while numba-cuda is imported, as the alias of `np.vstack`
    that it was. It is removed afterwards, so that no other code comes to rely on it. numba-cuda also makes a
    `timedelta64` without a unit, which NumPy 2.5 deprecates. Users can do nothing about that warning, which stops a
    program whose warnings are errors.
    """
    numpy: Any = np
    lacking = "row_stack" not in vars(numpy)  # before NumPy 2.5, `hasattr` would warn of the name
    if lacking:
        numpy.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The 'generic' unit for NumPy timedelta", DeprecationWarning)
            importlib.import_module("numba.cuda")
            importlib.import_module("numba.cuda.np.arrayobj")  # it registers `np.row_stack`
            _import_array_functions()
    finally:
        if lacking:
            with suppress(AttributeError):  # another thread has removed it
                del numpy.row_stack


def _import_array_functions() -> None:
    """Import Numba's functions of arrays without SciPy.

    SciPy's import would delay the first kernel by 0.1 s. Numba imports SciPy to find out whether there is a BLAS, since
    its `np.convolve` needs one. No BLAS can be called on a GPU. So Numba is told that there is none while it imports
    `arraymath`.
    """
    linalg: Any = importlib.import_module("numba.cuda.np.linalg")
    ensure = linalg.ensure_blas
    linalg.ensure_blas = _no_blas
    try:
        functions: Any = importlib.import_module("numba.cuda.np.arraymath")
        functions.ensure_blas = ensure  # `arraymath` has imported the name while it stood for `_no_blas`
    finally:
        linalg.ensure_blas = ensure


def _no_blas() -> None:
    raise ImportError("no BLAS on a GPU")


@dataclass(frozen=True)
class Report:
    """The figures of one kernel in the linker's log.

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

    The log has a line of stack and spills for each function that was not inlined. Their bytes are added up. The
    registers are those of the function that has most.

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
    """The major and minor version of nvJitLink: the package's, or a CUDA toolkit's."""
    major, minor = _linker.version()
    return int(major), int(minor)


def _text(size: int, fill: Callable[[Any, bytearray], Any], handle: Any) -> str:
    """The text that a getter of the bindings writes into `size` bytes.

    Zeros at its end are cut off.
    """
    if not size:
        return ""
    buffer = bytearray(size)
    fill(handle, buffer)
    return buffer.decode(errors="replace").rstrip("\0").strip()


def compile_ir(modules: Sequence[str], arch: Architecture, libraries: Sequence[bytes] = ()) -> bytes:
    """Compile LLVM IR to LTO-IR.

    Args:
        modules: texts of LLVM IR, in the version that NVVM reads for `arch`.
        arch: the architecture.
        libraries: bitcode, from which only the functions that modules call are taken.

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
        except Exception as error:  # the bindings have no other class above `nvvmError`
            size = _nvvm.get_program_log_size(program)
            log = _text(size, _nvvm.get_program_log, program)
            raise CompilationError(f"NVVM: {error}: {log}") from error
        code = bytearray(_nvvm.get_compiled_result_size(program))
        _nvvm.get_compiled_result(program, code)
        return bytes(code)
    finally:
        _nvvm.destroy_program(program)


def link(code: bytes, arch: Architecture) -> tuple[bytes, str]:
    """Link LTO-IR; return a cubin and the linker's log.

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
        return bytes(cubin), _text(size, _linker.get_info_log, handle)
    finally:
        _linker.destroy(handle)
