"""Reports: memory into which a launch writes a failure, for the host to read.

A report is page-locked host memory. The device writes it only where something fails, so that a launch costs no copy and
no clearing, and the host reads one word when the launch is over. Each launch has a report of its own, so that each run
gets its own failure. A launch that is repeated, bound or in a graph, has one report for all repetitions.
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
"""Bytes of a report: the state, then the facts of one failure, in a cache line of its own."""
_WRITTEN = 2
"""The first word of a report that was written; 1 while it is being written, 0 before."""
_REPORTS_PER_BLOCK = 64
"""Reports that are pinned together: one page of 4096 bytes."""


class ReportMemory:
    """The unused reports of one device."""

    __slots__ = ("_driver", "_free")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: deque[int] = deque()  # addresses, in the order in which they were returned

    def take(self) -> int:
        """Take a report out of the unused ones, and return its address.

        Raises:
            OutOfMemoryError: there is no page-locked memory left.
        """
        try:
            address = self._free.popleft()
        except IndexError:
            address = self._driver.pin(_REPORTS_PER_BLOCK * REPORT_BYTES)
            ctypes.memset(address, 0, _REPORTS_PER_BLOCK * REPORT_BYTES)
            self._free.extend(address + REPORT_BYTES * i for i in range(1, _REPORTS_PER_BLOCK))
        # Written by a launch that nobody waited for. That launch is over, so that the word is not 1: until its end the
        # stream held the report by `check`.
        if _word(address).value == _WRITTEN:
            ctypes.memset(address, 0, REPORT_BYTES)
        return address

    def give_back(self, address: int) -> None:
        """Return a report that is not read any more. For finalizers: it takes no lock."""
        self._free.append(address)


class Report:
    """The report of one launch, or of a launch that is repeated.

    Args:
        memory: the device's reports.
        stream: the stream of the launch.
        read: makes the exception of the report's bytes.
        lasting: whether the launch is repeated. If not, the report is returned when the launch is over.

    Attributes:
        address: address of `REPORT_BYTES` bytes, for the device and the host alike.

    Raises:
        OutOfMemoryError: (when made) there is no page-locked memory left.
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
        self._error: BaseException | None = None
        self.address = memory.take()
        # Whether the address was given back. Set last: `__del__` gives an address back only if this is there.
        self._over = False

    def expect(self) -> None:
        """Note that a launch that may write the report was enqueued: its end is checked."""
        self._stream.check_behind(self.check)

    def check(self) -> None:
        """Raise the failure that was written, if any. Called when a launch is over.

        Raises:
            BaseException: the exception that `read` makes: at each call, but of a repeated launch once.
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
        if not getattr(self, "_over", True):  # absent where `take` failed
            self._memory.give_back(self.address)


def _word(address: int) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(address)
