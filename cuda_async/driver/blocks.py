"""A caching allocator: it keeps freed blocks, by size class, for reuse.

Fresh memory is slow: the system clears each page at its first touch, or a driver locks it. So freed blocks are kept, up
to a threshold. The cache is not stream-ordered: the caller calls `free` when the block's last user is done. New blocks
come from the source, a function that the caller gives.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Protocol

from cuda_async.driver.interface import Driver
from cuda_async.locks import new_lock

__all__ = ("ALIGNMENT", "Block", "BlockCache", "HostBlock", "PooledDriver", "size_class")

ALIGNMENT = 64
_MIN_MAPPED_BYTES = 256 << 10  # of a block that is mapped, so that dropping it gives its pages back to the system
_MIN_HUGE_BYTES = 2 << 20  # the size of a huge page of x86-64


def size_class(nbytes: int) -> int:
    """The size of the block that serves `nbytes`, in bytes.

    There are eight sizes between one power of two and the next, so that a freed block serves requests of nearly its
    size. Beyond small blocks a size is at most an eighth larger than the request.

    >>> size_class(1), size_class(100), size_class(1 << 20), size_class((1 << 20) + 1)
    (64, 128, 1048576, 1179648)
    """
    # A sixteenth of the power of two above the request: an eighth of the one below it.
    step = max(ALIGNMENT, (1 << (nbytes - 1).bit_length()) >> 4) if nbytes > 1 else ALIGNMENT
    if nbytes >= _MIN_MAPPED_BYTES:
        step = max(step, mmap.PAGESIZE)
    return -(-nbytes // step) * step


class Block(Protocol):
    """Memory from a source. `release` gives it back, or dropping the object does."""

    address: int
    size: int

    def release(self) -> None: ...


class HostBlock:
    """Ordinary memory of this process, aligned to 64 bytes. Goes back when dropped.

    Raises:
        MemoryError, OSError: the system has no such memory.
    """

    __slots__ = ("_buffer", "address", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        if size >= _MIN_MAPPED_BYTES:
            if sys.platform == "win32":
                pages = mmap.mmap(-1, size)
            else:
                # Private: after a fork, parent and child must not see each other's writes.
                pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if size >= _MIN_HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                    pages.madvise(mmap.MADV_HUGEPAGE)
            self._buffer: object = ctypes.c_char.from_buffer(pages)  # keeps the mapping
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        else:
            buffer = ctypes.create_string_buffer(size + ALIGNMENT)
            self._buffer = buffer
            self.address = -(-ctypes.addressof(buffer) // ALIGNMENT) * ALIGNMENT

    def release(self) -> None:
        """Nothing to do: dropping the object is enough."""


class BlockCache:
    """Blocks by size class. Its methods may be called from several threads at once.

    Args:
        source: makes a block of a size; its errors pass through.
        threshold: bytes of freed blocks that are kept.

    Attributes:
        used: bytes of the blocks in use.
        kept: bytes of freed blocks.
        used_high: the most bytes in use since the last reset.
        reserved_high: the most bytes in use and kept since the last reset.
    """

    def __init__(self, source: Callable[[int], Block], threshold: int) -> None:
        self._source = source
        self.threshold = threshold
        self._free: dict[int, list[Block]] = {}
        self._blocks: dict[int, Block] = {}
        self.used = 0
        self.kept = 0
        self.used_high = 0
        self.reserved_high = 0
        self._lock = new_lock()

    def allocate(self, nbytes: int) -> int:
        """Return the address of a block for `nbytes`, contents undefined.

        Raises:
            ValueError: `nbytes` is not positive.
        """
        if nbytes < 1:
            raise ValueError(f"nbytes: expected a positive number of bytes, got {nbytes}")
        size = size_class(nbytes)
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                # No function is called from here on, so that no signal handler runs between the lists: the block is in
                # one of them.
                block = blocks[-1]
                del blocks[-1]
                self.kept -= size
                self.used += size
                address = block.address
                self._blocks[address] = block
                if self.used > self.used_high:
                    self.used_high = self.used
                return address
        block = self._source(size)
        with self._lock:
            self._add(block)
        return block.address

    def _add(self, block: Block) -> None:
        self._blocks[block.address] = block
        self.used += block.size
        self.used_high = max(self.used_high, self.used)
        self.reserved_high = max(self.reserved_high, self.used + self.kept)

    def reset_high(self, *, used: bool, reserved: bool) -> None:
        """Reset the high-water marks, one or both, to the present numbers."""
        with self._lock:
            if used:
                self.used_high = self.used
            if reserved:
                self.reserved_high = self.used + self.kept

    def free(self, address: int) -> None:
        """Free the block at an address that `allocate` returned."""
        with self._lock:
            block = self._blocks.pop(address)
            self.used -= block.size
            keep = self.kept + block.size <= self.threshold
            if keep:
                self._free.setdefault(block.size, []).append(block)
                self.kept += block.size
        if not keep:
            block.release()

    def trim(self, keep_bytes: int) -> None:
        """Give kept blocks back, the largest first, down to `keep_bytes`."""
        released: list[Block] = []
        with self._lock:
            for size in sorted(self._free, reverse=True):
                blocks = self._free[size]
                surplus = max(0, self.kept - keep_bytes)
                for _ in range(min(len(blocks), -(-surplus // size))):
                    released.append(blocks.pop())
                    self.kept -= size
        for block in released:  # without the lock: a source may take a while
            block.release()


class PooledDriver(Driver):
    """A driver whose memory is a `BlockCache`, which a subclass makes."""

    _memory: BlockCache

    def pool_high(self) -> tuple[int, int]:
        return self._memory.used_high, self._memory.reserved_high

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        self._memory.reset_high(used=used, reserved=reserved)

    def keep_free(self, nbytes: int) -> None:
        self._memory.threshold = nbytes

    def trim(self, keep_bytes: int = 0) -> None:
        self._memory.trim(keep_bytes)
