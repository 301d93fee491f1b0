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
    ├── ArgumentError          (ValueError)      an argument has a wrong value
    │   └── ArgumentTypeError  (TypeError)       an argument, or a supposed operation, has a wrong type
    ├── OwnershipError         (RuntimeError)    a lent argument's use conflicts, or an operation was used twice
    ├── NotReadyError          (RuntimeError)    a value was read before the device computed it
    ├── ReentrancyError        (RuntimeError)    an operation was run inside the submission of another
    ├── DependencyError        (RuntimeError)    an operation failed because one that it uses failed
    ├── CollectiveError        (RuntimeError)    the ranks of a communicator did not come together
    ├── WouldBlockError        (RuntimeError)    a `*_nowait` call would have had to wait
    └── InternalError          (RuntimeError)    a broken invariant of this package: please report it

Each class also inherits the builtin that a user expects, so `except MemoryError` works. Exceptions that a user's own
functions raise pass through unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn, cast

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
    "as_text",
    "closest",
    "hide_own_frames",
    "outer_frames",
    "raise_again",
    "shows_place",
    "without_traceback",
)


class DeviceError(Exception):
    """Base of every error that `cuda_async` raises."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows of the error; IPython looks for this method."""
        from cuda_async.brief import brief  # here, since only notebooks need it

        return brief(self)


class DriverError(DeviceError, RuntimeError):
    """A driver call, or work that ran on a device, failed.

    Attributes:
        code: the driver's number of the error; 0 where the driver has none.
        name: the driver's name of the error, such as `CUDA_ERROR_INVALID_VALUE`.
        detail: the driver's message, and the call that failed.
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
        return f"device context error (device_id={as_text(self.device_id)}): {self.message}"


class NoDeviceError(ContextError):
    """A device was asked for that this machine does not have."""


class KernelCacheError(DeviceError, RuntimeError):
    """A compiled kernel could not be stored or found."""


class SchedulingError(DeviceError, RuntimeError):
    """No stream could be chosen for an operation."""


class LaunchError(DeviceError, ValueError):
    """A launch was refused before anything was enqueued."""


class ArgumentError(DeviceError, ValueError):
    """An argument has a wrong value.

    The message says what was expected, and what came.
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument, or a supposed operation, has a wrong type."""


class OwnershipError(DeviceError, RuntimeError):
    """A lent argument's use conflicts, or an operation was used twice."""


class NotReadyError(DeviceError, RuntimeError):
    """A value was read before the device computed it."""


class ReentrancyError(DeviceError, RuntimeError):
    """An operation was run inside the submission of another one on the same thread.

    It is also raised where a worker thread of the CPU's device would wait for work.
    """


class DependencyError(DeviceError, RuntimeError):
    """An operation failed because another one, whose result it uses, failed.

    `__cause__` is that failure.
    """


class CollectiveError(DeviceError, RuntimeError):
    """The ranks of a communicator did not come together.

    A rank is gone or late, or the ranks called different collectives.
    """


class WouldBlockError(DeviceError, RuntimeError):
    """A `*_nowait` call would have had to wait."""


class InternalError(DeviceError, RuntimeError):
    """A broken invariant of `cuda_async`: please report it."""


_MAX_TEXT = 1000  # characters of an object in a message, some ten lines; a longer text is cut there
_MAX_ITEMS = 8  # items that a message shows of a tuple or list whose `repr` fails; of a longer one it shows the length
_MAX_NESTING = 8
"""Levels of lists, tuples and dicts in which an error's copy has no tracebacks. There is a limit, since these may hold
themselves."""


def raise_again(error: BaseException) -> NoReturn:
    """Raise `error`: a function for callbacks that report failure by raising."""
    raise error


def shows_place(error: BaseException) -> bool:
    """Whether an error's text shows the place in the user's code.

    Errors of kernels do (`cutile.errors`). Their traceback has the user's frames alone (`outer_frames`).

    >>> shows_place(ValueError("no"))
    False
    """
    return getattr(error, "shows_place", False) is True


def hide_own_frames(error: BaseException) -> None:
    """Leave `outer_frames` alone in the traceback of an error that shows its place.

    The caller then writes a bare `raise`. The error's context is hidden too; its cause is not.
    """
    if shows_place(error):
        error.__traceback__, error.__suppress_context__ = outer_frames(error), True


def outer_frames(error: BaseException) -> TracebackType | None:
    """An error's traceback without the frames of this project.

    They lie between the user's call and the discovery of the error, and say nothing that its text does not.
    """
    from cuda_async.site import is_internal  # here, since errors are rare

    places: list[TracebackType] = []
    place = error.__traceback__
    while place is not None:
        if not is_internal(place.tb_frame):
            places.append(place)
        place = place.tb_next
    outer: TracebackType | None = None
    for place in reversed(places):
        outer = TracebackType(outer, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return outer


def as_text(value: Any) -> str:
    """An object's `repr` for a message, at most `_MAX_TEXT` long. It never raises.

    >>> as_text([1, 2]), as_text(-(10**5000))
    ('[1, 2]', '<negative int of 16610 bits>')
    """
    try:
        text = repr(value)
    except Exception:  # a user's `repr` that fails, lists that nest too deeply, or an int of too many digits
        if type(value) is int:  # of more than 4300 digits (`sys.set_int_max_str_digits`)
            return f"<{'negative ' if value < 0 else ''}int of {value.bit_length()} bits>"
        name = type(cast("object", value)).__name__
        if not isinstance(value, tuple | list):
            return f"<{name}>"
        items = cast("list[Any]", value)
        # Of nested items too it shows the length: they may nest deeper than recursion goes, as they did for `repr`.
        if len(items) > _MAX_ITEMS or any(isinstance(item, tuple | list | dict) for item in items):
            return f"<{name} of {len(items)}>"
        return f"{name}({', '.join(map(as_text, items))})"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"


def closest(name: str, names: Iterable[str]) -> list[str]:
    """The likeliest spelling of a name, as a list of one; empty if no name is close.

    >>> closest("atomicAdd", ["atomic_add"]), closest("opt", ["options"]), closest("lsat", ["last"])
    (['atomic_add'], ['options'], ['last'])
    >>> closest("norm", ["Tensor"]), closest("sum", ["cumsum"])
    ([], [])
    """
    import difflib  # here: a program without mistakes does not need it

    # Three: `_misspelt` may refuse the name whose letters are closest, and take the next one.
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=_MIN_RATIO)
    return [other for other in near if _misspelt(name, other, difflib.SequenceMatcher(None, other, name).ratio())][:1]


_MIN_RATIO = 0.6  # difflib's ratio of equal letters from which `_misspelt` is asked: difflib's default
_MIN_RATIO_MISSPELT = 0.77  # the ratio is 0.8 if one letter of five is wrong, 0.75 if one of four is


def _misspelt(name: str, other: str, share: float) -> bool:
    if len(name) >= 3 and other.startswith(name):  # one or two letters begin too many names
        return True
    if sorted(name) == sorted(other):
        return True
    same_begin = name[:1].lower() == other[:1].lower()
    if same_begin and len(name) == len(other) >= 3 and sum(a != b for a, b in zip(name, other, strict=True)) == 1:
        return True
    same_edge = same_begin or other.endswith(name) or name.endswith(other)
    return share >= _MIN_RATIO_MISSPELT and same_edge


def without_traceback(error: BaseException) -> BaseException:
    """Copy an error without its traceback, to be kept and raised later.

    A traceback holds frames, and frames hold tensors. The error's causes, the members of a group, and errors in the
    arguments and attributes are copied as well, also those in lists, tuples and dicts. The context (`__context__`) is
    dropped. A `DependencyError` with the class and the message stands in for an error that cannot be copied.

    >>> without_traceback(DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "in a copy")).code
    700
    """
    copies: dict[int, BaseException] = {}  # by id: errors may be causes of one another
    originals: list[BaseException] = []
    copy = _copy_of(error, copies, originals)
    for original in originals:  # it grows meanwhile; no recursion, since chains of causes may be long
        cause, duplicate = original.__cause__, copies[id(original)]
        # The assignment suppresses the context, too.
        duplicate.__cause__ = None if cause is None else _copy_of(cause, copies, originals)
        if type(duplicate) is not type(original):
            continue  # a `DependencyError` in its place, whose argument is its message
        duplicate.args = tuple(_without_errors(argument, copies, originals) for argument in original.args)
        for name, value in original.__dict__.items():
            new = _without_errors(value, copies, originals)
            if new is not value:
                duplicate.__dict__[name] = new
    return copy


def _copy_of(error: BaseException, copies: dict[int, BaseException], originals: list[BaseException]) -> BaseException:
    """The copy of an error, made at the first call.

    The first call also appends the error to `originals`, behind the members of a group.
    """
    unfinished: list[Any] = [error]  # no recursion, since groups may nest deeply
    while unfinished:
        last = unfinished[-1]
        is_group = issubclass(type(last), BaseExceptionGroup)
        members: Sequence[BaseException] = last.exceptions if is_group else ()
        # Members are copied first: a group cannot be given them later.
        missing = [] if id(last) in copies else [member for member in members if id(member) not in copies]
        if missing:
            unfinished += missing
            continue
        unfinished.pop()
        if id(last) not in copies:
            copies[id(last)] = _bare_copy(last, [copies[id(member)] for member in members])
            originals.append(last)
    return copies[id(error)]


def _without_errors(
    value: Any, copies: dict[int, BaseException], originals: list[BaseException], depth: int = _MAX_NESTING
) -> Any:
    """An argument or attribute with copies of its errors; itself if it has none."""
    if isinstance(value, BaseException):
        return _copy_of(value, copies, originals)
    if type(value) not in (list, tuple, dict) or not depth:
        return value
    container: Any = value
    mapping = type(value) is dict
    items: list[Any] = [*(container.values() if mapping else container)]
    new = [_without_errors(item, copies, originals, depth - 1) for item in items]
    if all(map(operator.is_, items, new)):
        return container
    return dict(zip(container, new, strict=True)) if mapping else type(container)(new)


def _bare_copy(error: BaseException, members: list[BaseException]) -> BaseException:
    """A copy of an error without its cause; of a group, with these members."""
    base: Any = type(error)
    while base.__module__ != "builtins":
        base = base.__base__  # not the next of the MRO: this one has the fields, such as those of an OSError
    try:
        # The builtin's constructor, since a user's may take anything. Its arguments are those that `__reduce__` tells:
        # an OSError keeps a file name beside `args`.
        _, arguments, *states = base.__reduce__(error)
        state: dict[str, Any] = states[0] if states else {}
        copy: Any
        if members:
            copy = base.__new__(type(error), cast("Any", error).message, members)
        else:
            copy = base.__new__(type(error), *arguments)
            base.__init__(copy, *arguments)
        for name, item in state.items():
            if name not in error.__dict__:
                setattr(copy, name, item)  # `ImportError.name`, say
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
        if hasattr(error, "__notes__"):
            copy.__notes__ = list(error.__notes__)  # its own: notes are added on the way up
    except Exception:
        try:
            message = str(error)
        except Exception:
            message = "<str() of it failed>"
        copy = DependencyError(f"{type(error).__name__}: {message}")
    return copy
