"""A device's primary context, made current on a thread while a call needs it.

A user's thread may have another context current, such as that of another library's device. It is restored behind the
call. On a thread without a context, the context of device 0 stays current, as the CUDA runtime leaves it there. Later
calls then need only look. Calls about a stream or an event, which belong to one context, do not even look (`direct`).
Children of `fork` are refused, since a context does not survive `fork`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

from cuda_async.driver.cuda.api import check, cu
from cuda_async.errors import ContextError, DeviceError, DeviceLostError

__all__ = ("BorrowedContext", "PrimaryContext")

_SUCCESS: Any = cu.CUresult.CUDA_SUCCESS
# Results of calls about a stream or an event whose context is not the current one.
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
    """The contexts that this thread has entered.

    Attributes:
        stack: each context, and whether entering pushed it on the driver's own stack.
        top: the context of the last entry.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[PrimaryContext, bool]] = []
        self.top: PrimaryContext | None = None


_current = _Current()


def _open_c_library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows, where output comes when the process ends
        return None


_c_library = _open_c_library()


class PrimaryContext:
    """The primary context of one CUDA device, retained for the life of the process.

    Attributes:
        usable: whether the device is not lost, and this process is no fork of the context's owner.
        lost: the error that has lost the device.
        speaks: whether kernels that print were launched.
        number: the handle, as a number.

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
        self._stays = ordinal == 0  # whether it stays current on a thread that had none
        self._open()

    def check(self) -> None:
        """Refuse a lost device and the child of a fork.

        Raises:
            DeviceLostError: the device was lost.
            ContextError: this process is a fork of the one that opened the device.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal.with_traceback(None)

    def refusal(self) -> DeviceError | None:
        """The error of every call if the context cannot be used, else None."""
        if _forked:
            return ContextError(
                self.ordinal,
                "this process was forked from one that uses CUDA, which does not survive a fork; start processes "
                "with multiprocessing.get_context('spawn'), or use Device.host() here",
            )
        return self.lost

    def _open(self) -> None:
        self.usable = True
        _contexts.add(self)

    def close(self) -> None:
        """Mark the context as unusable: each call then raises the reason, by `check`."""
        self.usable = False

    def is_current(self) -> bool:
        """Whether the context is current on this thread, and can be used."""
        return self.usable and int(_current_context()[1] or 0) == self.number

    # A signal handler, such as that of Ctrl-C, runs where a Python function begins, and behind calls of C functions. It
    # never runs between two calls. So no call stands between a change of the driver's stack and the note of it, except
    # in a `try`.

    def enter(self) -> None:
        """Make the context current on this thread, until `leave`."""
        self.check()
        stack = _current.stack
        pushed = False
        if _current.top is not self:
            current = int(check(cu.cuCtxGetCurrent(), cu.cuCtxGetCurrent))
            if current == 0 and self._stays:
                check(cu.cuCtxSetCurrent(self.handle), cu.cuCtxSetCurrent)
            elif current != self.number:
                try:
                    check(cu.cuCtxPushCurrent(self.handle), cu.cuCtxPushCurrent)
                except BaseException:
                    if int(cu.cuCtxGetCurrent()[1] or 0) == self.number:  # Ctrl-C came behind the push
                        cu.cuCtxPopCurrent()
                    raise
                pushed = True
        stack += [(self, pushed)]  # no `append`, which is a call
        _current.top = self

    def leave(self) -> None:
        """Restore the context that was current before `enter`."""
        stack = _current.stack
        pushed = stack[-1][1]
        del stack[-1]
        _current.top = stack[-1][0] if stack else None
        if pushed:
            check(cu.cuCtxPopCurrent(), cu.cuCtxPopCurrent)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the bindings with the context current; return its values.

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

        Drivers of CUDA 13 know the context of a stream or event. An older driver may refuse the call: then it is made
        again with the context current.

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
        """Handle a failed call of `direct`: raise, or call again with the context current.

        It may be called again: a call that the driver refuses has done nothing.
        """
        if self.usable and result[0] not in _WRONG_CONTEXT:
            self.checked(function, result)
        else:
            self.call(function, *arguments)

    def query(self, function: Any, *arguments: Any) -> Any:
        """Call a function about a stream or an event; return its result code.

        If the driver refuses the call, it is made again with the context current.

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
        """Write out the output of kernels, whose work on `handle` is over.

        `wait` is a synchronizing function: only such calls of the driver empty the device's buffer. The context is made
        current, since a default stream is that of the current context.
        """
        self.enter()
        try:
            wait(handle)
        finally:
            self.leave()
        if _c_library is not None:
            _c_library.fflush(None)  # the driver prints into C's buffer

    def checked(self, function: Any, result: tuple[Any, ...]) -> Any:
        """The values of a call of `function`, from its result. Raises as `call` does."""
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
    """A context that its owner made, and destroys.

    Args:
        ordinal: the number of its device.
        raw: the handle.
        owner: an object that is kept as long as this one.

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
