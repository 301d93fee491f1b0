"""`sync`, `sync_on` and `async_on`; and the short way: an operation that needs no books is run without a `Run`.

A run is there for whoever follows it from outside, and for what has to be held or done when the device is finished. An
operation that nobody follows beyond the call, and that says that it needs neither (`DeviceOp.straight`), is enqueued
at once. Where anything goes wrong, and where a wait is broken off, a run takes over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cuda_async import instrument
from cuda_async.driver.interface import DriverEvent
from cuda_async.lease import Lease, current_holder, end
from cuda_async.nesting import refuse_nested
from cuda_async.op import DeviceOp
from cuda_async.policy import default_stream
from cuda_async.prerequisite import do_prerequisites
from cuda_async.run import WAIT_SLICE_S, Run, abandon, take_over
from cuda_async.site import site_of
from cuda_async.stream import Stream, expect_stream

__all__ = ("Launched", "async_on", "enqueue", "leave", "short_way", "sync", "sync_on")

T = TypeVar("T")


class Launched(Generic[T]):
    """An operation that was enqueued without a run, and whose end was recorded.

    Attributes:
        event: its end.
        handles: what it yields.
        ended: whether nothing is left to be done for it.
    """

    __slots__ = ("_leases", "_op", "_sequence", "_stream", "ended", "event", "handles")

    def __init__(self, op: DeviceOp[T], stream: Stream, leases: list[Lease], event: DriverEvent, handles: T) -> None:
        self._op = op
        self._stream = stream
        self._leases = leases
        self._sequence = stream.sequence
        self.event = event
        self.handles = handles
        self.ended = False

    def finish(self) -> bool:
        """The device is done: end it. Whether all went well; else a run has to take over."""
        event = self.event
        if event.failure() is not None:
            return False
        stream = self._stream
        if self._sequence > stream.completed:
            stream.completed = self._sequence
        end(self._leases)
        self.ended = True
        stream.device.idle_events.append(event)  # no call in between: it comes back once
        return True

    def take_over(self) -> Run[T]:
        """The run that goes on with it: follows it to its end, or tells of its failure."""
        return take_over(
            self._op, self._stream, end=self.event, sequence=self._sequence, handles=self.handles, leases=self._leases
        )


def sync(op: DeviceOp[T]) -> T:
    """Run `op` on the default device's next stream and wait for it; see `DeviceOp.sync`."""
    __tracebackhide__ = True
    refuse_nested("sync()")
    return sync_on(op, default_stream())


def sync_on(op: DeviceOp[T], stream: Stream) -> T:
    """Run `op` on `stream` and wait for it; see `DeviceOp.sync_on`."""
    __tracebackhide__ = True
    straight = short_way(op, stream, waited=True)
    if straight is None:
        return _sync_by_run(op, stream)
    leases = op.begin(composed=False, site=op.place)
    launched: Launched[T] | Run[T] | None = None
    try:
        launched = enqueue(op, stream, straight, leases)
        op.note_use(site_of(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]  # the device is at work meanwhile
        if isinstance(launched, Run):
            return launched.wait()
        while not launched.event.wait(WAIT_SLICE_S):
            pass
        if launched.finish():
            return launched.handles
        launched = launched.take_over()
        return launched.wait()
    except BaseException as error:
        leave(op, leases, launched, error)
        raise


def _sync_by_run(op: DeviceOp[T], stream: Stream) -> T:
    __tracebackhide__ = True
    refuse_nested("sync_on()")
    run = Run(op, stream)
    try:
        do_prerequisites(op, stream.device)
        run.submit()
        return run.wait()
    except BaseException as error:
        run.leave(error)
        raise


def leave(
    op: DeviceOp[Any], leases: list[Lease], launched: Launched[Any] | Run[Any] | None, error: BaseException
) -> None:
    """Whoever ran an operation waits for it no more, because of `error`, which may be Ctrl-C at any place: what was
    enqueued goes on by itself, and holds what it uses.

    Args:
        op: the operation, which was begun.
        leases: what it holds.
        launched: what `enqueue` returned; None if it came to nothing.
        error: what is about to be raised.
    """
    if launched is None:
        abandon(op, leases)
    elif isinstance(launched, Run):
        launched.leave(error)
    elif not launched.ended:
        launched.take_over().watch()


def async_on(op: DeviceOp[T], stream: Stream) -> T:
    """Enqueue an operation and return its handles at once, without waiting and without a future.

    What was lent to it is usable at once: later uses are ordered behind it. Unsafe, because a failure of the device
    reaches nobody but the next wait on `stream`, whatever that is for, and later uses of what it was to write, once it
    has been noticed; and host values in the result are not there yet.

    Raises:
        OwnershipError: the operation was used before.
        BaseException: whatever the operation raised while it was submitted.
    """
    straight = short_way(op, stream, waited=False)
    if straight is None:
        return Run(op, stream).submit_unfollowed()
    leases = op.begin(composed=False, site=site_of(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
    submission = stream.submission
    try:
        try:  # what `with submission:` does, in a third of the time
            submission.acquire()
            stream.begin_alone(leases)
            handles = straight(stream)
            if stream.lenders:
                stream.lead_lenders()
            end(leases)
        finally:
            try:  # noqa: SIM105 - `suppress` costs more than the lock
                submission.release()
            except RuntimeError:  # Ctrl-C ended the wait for it
                pass
    except BaseException as error:
        return take_over(op, stream, error=error, leases=leases).wait()
    return handles


def short_way(op: DeviceOp[T], stream: Stream, *, waited: bool) -> Callable[[Stream], T] | None:
    """What enqueues `op` without a run. None where that is closed: the operation needs books, the stream captures,
    somebody is told of runs, or this thread submits one.
    """
    try:
        recorder = stream.recorder
    except AttributeError:
        expect_stream(stream)
        raise
    if recorder is not None or instrument.registered or current_holder() is not None:
        return None
    return op.straight(waited=waited)


def enqueue(
    op: DeviceOp[T], stream: Stream, straight: Callable[[Stream], T], leases: list[Lease]
) -> Launched[T] | Run[T]:
    """Enqueue an operation the short way, and record its end; where that fails, the run that tells of it."""
    try:
        with stream.submission:  # as `Run.submit`
            stream.begin_alone(leases)
            handles = straight(stream)
            event = stream.device.record_event(stream.driver)
            if stream.lenders:
                stream.lead_lenders(event)
            return Launched(op, stream, leases, event, handles)
    except BaseException as error:
        return take_over(op, stream, error=error, leases=leases)
