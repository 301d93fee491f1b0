"""`spread`: operations at the same time, each on a device of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_async.core.capture import refuse_in_capture
from cuda_async.core.context import ExecutionContext
from cuda_async.errors import ArgumentError
from cuda_async.op import DeviceOp

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("order_behind", "spread")

T = TypeVar("T")


def spread(ops: Sequence[DeviceOp[T]], devices: Sequence[Device]) -> DeviceOp[tuple[T, ...]]:
    """Run operations at the same time, each on a stream of its device.

    Yields what they yield. Later work of the caller's stream waits for all of them.

    Args:
        ops: the operations; they must not use the same memory unless all read it.
        devices: of each, all of one kind; one may be named more than once.

    Raises:
        ValueError: there are not as many devices as operations, or they are of different kinds.

    Example:
        >>> from cuda_async import Device, spread, value
        >>> cpu = Device.host()
        >>> spread([value(1), value(2)], [cpu, cpu]).sync()
        (1, 2)
    """
    if len(ops) != len(devices) or not ops:
        raise ArgumentError(f"spread: expected a device for each operation, got {len(ops)} and {len(devices)}")
    kinds = sorted({device.kind for device in devices})
    if len(kinds) != 1:
        raise ArgumentError(f"spread: expected devices of one kind, got {', '.join(kinds)}")
    return _Spread(tuple(ops), tuple(devices))


class _Spread(DeviceOp[tuple[Any, ...]]):
    """Forks the caller's stream, runs an operation on each branch, and joins them."""

    __slots__ = ("_devices", "_parts", "arity")

    def __init__(self, parts: tuple[DeviceOp[Any], ...], devices: tuple[Device, ...]) -> None:
        for count, part in enumerate(parts):
            try:
                part.claim()
            except BaseException:
                for claimed in parts[:count]:
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
        branches = [device.new_stream() for device in self._devices]
        results: list[Any] = []
        for part, branch in zip(self._parts, branches, strict=True):
            order_behind(branch, context.stream)
            branch.driver.begin_run()
            try:
                results.append(ExecutionContext(branch, context.run).execute(part))
            finally:
                branch.driver.end_run()
        for branch in branches:
            order_behind(context.stream, branch)
            context.keep(branch)
        context.stream.sequence += 1
        return tuple(results)


def order_behind(later: Stream, earlier: Stream) -> None:
    """Make later work of one stream wait for what was enqueued on another.

    By an event of its own: in a capture `Stream.follow` would keep one that belongs to the graph.
    """
    event = earlier.device.borrow_event()
    earlier.driver.record(event)
    later.driver.wait_event(event)
    earlier.device.return_event(event)  # a wait that is enqueued stays valid when the event is recorded again
