"""What upstream marks unsafe.

Calls that leave to the caller what this package otherwise checks.

    from cuda_async import unsafe

Nothing else in the package is here: whatever is not in this module cannot race, free memory in use, or deadlock.
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

    They run between what `op` enqueued and what follows, and may use what `op` yields: it is ordered before them,
    also on other streams. Unsafe, because each such run waits, on the thread that submits: inside an `await` that is
    the event loop, and two threads that wait for one another's streams do so for ever.

    >>> from cuda_async import value
    >>> then_unchecked(value(20), lambda x: value(x + value(22).sync())).sync()
    42
    """

    def nested(result: T) -> DeviceOp[U]:
        with allow_nested():
            return function(result)

    return Then(op, nested)


def push_device_ptr(launch: AsyncKernelLaunch, address: int) -> AsyncKernelLaunch:
    """`launch.push_device_ptr(address)`: nothing holds or orders that memory.

    `launch.push_input` and `push_output` do both.
    """
    return launch.push_device_ptr(address)


def borrow_storage(stream: Stream, address: int, nbytes: int, *, keep: object = None) -> Storage:
    """Memory that somebody else owns, as a `Storage`; never freed.

    Unsafe: it is believed to be there.

    Args:
        stream: a stream of the device that it is on.
        address, nbytes: where, and how much.
        keep: an object to hold for as long as the storage is used.

    Raises:
        ValueError: `nbytes` is negative.
    """
    return Storage.borrow(stream, address, nbytes, keep=keep)
