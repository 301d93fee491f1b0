"""`MemPool`: where a device's memory comes from, to be looked at and set.

Allocating is `storage.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_async.errors import ArgumentError

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("MemPool", "PoolStatistics")


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Bytes of a pool.

    Attributes:
        used_current: in use now.
        used_high: the most that was in use since the mark was reset.
        reserved_current: in use, or kept for reuse, now.
        reserved_high: the most of that since the mark was reset.
    """

    used_current: int
    used_high: int
    reserved_current: int
    reserved_high: int


class MemPool:
    """The memory pool of a device.

    Made by `device.default_mem_pool()`; each device has one, for all threads.

    Example:
        >>> from cuda_async import Device
        >>> pool = Device.host().default_mem_pool()
        >>> statistics = pool.mem_stats()
        >>> statistics.used_current <= statistics.used_high <= statistics.reserved_high
        True
    """

    __slots__ = ("device",)

    def __init__(self, device: Device) -> None:
        self.device = device

    def mem_stats(self) -> PoolStatistics:
        """How much is in use and kept, now and at most."""
        self.device.collect()
        now = self.device.driver.memory_info()
        used_high, reserved_high = self.device.driver.pool_high()
        return PoolStatistics(now.used, used_high, now.reserved, reserved_high)

    def statistics(self) -> PoolStatistics:
        """The same, by the name that everything else has it under."""
        return self.mem_stats()

    def set_release_threshold(self, nbytes: int) -> None:
        """Keep up to `nbytes` of freed memory for reuse.

        What is beyond goes back to the system.

        Raises:
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ArgumentError(f"nbytes: expected a number of bytes, got {nbytes}")
        self.device.driver.keep_free(nbytes)

    def reset_used_high(self) -> None:
        """Make the mark of the most in use what is in use now."""
        self.device.driver.reset_pool_high(used=True, reserved=False)

    def reset_reserved_high(self) -> None:
        """Make the mark of the most reserved what is reserved now."""
        self.device.driver.reset_pool_high(used=False, reserved=True)

    def trim(self, keep_bytes: int = 0) -> None:
        """Give memory kept for reuse back to the system, down to `keep_bytes`."""
        self.device.collect()
        self.device.driver.trim(keep_bytes)

    def __repr__(self) -> str:
        return f"<MemPool of {self.device}>"
