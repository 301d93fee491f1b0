"""Copies between storages, on one device or across two of the same kind.

    copy_storage(context, destination, source)        # in an operation's execute()

Across devices the driver copies directly where one can reach the other's memory, else through host
memory. Both storages are ordered: the copy waits for earlier uses of them on either device, and later
uses wait for the copy. `staging.py` copies between a GPU and the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.errors import ArgumentError, ContextError

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.storage import Storage

__all__ = ("copy_storage",)


def copy_storage(
    context: ExecutionContext,
    destination: Storage,
    source: Storage,
    nbytes: int | None = None,
    *,
    destination_offset: int = 0,
    source_offset: int = 0,
) -> None:
    """Enqueue a copy of `nbytes` bytes on the context's stream.

    Args:
        context: of a stream of one of the two devices.
        destination: written from byte `destination_offset` on.
        source: read from byte `source_offset` on. Two ranges of one storage must not overlap.
        nbytes: number of bytes; None for all bytes of `source` from its offset on.

    Raises:
        ValueError: a range lies outside its storage.
        ContextError: the devices are of different kinds, or the stream belongs to a third one.

    Example:
        >>> from cuda_async import Device, Storage, copy_storage, value, with_context
        >>> stream = Device.host().new_stream()
        >>> source, destination = Storage.allocate(stream, 64), Storage.allocate(stream, 64)
        >>> with_context(lambda context: value(copy_storage(context, destination, source))).sync_on(stream)
    """
    count = source.nbytes - source_offset if nbytes is None else nbytes
    for name, storage, offset in (
        ("destination", destination, destination_offset),
        ("source", source, source_offset),
    ):
        if count < 1 or offset < 0 or offset + count > storage.nbytes:
            raise ArgumentError(
                f"{name}: expected a part of its {storage.nbytes} bytes, got {count} bytes at offset {offset}"
            )
    stream = context.stream
    if destination.device.kind != source.device.kind:
        raise ContextError(
            stream.device.ordinal,
            f"a copy from {source.device} to {destination.device} goes through the host: bring the data to the "
            "host first, then to the other device",
        )
    if stream.device not in (destination.device, source.device):
        raise ContextError(
            stream.device.ordinal,
            f"a copy from {source.device} to {destination.device} was run on {stream.device}; "
            "run it on a stream of one of the two",
        )
    # `peer` permits a stream of the other storage's device.
    destination.use(stream, write=True, peer=True)
    source.use(stream, write=False, peer=True)
    target, origin = destination.address + destination_offset, source.address + source_offset
    if destination.device is source.device:
        stream.copy(target, origin, count)
        return
    stream.driver.copy_peer(target, destination.device.driver, origin, source.device.driver, count)
    stream.sequence += 1  # as `stream.copy` counts its own: `copy_peer` is the driver's
