"""Unsafe calls: the caller makes checks that this package makes elsewhere.

    from cuda_async import unsafe

They are the calls that upstream marks unsafe. Calls outside of this module cannot race, free memory in use, or
deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cuda_async.combinators import Then
from cuda_async.core.nesting import allow_nested
from cuda_async.core.storage import Storage
from cuda_async.fastpath import async_on

if TYPE_CHECKING:
    from cuda_async.core.stream import Stream
    from cuda_async.launch import AsyncKernelLaunch
    from cuda_async.op import DeviceOp

__all__ = ("async_on", "borrow_storage", "push_device_ptr", "then_unchecked")

T = TypeVar("T")
U = TypeVar("U")


def then_unchecked(op: DeviceOp[T], function: Callable[[T], DeviceOp[U]]) -> DeviceOp[U]:
    """`op.then(function)`, where `function` may run operations itself.

    The operations run between the work of `op` and the work that follows. They may use the result of `op`, also on
    other streams: its work is ordered before theirs. It is unsafe, because each such run waits on the thread that
    submits. Inside an `await` that thread is the event loop's, and two threads that wait for each other's streams do so
    for ever.

    >>> from cuda_async import value
    >>> then_unchecked(value(20), lambda x: value(x + value(22).sync())).sync()
    42
    """

    def nested(result: T) -> DeviceOp[U]:
        with allow_nested():
            return function(result)

    return Then(op, nested)


def push_device_ptr(launch: AsyncKernelLaunch, address: int) -> AsyncKernelLaunch:
    """`launch.push_device_ptr(address)`: nothing holds or orders the memory there.

    `launch.push_input` and `push_output` do both.
    """
    return launch.push_device_ptr(address)


def borrow_storage(stream: Stream, address: int, nbytes: int, *, keep: object = None) -> Storage:
    """A `Storage` of memory that somebody else owns, and that is never freed here.

    It is unsafe, because nothing checks that the memory exists.

    Args:
        stream: a stream of the memory's device.
        address: the first byte.
        nbytes: the size in bytes.
        keep: an object to hold as long as the storage lives.

    Raises:
        ValueError: `nbytes` is negative.
    """
    return Storage.borrow(stream, address, nbytes, keep=keep)
