"""NVTX ranges: operations by name in Nsight Systems and other profilers.

Needs the extra `profile`.

    with nvtx_ranges():
        ...                 # run under: nsys profile --trace=cuda,nvtx python program.py

In the domain `cuda_async` each operation has two ranges: `enqueue saxpy (train.py:12)` on the thread that enqueues it,
and `saxpy (train.py:12)` from then until the device is done. Without a profiler they cost next to nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from cuda_async.installed import install_command
from cuda_async.instrument import Instrument, ObservedOperation, instrumented
from cuda_async.locks import new_lock
from cuda_async.site import format_site

__all__ = ("NvtxRanges", "nvtx_ranges")


class NvtxRanges(Instrument):
    """An instrument that opens and closes NVTX ranges.

    Args:
        nvtx: the module `nvtx`, or an object like it; None imports the module.

    Raises:
        ImportError: NVTX is not installed; the message says how to install it.
    """

    def __init__(self, nvtx: Any = None) -> None:
        self._nvtx: Any = _import_nvtx() if nvtx is None else nvtx
        self._open: dict[int, Any] = {}  # ranges until the device is done, by the operation's number
        self._pushed: set[int] = set()  # numbers of operations whose range `enqueue ...` is open
        self._lock = new_lock()

    def before_enqueue(self, operation: ObservedOperation) -> None:
        name = f"{operation.label} ({format_site(operation.site)})"
        whole = self._nvtx.start_range(name, domain="cuda_async", category=str(operation.stream.device))
        with self._lock:
            self._open[operation.number] = whole
            self._pushed.add(operation.number)
        self._nvtx.push_range(f"enqueue {name}", domain="cuda_async")

    def after_enqueue(self, operation: ObservedOperation, error: BaseException | None) -> None:
        with self._lock:
            pushed = operation.number in self._pushed
            self._pushed.discard(operation.number)
        if pushed:  # else this instrument was registered after `before_enqueue`, and there is no range to close
            self._nvtx.pop_range(domain="cuda_async")

    def after_complete(self, operation: ObservedOperation, error: BaseException | None) -> None:
        with self._lock:
            whole = self._open.pop(operation.number, None)
        if whole is not None:
            self._nvtx.end_range(whole)


def _import_nvtx() -> Any:
    try:
        return importlib.import_module("nvtx")
    except ImportError as error:
        raise ImportError(
            "NVTX ranges need the package nvtx, which is not installed. Install it with: " + install_command("profile")
        ) from error


@contextmanager
def nvtx_ranges() -> Generator[NvtxRanges]:
    """Mark every operation that is enqueued in a `with` block by NVTX ranges.

    Raises:
        ImportError: NVTX is not installed.
    """
    ranges = NvtxRanges()
    with instrumented(ranges):
        yield ranges
