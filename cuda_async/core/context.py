"""`ExecutionContext`: the stream, memory and records of a run, for `execute`.

context.stream                          enqueue here
context.execute(inner_op)               run an inner operation on the same stream; its result
context.allocate(nbytes) -> Storage     memory in stream order
context.keep(object)                    hold an object until the run has completed
context.on_complete(function)           call a function once the run has succeeded, before it hands out its result
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_async.core.capture import is_traced, refuse_in_capture
from cuda_async.core.lease import Lease, check_guards
from cuda_async.core.operation import Operation
from cuda_async.core.storage import Storage

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.run import Run
    from cuda_async.core.stream import Stream

__all__ = ("ExecutionContext",)

T = TypeVar("T")


class ExecutionContext:
    """One submission on one stream. Valid until `execute` returns.

    Example:
        >>> from cuda_async import Device, DeviceOp, ExecutionContext, Storage, Use
        >>> class Clear(DeviceOp[Storage]):
        ...     def __init__(self, storage: Storage) -> None:
        ...         super().__init__()
        ...         self._storage = storage
        ...         self.lend(Use("storage", storage, write=True))
        ...
        ...     def execute(self, context: ExecutionContext) -> Storage:
        ...         self._storage.use(context.stream, write=True)
        ...         context.stream.fill(self._storage.address, self._storage.nbytes, bytes(1))
        ...         return self._storage
        >>> stream = Device.host().new_stream()
        >>> Clear(Storage.allocate(stream, 64)).sync_on(stream).nbytes
        64
    """

    __slots__ = ("run", "stream")

    def __init__(self, stream: Stream, run: Run[Any]) -> None:
        self.stream = stream
        self.run = run

    @property
    def device(self) -> Device:
        """The stream's device."""
        return self.stream.device

    def execute(self, op: Operation[T]) -> T:
        """Run an inner operation on this stream and return its result: handles.

        Raises:
            OwnershipError: the operation was used before.
        """
        __tracebackhide__ = True
        leases = op.begin(composed=True)
        run = self.run
        try:
            if leases:
                check_guards(leases, run)
            recorder = self.stream.recorder
            result = op.execute(self) if recorder is None else recorder.execute(op, self)
        except BaseException:
            run.trail.append(op)  # innermost first, for the note on the error
            raise
        finally:
            if leases:  # also where it failed: a part of it may be enqueued, and use what was lent
                run.adopt(leases)
        return result

    def drive(self, op: Operation[T]) -> T:
        """Execute the operations that `op` unfolds to; `op` has begun.

        This is one frame, however deeply the operations nest.
        """
        __tracebackhide__ = True
        run, recorder = self.run, self.stream.recorder
        stack: list[tuple[Operation[Any], Generator[Operation[Any], Any, Any], list[Lease]]] = []
        inner: Operation[Any] = op
        work = op.unfold(self)
        assert work is not None, "it has nothing to drive"
        stack.append((op, work, []))  # no leases: those of `op` are adopted by the code that began it
        value: Any = None  # the result of the inner operation that ended last,
        error: BaseException | None = None  # or its error: either goes into the generator that yielded it
        try:
            while True:
                outer, work, leases = stack[-1]
                try:
                    inner = work.send(value) if error is None else work.throw(error)
                except StopIteration as stop:
                    value, error = stop.value, None
                    ended = True
                except BaseException as raised:
                    value, error = None, raised
                    ended = True
                else:
                    value = error = None
                    ended = False
                if ended:
                    stack.pop()
                    if leases:
                        run.adopt(leases)
                    if not stack:
                        if error is not None:
                            raise error
                        return value
                    if recorder is not None:
                        recorder.leave()
                    if error is not None:
                        run.trail.append(outer)
                    continue
                try:
                    nested = inner.unfold(self)
                    if nested is None:
                        value = self.execute(inner)
                    else:  # as `execute`, with the generator in place of a call
                        inner_leases = inner.begin(composed=True)
                        stack.append((inner, nested, inner_leases))
                        if recorder is not None:
                            recorder.enter(inner)
                        if inner_leases:
                            check_guards(inner_leases, run)
                except BaseException as raised:
                    error = raised
        finally:
            error = None  # its frames hold this one
            run.adopt([lease for _, _, leases in stack for lease in leases])  # where Ctrl-C left some on the stack

    def allocate(self, nbytes: int) -> Storage:
        """Allocate memory on this stream.

        Raises:
            ValueError: `nbytes` is not positive.
            OutOfMemoryError: it does not fit.
        """
        storage = Storage.allocate(self.stream, nbytes)
        self.run.storages.append(storage)
        return storage

    def overwrite(self, storage: Storage, start: int = 0, stop: int | None = None) -> None:
        """Order work that writes all bytes of a part, and reads none of them.

        It is `storage.use`, and more: in an update of a graph earlier failures to write these bytes matter no more.

        Raises as `storage.use`.
        """
        heal = getattr(self.run, "heal", None)  # the run of an update has it
        if heal is not None and storage.error is not None:
            heal(storage, start, storage.nbytes if stop is None else stop)
        storage.use(self.stream, write=True)

    def keep(self, item: object) -> None:
        """Hold `item` until the device has finished this run."""
        self.run.kept.append(item)

    def hold_code(self, code: object) -> None:
        """Hold loaded code until the device has run it.

        It is held longer than by `keep` (see `Stream.hold`), but to hold it again costs less.
        """
        self.stream.hold(code)

    def on_complete(self, function: Callable[[], None]) -> None:
        """Have `function` called, on some host thread, once this run has ended well.

        Raises:
            LaunchError: this is a capture: a graph brings no values to the host.
        """
        if is_traced(self.stream):
            return  # there will be no result
        refuse_in_capture(self.stream.recorder, "bringing values to the host")
        self.run.callbacks.append(function)
