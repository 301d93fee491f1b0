"""Device memory as the host sees it: typed addresses, and NumPy arrays.

The host can access memory of the CPU and of simulated devices. Only work on the device's own threads, in stream order
(`stream.call`, `stream.parallel_for`), may use an array of it. Anything else would race with the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np

from cuda_async import Device, Stream
from cutile.dtypes import DTypeLike
from cutile.host.shapes import row_major_strides
from cutile.launch.views import View

__all__ = ("Array", "DevicePointer", "array_of", "contiguous_view", "for_rows", "runs_host_code")

Array = np.ndarray[Any, np.dtype[Any]]

_GRAIN_BYTES = 1 << 20  # below this, waking a second worker costs more than it saves

_MAX_VIEWS = 1024
"""Views of new tensors that are cached, some 600 bytes each."""


class _Nowhere:
    """Stands for memory that does not exist yet."""

    address = 0


@lru_cache(maxsize=_MAX_VIEWS)
def contiguous_view(dtype: DTypeLike, shape: tuple[int, ...]) -> View:
    """The elements of a new contiguous tensor, before there is memory.

    `view.at(storage)` is the same view in memory.
    """
    return View(cast("Any", _Nowhere), 0, dtype, shape, row_major_strides(shape))


def runs_host_code(device: Device) -> bool:
    """Whether work of this device may be a Python function that touches its memory."""
    return device.runs_host_code


def array_of(view: View) -> Array:
    """The elements of a view as an array over the same memory.

    The caller keeps the storage alive.
    """
    low, high = view.byte_range
    memory: Any = (ctypes.c_char * (high - low)).from_address(view.storage.address + low)
    size = view.dtype.bits // 8
    strides = tuple(stride * size for stride in view.strides)
    return np.ndarray(view.shape, view.dtype.numpy, memory, view.offset - low, strides)


def for_rows(stream: Stream, shape: tuple[int, ...], nbytes: int, body: Callable[[int, int], None]) -> None:
    """Enqueue `body(start, stop)` over the first axis of `shape`.

    Each call gets rows of about a megabyte, on one of the CPU's workers. Without elements nothing is enqueued.

    Args:
        stream: where to enqueue it.
        shape: the extents; a shape of no axes counts as one row.
        nbytes: the size of all rows.
        body: handles the rows from `start` to before `stop`.
    """
    if 0 in shape:
        return
    rows = shape[0] if shape else 1
    stream.parallel_for(body, rows, max(1, rows * _GRAIN_BYTES // nbytes))


class DevicePointer(int):
    """An address on a device, and the dtype of the elements there. Owns nothing.

    Attributes:
        dtype: the element type.
    """

    dtype: DTypeLike

    def __new__(cls, address: int, dtype: DTypeLike) -> DevicePointer:
        self = super().__new__(cls, address)
        self.dtype = dtype
        return self

    def cu_deviceptr(self) -> int:
        """The address as a plain number: a `CUdeviceptr` on a GPU."""
        return int(self)

    def __repr__(self) -> str:
        return f"DevicePointer({int(self):#x}, {self.dtype.name})"
