"""Object code to something that can be launched.

No Numba: a kernel from the disk cache does not import it.

A launch hands the stream one call, in which the team of native threads (`team.py`) shares out ranges of blocks. Where
there is no team, or the kernel calls Python functions or the BLAS, the stream's workers call `body(first, last)` on the
ranges instead. Each thread has its own scratch memory, kept between launches. Calls go through ctypes, which lets other
Python threads run.
"""

import ctypes
import importlib
import importlib.util
import math
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from cuda_async.locks import new_lock
from cutile.backend.common.abi import HostStream, RepeatedLaunch
from cutile.backend.cpu.streaming import Result, StreamingVariants
from cutile.backend.cpu.target import initialize, llvm, target_machine
from cutile.backend.cpu.team import Job, team
from cutile.backend.interface import Argument, Executable, Grid, Parameter
from cutile.config import usable_cores
from cutile.conversion import bits_of, element
from cutile.dtypes import BY_NAME
from cutile.errors import KernelAssertionError
from cutile.ops.debug import failure_text, print_text

# SciPy's BLAS: the addresses of its functions, and a limit of one thread while workers call it.
#
# Each worker multiplies its own block, so threads of the library would only compete with the workers. Where SciPy is a
# wheel with OpenBLAS, the library is opened from SciPy's folder without importing SciPy; else through SciPy's capsules.


class Blas:
    """The library, opened.

    Attributes:
        addresses: the addresses of `sgemm` and `dgemm`, which have the Fortran interface and 32-bit integers.
    """

    def __init__(self, addresses: dict[str, int], get_threads: Any, set_threads: Any) -> None:
        self.addresses = addresses
        self._get = get_threads
        self._set = set_threads
        self._lock = new_lock()
        self._inside = 0  # threads within `one_thread`
        self._before = 1  # the library's number of threads before the first of them came

    def threads(self) -> int:
        """How many threads a call from elsewhere may use now."""
        return int(self._get())

    @contextmanager
    def one_thread(self) -> Generator[None]:
        """Have calls of the library run on the calling thread alone in this context.

        The last thread that leaves restores the library's number of threads.
        """
        with self._lock:
            if self._inside == 0:
                self._before = self._get()
                self._set(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._set(self._before)


FUNCTIONS = ("sgemm", "dgemm")


def _beside_scipy() -> Blas | None:
    """The OpenBLAS that SciPy's wheels carry."""
    spec = importlib.util.find_spec("scipy")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folders = (package.parent / "scipy.libs", package / ".dylibs")
    for path in sorted(path for folder in folders for path in folder.glob("*scipy_openblas*")):
        try:
            library = ctypes.CDLL(str(path))
            addresses = {name: _address(getattr(library, f"scipy_{name}_")) for name in FUNCTIONS}
            return Blas(addresses, library.scipy_openblas_get_num_threads, library.scipy_openblas_set_num_threads)
        except (OSError, AttributeError):  # it does not load, or is another library of this name
            continue
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def through_scipy() -> Blas:
    """Any BLAS that SciPy was built with."""
    capsules: dict[str, Any] = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    addresses = {name: int(get_pointer(capsules[name], get_name(capsules[name])) or 0) for name in FUNCTIONS}
    threadpoolctl: Any = importlib.import_module("threadpoolctl")
    libraries: Sequence[Any] = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers

    def get_threads() -> int:
        return max((int(library.num_threads or 1) for library in libraries), default=1)  # None: it does not say

    def set_threads(count: int) -> None:
        for library in libraries:
            library.set_num_threads(count)

    return Blas(addresses, get_threads, set_threads)


_blas: Blas | None = None
_blas_lock = new_lock()


def blas() -> Blas:
    """The library; opened once.

    The process has one number of threads for it: two `Blas` would each restore what the other had set.
    """
    global _blas
    with _blas_lock:
        if _blas is None:
            _blas = _beside_scipy() or through_scipy()
        return _blas


ALIGNMENT = 64  # of scratch memory: a cache line, a vector register
JOINS = 3  # parameters that say how many tile blocks run as one, by the axes of the grid
RANGE = 2  # trailing parameters: the first block, and the one behind the last

_C_TYPES: dict[str, Any] = {
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
RANGES = 8  # ranges per worker: enough that a slow worker does not hold up the launch


def scratch_offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The offset of each piece of a thread's scratch memory, and the bytes of all.

    Example:
        >>> scratch_offsets([100, 8])
        ((0, 128), 192)
    """
    offsets: list[int] = []
    total = 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), total


def packed_members(signature: Sequence[str], parameters: int, scratch: int) -> list[int]:
    """The positions in the signature of the members of a launch's argument struct.

    All parameters but scratch memory and the range are members.

    Example:
        >>> packed_members(["f32*", "i64", "i64", "i64", "f32*", "i64", "i64"], 1, 1)
        [0, 1, 2, 3]
    """
    first = parameters + JOINS
    return [at for at in range(len(signature) - RANGE) if not first <= at < first + scratch]


def argument_struct(signature: Sequence[str], members: Sequence[int]) -> Any:
    """The struct of a launch's arguments, as a class of `ctypes`."""
    fields = [(f"at{at}", _c_type(signature[at])) for at in members]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


def _c_type(spec: str) -> Any:
    return ctypes.c_void_p if spec.endswith("*") else _C_TYPES[spec]


def _is_converted(parameter: Parameter) -> bool:
    """Whether a parameter is a scalar that is converted before ctypes packs it."""
    dtype = parameter.dtype
    return parameter.kind == "scalar" and (dtype.kind == "storage" or (dtype.kind == "float" and dtype.bits == 16))


def _converted(parameter: Parameter, value: float) -> float | int:
    """A scalar as the kernel takes it.

    A 16-bit float is rounded, and passed as f32. A float that is only stored is passed as its bits.
    """
    if parameter.dtype.kind == "storage":
        return bits_of(value, parameter.dtype)
    return float(element(value, parameter.dtype))


class CpuKernel:
    """Loaded code, ready to launch.

    Args:
        executable: the object code, with its facts.
        units: the threads that share a launch; 0 for all usable cores.
    """

    def __init__(self, executable: Executable, units: int = 0) -> None:
        initialize()
        facts = executable.facts
        self._parameters = executable.parameters
        self._to_convert = [at for at, each in enumerate(self._parameters) if _is_converted(each)]
        self._max_joined_along = tuple(int(factor) for factor in facts["max_joined_along"])
        self._max_joined = int(facts["max_joined"])
        signature, sizes = facts["signature"], [int(size) for size in facts["scratch"]]
        _, self._scratch_bytes = scratch_offsets(sizes)
        members = packed_members(signature, len(self._parameters), len(sizes))
        self._arguments = argument_struct(signature, members)
        self._blas: Blas | None = blas() if facts["blas"] else None
        self._output = KernelOutput(facts) if facts["prints"] or facts["asserts"] else None
        addresses = (self._blas.addresses if self._blas else {}) | (self._output.addresses if self._output else {})
        self._functions = [addresses[name] for name in facts["functions"]]
        self._workers = units or usable_cores()
        results = [Result(*result) for result in facts.get("results", ())]
        self._variants = StreamingVariants(results) if results and not facts.get("streaming", False) else None
        self._local = threading.local()
        # The engine wants a module, and links the object beside it.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(executable.image))
        self._engine.finalize_object()
        address = self._engine.get_function_address(executable.entry)
        self._entry = address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
        # Python functions and the BLAS are called on the stream's own workers: the team's threads check no assertions,
        # and do not limit the BLAS to one thread.
        self._native = not facts["functions"]
        self._team_scratch: tuple[Any, int] | None = None
        self._team_lock = new_lock()

    @property
    def variants(self) -> StreamingVariants | None:
        """The kernel with streaming stores, for launches that write much."""
        return self._variants

    def _scratch(self) -> int:
        """The address of this thread's scratch memory."""
        address: int | None = getattr(self._local, "address", None)
        if address is None:
            self._local.memory, address = _aligned(self._scratch_bytes)
            self._local.address = address
        return address

    def _scratch_of_team(self, size: int) -> int:
        """The address of the scratch memory of a team's `size` threads, in a row.

        Launches share it, since a thread of the team works on one of them at a time.
        """
        with self._team_lock:  # two streams may both make the first launch: they must share one memory
            if self._team_scratch is None:
                self._team_scratch = _aligned(self._scratch_bytes * size)
            return self._team_scratch[1]

    def joins(self, grid: Grid) -> tuple[int, int, int]:
        """How many tile blocks run as one along each axis.

        The most that the code allows, fewer where workers would idle.
        """
        joins, left = [1, 1, 1], self._max_joined
        for axis in (2, 1, 0):  # the last axis first: its tiles are neighbours in memory
            joins[axis] = min(self._max_joined_along[axis], grid[axis], left)
            left //= joins[axis]
        while max(joins) > 1 and math.prod(map(_ceil, grid, joins)) < 2 * self._workers:
            widest = joins.index(max(joins))
            joins[widest] = _ceil(joins[widest], 2)
        return (joins[0], joins[1], joins[2])

    def packed(self, stream: HostStream) -> None:
        """None: a launch hands a Python function to the stream."""

    def prepare(self, grid: Grid, arguments: Sequence[Argument], stream: HostStream) -> RepeatedLaunch:
        """A launch that can be repeated."""
        return RepeatedLaunch(self, grid, arguments, stream)

    def launch(self, grid: Grid, arguments: Sequence[Argument], stream: HostStream) -> None:
        """Enqueue the kernel; never wait."""
        joins = self.joins(grid)
        plain = list(arguments)
        for at in self._to_convert:
            plain[at] = _converted(self._parameters[at], cast("float", plain[at]))
        packed = self._arguments(*plain, *joins, *self._functions)
        call, library, output = self._call, self._blas, self._output
        count = math.prod(map(_ceil, grid, joins))
        grain = max(1, count // (RANGES * self._workers))

        def body(first: int, last: int) -> None:
            call(ctypes.addressof(packed), self._scratch(), first, last)
            if output is not None:
                output.check()

        def body_with_blas(first: int, last: int) -> None:
            assert library is not None
            with library.one_thread():
                body(first, last)

        helpers = team(stream.threads) if self._native and count > grain else None  # a single range needs no team
        if helpers is None:
            stream.parallel_for(body if library is None else body_with_blas, count, grain)
            return

        def with_team(first: int, last: int) -> None:
            table = self._scratch_of_team(helpers.size)
            ranges, size = _ceil(last - first, grain), self._scratch_bytes
            job = Job(self._entry, ctypes.addressof(packed), last, grain, ranges, 0, 0, table, size)
            helpers.run(job, self._scratch())

        stream.parallel_for(with_team, count, count)  # a single range for the stream: the team divides it


def _aligned(nbytes: int) -> tuple[Any, int]:
    """Memory, and an aligned address in it with `nbytes` bytes behind it."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    return memory, -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT


def _ceil(count: int, divisor: int) -> int:
    return -(-count // divisor)


def load(executable: Executable) -> CpuKernel:
    """Link an object into this process."""
    return CpuKernel(executable)


_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class KernelOutput:
    """Prints and failed assertions of one kernel: the functions that its code calls.

    A worker copies the values of a print from its scratch memory one by one, and writes the text at the print's end. So
    the prints of several threads do not mix.

    Attributes:
        addresses: the addresses of the functions, by their names in the generated file.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._prints = facts["prints"]
        self._asserts = facts["asserts"]
        self._local = threading.local()
        # Kept as attributes: the addresses are valid as long as these objects live.
        self._say, self._fail = _FUNCTION(self._on_print), _FUNCTION(self._on_failure)
        self.addresses = {"say": _address(self._say), "fail": _address(self._fail)}

    def _on_print(self, site: int, position: int, address: int, _: int) -> None:
        """A value of a print, or (position -1) its end."""
        pieces, specs, shapes = self._prints[site]
        values: list[Any] = self._local.__dict__.setdefault("values", [])
        if position >= 0:
            values.append(_copy(address, *shapes[position]))
            return
        text = print_text(pieces, specs, values)
        values.clear()
        sys.stdout.write(text)

    def _on_failure(self, site: int, x: int, y: int, z: int) -> None:
        """A number of a failed assertion (site -1), or the assertion with its tile block."""
        numbers: list[int] = self._local.__dict__.setdefault("numbers", [])
        if site < 0:
            numbers.append(x)
            return
        self._local.failure = (site, (x, y, z), tuple(numbers))
        numbers.clear()

    def check(self) -> None:
        """Raise the failure that this thread's last call of the kernel noted.

        Raises:
            KernelAssertionError: an assertion failed.
        """
        failure = self._local.__dict__.pop("failure", None)
        if failure is not None:
            site, block, numbers = failure
            message, where, names, dtypes = self._asserts[site]
            raise KernelAssertionError(failure_text(message, where, block, names, dtypes, numbers))


def _copy(address: int, dtype: str, shape: Sequence[int]) -> Any:
    """The elements in scratch memory, where bools are bytes and small floats are f32."""
    widened = {"bool": np.dtype(np.uint8), "f16": np.dtype(np.float32), "bf16": np.dtype(np.float32)}
    kind = widened.get(dtype) or BY_NAME[dtype].numpy
    data = ctypes.string_at(address, math.prod(shape) * kind.itemsize)
    values = np.frombuffer(data, kind).reshape(shape)
    return values != 0 if dtype == "bool" else values
