"""Reports: memory in which a launch tells the host what failed, once it is over.

Page-locked host memory, which the device writes where something fails, and nowhere else: a launch costs no copy and no
clearing, and looking at a report is reading a word. The launches of one run have a report each, so that of several that
fail in flight each tells its own run; what is launched again and again, bound or in a graph, has one for all of these.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_async.driver.interface import Driver, DriverStream

__all__ = ("REPORT_BYTES", "Report", "ReportMemory")

REPORT_BYTES = 64
_WRITTEN = 2
"""The first word of a report that was written; 1 while it is being written, 0 before."""
_AT_ONCE = 64
"""Reports that are allocated together."""


class ReportMemory:
    """The reports of one device that nobody uses."""

    __slots__ = ("_driver", "_free")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: deque[int] = deque()  # the one that was returned first is taken first

    def take(self) -> int:
        """The address of a report.

        Raises:
            OutOfMemoryError: there is no page-locked memory left.
        """
        try:
            address = self._free.popleft()
        except IndexError:
            address = self._driver.pin(_AT_ONCE * REPORT_BYTES)
            ctypes.memset(address, 0, _AT_ONCE * REPORT_BYTES)
            self._free.extend(address + REPORT_BYTES * i for i in range(1, _AT_ONCE))
        if _word(address).value == _WRITTEN:  # of a launch that nobody waited for
            ctypes.memset(address, 0, REPORT_BYTES)
        return address

    def give_back(self, address: int) -> None:
        """Nobody looks at it any more. Finalizers call it: it takes no lock."""
        self._free.append(address)


class Report:
    """Where one launch, or one that is repeated, tells what failed.

    Args:
        memory: the device's.
        stream: where it is launched.
        read: makes the exception from the bytes.
        lasting: for a launch that is repeated.

    Attributes:
        address: of `REPORT_BYTES` bytes, for the device and the host alike.
    """

    __slots__ = ("__weakref__", "_error", "_lasting", "_memory", "_over", "_read", "_stream", "address")

    def __init__(
        self,
        memory: ReportMemory,
        stream: DriverStream,
        read: Callable[[bytes], BaseException],
        *,
        lasting: bool,
    ) -> None:
        self._memory = memory
        self._stream = stream
        self._read = read
        self._lasting = lasting
        self._over = False
        self._error: BaseException | None = None
        self.address = memory.take()

    def expect(self) -> None:
        """A launch that may write here was enqueued."""
        self._stream.check_behind(self.check)

    def check(self) -> None:
        """Raise what was written.

        The launch is over, or, if it is a repeated one, one of them is.

        Raises:
            BaseException: what `read` makes of it; of a launch that is not repeated, at each call.
        """
        if self._over:
            if self._error is not None:
                raise self._error
            return
        written = _word(self.address).value == _WRITTEN
        error = self._read(ctypes.string_at(self.address, REPORT_BYTES)) if written else None
        if written:
            ctypes.memset(self.address, 0, REPORT_BYTES)
        if not self._lasting:
            self._over, self._error = True, error
            self._memory.give_back(self.address)
        if error is not None:
            raise error

    def __del__(self) -> None:
        if not getattr(self, "_over", True):  # absent where __init__ failed
            self._memory.give_back(self.address)


def _word(address: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(address)
