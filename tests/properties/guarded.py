"""Memory between inaccessible pages: whoever touches a byte before or behind an array ends the process.

The backend `guarded` of `running.run` is the CPU with every array of a kernel placed so.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from cutile import Tensor, api
from cutile.dtypes import DTypeLike, from_numpy

GUARDED = "guarded"
PAGE = mmap.PAGESIZE
_NO_ACCESS = 0  # PROT_NONE, which `mmap` does not name

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """`size` bytes at the end, or at the beginning, of pages that lie between two inaccessible ones."""

    def __init__(self, size: int, at_end: bool) -> None:
        pages = -(-max(size, 1) // PAGE) * PAGE
        whole = pages + 2 * PAGE
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _library.mmap(None, whole, access, kind, -1, 0)
        if base == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        weakref.finalize(self, _library.munmap, base, whole)
        for guard in (base, base + PAGE + pages):
            if _library.mprotect(guard, PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.address = base + PAGE + (pages - size if at_end else 0)
        self.__array_interface__ = {
            "version": 3,
            "data": (self.address, False),
            "shape": (size,),
            "typestr": "|u1",
        }


def guarded(values: np.ndarray[Any, Any], at_end: bool) -> Tensor:
    """A tensor of these values on the host, over memory of its own between guard pages."""
    values = np.ascontiguousarray(values)
    dtype: DTypeLike = from_numpy(values.dtype)
    carrier = np.dtype(f"u{values.itemsize}")  # as bits: what DLPack has no number for comes along, too
    memory = np.asarray(Guarded(values.nbytes, at_end)).view(carrier).reshape(values.shape)
    memory[...] = values.view(carrier)
    return api.from_foreign(memory).reinterpret(dtype, values.shape)


class _There:
    """What stands for an operation that has a tensor already."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def sync(self) -> Tensor:
        return self._tensor


@contextmanager
def guard_pages(seed: int) -> Generator[None]:
    """Have `api.from_numpy` make guarded tensors: two of three end at a guard page, the others begin at one."""
    count = seed

    def placed(values: np.ndarray[Any, Any]) -> _There:
        nonlocal count
        count += 1
        return _There(guarded(values, at_end=count % 3 > 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "from_numpy", placed)
        yield
