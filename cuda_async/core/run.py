"""`Run`: an operation on its way through a stream, from submission to completion.

Submission enqueues the whole operation at once, under the stream's submission lock. Completion happens once, on the
thread that first sees the device finish: the waiting thread, a worker of the driver, the reactor, or a thread that
wants to use the memory (`settle`). It puts host values in place of each `Pending`, ends the leases and wakes the
waiters. Until then the run holds all that the device may touch. `sync`, `sync_on`, `schedule` and `into_future` are in
`fastpath.py`, `await` is in `future.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar, cast

from cuda_async.core import observers
from cuda_async.core.context import ExecutionContext
from cuda_async.core.event import WAIT_SLICE_S, StreamIdle
from cuda_async.core.lease import Lease, check_guards, end, holders
from cuda_async.core.operation import Operation
from cuda_async.core.order import Nested, forget_wait, holds
from cuda_async.core.pending import resolve
from cuda_async.core.reactor import reactor
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream
from cuda_async.driver.interface import DriverEvent
from cuda_async.errors import ReentrancyError, outer_frames, shows_place, without_traceback
from cuda_async.locks import Gate, new_lock
from cuda_async.site import format_site

__all__ = ("Run", "abandon", "add_path", "take_over")

T = TypeVar("T")
B = TypeVar("B")

_SPOILT = "the failed operation was to write this memory: each use of it raises this error; make the tensor anew"
_WAITS_FOR_ITSELF = "an on_complete function was to wait for its own operation, which waits for it: wait elsewhere"
_lock = new_lock()  # of all runs: guards `_claimed`, `_watched`, `_waiters` and `done`, for a few instructions each
_calling_back: set[Run[Any]] = set()  # runs that call their callbacks, each on the thread that completes it


class _LazyList(Generic[B]):
    """A list of a run, made when it is first read.

    Few runs need any. The garbage collector, which pauses all threads, has to visit empty lists as well.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, run: Any, owner: type) -> list[B]:
        record: list[B] | None = getattr(run, self._slot)
        if record is None:
            record = []
            setattr(run, self._slot, record)
        return record

    def __set__(self, run: Any, record: B) -> None:
        setattr(run, self._slot, record)


class Run(Generic[T]):
    """One operation on one stream.

    Attributes:
        stream: where it runs; fixed when the run is made.
        done: whether it has completed, well or not.
        sequence: how many pieces of work its stream had at the end of its submission.
        storages: memory that it allocated.
        written: memory that it writes besides the memory that was lent to it.
        kept: objects held until it completes.
        callbacks: called once it has succeeded, before its result is handed out.
        trail: the operations whose execution failed, innermost first.
        submission_failed: whether enqueueing went wrong. A failure of the device does not count.

    Raises:
        OwnershipError: (when made) the operation was used before.
    """

    __slots__ = (
        "__weakref__", "_allies", "_callbacks", "_claimed", "_error", "_event", "_kept", "_leases", "_observation",
        "_op", "_own", "_result", "_storages", "_trail", "_waiters", "_watched", "_written", "done", "sequence",
        "stream", "submission_failed",
    )  # fmt: skip

    storages = _LazyList[Storage]()
    written = _LazyList[Storage]()
    kept = _LazyList[object]()
    callbacks = _LazyList[Callable[[], None]]()
    trail = _LazyList[Operation[Any]]()

    def __init__(self, op: Operation[T], stream: Stream, own: list[Lease] | None = None) -> None:
        self._op: Operation[T] | None = op
        self.stream = stream
        self.done = self.submission_failed = False
        self.sequence = 0
        self._clear_records()
        self._leases: list[Lease] = []  # adopted so far; the operation's own (`_own`) come last
        self._claimed = 0  # the thread that completes it; 0 for none
        self._watched = False
        self._waiters: list[Callable[[], None]] | None = None
        self._event: DriverEvent | None = None
        self._error: BaseException | None = None
        self._result: Any = None
        self._observation: observers.Observation | None = None
        # Last: a begun operation needs a complete run to give its leases back. `own` are those of a begun operation.
        self._own: list[Lease] = op.begin(composed=False) if own is None else own

    def _clear_records(self) -> None:
        self._storages = self._written = self._kept = self._callbacks = self._trail = None
        self._allies: set[object] | None = None

    @property  # no `_LazyList`: type checkers would not take that for the set in the protocol `Holder`
    def allies(self) -> set[object]:
        """Holders whose leases do not conflict: this run's work is ordered behind theirs."""
        if self._allies is None:
            self._allies = set()
        return self._allies

    @property
    def leases(self) -> list[Lease]:
        """The leases of the operations executed so far."""
        return self._leases

    def adopt(self, leases: list[Lease]) -> None:
        """Hold these leases until the run completes; one held twice is ended once."""
        self._leases += leases  # first: a lease that names a run must be among those that the run ends
        for lease in leases:
            lease.run = self

    # -- submission ---------------------------------------------------------------------------

    def submit(self, *, followed: bool = True) -> T | None:
        """Enqueue everything. An error is kept, and raised by `outcome` at the end.

        Args:
            followed: whether a caller will ask for the outcome. If not, and nothing has to be done at the end, the end
                is not marked and the run is over here.

        Returns:
            The handles; None if `submission_failed`. A caller takes them from here: another thread may have completed
            the run by now, and then it has values in place of handles, or None if the work failed.
        """
        op = self._op
        if op is None:
            return None  # it was left or abandoned before it began
        self._op = None
        try:
            return self._submit(op, followed)
        except BaseException as error:
            self._recover(op, error)
            return None

    def _submit(self, op: Operation[T], followed: bool) -> T | None:
        stream, thread = self.stream, threading.get_ident()
        handles = observation = None  # locals: once the end is marked, another thread may complete the run
        if observers.observe is not None:
            self._observation = observation = observers.observe(op, stream)
        outer, inside, run_begun = holders.get(thread), holds(stream), False
        # Where there is no outer run, the lock is taken twice: it stands for a context that does nothing.
        with stream.submission if outer is None else Nested(outer, stream), stream.submission:
            stream.begun = stream.begun if inside else stream.sequence  # `inside`: a part of the submission around it
            try:
                holders[thread] = self
                if outer is not None:  # nested (`then_unchecked`): work of the outer run is ordered before this
                    self.allies.update((outer, *outer.allies))
                stream.device.collect()  # first: it closes graphs, and `begin_run` unloads modules that these may use
                stream.driver.begin_run()
                run_begun = True
                handles = self._result = self._enqueue(op)
                if followed or self._needs_end() or stream.lenders:
                    self._event = self._mark_end()
                    stream.lead_lenders(self._event)  # streams of other libraries, whose memory it uses, wait for it
            except BaseException as error:
                self._fail(error)
            finally:
                try:
                    if run_begun:
                        stream.driver.end_run()
                finally:  # also where Ctrl-C ends the call
                    if outer is None:
                        holders.pop(thread, None)
                    else:
                        holders[thread] = outer
            if self._error is not None:
                if not inside:
                    forget_wait(stream)  # Ctrl-C in `Nested` may have left it
                if self._event is None and not isinstance(self._error, Exception):
                    # Ctrl-C came before the end was marked, but work may be enqueued. An `Exception` that is not the
                    # operation's comes from `collect` or `begin_run`: there is no work yet.
                    self._event = self._mark_end()
            self.adopt(self._own)
            self.sequence = stream.sequence
        if observation is not None:
            observation.enqueued(self._error if self.submission_failed else None)
        if self._event is None:
            # A run with an error is completed even if nobody follows it: `submit_unfollowed` waits for it, and raises.
            if followed or self._error is not None:
                self.complete()
            else:
                self._forget()
        return handles

    def _fail(self, error: BaseException) -> None:
        """Keep an error of the submission. The first one is the run's."""
        self.submission_failed = True
        if self._error is None:
            self._error = error

    def _needs_end(self) -> bool:
        """Whether something is left to be done when the device is done."""
        return bool(self._callbacks or self._kept) or self._error is not None or self._observation is not None

    def _recover(self, op: Operation[Any], error: BaseException) -> None:
        """Follow enqueued work after an exception outside of `execute`, mostly Ctrl-C.

        All that the device may touch is held until the end of the stream's work so far.
        """
        self._fail(error)
        self.kept.append(op)
        self.adopt(self._own)  # again, if `_submit` did so: Ctrl-C may have ended it before
        if self._event is None and not self.done:
            with self.stream.submission:
                self.sequence = self.stream.sequence
                self._event = self._mark_end()
        self.watch()

    def leave(self, error: BaseException) -> None:
        """Stop waiting: a submitted run goes on, watched; any other ends with `error`."""
        op, self._op = self._op, None
        if op is not None:  # it was not submitted
            self._error = error
            abandon(op, self._own)
            self.complete()
        elif not self.done:
            self.adopt(self._own)  # again, if `_submit` did so: Ctrl-C may have ended it before
            self.watch()

    def submit_unfollowed(self) -> T:
        """Enqueue everything for nobody to follow, end the leases, return the handles.

        Raises:
            BaseException: the error of the submission, once enqueued work has been waited for.
        """
        handles = self.submit(followed=False)
        if self.submission_failed:
            return self.wait()  # it raises the error
        if not self.done:
            end(self._leases)  # at once: later uses of the arguments are ordered behind this by their storages
            self.watch()
        return cast("T", handles)

    def adopt_enqueued(
        self,
        op: Operation[T],
        handles: T | None,
        *,
        end: DriverEvent | None,
        sequence: int,
        error: BaseException | None,
    ) -> None:
        """Follow an operation that was enqueued already; see the function `take_over`."""
        self._op = None
        self._result = handles
        if error is not None:
            self._fail(error)
            path: list[Operation[Any]] = [op]
            while (part := path[-1].failed_part()) is not None:
                path.append(part)
            add_path(error, path, self.stream)
        self.kept.append(op)
        self.written += op.written()
        self.adopt(self._own)
        self.sequence = sequence
        # Without the submission lock: if the event covers work of another thread as well, this run only ends later.
        self._event = self._mark_end() if end is None else end

    def _forget(self) -> None:
        """End a run that nobody follows. Its storages keep later work behind it."""
        end(self._leases)
        self._leases = []
        self._clear_records()
        self._claimed = threading.get_ident()  # as if completed here: a late `complete` does nothing
        self.done = True

    def prepare_and_submit(self, preparations: list[Callable[[], object]]) -> None:
        """Do the slow work, then submit. A failure of either is the run's."""
        try:
            for prepare in preparations:
                prepare()
        except BaseException as error:
            self.leave(error)
            return
        self.submit()
        self.watch()

    def _enqueue(self, op: Operation[T]) -> T | None:
        __tracebackhide__ = True
        stream = self.stream
        try:
            check_guards(self._own, self)
            return op.execute(ExecutionContext(stream, self))
        except BaseException as error:
            self._fail(error)
            add_path(error, [op, *reversed(self.trail)], stream)  # `op` has no context that would add it to the trail

    def _mark_end(self) -> DriverEvent:
        try:
            return self.stream.device.record_event(self.stream.driver)
        except BaseException as error:
            # Enqueued work must be waited for all the same, or its memory would be freed while it runs.
            self._fail(error)
            return StreamIdle(self.stream.driver)

    def record(self) -> T:
        """Execute on a stream that captures, and return the handles. Nothing runs.

        Raises:
            BaseException: whatever the operation raised.
        """
        op = cast("Operation[T]", self._op)  # a run to be recorded is new: nothing has taken its operation
        self._op = None
        thread = threading.get_ident()
        outer = holders.get(thread)
        try:
            holders[thread] = self
            context, recorder = ExecutionContext(self.stream, self), self.stream.recorder
            return op.execute(context) if recorder is None else recorder.execute(op, context)
        except BaseException as error:
            add_path(error, [op, *reversed(self.trail)], self.stream)
            raise
        finally:
            if outer is None:  # first, as in `_submit`: see `holders`
                holders.pop(thread, None)
            else:
                holders[thread] = outer
            self.adopt(self._own)

    def release(self) -> None:
        """End the leases of a run that was recorded, or whose recording failed.

        `kept` stays: the graph holds it. `callbacks` are empty: a capture refuses them. `allies` are of no lease now.
        """
        op, self._op = self._op, None
        if op is not None:  # the recording failed before `record`
            abandon(op, self._own)
        for lease in (*self._own, *self._leases):  # `_own` are not adopted if Ctrl-C ended `record`
            lease.give_back()
        self._leases = []
        self._storages = self._written = self._trail = None

    # -- completion ---------------------------------------------------------------------------

    def poll(self) -> bool:
        """Complete the run if the device has finished it. Whether it is done. Never waits."""
        event = self._event  # read once: another thread that completes the run sets it to None
        if not self.done and event is not None:
            try:
                if not event.query():
                    return False
            except Exception as error:  # a later query would fail as well: the run ends with this error
                with _lock:
                    if not self._claimed and self._error is None:  # else another thread completes it without the error
                        self._error = error
            self.complete()
        return self.done

    def settle(self) -> bool:
        """Complete the run if the device has finished it. Whether it is done.

        Waits for another thread that completes it at this moment. It is not done in a callback of its own.
        """
        # The claim is read twice: between the two reads another thread may complete the run. The event, back in the
        # pool, may then be recorded anew, so that `query` answers for other work.
        if not self._claimed and not self.poll() and not self._claimed:
            return False
        if self in _calling_back and self._claimed == threading.get_ident():
            return False
        self._wait_settled()
        return True

    def _wait_settled(self) -> None:
        if self.done:
            return
        if self._claimed == threading.get_ident():  # asked amid the completion by its own thread: it never ends a wait
            if self in _calling_back:
                raise ReentrancyError(_WAITS_FOR_ITSELF)
            self._finish()  # by a signal's handler, a finalizer or an observer
        else:  # another thread settles it at this moment, or will
            settled = Gate()
            self.when_done(settled.open)
            while not settled.wait(WAIT_SLICE_S):  # in slices: Ctrl-C is raised between two of them
                pass

    def watch(self) -> None:
        """Have a thread of the driver, or the reactor, complete the run when it is over."""
        with _lock:
            event = self._event
            if self._watched or event is None:
                return
            self._watched = True
        try:
            if not event.notify(self.complete):  # the driver has no thread that calls back
                reactor().watch(self)
        except BaseException:  # Ctrl-C: it is uncertain whether somebody watches, and two watchers do no harm
            if not self.done:
                reactor().watch(self)
            raise

    def when_done(self, waiter: Callable[[], None]) -> None:
        """Have `waiter` called, on any thread, when the run is done (now if it is).

        It is called a second time where Ctrl-C interrupted the first.
        """
        with _lock:
            if not self.done:
                if self._waiters is None:
                    self._waiters = []
                self._waiters.append(waiter)
                return
        waiter()

    def complete(self) -> None:
        """Complete the run, which the device has finished. Later calls do nothing.

        Ctrl-C that comes meanwhile is raised when all is done.
        """
        mine = False
        try:
            with _lock:
                if self._claimed:
                    return
                self._claimed = threading.get_ident()
                mine = True  # no call since the claim: a signal there would leave a claimed run that nobody finishes
            self._finish()
        except BaseException:
            if not mine:
                raise
            if self.done:
                self._wake()
            else:
                self._finish(interrupted=True)
            if self._error is None or isinstance(self._error, Exception):  # else `outcome` raises the interrupt
                raise

    def _finish(self, *, interrupted: bool = False) -> None:
        """End the run: failure, callbacks, leases, waiters.

        Each step may be done twice, where a signal interrupted the first time.

        Args:
            interrupted: whether this is the second time. What a callback raises now is its own error, no signal's.
        """
        event, stream = self._event, self.stream
        pooled = not isinstance(event, StreamIdle)
        failure = None if event is None else event.failure()
        if event is not None and failure is not None:
            self._spoil(failure)
            event.forget()  # the run has the failure now, whose traceback keeps frames alive
            stream.driver.forget(failure)
            if self._error is None:
                self._error = failure
        elif event is not None and self.sequence > stream.completed:  # a later run's end may have been seen before
            stream.completed = self.sequence
        if self._error is None:
            try:
                if self._callbacks is not None:
                    _calling_back.add(self)
                for callback in self._callbacks or ():
                    callback()
                self._result = resolve(self._result)
            except BaseException as error:
                if not interrupted and not isinstance(error, Exception):
                    raise
                self._error = error
            finally:
                _calling_back.discard(self)
        if self._error is not None:
            self._result = None
        end(self._leases)
        self._leases = []
        self._clear_records()
        if event is not None and self._event is event:
            self._event = None
            if pooled:
                # No call between the two lines, where a signal could come: the event returns to the pool once.
                stream.device.idle_events.append(event)
        observation, self._observation = self._observation, None
        if observation is not None:
            observation.completed(self._error)
        with _lock:  # a waiter that `when_done` adds is there before, or is called by `when_done`
            self.done = True
        self._wake()

    def _wake(self) -> None:
        """Call the waiters; one that a signal interrupted is called a second time."""
        for waiter in self._waiters or ():
            waiter()
        self._waiters = None  # last: if a call is interrupted, all are called the second time

    def _spoil(self, failure: BaseException) -> None:
        """Mark memory that this run was to write: each later use raises the failure."""
        error = without_traceback(failure)
        if _SPOILT not in getattr(error, "__notes__", ()):
            error.add_note(_SPOILT)
        for lease in self._leases:
            for _, storage, write, *_ in lease.uses:
                if write and isinstance(storage, Storage):
                    storage.fail(error)
        for storage in (*(self._storages or ()), *(self._written or ())):
            storage.fail(error)

    @property
    def failed(self) -> bool:
        """Whether it is done and went wrong."""
        return self.done and self._error is not None

    def outcome(self) -> T:
        """The result of a run that is done. Raises its error, if it has one."""
        __tracebackhide__ = True
        if self._error is not None:
            self._raise()
        return self._result

    def _raise(self) -> NoReturn:
        """Raise the error, and keep a copy for the next caller.

        The traceback of the raised error holds frames that hold this run; raised again, it would also grow.
        """
        __tracebackhide__ = True
        error = cast("BaseException", self._error)
        self._error = without_traceback(error)
        try:
            raise error.with_traceback(outer_frames(error)) if shows_place(error) else error
        finally:
            del error, self  # this frame is in the traceback

    def raise_interrupt(self) -> None:
        """Raise Ctrl-C that ended the submission, without waiting for the device."""
        if self._error is not None and not isinstance(self._error, Exception):
            self._raise()

    def _wait_over(self, event: DriverEvent) -> None:  # a function of its own, as `wait_done`
        while not (event.wait(WAIT_SLICE_S) or self.done):  # `done`: completed by another thread, as in `settle`
            pass

    def wait(self) -> T:
        """Wait on this thread and return the outcome. After Ctrl-C the run goes on."""
        __tracebackhide__ = True
        event = self._event
        if event is not None and not self._watched:  # a watcher completes the run, and gives the event to the pool
            try:
                self.raise_interrupt()
                self._wait_over(event)
            except BaseException:
                self.watch()
                raise
            self.complete()
        self._wait_settled()
        return self.outcome()


def add_path(error: BaseException, path: list[Operation[Any]], stream: Stream) -> None:
    """Note on an error which operations were being submitted: `path`, outermost first."""
    steps = " > ".join(f"{op.label()} ({format_site(op.site)})" for op in path)
    error.add_note(f"while submitting {steps} on {stream}")


def take_over(
    op: Operation[T],
    stream: Stream,
    *,
    leases: list[Lease],
    end: DriverEvent | None = None,
    sequence: int | None = None,
    handles: T | None = None,
    error: BaseException | None = None,
) -> Run[T]:
    """Make a run for an operation that was enqueued without one (see `fastpath.py`).

    Args:
        op: the operation; held until the run is over.
        stream: where it was enqueued.
        leases: the leases that it holds.
        end: the event recorded behind it; None where it was not recorded.
        sequence: how many pieces of the stream's work `end` covers; by default all so far.
        handles: the operation's result.
        error: the error that ended the submission.
    """
    run = Run(op, stream, leases)
    run.adopt_enqueued(op, handles, end=end, sequence=stream.sequence if sequence is None else sequence, error=error)
    return run


def abandon(op: Operation[Any], leases: Iterable[Lease]) -> None:
    """End the leases of an operation that was begun and will not run."""
    for lease in leases:
        lease.give_back()
    for part in op.parts():
        part.discard()
