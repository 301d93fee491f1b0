"""The exceptions of `cuda_async`.

    DeviceError                                  every error of this package
    ├── DriverError            (RuntimeError)    a driver call, or work on a device, failed
    │   ├── OutOfMemoryError   (MemoryError)     an allocation did not fit
    │   └── DeviceLostError                      the device cannot be used any more (a sticky error)
    ├── ContextError           (RuntimeError)    a device, its context or its pool cannot be used as asked
    │   └── NoDeviceError                        a device was asked for that this machine does not have
    ├── KernelCacheError       (RuntimeError)    a compiled kernel could not be stored or found
    ├── SchedulingError        (RuntimeError)    no stream could be chosen
    ├── LaunchError            (ValueError)      a launch was refused before anything was enqueued
    ├── ArgumentError          (ValueError)      an argument has a value that nothing can be done with
    │   └── ArgumentTypeError  (TypeError)       an argument is something else than what is asked for
    ├── OwnershipError         (RuntimeError)    a lent argument or a used operation was used again
    ├── NotReadyError          (RuntimeError)    a value was read before the device computed it
    ├── ReentrancyError        (RuntimeError)    an operation was run inside the submission of another
    ├── DependencyError        (RuntimeError)    an operation failed because one that it uses failed
    ├── CollectiveError        (RuntimeError)    the ranks of a communicator did not come together
    ├── WouldBlockError        (RuntimeError)    a `*_nowait` call would have had to wait
    └── InternalError          (RuntimeError)    a broken invariant of this package: please report it

Each class also inherits the builtin that a user expects, so `except MemoryError` works. It is not
the place for exceptions raised by a user's own functions: those pass through unchanged.
"""

from __future__ import annotations

from typing import NoReturn

__all__ = (
    "ArgumentError",
    "ArgumentTypeError",
    "CollectiveError",
    "ContextError",
    "DependencyError",
    "DeviceError",
    "DeviceLostError",
    "DriverError",
    "InternalError",
    "KernelCacheError",
    "LaunchError",
    "NoDeviceError",
    "NotReadyError",
    "OutOfMemoryError",
    "OwnershipError",
    "ReentrancyError",
    "SchedulingError",
    "WouldBlockError",
    "raise_again",
    "without_traceback",
)


class DeviceError(Exception):
    """Base of every error that `cuda_async` raises."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it."""
        from cuda_async.brief import brief

        return brief(self)


class DriverError(DeviceError, RuntimeError):
    """A driver call, or work that ran on a device, failed.

    Attributes:
        code: the driver's number for the error (0 where the driver has none).
        name: the driver's name for it, such as `CUDA_ERROR_INVALID_VALUE`.
        detail: what the driver says about it, and which call it was.
    """

    def __init__(self, code: int, name: str, detail: str) -> None:
        super().__init__(code, name, detail)
        self.code = code
        self.name = name
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.detail}"


class OutOfMemoryError(DriverError, MemoryError):
    """An allocation did not fit into the device's memory."""


class DeviceLostError(DriverError):
    """The device stopped working.

    Every pending and later operation on it fails with this error.

    A kernel that traps or reads outside its memory leaves a CUDA context in this state. Other
    devices go on; on this one only a new process helps.
    """


class ContextError(DeviceError, RuntimeError):
    """A device, its context or its memory pool cannot be used as asked."""

    def __init__(self, device_id: int, message: str) -> None:
        super().__init__(device_id, message)
        self.device_id = device_id
        self.message = message

    def __str__(self) -> str:
        return f"device context error (device_id={self.device_id}): {self.message}"


class NoDeviceError(ContextError):
    """A device was asked for that this machine does not have."""


class KernelCacheError(DeviceError, RuntimeError):
    """A compiled kernel could not be stored or found."""


class SchedulingError(DeviceError, RuntimeError):
    """No stream could be chosen for an operation."""


class LaunchError(DeviceError, ValueError):
    """A launch was refused before anything was enqueued."""


class ArgumentError(DeviceError, ValueError):
    """An argument has a value that nothing can be done with.

    Says what was expected, and what came.
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument, or a supposed operation, is something else than expected."""


class OwnershipError(DeviceError, RuntimeError):
    """A lent argument's use conflicts, or an operation was used a second time."""


class NotReadyError(DeviceError, RuntimeError):
    """A value was read before the device computed it."""


class ReentrancyError(DeviceError, RuntimeError):
    """An operation was run inside the submission of another one on the same thread."""


class DependencyError(DeviceError, RuntimeError):
    """An operation failed because another one, whose result it uses, failed.

    `__cause__` is that failure.
    """


class CollectiveError(DeviceError, RuntimeError):
    """The ranks of a communicator did not come together.

    One is gone or late, or they called different things.
    """


class WouldBlockError(DeviceError, RuntimeError):
    """A `*_nowait` call would have had to wait."""


class InternalError(DeviceError, RuntimeError):
    """A broken invariant of `cuda_async`: please report it."""


def raise_again(error: BaseException) -> NoReturn:
    """Raise an error that is known, where a function is asked for that raises."""
    raise error


def without_traceback(error: BaseException) -> BaseException:
    """A copy of an error that keeps no frames alive, and with them no tensors.

    It can be kept, and raised anew.

    Its cause is such a copy too. An error that cannot be copied is told of by a `DependencyError`.

    >>> without_traceback(DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "in a copy")).code
    700
    """
    try:
        copy: BaseException = type(error).__new__(type(error), *error.args)
        for base in type(error).__mro__:
            if base.__module__ == "builtins":  # some keep more than `args`: a SyntaxError, say
                base.__init__(copy, *error.args)
                break
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
        if hasattr(error, "__notes__"):
            copy.__notes__ = list(error.__notes__)  # its own: notes are added on the way up
    except Exception:
        copy = DependencyError(f"{type(error).__name__}: {error}")
    cause = error.__cause__
    copy.__cause__ = None if cause is None or cause is error else without_traceback(cause)
    copy.__suppress_context__ = True
    return copy
