"""What upstream marks unsafe: calls that leave to the caller what this package otherwise checks.

    from cuda_async import unsafe

Nothing else in the package is here: whatever is not in this module cannot race, free memory in use, or deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cuda_async import straight
from cuda_async.combinators import Then
from cuda_async.nesting import allow_nested
from cuda_async.storage import Storage

if TYPE_CHECKING:
    from cuda_async.launch import AsyncKernelLaunch
    from cuda_async.op import DeviceOp
    from cuda_async.stream import Stream

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


def async_on(op: DeviceOp[T], stream: Stream) -> T:
    """Enqueue an operation and return its handles at once, without waiting and without a future.

    What was lent to it is usable at once: later uses are ordered behind it. Unsafe, because a failure of the device
    reaches nobody but `stream.synchronize()` and later uses of what it was to write, once it has been noticed; and
    host values in the result are not there yet.

    Raises:
        OwnershipError: the operation was used before.
        BaseException: whatever the operation raised while it was submitted.
    """
    return straight.async_on(op, stream)


def push_device_ptr(launch: AsyncKernelLaunch, address: int) -> AsyncKernelLaunch:
    """`launch.push_device_ptr(address)`: nothing holds that memory, and nothing orders the launch behind its users.

    `launch.push_input` and `push_output` do both.
    """
    return launch.push_device_ptr(address)


def borrow_storage(stream: Stream, address: int, nbytes: int, *, keep: object = None) -> Storage:
    """Memory that somebody else owns, as a `Storage`; never freed. Unsafe: it is believed to be there.

    Args:
        stream: a stream of the device that it is on.
        address, nbytes: where, and how much.
        keep: held until whoever uses it is done.

    Raises:
        ValueError: `nbytes` is negative.
    """
    return Storage.borrow(stream, address, nbytes, keep=keep)
