"""What kernels say while they run: the functions that generated code calls to print and to report a failed assertion.

A worker that prints takes the values from its own scratch memory at once, so that threads do not mix within a print.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutile.dtypes import BY_NAME
from cutile.errors import KernelAssertionError
from cutile.ops.debug import failure_text, print_text

_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class Speech:
    """The prints and assertions of one kernel.

    Attributes:
        addresses: of the functions, by the names that the generated file has for them.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._prints = facts["prints"]
        self._asserts = facts["asserts"]
        self._local = threading.local()
        self._say, self._fail = _FUNCTION(self._take), _FUNCTION(self._note)
        self.addresses = {"say": _address(self._say), "fail": _address(self._fail)}

    def _take(self, site: int, position: int, address: int, _: int) -> None:
        """A value of a print, or (position -1) its end."""
        pieces, specs, shapes = self._prints[site]
        values: list[Any] = self._local.__dict__.setdefault("values", [])
        if position >= 0:
            values.append(_copy(address, *shapes[position]))
            return
        text = print_text(pieces, specs, values)
        values.clear()
        sys.stdout.write(text)

    def _note(self, site: int, x: int, y: int, z: int) -> None:
        self._local.failure = (site, (x, y, z))

    def check(self) -> None:
        """Raise what this thread's last call noted.

        Raises:
            KernelAssertionError: an assertion failed.
        """
        failure = self._local.__dict__.pop("failure", None)
        if failure is not None:
            site, block = failure
            message, where = self._asserts[site]
            raise KernelAssertionError(failure_text(message, where, block))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _copy(address: int, dtype: str, shape: Sequence[int]) -> Any:
    """The elements in scratch memory, where bools are bytes and small floats are f32."""
    held = {"bool": np.dtype(np.uint8), "f16": np.dtype(np.float32), "bf16": np.dtype(np.float32)}
    kind = held.get(dtype) or BY_NAME[dtype].numpy
    data = ctypes.string_at(address, math.prod(shape) * kind.itemsize)
    found = np.frombuffer(data, kind).reshape(shape)
    return found != 0 if dtype == "bool" else found
