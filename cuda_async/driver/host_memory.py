"""Memory of the host driver: aligned blocks, kept for reuse when freed.

Fresh pages are slow (the system clears each at its first touch), so a freed block stays here up to
a threshold and the next allocation of its size class gets it. Not stream-ordered: the stream calls
`free` when its turn comes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading

from cuda_async.driver.interface import MemoryInfo
from cuda_async.errors import OutOfMemoryError

__all__ = ("ALIGNMENT", "HostMemory", "size_class")

ALIGNMENT = 64
_PAGED = 256 << 10  # from here on a block has pages of its own, and goes back to the system
_HUGE = 2 << 20


def size_class(nbytes: int) -> int:
    """The size of the block that serves `nbytes`: at most an eighth more, in coarse steps.

    >>> size_class(1), size_class(100), size_class(1 << 20), size_class((1 << 20) + 1)
    (64, 128, 1048576, 1179648)
    """
    step = max(ALIGNMENT, (1 << (nbytes - 1).bit_length()) >> 4) if nbytes > 1 else ALIGNMENT
    if nbytes >= _PAGED:
        step = max(step, mmap.PAGESIZE)
    return -(-nbytes // step) * step


class _Block:
    __slots__ = ("address", "buffer", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        if size >= _PAGED:
            if sys.platform == "win32":
                pages = mmap.mmap(-1, size)
            else:
                # Private: after a fork, parent and child must not see each other's writes.
                pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
                    pages.madvise(mmap.MADV_HUGEPAGE)
            self.buffer = ctypes.c_char.from_buffer(pages)
            self.address = ctypes.addressof(self.buffer)
        else:
            self.buffer = ctypes.create_string_buffer(size + ALIGNMENT)
            self.address = -(-ctypes.addressof(self.buffer) // ALIGNMENT) * ALIGNMENT


class HostMemory:
    """A caching allocator. Its methods may be called from several threads at once."""

    def __init__(self, threshold: int | None = None) -> None:
        self.total = _total_memory()
        # A fraction of the machine: enough for a working set, not so much that others starve.
        self.threshold = min(4 << 30, self.total // 4) if threshold is None else threshold
        self._free: dict[int, list[_Block]] = {}
        self._blocks: dict[int, _Block] = {}
        self._used = 0
        self._kept = 0
        self.replace_lock()

    def replace_lock(self) -> None:
        """Make the allocator usable in the child of a fork."""
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes`, aligned to 64, contents undefined.

        Raises:
            ValueError: `nbytes` is not positive.
            OutOfMemoryError: the system refused.
        """
        if nbytes < 1:
            raise ValueError(f"nbytes: expected a positive number of bytes, got {nbytes}")
        size = size_class(nbytes)
        with self._lock:
            kept = self._free.get(size)
            if kept:
                block = kept.pop()
                self._kept -= size
                self._blocks[block.address] = block
                self._used += size
                return block.address
        try:
            block = _Block(size)
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise OutOfMemoryError(
                0, "HOST_OUT_OF_MEMORY",
                f"allocating {nbytes} bytes failed ({error}); {self._used} bytes are in use and {self._kept} kept "
                "for reuse (trim() gives those back)",
            ) from error  # fmt: skip
        with self._lock:
            self._blocks[block.address] = block
            self._used += size
        return block.address

    def free(self, address: int) -> None:
        """Take back what `allocate` returned."""
        with self._lock:
            block = self._blocks.pop(address)
            self._used -= block.size
            if self._kept + block.size <= self.threshold:
                self._free.setdefault(block.size, []).append(block)
                self._kept += block.size

    def trim(self, keep_bytes: int) -> None:
        """Give kept blocks back to the system, the largest first, down to `keep_bytes`."""
        with self._lock:
            for size in sorted(self._free, reverse=True):
                blocks = self._free[size]
                while blocks and self._kept > keep_bytes:
                    blocks.pop()
                    self._kept -= size

    def info(self) -> MemoryInfo:
        """Bytes available, in all, used and kept."""
        with self._lock:
            return MemoryInfo(_available_memory(self.total), self.total, self._used, self._used + self._kept)


def _total_memory() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30  # Windows: only a basis for the threshold


def _available_memory(total: int) -> int:
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total
