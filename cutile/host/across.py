"""Copies between devices: GPU to GPU, host to GPU, GPU to host. Contiguous elements only.

Two GPUs: the driver copies, directly where the two reach each other, else through page-locked memory; the streams of
both are ordered by events. Between the host and a GPU: through page-locked memory, on the GPU's stream, by which other
work of the GPU is ordered too. The host's own stream and the GPU's cannot wait for one another in the driver: what the
host still computes is waited for first (by `await` on a thread of its own, by `sync()` on the caller's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from cuda_async import ContextError, Device, DeviceOp, ExecutionContext, Storage, Use, copy_storage, download, upload
from cuda_async.foreign import import_stream, wait_for_writer
from cutile.errors import ArgumentError
from cutile.host.shapes import is_contiguous, row_major_strides
from cutile.host.transfer import Memcpy, number_of_bytes
from cutile.launch.views import View

__all__ = ("CopyAcross", "ToDevice", "enqueue_copy_across", "refuse_strided")

T = TypeVar("T")


def refuse_strided(view: View, name: str) -> None:
    """Refuse elements that do not follow one another.

    Raises:
        ArgumentError: they do not.
    """
    if not is_contiguous(view.shape, view.strides):
        raise ArgumentError(
            f"{name}: the elements of shape {view.shape} and strides {view.strides} do not follow one another in "
            "memory, and a copy to another device moves one run of bytes; dup() gives a contiguous tensor"
        )


def enqueue_copy_across(context: ExecutionContext, destination: View, source: View) -> None:
    """Enqueue a copy of contiguous elements on the context's stream, which is of one of the two devices.

    Raises:
        ContextError: the stream is of a third device, or of the host where the other is a GPU.
    """
    there, here, device = destination.storage.device, source.storage.device, context.device
    nbytes = number_of_bytes(source)
    if there.kind == here.kind:
        copy_storage(
            context,
            destination.storage,
            source.storage,
            nbytes,
            destination_offset=destination.offset,
            source_offset=source.offset,
        )
    elif device is there and here.kind == "host":
        wait_for_writer(source.storage, submitting=True)
        upload(context, destination.storage, source.address, nbytes, offset=destination.offset, keep=source)
    elif device is here and there.kind == "host":
        wait_for_writer(destination.storage, readers=True, submitting=True)
        download(context, source.storage, destination.address, nbytes, offset=source.offset, keep=destination)
    else:
        raise ContextError(
            device.ordinal,
            f"a copy from {here} to {there} was run on {device}; run it on a stream of the GPU: sync_on(stream), or "
            "'with device:' around it",
        )


def _preparations(*views: View) -> Iterable[Callable[[], object]]:
    """Waiting for what the host still computes, where a GPU is to go on with it."""
    for view in views:
        if view.storage.device.kind == "host":
            yield lambda storage=view.storage: wait_for_writer(storage, readers=True)


class ToDevice(DeviceOp[T]):
    """Copies contiguous elements to a new tensor on `device`; yields `make(view)`."""

    __slots__ = ("_device", "_make", "_view")

    def __init__(self, view: View, device: Device, make: Callable[[View], T]) -> None:
        refuse_strided(view, "to_device")
        super().__init__()
        self._view = view
        self._device = device
        self._make = make
        self.lend(Use("tensor", view.storage, False, *view.byte_range))

    def label(self) -> str:
        return f"to_device {self._device}"

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        if device.kind != "host":
            yield from _preparations(self._view)

    def execute(self, context: ExecutionContext) -> T:
        source = self._view
        shape, nbytes = source.shape, number_of_bytes(source)
        if context.device is self._device:
            storage = context.allocate(nbytes)
        else:
            storage = Storage.allocate(import_stream(self._device), nbytes)
            context.run.storages.append(storage)  # spoiled where this run fails
        result = View(storage, 0, source.dtype, shape, row_major_strides(shape))
        enqueue_copy_across(context, result, source)
        return self._make(result)


class CopyAcross(Memcpy):
    """Copies contiguous elements onto those of another device."""

    __slots__ = ()

    graph_node = False

    def __init__(self, destination: View, source: View) -> None:
        refuse_strided(destination, "memcpy: dst")
        refuse_strided(source, "memcpy: src")
        super().__init__(destination, source)

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        if device.kind != "host":
            yield from _preparations(self._destination, self._source)

    def execute(self, context: ExecutionContext) -> None:
        enqueue_copy_across(context, self._destination, self._source)
