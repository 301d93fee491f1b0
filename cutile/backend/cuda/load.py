"""An `Executable` to something launchable: arguments packed into one block of memory, handed to the driver as it is.

No Numba here, and no CUDA binding: the stream loads and launches.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from cutile.backend.interface import Executable, Grid, LaunchStream, Loaded, Parameter
from cutile.dtypes import DTypeLike, bf16, f16
from cutile.errors import LaunchError

MOST_BLOCKS = 2**31 - 1

_CODES: dict[str, str] = {
    "bool": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f16": "H",
    "bf16": "H",
    "f32": "f",
    "f64": "d",
}


def _code(parameter: Parameter) -> str:
    return "Q" if parameter.kind == "pointer" else _CODES[parameter.dtype.name]


def _bits(dtype: DTypeLike, value: float) -> int:
    """A 16-bit float as the integer with its bits."""
    return int(np.asarray(value).astype(dtype.numpy).view(np.uint16))


class CudaLoaded(Loaded):
    """A kernel on any number of devices; the image is loaded on each at its first launch there."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._parameters = executable.parameters
        scalars = [(i, each) for i, each in enumerate(self._parameters) if each.kind == "scalar"]
        self._halves = [i for i, each in scalars if each.dtype in (f16, bf16)]
        self._packer = struct.Struct("=" + "".join(_padded(_code(each)) for each in self._parameters))
        self._block = (int(executable.facts["threads"]), 1, 1)
        self._shared = int(executable.facts["shared_bytes"])
        self._functions: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def launch(self, grid: Grid, arguments: Sequence[int | float | bool], stream: LaunchStream) -> None:
        """Enqueue the kernel over `grid`; never wait.

        Raises:
            LaunchError: the grid has more blocks than a launch may have.
        """
        blocks = grid[0] * grid[1] * grid[2]
        if not 1 <= blocks <= MOST_BLOCKS:
            raise LaunchError(f"the grid {grid} has {blocks} tile blocks; a launch takes 1 to {MOST_BLOCKS}")
        values = list(arguments)
        for i in self._halves:
            values[i] = _bits(self._parameters[i].dtype, values[i])
        memory, addresses = self._memory()
        self._packer.pack_into(memory, 0, *values)
        function = self._function(stream)
        stream.launch_function(function, (blocks, 1, 1), self._block, self._shared, addresses)

    def _function(self, stream: LaunchStream) -> Any:
        """The function on the stream's device, loaded once."""
        device = getattr(stream, "device", None)
        found = self._functions.get(device)
        if found is None:
            with self._lock:
                found = self._functions.get(device)
                if found is None:
                    found = stream.load_function(self._executable.image, self._executable.entry, self._shared)
                    self._functions[device] = found
        return found

    def _memory(self) -> tuple[Any, Any]:
        """This thread's block of packed values, and the addresses of the values in it. The driver copies at launch."""
        found = getattr(self._local, "memory", None)
        if found is None:
            memory = ctypes.create_string_buffer(max(8 * len(self._parameters), 8))
            base = ctypes.addressof(memory)
            addresses = (ctypes.c_void_p * max(len(self._parameters), 1))(
                *(base + 8 * i for i in range(len(self._parameters)))
            )
            found = self._local.memory = (memory, addresses)
        return found


def _padded(code: str) -> str:
    """A value and what fills its 8 bytes."""
    return f"{code}{8 - struct.calcsize('=' + code)}x"


def load(executable: Executable) -> CudaLoaded:
    """Make an executable launchable. Nothing touches a device before the first launch."""
    return CudaLoaded(executable)
