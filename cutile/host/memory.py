"""Device memory that the host can touch, as NumPy arrays: on the CPU, and on the simulated device.

For work that runs on the device's own threads, in stream order (`stream.call`, `stream.parallel_for`). Reading such an
array anywhere else would race with the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_async import Device, Stream
from cutile.launch.views import View

__all__ = ("Array", "array_of", "for_rows", "runs_host_code")

Array = np.ndarray[Any, np.dtype[Any]]

_GRAIN_BYTES = 1 << 20  # below this, waking a second worker costs more than it saves


def runs_host_code(device: Device) -> bool:
    """Whether work of this device may be a Python function that touches its memory."""
    return device.kind != "cuda"


def array_of(view: View) -> Array:
    """The elements of a view as an array over the same memory. The caller keeps the storage alive."""
    low, high = view.byte_range
    memory: Any = (ctypes.c_char * (high - low)).from_address(view.storage.address + low)
    size = view.dtype.bits // 8
    strides = tuple(stride * size for stride in view.strides)
    return np.ndarray(view.shape, view.dtype.numpy, memory, view.offset - low, strides)


def for_rows(stream: Stream, shape: tuple[int, ...], nbytes: int, body: Callable[[int, int], None]) -> None:
    """Enqueue `body(start, stop)` over the first axis of `shape`, in pieces of about a megabyte of `nbytes`."""
    rows = shape[0] if shape else 1
    stream.parallel_for(body, rows, max(1, rows * _GRAIN_BYTES // nbytes))
