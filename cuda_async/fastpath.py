"""The fast path: `sync`, `sync_on`, `async_on`, `await` without a `Run`.

A `Run` tracks completion for observers, and releases resources when the device is done. An operation that needs
neither (`DeviceOp.fast_path`), and that nobody observes beyond the call, is enqueued at once. Where anything goes
wrong, and where a wait is broken off, a run takes over. The core does not know this file: without the fast path `Run`
and `DeviceFuture` do the same, and tests compare the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Generic, TypeVar, cast

from cuda_async.core import observers
from cuda_async.core.event import WAIT_SLICE_S, wait_done
from cuda_async.core.future import DeviceFuture
from cuda_async.core.lease import Lease, check_guards, current_holder, holders
from cuda_async.core.lease import end as end_leases
from cuda_async.core.nesting import refuse_nested
from cuda_async.core.operation import Operation
from cuda_async.core.policy import SchedulingPolicy, default_stream, next_stream
from cuda_async.core.prerequisite import do_prerequisites
from cuda_async.core.run import Run, take_over
from cuda_async.core.stream import Stream, expect_stream
from cuda_async.driver.interface import DriverEvent
from cuda_async.errors import hide_own_frames
from cuda_async.site import site_of

__all__ = (
    "Enqueued",
    "async_on",
    "enqueue",
    "enqueue_chain",
    "fast_path",
    "into_future",
    "leave",
    "schedule",
    "sync",
    "sync_on",
)

T = TypeVar("T")


class Enqueued(Generic[T]):
    """An operation that was enqueued without a run, and whose end was recorded.

    Attributes:
        event: the event recorded behind the operation.
        handles: the operation's result.
        ended: whether `finish` has ended its leases.
    """

    __slots__ = ("_leases", "_op", "_sequence", "_stream", "ended", "event", "handles")

    def __init__(self, op: Operation[T], stream: Stream, leases: list[Lease], event: DriverEvent, handles: T) -> None:
        self._op = op
        self._stream = stream
        self._leases = leases
        self._sequence = stream.sequence
        self.event = event
        self.handles = handles
        self.ended = False

    def finish(self) -> bool:
        """End the operation, whose work the device has done.

        Returns False if the work failed. The caller then makes a run (`take_over`), whose `wait` raises the failure.
        """
        event = self.event
        if event.failure() is not None:
            return False
        stream = self._stream
        if self._sequence > stream.completed:
            stream.completed = self._sequence
        end_leases(self._leases)
        self.ended = True
        # No call since `ended`, where a signal could come: the event returns to the pool once.
        stream.device.idle_events.append(event)
        return True

    def take_over(self) -> Run[T]:
        """Make a run that follows the operation to its end, and raises its failure."""
        return take_over(
            self._op, self._stream, end=self.event, sequence=self._sequence, handles=self.handles, leases=self._leases
        )


def sync(op: Operation[T]) -> T:
    """Run `op` on the default device's next stream and wait for it.

    See `DeviceOp.sync`.
    """
    __tracebackhide__ = True
    refuse_nested("sync()")  # ahead of `default_stream`: a refused call takes no stream of the policy
    return sync_on(op, default_stream())


def sync_on(op: Operation[T], stream: Stream) -> T:
    """Run `op` on `stream` and wait for it; see `DeviceOp.sync_on`."""
    __tracebackhide__ = True
    enqueue_on = fast_path(op, stream, waited=True)
    if enqueue_on is None:
        return _sync_by_run(op, stream)
    # `note_use` corrects the place of use below. Until then it is the place where the operation was made.
    leases = op.begin(composed=False, site=op.place)
    enqueued: Enqueued[T] | Run[T] | None = None
    try:
        enqueued = enqueue(op, stream, enqueue_on, leases)
        # The line is found now, while the device is at work. The frames are: this one, `DeviceOp.sync_on`, the user's
        # (or, if the user called `sync`, one of ours, behind which `site_of` looks further).
        op.note_use(site_of(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]
        if isinstance(enqueued, Run):
            return enqueued.wait()
        if not enqueued.event.wait(WAIT_SLICE_S):  # the first slice here, which spares most launches a call
            wait_done(enqueued.event)
        if enqueued.finish():
            return enqueued.handles
        enqueued = enqueued.take_over()
        return enqueued.wait()
    except BaseException as error:
        leave(op, stream, leases, enqueued, error)
        hide_own_frames(error)
        raise


def _sync_by_run(op: Operation[T], stream: Stream) -> T:
    __tracebackhide__ = True
    refuse_nested("sync_on()")
    run = Run(op, stream)
    try:
        do_prerequisites(op, stream.device)
        run.submit()
        return run.wait()
    except BaseException as error:
        run.leave(error)
        hide_own_frames(error)
        raise


def leave(
    op: Operation[T], stream: Stream, leases: list[Lease], enqueued: Enqueued[T] | Run[T] | None, error: BaseException
) -> Run[T] | None:
    """Stop waiting for an operation, because of `error`.

    The error may be Ctrl-C at any place. Enqueued work goes on, and a run holds all that it uses.

    Args:
        op: the operation, which was begun.
        stream: where it is enqueued.
        leases: the leases that it holds.
        enqueued: the result of `enqueue`; None if that did not return. Even then work may be enqueued.
        error: the error that the caller is about to raise.

    Returns:
        The run; None if the operation has ended.
    """
    if enqueued is None:
        run = take_over(op, stream, leases=leases, error=error)
    elif isinstance(enqueued, Run):
        run = enqueued
    elif enqueued.ended:  # its event may be another operation's by now
        return None
    else:
        run = enqueued.take_over()
    run.watch()
    return run


def async_on(op: Operation[T], stream: Stream) -> T:
    """Enqueue an operation and return its handles, without waiting or a future.

    Its arguments may be used at once: later uses are ordered behind it. It is unsafe for two reasons:

    1. A failure of the device is raised once, by the next wait on each stream that follows the operation. The memory
       that it was to write is not marked: later uses see the data from before.
    2. Host values in the result are not there yet.

    Raises:
        OwnershipError: the operation was used before.
        BaseException: the operation's error while it was submitted.
    """
    enqueue_on = fast_path(op, stream, waited=False)
    if enqueue_on is None:
        # Nothing here waits. So there is no `refuse_nested`, and no `do_prerequisites`, which may wait.
        return Run(op, stream).submit_unfollowed()
    leases = op.begin(composed=False, site=site_of(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
    submission = stream.submission
    try:
        try:  # as `with submission:`, in a third of the time
            submission.acquire()
            stream.begin_single(leases)
            handles = enqueue_on(stream)
            if stream.lenders:
                stream.lead_lenders()
            end_leases(leases)  # at once: storages order later uses behind the operation
        finally:
            try:  # noqa: SIM105 - `suppress` costs more than the lock
                submission.release()
            except RuntimeError:  # not acquired: Ctrl-C ended the wait for the lock, and an RLock knows its owner
                pass
    except BaseException as error:
        return take_over(op, stream, error=error, leases=leases).wait()
    return handles


def fast_path(op: Operation[T], stream: Stream, *, waited: bool) -> Callable[[Stream], T] | None:
    """A function that enqueues `op` without a run; None where it needs one.

    It needs a run if the operation says so, if the stream captures, if an observer is registered, or if this thread is
    inside the submission of a run.
    """
    try:
        recorder = stream.recorder
    except AttributeError:  # no stream: asked only here, so that the fast path does not pay for the question
        expect_stream(stream)
        raise
    if recorder is not None or observers.observe is not None or (holders and current_holder() is not None):
        return None
    return op.fast_path(waited=waited)


def enqueue(
    op: Operation[T], stream: Stream, enqueue_on: Callable[[Stream], T], leases: list[Lease]
) -> Enqueued[T] | Run[T]:
    """Enqueue an operation without a run, and record its end.

    Returns:
        The enqueued operation. Where enqueueing fails: a run, which raises the error.
    """
    try:
        with stream.submission:  # as `Run.submit`
            stream.begin_single(leases)
            handles = enqueue_on(stream)
            event = stream.device.record_event(stream.driver)
            if stream.lenders:
                stream.lead_lenders(event)
            return Enqueued(op, stream, leases, event, handles)
    except BaseException as error:
        # `event` is unbound if recording failed, hence `locals()`: an `event = None` above would cost each launch an
        # instruction.
        return take_over(op, stream, end=locals().get("event"), error=error, leases=leases)


class _Submission:
    """Stands for a run in `holders` while methods of results are called without one."""

    __slots__ = ()

    @property
    def allies(self) -> set[object]:
        """Empty: its work is ordered behind no other run's."""
        return set()


def enqueue_chain(
    steps: Sequence[Any], base: Operation[Any], enqueue_base: Callable[[Stream], Any], done: int, stream: Stream
) -> Any:
    """Enqueue an operation that is followed by steps, without a run.

    Returns the result of the last step.

    Args:
        steps: the steps in their order, of which the last one has begun.
        base: the operation.
        enqueue_base: enqueues the base, and does the first steps as well.
        done: the number of steps that `enqueue_base` does.
        stream: where it is enqueued.
    """
    chain: Any = steps[-1]
    for step in steps:
        if step is not chain:  # the caller began it
            step.begin(composed=True)
    leases = base.begin(composed=True)
    chain.leases.extend(leases)  # ahead of all that may fail: a part may be enqueued then, and use what was lent
    part = base  # the part under way, which a failure is blamed on
    try:
        # The stream's `begin_single` saw the chain's leases, which are none, and not these.
        for lease in leases:
            if lease.guarded:
                check_guards(leases, None)
        result = enqueue_base(stream)
        if done < len(steps):
            submission, thread = _Submission(), get_ident()
            for lease in leases:
                lease.run = submission  # as for a run: methods of the result may use what is lent to the operation
            try:
                holders[thread] = submission
                for part in steps[done:]:
                    result = part.transform(result)
            finally:
                holders.pop(thread, None)
                for lease in leases:
                    lease.run = None
    except BaseException:
        if part is not chain:
            chain.failed = part
        raise
    return result


class _FastFuture(DeviceFuture[T]):
    """A future that makes no run if its operation ends within a brief spin."""

    __slots__ = ()

    def _begin(self) -> Run[T] | None:
        op, stream = self._op, self._stream
        if op is None or not self._may_spin():
            return super()._begin()
        refuse_nested("await")
        preparations = list(op.preparations(stream.device))
        if preparations:
            return self._prepare(preparations)
        enqueue_on = fast_path(op, stream, waited=True)
        if enqueue_on is None:
            return super()._begin()  # it asks for preparations again, of which there are none
        if self._ended_leases is not None:
            self._renew_leases(self._ended_leases)
        # No call from the test to the end of the next assignment: at a call, threads could change.
        if self._started:
            return self._find_run()
        self._op, self._started = None, True
        enqueued: Enqueued[T] | Run[T] | None = None
        try:
            enqueued = enqueue(op, stream, enqueue_on, self._leases)
            if isinstance(enqueued, Run):
                self._run = enqueued
                return enqueued
            if self._spin(enqueued.event.query) and enqueued.finish():
                self._result, self._finished = enqueued.handles, True
                return None
            run = self._run = enqueued.take_over()
        except BaseException as error:  # Ctrl-C
            self._run = leave(op, stream, self._leases, enqueued, error)
            if self._run is None:
                self._result, self._finished = cast("Enqueued[T]", enqueued).handles, True
            raise
        run.poll()  # failed work is over already; where the spin budget is spent, the device is asked once more
        return run


def schedule(op: Operation[T], policy: SchedulingPolicy) -> DeviceFuture[T]:
    """Choose the stream now; see `DeviceOp.schedule`."""
    return _FastFuture(op, next_stream(policy))


def into_future(op: Operation[T]) -> DeviceFuture[T]:
    """Choose the default policy's next stream now; see `DeviceOp.into_future`."""
    return _FastFuture(op, default_stream())
