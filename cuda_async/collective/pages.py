"""Files that ranks in processes map into memory.

Each writes its own, and reads the others'.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from cuda_async.collective.engine import Seat

__all__ = ("Pages",)

_LEAST_BYTES = 1 << 16
"""The smallest file, in bytes; larger ones are powers of two."""


class Pages:
    """Files mapped into memory.

    A rank's own, which it writes, and the others', which it reads. Under a lock.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._made = 0
        self._free: dict[int, list[str]] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def take(self, array: np.ndarray[Any, np.dtype[Any]]) -> str:
        """Write elements to a file that nobody reads; return its name."""
        size = max(_LEAST_BYTES, 1 << (array.nbytes - 1).bit_length())
        names = self._free.setdefault(size, [])
        name = names.pop() if names else self._create(size)
        self._view(name)[: array.nbytes] = array.view(np.uint8)
        return name

    def _create(self, size: int) -> str:
        name = f"{self._rank}-{self._made}-{size}"
        self._made += 1
        with open(self._folder / name, "xb") as file:
            file.truncate(size)
        return name

    def _view(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        pages = self._maps.get(name)
        if pages is None:
            with open(self._folder / name, "r+b") as file:
                pages = self._maps[name] = mmap.mmap(file.fileno(), 0)
        return np.frombuffer(pages, np.uint8)

    def read(self, name: str, seat: Seat) -> np.ndarray[Any, np.dtype[Any]]:
        """What another rank of a call brings."""
        if not name:
            return np.empty(0, seat.dtype)
        return self._view(name)[: seat.count * seat.dtype.itemsize].view(seat.dtype)

    def give_back(self, name: str) -> None:
        """All have read a file of this rank's."""
        if name:
            self._free.setdefault(int(name.rpartition("-")[2]), []).append(name)

    def close(self) -> None:
        """Forget every file; the hub removes them."""
        self._maps.clear()
        self._free.clear()
