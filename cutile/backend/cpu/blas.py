"""SciPy's BLAS: addresses of its functions, and one thread while workers call it.

Each worker multiplies its own block, so a library that starts threads of its own would only get in the way. The library
is found beside SciPy without importing it where that is possible; else through the capsules that SciPy publishes.
"""

import ctypes
import importlib
import importlib.util
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cuda_async.locks import new_lock


class Blas:
    """The library, opened.

    Attributes:
        addresses: of `sgemm` and `dgemm`, with the Fortran interface and 32-bit integers.
    """

    def __init__(self, addresses: dict[str, int], get_threads: Any, set_threads: Any) -> None:
        self.addresses = addresses
        self._get = get_threads
        self._set = set_threads
        self._lock = new_lock()
        self._inside = 0
        self._before = 1

    def threads(self) -> int:
        """How many threads a call from elsewhere may use now."""
        return int(self._get())

    @contextmanager
    def one_thread(self) -> Generator[None]:
        """While any thread is in here, calls run on the thread that makes them.

        Afterwards it is as it was.
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
        except (OSError, AttributeError):
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
        return max((int(library.num_threads or 1) for library in libraries), default=1)

    def set_threads(count: int) -> None:
        for library in libraries:
            library.set_num_threads(count)

    return Blas(addresses, get_threads, set_threads)


@cache
def blas() -> Blas:
    """The library; opened once."""
    return _beside_scipy() or through_scipy()
