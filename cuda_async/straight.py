"""`sync`, `sync_on` and `async_on`; and the short way: an operation that needs no books is run without a `Run`.

A run is there for whoever follows it from outside, and for what has to be held or done when the device is finished. An
operation that nobody follows beyond the call, and that says that it needs neither (`DeviceOp.straight`), is enqueued
at once. Where anything goes wrong, and where a wait is broken off, a run takes over.
"""

from __future__ import annotations

import sys
from typing import TypeVar

from cuda_async import instrument
from cuda_async.driver.interface import DriverEvent
from cuda_async.lease import current_holder, end
from cuda_async.nesting import refuse_nested
from cuda_async.op import DeviceOp
from cuda_async.policy import default_stream
from cuda_async.run import WAIT_SLICE_S, Run, take_over
from cuda_async.site import site_of
from cuda_async.stream import Stream

__all__ = ("async_on", "sync", "sync_on")

T = TypeVar("T")


def sync(op: DeviceOp[T]) -> T:
    """Run `op` on the default device's next stream and wait for it; see `DeviceOp.sync`."""
    refuse_nested("sync()")
    return sync_on(op, default_stream())


def sync_on(op: DeviceOp[T], stream: Stream) -> T:
    """Run `op` on `stream` and wait for it; see `DeviceOp.sync_on`."""
    straight = op.straight(waited=True)
    if straight is None or not _is_open(stream):
        refuse_nested("sync_on()")
        run = Run(op, stream)
        run.submit()
        return run.wait()
    leases = op.begin(composed=False, site=site_of(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]
    try:
        with stream.submission:  # as `Run.submit`
            stream.begin_alone(leases)
            handles = straight(stream)
            event = stream.device.record_event(stream.driver)
            if stream.lenders:
                stream.lead_lenders(event)
            sequence = stream.sequence
    except BaseException as error:
        return take_over(op, stream, error=error).wait()
    _wait(op, stream, event)
    if sequence > stream.completed:
        stream.completed = sequence
    stream.device.return_event(event)
    end(leases)
    return handles


def async_on(op: DeviceOp[T], stream: Stream) -> T:
    """Enqueue an operation and return its handles at once, without waiting and without a future.

    What was lent to it is usable at once: later uses are ordered behind it. Unsafe, because a failure of the device
    reaches nobody but `stream.synchronize()` and later uses of what it was to write, once it has been noticed; and
    host values in the result are not there yet.

    Raises:
        OwnershipError: the operation was used before.
        BaseException: whatever the operation raised while it was submitted.
    """
    straight = op.straight(waited=False)
    if straight is None or not _is_open(stream):
        return Run(op, stream).submit_unfollowed()
    leases = op.begin(composed=False, site=site_of(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
    try:
        with stream.submission:
            stream.begin_alone(leases)
            handles = straight(stream)
            if stream.lenders:
                stream.lead_lenders()
    except BaseException as error:
        return take_over(op, stream, error=error).wait()
    end(leases)
    return handles


def _is_open(stream: Stream) -> bool:
    """Whether the short way is open: nothing captures, nothing is told of runs, and no run is being submitted."""
    return stream.recorder is None and not instrument.registered and current_holder() is None


def _wait(op: DeviceOp[T], stream: Stream, event: DriverEvent) -> None:
    """Wait for the end of `op`, as `Run.wait` does."""
    try:
        while not event.wait(WAIT_SLICE_S):
            pass
    except BaseException:  # Ctrl-C: what was enqueued goes on without the waiter, and holds what it uses
        take_over(op, stream, end=event).watch()
        raise
    if event.failure() is not None:
        take_over(op, stream, end=event).wait()
