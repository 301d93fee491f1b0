"""CUDA graphs: an operation recorded once and replayed any number of times.

On the CPU a graph is a list of recorded work.

    graph = forward(buffers).graph_on(stream)         # records; nothing runs
    output = graph.take_output()                      # handles: no data before the first launch
    for token in tokens:
        graph.update(api.memcpy(input, token))        # write an input, on the graph's stream
        graph.launch().sync_on(stream)                # a lazy operation, on any stream

Addresses are fixed when the graph is captured, so the memory that it uses belongs to it until it is
closed: others may read that memory, and only `update` writes it. A launch waits, on the device, for
updates and earlier launches on other streams, and later uses wait for the launch (see `storage.py`).

`CudaGraph.scope` records operation by operation. `Module` is a model that runs by a graph.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast, overload

from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import GuardLease, Lease, current_holder, end, enter, holders
from cuda_async.core.nesting import OneByOne, refuse_nested
from cuda_async.core.order import Nested, Replay, holds
from cuda_async.core.run import Run
from cuda_async.core.stream import Stream, expect_stream
from cuda_async.errors import (
    ArgumentTypeError,
    ContextError,
    NotReadyError,
    hide_own_frames,
    raise_again,
    without_traceback,
)
from cuda_async.op import DeviceOp
from cuda_async.picture import Picture, picture_of_steps
from cuda_async.recorder import Handle, Recorder, Recording
from cuda_async.replay import GraphLaunch, Held, Spoilt, Update
from cuda_async.site import Site, format_site, user_site

if TYPE_CHECKING:
    from types import TracebackType

    from cuda_async.core.capture import Capture, Span
    from cuda_async.core.storage import Storage
    from cuda_async.driver.interface import DriverEvent

__all__ = ("CudaGraph", "GraphLaunch", "Module", "Scope")

T = TypeVar("T")
U = TypeVar("U")
Input = TypeVar("Input", contravariant=True)
Output = TypeVar("Output", covariant=True)


class CudaGraph(Generic[T]):
    """A graph of recorded work, to be launched any number of times.

    Made by `op.graph()`, `op.graph_on(stream)`, `CudaGraph.capture`, `CudaGraph.scope`. As a context manager it closes
    itself at the end of the block.

    Attributes:
        nodes: how many copies, fills and launches were recorded.
        closed: whether it was closed.

    Example:
        >>> from cuda_async import Device, value
        >>> stream = Device.host().new_stream()
        >>> with value("output").graph_on(stream) as graph:
        ...     graph.launch().sync_on(stream)
        ...     graph.take_output()
        'output'
    """

    __slots__ = (
        "__weakref__", "_handle", "_held", "_lease", "_lent", "_output", "_outputs", "_replay", "_site",
        "_spoilt", "_steps", "_stream", "_token", "_unlaunched", "_updated", "closed", "nodes",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, handle: Handle, run: Run[T], output: T, site: Site) -> None:
        self._stream = recorder.home
        self._handle: Handle | None = handle
        self._site = site
        uses = recorder.uses()
        self._lent = list({storage.lender: storage for storage, _ in uses if storage.lender}.values())
        """One storage of each library that lends memory."""
        self._replay = Replay(self._stream, valid=False)
        """The latest launches. While it is valid, the next launch need not be ordered with each operand."""
        self._updated: DriverEvent | None = None
        """Recorded behind the latest update; None where there was none, or nothing would wait for it."""
        # The launches that were recorded hold their code by the stream of the capture, which ends now.
        self._held = Held(handle, uses, [*run.kept, *run.stream.held.values()])
        self._spoilt: Spoilt = {}
        self._steps = recorder.steps
        self._output: list[T] | None = [output]  # empty once taken; None once the graph was closed before that
        self.nodes = handle.driver.nodes
        self.closed = False
        self._unlaunched = NotReadyError(
            f"the graph captured at {format_site(site)} has not been launched: its outputs hold no data yet"
        )
        self._outputs = {id(storage): storage for storage in (*recorder.allocated, *recorder.remade)}
        """Memory that each launch makes anew, by `id`: earlier failures do not matter there."""
        for storage in recorder.allocated:  # it holds no data before the first launch
            storage.fail(self._unlaunched)
        self._token = object()  # the lease's owner: a reference to the graph would be a cycle
        # An attribute before it is entered: `__del__` gives it back wherever Ctrl-C comes.
        self._lease: Lease = GuardLease(recorder.operands(), self._token, site)
        enter(self._lease, {run, *run.allies, self._token})
        self._lease.run = self._token

    # -- capture ------------------------------------------------------------------------------

    @staticmethod
    def capture(stream: Stream, op: DeviceOp[U]) -> CudaGraph[U]:
        """Record `op`, without running it, as a graph of `stream`.

        Raises:
            OwnershipError: the operation was used before, or what it uses is lent for writing.
            LaunchError: a part of it cannot be replayed (host functions, copies to the host).
            DriverError: the capture failed; the stream stays usable.
        """
        expect_stream(stream)
        _expect_op(op, "capture")
        try:
            return _capture(stream, op, user_site())
        except Exception as error:
            hide_own_frames(error)
            raise

    @overload
    @staticmethod
    def scope(stream: Stream, function: Callable[[Scope], object]) -> CudaGraph[None]: ...
    @overload
    @staticmethod
    def scope(stream: Stream, function: None = None) -> Scope: ...
    @staticmethod
    def scope(stream: Stream, function: Callable[[Scope], object] | None = None) -> CudaGraph[None] | Scope:
        """Record operation by operation: in `function(scope)`, or in a `with` block.

        The recorded operations must not allocate: kernels on existing tensors, `memcpy`, `value`. The leases of each
        operation end when it is recorded, so that the next may use the same buffers.

        Raises:
            ReentrancyError: an operation is run inside the scope, or the scope is inside another submission.

        Example:
            >>> from cuda_async import Device, value
            >>> stream = Device.host().new_stream()
            >>> with CudaGraph.scope(stream) as scope:
            ...     scope.record(value(42))
            42
            >>> scope.graph.launch().sync_on(stream)
        """
        expect_stream(stream)
        if function is not None and not callable(function):
            raise ArgumentTypeError(
                f"scope: expected a function that gets the scope, got {type(function).__name__}; or write "
                "with CudaGraph.scope(stream) as scope: ..."
            )
        scope = Scope(stream, user_site())
        if function is None:
            return scope
        with scope:
            function(scope)
        return scope.graph

    # -- use ----------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """The stream that the graph was captured for, on which `update` runs."""
        return self._stream

    def take_output(self) -> T | None:
        """The result of the captured operation; None where it was taken before.

        It consists of handles. Reading their data before the first launch raises `NotReadyError`.

        Raises:
            ContextError: the graph was closed before its output was taken.
        """
        if self._output is None:
            self._check_open()
            return None
        return self._output.pop() if self._output else None

    def update(self, op: DeviceOp[U]) -> U:
        """Enqueue `op`, which may write the graph's memory, on the graph's stream.

        Does not wait. Later launches, on any stream, are ordered behind it. Where an update has failed, the memory that
        it was to write raises that error until a later `api.memcpy` or `api.fill` has written these bytes.

        Returns:
            The result of `op`: handles.

        Raises:
            ContextError: the graph was closed.
            OwnershipError: the operation was used before.
            BaseException: the operation's error while it was submitted.
        """
        self._check_open()
        _expect_op(op, "update")
        run = Update(op, self._stream, self._outputs, self._spoilt)
        try:
            run.allies.add(self._token)  # so that it may write the graph's operands
            inside = holds(self._stream)
            # In one submission, so that no other thread's work comes between the update and its mark.
            with Nested(current_holder(), self._stream), self._stream.submission:
                if not inside:  # `run.submit` is inside this submission, and does not set `begun`
                    self._stream.begun = self._stream.sequence
                handles = run.submit()
                self._mark_update()
                self._note_inputs(run)
            if run.submission_failed:
                run.restore()
                run.wait()  # raises the error, once work that was enqueued has ended
            run.watch()
        except BaseException as error:
            run.leave(error)
            raise
        return cast("U", handles)

    def _note_inputs(self, run: Run[U]) -> None:
        """Note the outputs that an update writes: from now on no launch makes them anew."""
        for lease in run.leases:
            for use in lease.uses:
                if use[2]:
                    self._outputs.pop(id(use[1]), None)

    def _mark_update(self) -> None:
        """Record the end of an update: if it failed, launches on its stream fail, too.

        Launches on other streams follow the graph's stream, and so fail as well. On a GPU events carry no failures, and
        nothing is recorded.
        """
        device = self._stream.device
        if not device.driver.works_alone:
            if self._updated is None:
                self._updated = device.borrow_event()
            self._stream.driver.record(self._updated)

    def launch(self) -> GraphLaunch:
        """An operation that replays the graph on the stream that runs the operation.

        Raises:
            ContextError: (when run) the graph was closed, or the stream is another device's.
        """
        self._check_open()
        return GraphLaunch(self)

    def enqueue(self, stream: Stream) -> Held:
        """Enqueue the graph on `stream`. For launches.

        Returns:
            Objects that the caller keeps alive until the device is done.
        """
        held = self._held  # once: another thread may close the graph meanwhile
        if held.handle is None:
            self._check_open()
        if stream.device is not self._stream.device:
            self.check_device(stream)
        if stream.recorder is not None:
            self._record(stream, stream.recorder, held)
            return held
        replay = self._replay
        if replay.valid and replay.stream is stream:  # no output has failed since the last launch
            self._enqueue(stream, held)
            return held
        errors = [(storage, error) for storage in tuple(self._outputs.values()) if (error := storage.error)]
        try:
            if errors:  # cleared before the launch, which would refuse to use the outputs
                _set_errors((storage, None) for storage, _ in errors)
            self._enqueue(stream, held)
        except BaseException:
            _set_errors(errors)
            raise
        return held

    def _record(self, stream: Stream, recorder: Capture, held: Held) -> None:
        """Record a launch as a part of another graph.

        That graph's launches order themselves. Until the first of them, outputs that hold no data go on to hold none.
        """
        recorder.meets += cast("Handle", held.handle).meets
        for storage in tuple(self._outputs.values()):  # a copy: another thread's update may remove some
            (recorder.allocated if isinstance(storage.error, NotReadyError) else recorder.remade).append(storage)
        lent: dict[int, list[Span]] = {}
        for _, storage, _, start, stop in self._lease.uses:
            lent.setdefault(id(storage), []).append((start, stop))
        for storage, write in held.uses:
            recorder.note(storage, write=write, lent=lent.get(id(storage), ()))
        stream.driver.launch_graph(cast("Handle", held.handle).driver)
        stream.sequence += 1

    def _enqueue(self, stream: Stream, held: Held) -> None:
        replay = self._replay
        same = replay.stream is stream
        if same:  # set before `valid` is read: from now on, a use of an operand elsewhere follows this launch
            replay.last = stream.sequence + 1
        if same and replay.valid:
            for storage in self._lent:  # its library may have enqueued work at any time
                storage.join(stream)
            if stream.checked is not None:
                for storage, write in held.uses:
                    stream.checked.use(storage.address, write=write)
        else:
            self._order_uses(stream, held.uses, cast("Handle", held.handle).meets)
        updated = self._updated
        if updated is not None and stream is self._stream:
            stream.driver.wait_event(updated)
        stream.driver.launch_graph(cast("Handle", held.handle).driver)
        stream.sequence += 1

    def _order_uses(self, stream: Stream, uses: list[tuple[Storage, bool]], meets: list[object]) -> None:
        """Order a launch with the uses of each operand.

        A graph may have hundreds of operands. Later launches on the stream skip this, until another stream uses one of
        them, or an operation that was to write one fails (`Replay.valid`).
        """
        failure = next((storage.error for storage, _ in uses if storage.error), None) if meets else None
        if failure is not None:
            # The other ranks launch their graphs, too. Without this launch, their collectives would meet those of the
            # next launch of this graph. So the graph is launched all the same, and fails.
            stream.driver.check_behind(partial(raise_again, without_traceback(failure)))
            for storage, write in uses:
                storage.use(stream, write=write, failed=True)
            return
        replay = Replay(stream)
        try:
            self._order_each(stream, uses, replay)
        except BaseException:
            replay.valid = False  # so that operands drop it; else they would keep one for each refused launch
            raise
        self._replay = replay
        if self.closed:  # by another thread meanwhile, which has made the launches before invalid
            replay.valid = False

    def _order_each(self, stream: Stream, uses: list[tuple[Storage, bool]], replay: Replay) -> None:
        outputs = self._outputs
        for storage, write in uses:
            storage.replay(replay, write)
            if write and id(storage) in outputs:
                storage.renew(stream)
            else:
                storage.order(stream, write)

    def check_device(self, stream: Stream) -> None:
        """Refuse a stream of another device. Raises ContextError."""
        if stream.device is not self._stream.device:
            raise ContextError(
                stream.device.ordinal,
                f"the graph captured at {format_site(self._site)} belongs to {self._stream.device}, "
                f"the launch to {stream.device}",
            )

    def close(self) -> None:
        """Release the graph's memory, once its last launch has finished. Does not wait.

        An output that was not taken is released as well. A second call does nothing.
        """
        if not self.closed:
            self.closed = True
            end((self._lease,))
            self._handle = None
            self._replay.valid = False
            self._held, self._lent, self._outputs, self._spoilt = Held(None, [], []), [], {}, {}
            self._return_event()
            if self._output:  # not taken
                self._output = None

    def _check_open(self) -> Handle:
        if self._handle is None:
            raise ContextError(
                self._stream.device.ordinal,
                f"the graph captured at {format_site(self._site)} was closed; record it again: op.graph_on(stream)",
            )
        return self._handle

    def __enter__(self) -> CudaGraph[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # absent where __init__ failed
        if lease is not None:
            self._replay.valid = False  # so that operands drop it when another graph uses them
            lease.give_back()
            self._return_event()

    def _return_event(self) -> None:
        event, self._updated = self._updated, None
        if event is not None:
            event.forget()  # a failure's traceback would keep its frames alive
            self._stream.device.return_event(event)  # an enqueued wait stays as it is when the event is recorded anew

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.nodes} nodes"
        return f"<CudaGraph of {self._stream.device}, {state}, captured at {format_site(self._site)}>"

    def diagram(self) -> str:
        """The recorded operations that use memory, and their order, as text."""
        return self.picture().text()

    def _repr_html_(self) -> str:
        from cuda_async.svg import html_of

        return html_of(self.picture())

    def picture(self) -> Picture:
        """The recorded operations that use memory, and their order, as data."""
        return picture_of_steps(repr(self)[1:-1], self._steps)


def _set_errors(errors: Iterable[tuple[Storage, BaseException | None]]) -> None:
    """Set the error of each later use of storages; None for no error."""
    for storage, error in errors:
        storage.fail(error)


def _expect_op(op: object, method: str) -> None:
    """Refuse what is no operation. Raises ArgumentTypeError."""
    if not isinstance(op, DeviceOp):
        raise ArgumentTypeError(
            f"{method}: expected an operation, got {type(op).__name__}; build one that has not run, as in "
            "api.fill(tensor, 1), and do not run it"
        )


def _capture(stream: Stream, op: DeviceOp[U], site: Site) -> CudaGraph[U]:
    recording = Recording(stream, may_allocate=True)
    run = Run(op, recording.stream)
    output: list[U] = []
    failure: BaseException | None = None
    try:
        recording.begin()
        try:
            output.append(run.record())
        except BaseException as error:
            failure = error
        handle = recording.end(failure)
        return CudaGraph(recording.recorder, handle, run, output[0], site)
    finally:
        failure = None  # its frames hold this one
        run.done = True  # an assignment, which Ctrl-C cannot stop: leases of a run that is done conflict with none
        recording.abort()
        run.release()


class Scope:
    """Records operations one by one.

    Made by `CudaGraph.scope`, used by the thread that made it.
    """

    def __init__(self, stream: Stream, site: Site) -> None:
        self._home = stream
        self._site = site
        self._recording: Recording | None = None
        self._run: Run[None] | None = None
        self._thread = 0
        self._graph: CudaGraph[None] | None = None

    def record(self, op: DeviceOp[U]) -> U:
        """Record an operation, and end its leases.

        Returns:
            The operation's result: handles, without data.

        Raises:
            TypeError: the operation is no graph node: it may allocate.
            OwnershipError: the operation was used before.
            ContextError: the scope is not open.
        """
        recording = self._recording
        if recording is None:
            raise ContextError(self._home.device.ordinal, "record(): this graph scope is not open")
        _expect_op(op, "record()")
        if not op.graph_node:
            raise ArgumentTypeError(
                f"record(): {op!r} is no graph node: only operations that neither allocate nor free can be "
                "recorded (kernels on existing tensors, memcpy, value). Run it before the scope and pass its result."
            )
        run = Run(op, recording.stream)
        try:
            result = run.record()
            assert self._run is not None
            self._run.kept += run.kept
        finally:
            run.done = True  # as in `_capture`
            run.release()
        return result

    @property
    def graph(self) -> CudaGraph[None]:
        """The graph of the recorded operations, once the scope has ended.

        Raises:
            ContextError: the scope has not ended, or failed.
        """
        if self._graph is None:
            raise ContextError(self._home.device.ordinal, "this graph scope has no graph: it is open, or failed")
        return self._graph

    def __enter__(self) -> Scope:
        refuse_nested("CudaGraph.scope()")
        recording = Recording(self._home, may_allocate=False)
        self._run = _ScopeRun(_Nothing(), recording.stream)
        self._thread = threading.get_ident()
        try:
            recording.begin()
            self._recording = recording
            holders[self._thread] = self._run
        except BaseException:
            self._end_thread()
            recording.abort()
            raise
        return self

    def _end_thread(self) -> None:
        """Note that this thread has left the scope."""
        if holders.get(self._thread) is self._run:
            holders.pop(self._thread, None)

    def __del__(self) -> None:
        # Ctrl-C came before the first line of `__exit__`.
        if getattr(self, "_recording", None) is not None:
            self._end_thread()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        recording, run = self._recording, self._run
        assert recording is not None, "the scope was left twice"
        assert run is not None
        try:
            self._end_thread()
            self._recording = None
            handle = recording.end(error)
            self._graph = CudaGraph(recording.recorder, handle, run, None, self._site)
        finally:
            error = None  # its frames hold this one
            run.done = True  # as in `_capture`
            if holders.get(self._thread) is run:  # Ctrl-C came inside `_end_thread`
                holders.pop(self._thread, None)
            recording.abort()
            run.release()
        return False


class _ScopeRun(Run[None], OneByOne):
    """The run of a scope."""

    __slots__ = ()


class _Nothing(DeviceOp[None]):
    """The operation of a scope's run, which needs one."""

    __slots__ = ()

    def execute(self, context: ExecutionContext) -> None:
        return None


class Module(ABC, Generic[Input, Output]):
    """A model that runs by a graph.

    `forward` updates the graph's inputs, launches the graph and returns its output.

    Example:
        >>> class Doubler(Module[int, int]):
        ...     def forward(self, input: int) -> int:
        ...         return 2 * input
        >>> Doubler()(4)
        8
    """

    @abstractmethod
    def forward(self, input: Input) -> Output:
        """Run on one input."""

    def __call__(self, input: Input) -> Output:
        return self.forward(input)
