"""cuRAND's Philox generator, by its host interface.

Each stream has a generator, so that streams share no state. The library is loaded when the first number is drawn; it
comes with the extra `cuda`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import cuda.pathfinder as _pathfinder  # pyright: ignore

from cuda_async.driver.interface import Driver
from cuda_async.errors import ContextError, DriverError
from cuda_async.installed import install_command
from cuda_async.locks import new_lock

__all__ = ("Generator",)

_PHILOX4_32_10 = 161  # CURAND_RNG_PSEUDO_PHILOX4_32_10 of curand.h
_FUNCTIONS = {
    "curandCreateGenerator": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "curandSetStream": (ctypes.c_void_p, ctypes.c_void_p),
    "curandSetPseudoRandomGeneratorSeed": (ctypes.c_void_p, ctypes.c_ulonglong),
    "curandSetGeneratorOffset": (ctypes.c_void_p, ctypes.c_ulonglong),
    "curandGenerateUniform": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "curandGenerateUniformDouble": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "curandGenerateNormal": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_float),
    "curandGenerateNormalDouble": (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double, ctypes.c_double,
    ),
}  # fmt: skip


@cache
def _library() -> Any:
    pathfinder: Any = _pathfinder
    library: Any = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("curand").abs_path)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return library


def _call(name: str, *arguments: Any) -> None:
    status = int(getattr(_library(), name)(*arguments))
    if status != 0:  # only a number: cuRAND has no function that names a status
        raise DriverError(status, f"CURAND_STATUS_{status}", f"{name} failed")


# By driver, which has one context, then by the stream's handle: in each context default streams have 0 to 2.
_generators: WeakKeyDictionary[Driver, dict[int, Generator]] = WeakKeyDictionary()
_lock = new_lock()


class Generator:
    """A Philox4x32-10 generator on one stream.

    The caller makes the stream's device current, and holds the stream's submission lock: an operation's `execute` does.

    Raises:
        ContextError: cuRAND was not found, or lacks a function.
        DriverError: cuRAND failed.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        try:
            _library()
        except Exception as error:  # also a library that lacks a function; the error says which it is
            raise ContextError(
                ordinal,
                f"random numbers on a GPU come from cuRAND, which did not load ({error}); install the CUDA extra: "
                f"{install_command('cuda')}, or draw them on the CPU and copy them",
            ) from error
        handle = ctypes.c_void_p()
        _call("curandCreateGenerator", ctypes.byref(handle), _PHILOX4_32_10)
        self._handle = handle
        # Held from the seed to the numbers. The submission lock, which callers hold, is not enough: each call of
        # `Stream.borrow_raw` with one handle makes a stream with a lock of its own.
        self._lock = new_lock()
        _call("curandSetStream", handle, stream)

    @classmethod
    def of(cls, driver: Driver, stream: int) -> Generator:
        """The generator of a stream's handle, in the context of its driver.

        It is never destroyed, and neither is the handle of a stream of ours: the next stream gets the handle
        (`CudaDriver.take_back`), and with it the generator. That is right, since each draw sets the seed and the
        offset. A generator has memory in its context. The owner of a borrowed context destroys both, and a later
        context may have the same address. So no generator is kept longer than its driver.
        """
        with _lock:
            generators = _generators.setdefault(driver, {})
            generator = generators.get(stream)
            if generator is None:
                generator = generators[stream] = cls(driver.properties.ordinal, stream)
            return generator

    def _seed(self, seed: int) -> None:
        _call("curandSetPseudoRandomGeneratorSeed", self._handle, seed)
        _call("curandSetGeneratorOffset", self._handle, 0)  # earlier draws have moved the offset

    def uniform(self, address: int, count: int, bits: int, seed: int) -> None:
        """Enqueue `count` numbers of 32 or 64 bits, uniform in (0, 1]."""
        name = "curandGenerateUniform" if bits == 32 else "curandGenerateUniformDouble"
        with self._lock:
            self._seed(seed)
            _call(name, self._handle, address, count)

    def normal(self, address: int, count: int, bits: int, seed: int, mean: float, std: float) -> None:
        """Enqueue `count` normally distributed numbers of 32 or 64 bits.

        The count must be even: cuRAND draws normal numbers in pairs, and refuses an odd count. For an
        odd count callers allocate a spare element, and draw it too.
        """
        name = "curandGenerateNormal" if bits == 32 else "curandGenerateNormalDouble"
        with self._lock:
            self._seed(seed)
            _call(name, self._handle, address, count, mean, std)
