"""`spread`: operations at the same time, each on a device of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_async.core.capture import refuse_in_capture
from cuda_async.core.context import ExecutionContext
from cuda_async.errors import ArgumentError, ContextError, DeviceError
from cuda_async.op import DeviceOp

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("order_behind", "spread")

T = TypeVar("T")


def spread(ops: Sequence[DeviceOp[T]], devices: Sequence[Device]) -> DeviceOp[tuple[T, ...]]:
    """Run operations at the same time, each on a stream of its own.

    The operation yields the tuple of their results. Later work of its stream waits for all of them.

    Args:
        ops: the operations; they must not use the same memory unless all read it.
        devices: the device of each operation, all of one kind; a device may be named more than once.

    Raises:
        ValueError: there are not as many devices as operations, or they are of different kinds.
        OwnershipError: one of the operations was used before.
        ContextError: (when run) the stream belongs to a device of another kind.

    Example:
        >>> from cuda_async import Device, spread, value
        >>> cpu = Device.host()
        >>> spread([value(1), value(2)], [cpu, cpu]).sync_on(cpu.new_stream())
        (1, 2)
    """
    if len(ops) != len(devices) or not ops:
        raise ArgumentError(f"spread: expected a device for each operation, got {len(ops)} and {len(devices)}")
    kinds = sorted({device.kind for device in devices})
    if len(kinds) != 1:
        raise ArgumentError(f"spread: expected devices of one kind, got {', '.join(kinds)}")
    return _Spread(tuple(ops), tuple(devices))


class _Spread(DeviceOp[tuple[Any, ...]]):
    """Forks the stream, runs an operation on each branch, and joins the branches."""

    __slots__ = ("_devices", "_parts", "arity")

    def __init__(self, parts: tuple[DeviceOp[Any], ...], devices: tuple[Device, ...]) -> None:
        for count, part in enumerate(parts):
            try:
                part.claim()
            except BaseException:
                for claimed in parts[:count]:  # no operation has these now, so that their arguments must be free
                    claimed.discard()
                raise
        self._parts = parts
        self._devices = devices
        self.arity = len(parts)
        super().__init__()

    def label(self) -> str:
        return "spread"

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return self._parts

    def execute(self, context: ExecutionContext) -> tuple[Any, ...]:
        refuse_in_capture(context.stream.recorder, "work on several devices")
        if context.device.kind != self._devices[0].kind:  # a stream cannot wait for a stream of another kind
            raise ContextError(
                context.device.ordinal,
                f"spread: operations for {self._devices[0]} were run on {context.device}; run them on a stream of a "
                "device of that kind, with sync_on(device.new_stream())",
            )
        branches = [device.new_stream() for device in self._devices]
        for branch in branches:  # whose pieces are noted and enqueued in this submission, under its lock
            branch.submission = context.stream.submission
        results: list[Any] = []
        try:
            for part, branch in zip(self._parts, branches, strict=True):
                order_behind(branch, context.stream)
                branch.driver.begin_run()
                try:
                    results.append(ExecutionContext(branch, context.run).execute(part))
                finally:
                    branch.driver.end_run()
        except BaseException:
            # Enqueued work goes on. The run holds the memory that it touches, and so must not end before it.
            for branch in branches:
                context.keep(branch)
                with suppress(DeviceError):  # a device that refuses this has failed as a whole
                    order_behind(context.stream, branch)
            raise
        finally:
            for branch in branches:
                branch.begun = branch.sequence
        for branch in branches:
            order_behind(context.stream, branch)
            branch.lead_lenders()
            context.keep(branch)
        context.stream.sequence += 1
        covered = [(branch, branch.sequence) for branch in branches]
        context.on_complete(lambda: _note_completed(covered))
        return tuple(results)


def _note_completed(covered: list[tuple[Stream, int]]) -> None:
    """Note how far branches are done: memory that they used need not keep them then."""
    for branch, sequence in covered:
        branch.completed = max(branch.completed, sequence)


def order_behind(later: Stream, earlier: Stream) -> None:
    """Make later work of one stream wait for the work enqueued on another.

    `Stream.follow` would not do: it keeps its event, which belongs to the graph in a capture.
    """
    event = earlier.device.borrow_event()
    try:
        earlier.driver.record(event)
        later.driver.wait_event(event)
    finally:
        earlier.device.return_event(event)  # enqueued waits stay valid when an event is recorded again
