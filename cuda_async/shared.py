"""One result, several consumers: `shared`, and the branches of `unzip`.

The parent runs once, with the first branch that runs, on that branch's stream. The other branches
wait, on the device, for an event recorded behind the parent. A failure reaches every branch: the
first raises it, the others a `DependencyError` with the failure as its cause. Branches may run on
several threads at once: a lock is held while the parent is submitted.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cuda_async.combinators import Value
from cuda_async.core.capture import Capture, refuse_in_trace
from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import Lease, current_holder
from cuda_async.core.order import Nested, SubmissionLock
from cuda_async.core.stream import Stream
from cuda_async.driver.interface import DriverEvent
from cuda_async.errors import (
    ArgumentError,
    ArgumentTypeError,
    DependencyError,
    NotReadyError,
    ReentrancyError,
    without_traceback,
)
from cuda_async.locks import new_lock
from cuda_async.op import DeviceOp
from cuda_async.site import Place, Site, format_site

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("SharedDeviceOp", "shared", "unzip")

T = TypeVar("T")
U = TypeVar("U")

_NEW, _RUNNING, _DONE = range(3)

births = itertools.count()  # next() is atomic
"""Numbers shared operations in the order in which they were made."""


class _Once(Generic[T]):
    """An operation with several consumers, of which the first executes it."""

    __slots__ = (
        "__weakref__", "_birth", "_callbacks", "_error", "_event", "_inner", "_lock", "_parent", "_recorder", "_result",
        "_site", "_state", "_stream",
    )  # fmt: skip

    def __init__(self, parent: DeviceOp[T]) -> None:
        parent.claim()
        self._parent: DeviceOp[T] | None = parent
        self._site: Site = parent.site
        self._birth = next(births)
        self._lock = SubmissionLock()
        self._state = _NEW
        self._result: T | None = None
        self._error: BaseException | None = None
        self._event: DriverEvent | None = None
        self._stream: Stream | None = None
        self._recorder: Capture | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._inner: frozenset[object] = frozenset()
        """Shared operations inside the parent: its result may contain parts of their results."""

    @property
    def site(self) -> Site:
        """Where the parent was made."""
        return self._site

    def get(self, context: ExecutionContext) -> T:
        """Execute the parent here, or order this context behind its execution."""
        lock = self._lock
        with Nested(context.run, lock), lock.mutex:
            before, lock.holder = lock.holder, context.stream
            try:
                if self._state == _NEW:
                    recorder = context.stream.recorder
                    # A trace must not use up an operation that was shared before: its consumers still need it to run.
                    if recorder is not None and recorder.traces and self._birth < recorder.since:
                        refuse_in_trace(
                            recorder, f"the shared operation made at {format_site(self._site)}, for others too,"
                        )
                    self._execute(context)
                elif self._state == _RUNNING:
                    raise ReentrancyError(
                        f"the shared operation made at {format_site(self._site)} uses its own result while it is "
                        "being submitted"
                    )
                elif self._error is not None:
                    raise DependencyError(
                        f"the operation made at {format_site(self._site)}, whose result this one uses, failed"
                    ) from self._error
                else:
                    self._join(context)
            finally:
                lock.holder = before  # before the release: see `SubmissionLock`
        return cast("T", self._result)

    def _execute(self, context: ExecutionContext) -> None:
        run = context.run
        first_lease, first_callback, old_allies = len(run.leases), len(run.callbacks), set(run.allies)
        parent, self._parent = self._parent, None
        assert parent is not None
        self._state = _RUNNING
        try:
            self._result = context.execute(parent)
            # Each branch may be the first to complete, and then needs the values that the parent brings to the host.
            self._callbacks = [_only_once(callback) for callback in run.callbacks[first_callback:]]
            run.callbacks[first_callback:] = self._callbacks
            if context.stream.recorder is not None:
                self._recorder = context.stream.recorder  # recorded, not run: there is no end to wait for
            else:
                self._stream = context.stream
                self._event = context.device.borrow_event()
                context.stream.driver.record(self._event)
        except BaseException as error:
            self._error = without_traceback(error)
            raise
        finally:
            self._state = _DONE
            # Leases of a shared operation inside the parent stay with that one, which has consumers of its own.
            _hand_over(run.leases[first_lease:], run, self)
            self._inner = frozenset(run.allies - old_allies)
            run.allies.add(self)

    def _join(self, context: ExecutionContext) -> None:
        run, recorder = context.run, context.stream.recorder
        if self._recorder is not None and self._recorder is not recorder:
            raise NotReadyError(
                f"the operation made at {format_site(self._site)}, whose result this one uses, was captured in a "
                "graph and has not run; use its output after launching the graph"
            )
        # Also on the parent's own stream: the event carries the parent's failure, on drivers that can tell runs apart.
        # A capture waits for nothing: its launches order themselves by the storage that they use.
        if recorder is None and self._event is not None:
            context.stream.driver.wait_event(self._event)
        run.allies.update((self, *self._inner))
        run.callbacks += self._callbacks
        run.kept.append(self)

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """The parent's preparations, unless it has run."""
        parent = self._parent
        return () if parent is None else parent.preparations(device)

    def sources(self) -> Iterable[DeviceOp[Any]]:
        """The parent, unless it has run."""
        parent = self._parent
        return () if parent is None else (parent,)

    def discard(self) -> None:
        """Give up the parent, unless it has run."""
        with Nested(current_holder(), self._lock), self._lock.mutex:
            if self._state == _NEW and self._parent is not None:
                self._parent.discard()

    def __del__(self) -> None:
        event = getattr(self, "_event", None)
        if event is not None and self._stream is not None:
            event.forget()  # the traceback of a failure would keep its frames alive
            self._stream.device.return_event(event)  # enqueued waits stay valid when an event is recorded again
        parent = getattr(self, "_parent", None)
        if parent is not None and not sys.is_finalizing():
            parent.unclaim()  # it never ran: its own finalizer then warns


def _hand_over(leases: list[Lease], run: object, holder: object) -> None:
    """Move leases from their run to `holder`, an ally of later branches' runs."""
    for lease in leases:
        if lease.run is run:
            lease.run = holder


def _only_once(callback: Callable[[], None]) -> Callable[[], None]:
    lock = new_lock()
    calls: list[Callable[[], None]] = [callback]

    def call() -> None:
        with lock:  # a second caller waits for the first, since it needs the value
            if calls:
                calls[0]()
                calls.clear()

    return call


class SharedDeviceOp(DeviceOp[T]):
    """An operation that is executed once, for any number of consumers.

    It may be used again and again, itself or by its `clone()`s.

    Example:
        >>> from cuda_async import value, zip
        >>> calls = []
        >>> one = value(20).inspect(calls.append).shared()
        >>> zip(one.map(lambda x: x + 1), one.clone()).sync(), calls
        ((21, 20), [20])
    """

    __slots__ = ("_once",)

    def __init__(self, parent: DeviceOp[T] | _Once[T]) -> None:
        self._once = parent if isinstance(parent, _Once) else _Once(parent)
        super().__init__()

    def clone(self) -> SharedDeviceOp[T]:
        """Another handle to the same result."""
        return SharedDeviceOp(self._once)

    def claim(self, site: Place | None = None) -> None:
        """Do nothing: being a part of another operation does not use it up."""

    def begin(self, *, composed: bool, site: Place | None = None) -> list[Lease]:
        return []

    def discard(self) -> None:
        """Do nothing: the operation is given up when its last handle is dropped."""

    def drop(self, used: Place) -> Iterable[DeviceOp[Any]]:
        return ()

    def label(self) -> str:
        return "shared"

    def warns(self) -> bool:
        return False  # the parent warns, when its last handle is dropped

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        return self._once.preparations(device)

    def sources(self) -> Iterable[DeviceOp[Any]]:
        return self._once.sources()

    def execute(self, context: ExecutionContext) -> T:
        return self._once.get(context)


def shared(result: T) -> SharedDeviceOp[T]:
    """A `SharedDeviceOp` of a result that is known.

    >>> shared(5).sync()
    5
    """
    return SharedDeviceOp(Value(result))


class _Branch(DeviceOp[U]):
    """One element of the tuple that the parent, executed once, yields."""

    __slots__ = ("_count", "_index", "_once")

    def __init__(self, once: _Once[Any], index: int, count: int) -> None:
        super().__init__()
        self._once = once
        self._index = index
        self._count = count

    def label(self) -> str:
        return f"unzip[{self._index}]"

    def warns(self) -> bool:
        return False  # the parent warns, when its last branch is dropped

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        return self._once.preparations(device)

    def sources(self) -> Iterable[DeviceOp[Any]]:
        return self._once.sources()

    def execute(self, context: ExecutionContext) -> U:
        result = self._once.get(context)
        if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != self._count:
            got = f"a tuple of {len(cast('Any', result))}" if isinstance(result, tuple) else type(result).__name__
            remedy = f"write unzip({len(cast('Any', result))})" if isinstance(result, tuple) else "leave unzip out"
            raise ArgumentTypeError(
                f"unzip({self._count}): the operation made at {format_site(self._once.site)} yielded {got}; {remedy}"
            )
        return cast("tuple[U, ...]", result)[self._index]


def unzip(op: DeviceOp[tuple[U, ...]], n: int | None = None) -> tuple[DeviceOp[U], ...]:
    """One operation for each element of the tuple that `op` yields; `op` runs once.

    Args:
        op: an operation that yields a tuple.
        n: the tuple's length; not needed where `op.arity` is known (`zip`, kernels).

    Raises:
        ValueError: `n` is needed, is less than 1 or no number, or differs from `op.arity`.
        OwnershipError: `op` was used before.

    >>> from cuda_async import value, zip
    >>> left, right = zip(value(1), value(2)).unzip()
    >>> right.sync(), left.sync()
    (2, 1)
    """
    arity = op.arity
    if n is None:
        if arity is None:
            raise ArgumentError(f"unzip: {op!r} does not know how many elements it yields before it runs; say unzip(n)")
        n = arity
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentTypeError(f"unzip({n!r}): expected how many elements {op!r} yields, 1 or more")
    if arity is not None and count != arity:
        raise ArgumentError(
            f"unzip({count}): {op!r} yields {arity} elements; write unzip({arity}), or leave the number out"
        )
    once = _Once(op)
    return tuple(_Branch[U](once, index, count) for index in range(count))
