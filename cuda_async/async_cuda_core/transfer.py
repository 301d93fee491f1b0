"""Operations that the buffers' calls enqueue: copies, fills, allocations."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np

from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import Lease, Settling, Use
from cuda_async.core.storage import Storage
from cuda_async.errors import ArgumentError, ArgumentTypeError
from cuda_async.op import DeviceOp
from cuda_async.site import Site
from cuda_async.staging import upload

__all__ = ("Buffer", "Copy", "Create", "Fill", "HostMemory", "checked_count", "checked_dtype", "refuse_mismatch")


class Buffer(Protocol):
    """A host or device buffer."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def memory(self) -> Storage | HostMemory: ...
    @property
    def num_elements(self) -> int: ...
    def note_use(self, run: Settling, *, writes: bool) -> None:
        """Note a copy that uses the buffer, and that nobody waits for."""
        ...


class HostMemory(Protocol):
    """Page-locked host memory. Operations lease it like storage; it orders no streams."""

    @property
    def leases(self) -> list[Lease]: ...
    @property
    def nbytes(self) -> int: ...


class Copy(DeviceOp[None]):
    """Copy `source` to `destination`, on one stream. Both stay alive until it is done.

    Args:
        destination: written.
        source: read; as many elements of the same type.
        site: the user's line.
        exclusive: whether to lease both buffers, so that a conflicting use is refused. If not, nobody waits for the
            copy: host buffers note it, and device memory is ordered by streams alone.
    """

    def __init__(self, destination: Buffer, source: Buffer, site: Site, *, exclusive: bool) -> None:
        super().__init__(site)
        self._destination, self._source, self._exclusive = destination, source, exclusive
        if exclusive:
            self.lend(Use("destination", destination.memory, write=True), Use("source", source.memory, write=False))

    def execute(self, context: ExecutionContext) -> None:
        for buffer, write in ((self._destination, True), (self._source, False)):
            context.keep(buffer)
            if not self._exclusive:
                buffer.note_use(context.run, writes=write)
            if isinstance(buffer.memory, Storage):
                buffer.memory.use(context.stream, write=write)
        context.stream.copy(self._destination.address, self._source.address, self._source.nbytes)


class Fill(DeviceOp[None]):
    """Set every byte of a device buffer."""

    def __init__(self, storage: Storage, byte: int, site: Site) -> None:
        super().__init__(site)
        self._storage, self._byte = storage, byte
        self.lend(Use("buffer", storage, write=True))

    def execute(self, context: ExecutionContext) -> None:
        self._storage.use(context.stream, write=True)
        context.stream.fill(self._storage.address, self._storage.nbytes, bytes([self._byte]))


class Create(DeviceOp[Storage]):
    """Allocate device memory, and copy an array to it if there is one."""

    def __init__(self, nbytes: int, array: np.ndarray[Any, np.dtype[Any]] | None) -> None:
        super().__init__()
        self._nbytes, self._array = nbytes, array

    def execute(self, context: ExecutionContext) -> Storage:
        storage = context.allocate(self._nbytes)
        if self._array is not None:
            upload(context, storage, self._array.ctypes.data, self._nbytes, keep=self._array)
        return storage


def refuse_mismatch(call: str, destination: Buffer, source: Buffer) -> None:
    """Refuse a copy between buffers of different sizes or types.

    Raises:
        ValueError: the numbers of elements differ.
        TypeError: the element types differ.
    """
    if destination.num_elements != source.num_elements:
        raise ArgumentError(
            f"{call}: the destination has {destination.num_elements} elements, the source {source.num_elements}"
        )
    if destination.dtype != source.dtype:
        raise ArgumentTypeError(
            f"{call}: the destination has elements of {destination.dtype}, the source of {source.dtype}"
        )


def checked_count(call: str, *extents: int) -> int:
    """The number of elements: the product of extents.

    Raises:
        ValueError: an extent is not positive, or no whole number.
    """
    count = 1
    for extent in extents:
        try:
            number = operator.index(extent)
        except TypeError:
            number = 0
        if number < 1:
            raise ArgumentError(f"{call}: expected at least one element, got {' x '.join(map(str, extents))}")
        count *= number
    return count


def checked_dtype(call: str, dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype that `dtype` names.

    Raises:
        TypeError: there is none, or its elements are no plain numbers.
    """
    if dtype is None:  # which NumPy takes for float64
        raise ArgumentTypeError(f"{call}: dtype: expected a dtype, got None")
    element = np.dtype(getattr(dtype, "numpy", dtype))  # cutile's dtypes have NumPy's as `numpy`
    # Kind V without fields: bf16 and smaller floats, which are not NumPy's own.
    is_number = element.kind in "biufV" and element.type is not np.void and element.subdtype is None
    if not is_number or element.hasobject or not element.itemsize:
        raise ArgumentTypeError(f"{call}: dtype: elements must be plain numbers, got {element}")
    if not element.isnative:
        raise ArgumentTypeError(f"{call}: dtype: the bytes of elements must be in the machine's order, got {element}")
    return element
