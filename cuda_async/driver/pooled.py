"""`PooledDriver`: the memory of drivers that have a `BlockCache`."""

from __future__ import annotations

from cuda_async.driver.blocks import BlockCache
from cuda_async.driver.interface import Driver

__all__ = ("PooledDriver",)


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
