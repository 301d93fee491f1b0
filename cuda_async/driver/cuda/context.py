"""A device's primary context.

Current on the calling thread for as long as a call needs it.

A thread that is not ours may have another context current (another library's device, say): it is
pushed aside and restored. On a thread without any, that of device 0 stays current, as the CUDA runtime
would have it there; then most calls need only look. Calls about a stream or an event, which belong to one context, do
not even look (`direct`). A fork's child is refused, since a context does not survive `fork`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

from cuda_async.driver.cuda.api import check, cu
from cuda_async.errors import ContextError, DeviceLostError

__all__ = ("BorrowedContext", "PrimaryContext")

_SUCCESS: Any = cu.CUresult.CUDA_SUCCESS
_WRONG_CONTEXT: Any = (cu.CUresult.CUDA_ERROR_INVALID_CONTEXT, cu.CUresult.CUDA_ERROR_INVALID_HANDLE)

_forked = False
_current_context = cu.cuCtxGetCurrent
_contexts: weakref.WeakSet[PrimaryContext] = weakref.WeakSet()


def _after_fork() -> None:
    global _forked
    _forked = True
    for context in list(_contexts):
        context.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Current(threading.local):
    """What this thread has made current.

    The context, how often, and whether it was pushed.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[PrimaryContext, bool]] = []
        self.top: PrimaryContext | None = None


_current = _Current()


def _open_c_library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows: its buffer is emptied when the process ends
        return None


_c_library = _open_c_library()


class PrimaryContext:
    """The primary context of one CUDA device, retained for the life of the process.

    Attributes:
        usable: whether it is neither lost nor another process's, which a fork's child is.
        speaks: whether kernels that print were launched.

    Raises:
        DriverError: the context could not be created.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.lost: DeviceLostError | None = None
        self.speaks = False
        check(cu.cuInit(0), cu.cuInit)
        self.device: Any = check(cu.cuDeviceGet(ordinal), cu.cuDeviceGet)
        self.handle: Any = check(cu.cuDevicePrimaryCtxRetain(self.device), cu.cuDevicePrimaryCtxRetain)
        self.number = int(self.handle)
        self._stays = ordinal == 0
        self._open()

    def check(self) -> None:
        """Refuse a lost device and the child of a fork.

        Raises:
            DeviceLostError: the device was lost.
            ContextError: this process is a fork of the one that opened the device.
        """
        if _forked:
            raise ContextError(
                self.ordinal,
                "this process was forked from one that uses CUDA, which does not survive a fork; start processes "
                "with multiprocessing.get_context('spawn'), or use Device.host() here",
            )
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def _open(self) -> None:
        self.usable = True
        _contexts.add(self)

    def close(self) -> None:
        """Have every call look first why the context cannot be used any more."""
        self.usable = False

    def is_current(self) -> bool:
        """Whether this thread's calls reach the context as it is, and it can be used."""
        return self.usable and int(_current_context()[1] or 0) == self.number

    def enter(self) -> None:
        """Make the context current on this thread, until `leave`."""
        self.check()
        if _current.top is not self:
            current = int(check(cu.cuCtxGetCurrent(), cu.cuCtxGetCurrent))
            pushed = current != self.number
            if current == 0 and self._stays:
                check(cu.cuCtxSetCurrent(self.handle), cu.cuCtxSetCurrent)
                pushed = False
            elif pushed:
                check(cu.cuCtxPushCurrent(self.handle), cu.cuCtxPushCurrent)
            _current.stack.append((self, pushed))
        else:
            _current.stack.append((self, False))
        _current.top = self

    def leave(self) -> None:
        """Restore what was current before `enter`."""
        _, pushed = _current.stack.pop()
        _current.top = _current.stack[-1][0] if _current.stack else None
        if pushed:
            check(cu.cuCtxPopCurrent(), cu.cuCtxPopCurrent)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the bindings with the context current; return what it yields.

        Raises:
            DriverError: it failed. A failure that the context does not survive is kept as `lost`.
        """
        if _current.top is self or self.is_current():
            return self.checked(function, function(*arguments))
        self.enter()
        try:
            return self.checked(function, function(*arguments))
        finally:
            self.leave()

    def direct(self, function: Any, *arguments: Any) -> None:
        """Call a function about a stream or an event, whatever context is current.

        The driver knows their context.

        Drivers of CUDA 13 do as they are told. One that wants the context to be current refuses, and gets its way.

        Raises:
            DriverError: as `call`.
        """
        if self.usable:
            result = function(*arguments)
            if result[0] is not _SUCCESS:
                self.refused(function, arguments, result)
        else:
            self.call(function, *arguments)

    def refused(self, function: Any, arguments: tuple[Any, ...], result: tuple[Any, ...]) -> None:
        """A call of `direct` failed, and so did nothing.

        Make it again with the context current, or raise.
        """
        if self.usable and result[0] not in _WRONG_CONTEXT:
            self.checked(function, result)
        else:
            self.call(function, *arguments)

    def query(self, function: Any, *arguments: Any) -> Any:
        """Call a function about a stream or an event and return its result code.

        With the context current if need be.

        Raises:
            ContextError: this process is a fork of the one that opened the device.
        """
        if self.usable:
            code = function(*arguments)[0]
            if code is _SUCCESS or code not in _WRONG_CONTEXT:
                return code
        self.enter()
        try:
            return function(*arguments)[0]
        finally:
            self.leave()

    def write_output(self, wait: Any, handle: Any) -> None:
        """Write out what kernels have printed.

        `wait(handle)` is over: the driver looks at it in such calls only.
        """
        self.query(wait, handle)
        if _c_library is not None:
            _c_library.fflush(None)  # the driver prints through C's buffer, which nobody else empties

    def checked(self, function: Any, result: tuple[Any, ...]) -> Any:
        """Return what a call of `function` yielded beside its code. Raises as `call` does."""
        try:
            return check(result, function)
        except DeviceLostError as error:
            self.lose(error)
            raise

    def lose(self, error: DeviceLostError) -> None:
        """Remember why the device cannot be used any more."""
        if self.lost is None:
            self.lost = error
            self.close()


class BorrowedContext(PrimaryContext):
    """A context that somebody else made, and destroys.

    Args:
        ordinal: the number of its device.
        raw: the handle.
        owner: held as long as this lives.

    Raises:
        DriverError: there is no such device.
    """

    def __init__(self, ordinal: int, raw: int, owner: object) -> None:
        self.ordinal = ordinal
        self.lost = None
        self.speaks = False
        self.owner = owner
        check(cu.cuInit(0), cu.cuInit)
        self.device = check(cu.cuDeviceGet(ordinal), cu.cuDeviceGet)
        self.handle = cu.CUcontext(raw)
        self.number = raw
        self._stays = False
        self._open()
