"""Hooks around what runs: for progress bars, logs, profilers and tests.

They cost nothing while none is registered.

    class Log(Instrument):
        def after_complete(self, operation, error):
            print(operation.label, "failed" if error else "done")

    with instrumented(Log()):
        op.sync()

Instruments are told of whole operations, which `sync`, `await` or `graph.update` run with all their parts. They are
told of a graph's launches, not of its recording, in which nothing runs. They are not told of bound launches, each of
which is one driver call.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuda_async.core.observers import set_observer
from cuda_async.errors import ArgumentTypeError
from cuda_async.locks import new_lock
from cuda_async.site import Site, format_site

if TYPE_CHECKING:
    from cuda_async.core.operation import Operation
    from cuda_async.core.stream import Stream

__all__ = (
    "Instrument",
    "ObservedOperation",
    "add_instrument",
    "instrumented",
    "remove_instrument",
)


@dataclass(frozen=True, slots=True, eq=False)
class ObservedOperation:
    """An operation that instruments are told of: the same object at each hook.

    Attributes:
        number: counts the operations observed in this process, from 1.
        label: the operation's short name.
        site: the file and line that made it.
        stream: the stream that it runs on.
        begun_s: seconds of `time.perf_counter` at the call of `before_enqueue`.
    """

    number: int
    label: str
    site: Site
    stream: Stream
    begun_s: float = field(default_factory=time.perf_counter)

    def __str__(self) -> str:
        return f"{self.label} ({format_site(self.site)}) on {self.stream}"


class Instrument:
    """Override the hooks of interest.

    A hook must be quick and must not run operations. If it raises, the error is logged to the logger `cuda_async`, and
    its instrument is removed: operations never fail because of an instrument. Several threads may call hooks at once.
    `after_complete` of an operation may come before its `after_enqueue`, on another thread.
    """

    def before_enqueue(self, operation: ObservedOperation) -> None:
        """Called before the operation is enqueued, on the thread that enqueues it."""

    def after_enqueue(self, operation: ObservedOperation, error: BaseException | None) -> None:
        """Called once all is enqueued, or `error` has stopped that, on the same thread."""

    def after_complete(self, operation: ObservedOperation, error: BaseException | None) -> None:
        """Called when the device is done, before waiters wake, on the thread that sees it."""


_registered: tuple[Instrument, ...] = ()  # replaced as a whole, so that reading it needs no lock

_lock = new_lock()
_numbers = itertools.count(1)  # next() is atomic


def add_instrument(instrument: Instrument) -> None:
    """Tell `instrument` of every operation that is enqueued from now on.

    Adding it twice changes nothing.

    Raises:
        ArgumentTypeError: its class is not derived from `Instrument`.

    Example:
        >>> from cuda_async import Instrument, add_instrument, remove_instrument, value
        >>> class Names(Instrument):
        ...     def before_enqueue(self, operation):
        ...         print(operation.label)
        >>> names = Names()
        >>> add_instrument(names)
        >>> value(3).sync()
        value
        3
        >>> remove_instrument(names)
    """
    _add(instrument)


def _add(instrument: Instrument) -> bool:
    """Register an instrument; return whether it was not registered before."""
    if not isinstance(instrument, Instrument):  # pyright: ignore[reportUnnecessaryIsInstance]
        is_class = isinstance(instrument, type) and issubclass(instrument, Instrument)
        remedy = f"write {instrument.__name__}()" if is_class else "derive its class from cuda_async.Instrument"
        raise ArgumentTypeError(
            f"instrument: expected an object of a class of Instrument, got {instrument!r}; {remedy}"
        )
    with _lock:
        if any(other is instrument for other in _registered):  # by identity: a user's class may define `==`
            return False
        _register((*_registered, instrument))
        return True


def remove_instrument(instrument: Instrument) -> None:
    """Tell `instrument` nothing more. No error if it was not registered."""
    with _lock:
        _register(tuple(other for other in _registered if other is not instrument))


def _register(instruments: tuple[Instrument, ...]) -> None:
    global _registered
    _registered = instruments
    set_observer(_Told if instruments else None)  # without an observer, a run only reads a variable


@contextmanager
def instrumented(instrument: Instrument) -> Generator[Instrument]:
    """Have `instrument` registered in a `with` block.

    It stays registered afterwards if it was before.

    >>> from cuda_async import Instrument, instrumented, value
    >>> class Names(Instrument):
    ...     def before_enqueue(self, operation):
    ...         print(operation.label)
    >>> with instrumented(Names()):
    ...     value(1).map(lambda x: x + 1).sync()
    map
    2
    """
    added = _add(instrument)
    try:
        yield instrument
    finally:
        if added:
            remove_instrument(instrument)


class _Told:
    """The observation of one run: it tells every instrument of the operation."""

    def __init__(self, op: Operation[Any], stream: Stream) -> None:
        self._operation = ObservedOperation(next(_numbers), op.label(), op.site, stream)
        self._tell(lambda instrument: instrument.before_enqueue(self._operation))

    def enqueued(self, error: BaseException | None) -> None:
        """Tell that it was enqueued."""
        self._tell(lambda instrument: instrument.after_enqueue(self._operation, error))

    def completed(self, error: BaseException | None) -> None:
        """Tell that the device is done with it."""
        self._tell(lambda instrument: instrument.after_complete(self._operation, error))

    def _tell(self, call: Callable[[Instrument], None]) -> None:
        for instrument in _registered:
            try:
                call(instrument)
            except Exception:
                import logging  # here: importing it takes longer than most launches

                remove_instrument(instrument)
                logging.getLogger("cuda_async").exception("the instrument %r raised and was removed", instrument)
