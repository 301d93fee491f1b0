"""Streams that another library owns: wrapped, never destroyed, their owner kept. See `Stream.borrow_raw`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

from cuda_async.errors import ArgumentTypeError
from cuda_async.stream import Stream

if TYPE_CHECKING:
    from cuda_async.device import Device

__all__ = ("BorrowedStream", "borrow_stream")


class BorrowedStream(Stream):
    """Another library's stream.

    Attributes:
        owner: what keeps it alive, held as long as this lives.
    """

    __slots__ = ("owner",)

    def __init__(self, device: Device, raw: int, owner: object) -> None:
        super().__init__(device, device.driver.borrow_stream(raw))
        self.owner = owner


def borrow_stream(device: Device, raw: object, owner: object = None) -> BorrowedStream:
    """Wrap a stream; see `Stream.borrow_raw`.

    Raises:
        TypeError: `raw` is neither a handle nor an object with `__cuda_stream__`.
        LaunchError: streams of this device have no handles.
    """
    protocol: Any = getattr(raw, "__cuda_stream__", None)
    if protocol is not None:
        handle = protocol()[1]
        return BorrowedStream(device, operator.index(handle), raw if owner is None else owner)
    try:
        number = operator.index(cast("Any", raw))
    except TypeError:
        raise ArgumentTypeError(
            f"raw: expected a stream handle as a number, or an object with __cuda_stream__, got {type(raw).__name__}"
        ) from None
    return BorrowedStream(device, number, owner)
