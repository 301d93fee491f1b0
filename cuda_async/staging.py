"""Copies between ordinary host memory and a device that never block the caller.

A GPU copies ordinary (pageable) memory by blocking the caller until its stream has drained. So
these go through page-locked memory: uploads take a snapshot of the source at submission, downloads
reach their destination when the run completes. On the CPU they are plain copies in stream order.

    upload(context, storage, source_address, nbytes, keep=array)
    download(context, storage, destination_address, nbytes, keep=array)

For the `execute` of an operation; `keep` is what owns the host memory, held until the run completes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from cuda_async.context import ExecutionContext
from cuda_async.storage import Storage

if TYPE_CHECKING:
    from cuda_async.device import Device

__all__ = ("Staging", "download", "upload")


class Staging:
    """Page-locked host memory, given back when dropped."""

    __slots__ = ("_device", "address", "nbytes")

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self.nbytes = nbytes
        self.address = device.driver.pin(nbytes)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            driver, nbytes = self._device.driver, self.nbytes
            self._device.defer(lambda: driver.unpin(address, nbytes))


def upload(
    context: ExecutionContext, storage: Storage, source: int, nbytes: int, *, offset: int = 0, keep: object
) -> None:
    """Copy `nbytes` at host address `source` to byte `offset` of `storage`.

    Raises:
        ValueError: they do not fit.
    """
    _check(storage, nbytes, offset)
    storage.use(context.stream, write=True)
    if context.device.kind == "host":
        context.keep(keep)
    else:
        staging = Staging(context.device, nbytes)
        ctypes.memmove(staging.address, source, nbytes)
        context.keep(staging)
        source = staging.address
    context.stream.copy(storage.address + offset, source, nbytes)


def download(
    context: ExecutionContext, storage: Storage, destination: int, nbytes: int, *, offset: int = 0, keep: object
) -> None:
    """Copy `nbytes` at byte `offset` of `storage` to host address `destination`, there once the run is done.

    Raises:
        ValueError: the storage is shorter.
    """
    _check(storage, nbytes, offset)
    storage.use(context.stream, write=False)
    context.keep(keep)
    if context.device.kind == "host":
        context.stream.copy(destination, storage.address + offset, nbytes)
        return
    staging = Staging(context.device, nbytes)
    context.keep(staging)
    context.stream.copy(staging.address, storage.address + offset, nbytes)
    context.on_complete(lambda: _deliver(destination, staging))


def _deliver(destination: int, staging: Staging) -> None:
    ctypes.memmove(destination, staging.address, staging.nbytes)


def _check(storage: Storage, nbytes: int, offset: int) -> None:
    if nbytes < 1 or offset < 0 or offset + nbytes > storage.nbytes:
        raise ValueError(
            f"expected a part of the storage's {storage.nbytes} bytes, got {nbytes} bytes at offset {offset}"
        )
