"""`MemPool`: statistics and settings of a device's memory pool.

`storage.py` allocates.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_async.errors import ArgumentError, ArgumentTypeError, as_text

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("MemPool", "PoolStatistics", "checked_bytes")


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Bytes of a pool.

    Attributes:
        used_current: bytes in use now.
        used_high: the largest `used_current` since `MemPool.reset_used_high`.
        reserved_current: bytes in use or kept for reuse now.
        reserved_high: the largest `reserved_current` since `MemPool.reset_reserved_high`.
    """

    used_current: int
    used_high: int
    reserved_current: int
    reserved_high: int


class MemPool:
    """The memory pool of a device.

    `device.default_mem_pool()` makes this object; the pool itself is one for each device, and for all threads.

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
        """Bytes in use and kept, now and at most."""
        self.device.collect()  # so that memory that finalizers left does not count as used
        now = self.device.driver.memory_info()
        used_high, reserved_high = self.device.driver.pool_high()
        return PoolStatistics(now.used, used_high, now.reserved, reserved_high)

    def statistics(self) -> PoolStatistics:
        """`mem_stats`, under the name that streams and devices use."""
        return self.mem_stats()

    def set_release_threshold(self, nbytes: int) -> None:
        """Keep up to `nbytes` of freed memory for reuse; the rest goes back to the system.

        Raises:
            ValueError: `nbytes` is negative.
            TypeError: it is no whole number.
        """
        self.device.driver.keep_free(checked_bytes("nbytes", nbytes))

    def reset_used_high(self) -> None:
        """Set `used_high` to the bytes in use now."""
        self.device.driver.reset_pool_high(used=True, reserved=False)

    def reset_reserved_high(self) -> None:
        """Set `reserved_high` to the bytes reserved now."""
        self.device.driver.reset_pool_high(used=False, reserved=True)

    def trim(self, keep_bytes: int = 0) -> None:
        """Give memory kept for reuse back to the system, down to `keep_bytes`.

        Raises:
            ValueError: `keep_bytes` is negative.
            TypeError: it is no whole number.
        """
        nbytes = checked_bytes("keep_bytes", keep_bytes)
        self.device.collect()  # first: it frees memory that the trim can give back
        self.device.driver.trim(nbytes)

    def __repr__(self) -> str:
        return f"<MemPool of {self.device}>"


def checked_bytes(name: str, nbytes: int) -> int:
    """A number of bytes as an int.

    Raises:
        ValueError: it is negative.
        TypeError: it is no whole number.
    """
    try:
        count = operator.index(nbytes)
    except TypeError:
        raise ArgumentTypeError(f"{name}: expected a number of bytes, got {as_text(nbytes)}") from None
    if count < 0:
        raise ArgumentError(f"{name}: expected a number of bytes, got {as_text(count)}")
    return count
