"""Policies: which stream an operation runs on.

call                          the stream is chosen by           the wait is that of
op.sync()                     `with stream:`, else the policy   the calling thread
op.sync_on(stream)            the caller                        the calling thread
await op                      `with stream:`, else the policy   the task
op.schedule(policy)           the policy, at this call          whoever awaits the future

The policy of `op.sync()` and `await op` is the default device's.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from cuda_async.core.defaults import current_stream, innermost
from cuda_async.core.device import Device, as_device, default_device
from cuda_async.core.stream import Stream, StreamStatistics
from cuda_async.errors import ArgumentError, ArgumentTypeError, SchedulingError, as_text
from cuda_async.locks import new_lock

__all__ = (
    "DEFAULT_STREAM_POOL_SIZE",
    "SchedulingPolicy",
    "SingleStream",
    "StreamPoolRoundRobin",
    "default_stream",
    "expect_policy",
    "global_policy",
    "next_stream",
    "policy_streams",
    "set_global_policy",
)

DEFAULT_STREAM_POOL_SIZE = 4


@runtime_checkable
class SchedulingPolicy(Protocol):
    """An object that names the next stream. Several threads may call it at once.

    Example:
        >>> from cuda_async import Device, value
        >>> class Latest:
        ...     def next_stream(self):
        ...         return Device.host().new_stream()
        >>> value(3).schedule(Latest()).sync()
        3
    """

    def next_stream(self) -> Stream: ...


class StreamPoolRoundRobin:
    """`size` streams of one device in turn: 0, 1, 2, 3, 0, ...

    A stream on which a collective of the CPU waits for other ranks is *parked*, and is skipped. The other ranks may be
    threads of this process, whose work must not wait behind the collective. Where each stream is parked, the work gets
    a new stream, which lives as long as somebody holds it.

    Raises:
        ValueError: `size` is less than 1.

    Example:
        >>> policy = StreamPoolRoundRobin(Device.host(), 2)
        >>> a, b, c = (policy.next_stream() for _ in range(3))
        >>> a is c, a is b
        (True, False)
    """

    def __init__(self, device: Device | int | str, size: int = DEFAULT_STREAM_POOL_SIZE) -> None:
        try:
            count = operator.index(size)
        except TypeError:
            count = 0
        if count < 1:
            raise ArgumentError(
                f"size: expected at least 1 stream, got {as_text(size)}; with one, all runs one after another"
            )
        self.device = as_device(device)
        self.streams = tuple(self.device.new_stream() for _ in range(count))
        self._turn = itertools.count()  # needs no lock: `next` is atomic, as Python is one with a GIL (`Makefile`)

    def next_stream(self) -> Stream:
        """The stream whose turn it is."""
        stream = self.streams[next(self._turn) % len(self.streams)]
        return self._unparked() if stream.driver.parked else stream

    def _unparked(self) -> Stream:
        """A stream on which no collective waits."""
        # Other threads take turns meanwhile, so that a stream may be asked twice and another not at all. At worst there
        # is one new stream too many.
        streams = [self.streams[next(self._turn) % len(self.streams)] for _ in self.streams]
        return next((stream for stream in streams if not stream.driver.parked), None) or self.device.new_stream()

    def statistics(self) -> tuple[StreamStatistics, ...]:
        """What each of the streams has done so far."""
        return tuple(stream.statistics() for stream in self.streams)

    def __repr__(self) -> str:
        return f"StreamPoolRoundRobin({self.device}, {len(self.streams)})"


class SingleStream:
    """Everything on one stream, in strict order.

    Example:
        >>> from cuda_async import Device
        >>> policy = SingleStream(Device.host())
        >>> policy.next_stream() is policy.next_stream()
        True

    Args:
        device: the stream's device.
        sm_margin: multiprocessors that its kernels leave free; see `Device.new_stream`, also for None.
    """

    def __init__(self, device: Device | int | str, *, sm_margin: int | None = 0) -> None:
        self.device = as_device(device)
        self._stream = self.device.new_stream(sm_margin=sm_margin)

    @property
    def stream(self) -> Stream:
        """The stream."""
        return self._stream

    def next_stream(self) -> Stream:
        """The same stream each time."""
        return self._stream

    def __repr__(self) -> str:
        return f"SingleStream({self.device})"


_lock = new_lock()
"""Held while a device's policy is set, for all devices: that happens once or twice in a process."""


def global_policy(device: Device | int | str | None = None) -> SchedulingPolicy:
    """The policy of a device: one in each process.

    It is a `StreamPoolRoundRobin` of 4 streams, unless `set_global_policy` set another.

    Args:
        device: the device, the number of a GPU, or a name; None for the default device.

    Raises:
        NoDeviceError: there is no such device.

    Example:
        >>> from cuda_async import Device, global_policy
        >>> global_policy(Device.host()).next_stream().device
        cpu
    """
    where = default_device() if device is None else as_device(device)
    if where.policy is None:
        with _lock:
            if where.policy is None:
                where.policy = StreamPoolRoundRobin(where)
    return where.policy


def set_global_policy(device: Device | int | str, policy: SchedulingPolicy | None) -> None:
    """Set the policy of a device; None goes back to the default.

    Raises:
        NoDeviceError: there is no such device.
        TypeError: `policy` has no method `next_stream`.

    Example:
        >>> from cuda_async import Device, SingleStream, set_global_policy
        >>> set_global_policy(Device.host(), SingleStream(Device.host()))  # everything in strict order
        >>> set_global_policy(Device.host(), None)
    """
    where = as_device(device)
    if policy is not None:
        expect_policy(policy)
    with _lock:
        where.policy = policy


def expect_policy(policy: object) -> None:
    """Refuse an object that is no policy.

    Raises:
        TypeError: it is none; the message says what a policy is.
    """
    if not hasattr(policy, "next_stream"):
        remedy = "; to choose the stream yourself, write .sync_on(stream)" if isinstance(policy, Stream) else ""
        raise ArgumentTypeError(
            f"expected a policy, which is anything with a method next_stream(), got {type(policy).__name__}: "
            f"{as_text(policy)}{remedy or '; write StreamPoolRoundRobin(device, 4), say, or await the operation'}"
        )


def policy_streams(device: Device) -> Iterable[Stream]:
    """The streams of the device's policy; none where the policy is a user's.

    A user's policy need not have a list of streams. So an allocation without memory waits for the frees of its own
    stream alone then (`storage.py`), and may fail although frees on other streams are under way.
    """
    policy = device.policy
    if isinstance(policy, StreamPoolRoundRobin):
        return policy.streams
    return (policy.stream,) if isinstance(policy, SingleStream) else ()


def next_stream(policy: SchedulingPolicy) -> Stream:
    """Ask a policy, which may be a user's, for a stream.

    Raises:
        SchedulingError: the policy raised, or did not return a stream.
        TypeError: `policy` has no method `next_stream`.
    """
    expect_policy(policy)
    try:
        stream = policy.next_stream()
    except Exception as error:
        raise SchedulingError(f"{policy!r}.next_stream() raised {type(error).__name__}: {error}") from error
    if not isinstance(stream, Stream):
        raise SchedulingError(f"{policy!r}.next_stream(): expected a Stream, got {type(stream).__name__}")
    return stream


def default_stream() -> Stream:
    """The stream of `op.sync()` and `await op`.

    It is the stream of `with stream:`, else the next of the default device's policy.
    """
    return innermost(current_stream) or next_stream(global_policy())
