"""`DeviceBuffer`: memory of a device for a number of elements."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda_async.async_cuda_core.host_buffer import HostBuffer, copy_call
from cuda_async.async_cuda_core.runtime import Call
from cuda_async.async_cuda_core.stream import Stream, enqueue
from cuda_async.async_cuda_core.transfer import Create, Fill, checked_count, checked_dtype
from cuda_async.core.lease import Settling
from cuda_async.core.storage import Storage
from cuda_async.errors import ArgumentError
from cuda_async.op import DeviceOp
from cuda_async.site import user_site

__all__ = ("DeviceBuffer", "fill_call")


class DeviceBuffer:
    """Memory of a device for a number of elements of one type.

    Made by `new`, `from_slice` and `from_array`. When the buffer is dropped, its memory is freed behind all work that
    uses it.

    Attributes:
        storage: the memory, for operations of `cuda_async`.
        dtype: the NumPy dtype of the elements.
        num_elements: the number of elements.
    """

    def __init__(self, storage: Storage, count: int, dtype: np.dtype[Any]) -> None:
        self.storage = storage
        self.num_elements = count
        self.dtype = dtype

    @property
    def memory(self) -> Storage:
        """The memory, by the name that all buffers have for it (`transfer.Buffer`)."""
        return self.storage

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self.storage.address

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.num_elements * self.dtype.itemsize

    # -- making -------------------------------------------------------------------------------

    @classmethod
    def new(cls, num_elements: int, stream: Stream, dtype: npt.DTypeLike = np.float32) -> Call[DeviceBuffer]:
        """A buffer whose contents are undefined.

        Raises:
            ValueError: the number of elements is not positive.
            TypeError: there is no such dtype.
            OutOfMemoryError: (when awaited) it does not fit.
        """
        count = checked_count("DeviceBuffer.new", num_elements)
        kind = checked_dtype("DeviceBuffer.new", dtype)
        return enqueue(
            "DeviceBuffer.new", stream, lambda: cls._created(count * kind.itemsize, None, count, kind), wait=False
        )

    @classmethod
    def from_slice(
        cls, values: npt.ArrayLike, stream: Stream, dtype: npt.DTypeLike | None = None
    ) -> Call[DeviceBuffer]:
        """A buffer with these values, which are copied at once. Raises as `new`."""
        array = np.array(values, dtype=dtype, order="C")  # a copy: the user's array may change before the call runs
        checked_count("DeviceBuffer.from_slice", array.size)
        kind = checked_dtype("DeviceBuffer.from_slice", array.dtype)
        return enqueue(
            "DeviceBuffer.from_slice", stream, lambda: cls._created(array.nbytes, array, array.size, kind), wait=True
        )

    @classmethod
    def from_array(cls, array: npt.ArrayLike, stream: Stream, dtype: npt.DTypeLike | None = None) -> Call[DeviceBuffer]:
        """`from_slice` of an array with any number of axes, in row-major order."""
        return cls.from_slice(array, stream, dtype)

    @classmethod
    def _created(
        cls, nbytes: int, array: np.ndarray[Any, np.dtype[Any]] | None, count: int, dtype: np.dtype[Any]
    ) -> DeviceOp[DeviceBuffer]:
        return Create(nbytes, array).map(lambda storage: cls(storage, count, dtype))

    # -- using --------------------------------------------------------------------------------

    def copy_from(self, other: HostBuffer | DeviceBuffer, stream: Stream) -> Call[None]:
        """Copy another buffer here, and wait until that is done.

        Raises:
            ValueError: the numbers of elements differ.
            TypeError: the element types differ.
            OwnershipError: (when awaited) another operation uses one of the two in a conflicting way.
        """
        return copy_call("DeviceBuffer.copy_from", self, other, stream, wait=True)

    def copy_to(self, other: HostBuffer | DeviceBuffer, stream: Stream) -> Call[None]:
        """Copy this to another buffer, and wait until that is done. Raises as `copy_from`."""
        return copy_call("DeviceBuffer.copy_to", other, self, stream, wait=True)

    def copy_from_async(self, other: HostBuffer | DeviceBuffer, stream: Stream) -> Call[None]:
        """Enqueue a copy of another buffer here.

        The contents of a host buffer must not change before `stream.synchronize()`.
        """
        return copy_call("DeviceBuffer.copy_from_async", self, other, stream, wait=False)

    def copy_to_async(self, other: HostBuffer | DeviceBuffer, stream: Stream) -> Call[None]:
        """Enqueue a copy of this to another buffer.

        The other buffer's contents are there after `stream.synchronize()`.
        """
        return copy_call("DeviceBuffer.copy_to_async", other, self, stream, wait=False)

    def fill_with_byte(self, byte: int, stream: Stream) -> Call[None]:
        """Set every byte to `byte`, and wait until that is done.

        Raises:
            ValueError: `byte` is no whole number from 0 to 255.
            OwnershipError: (when awaited) another operation uses the buffer.
        """
        return fill_call("DeviceBuffer.fill_with_byte", self.storage, byte, stream)

    def note_use(self, run: Settling, *, writes: bool) -> None:
        """Note nothing: streams order the uses of device memory."""

    def __repr__(self) -> str:
        return f"<DeviceBuffer of {self.num_elements} {self.dtype} on {self.storage.device}>"


def fill_call(name: str, storage: Storage, byte: int, stream: Stream) -> Call[None]:
    """A call that fills memory; see `DeviceBuffer.fill_with_byte`."""
    try:
        number = operator.index(byte)
    except TypeError:
        number = -1
    if not 0 <= number <= 255:
        raise ArgumentError(f"{name}: expected a byte, 0 to 255, got {byte}")
    site = user_site()  # now: the call runs on another thread, without the user's frames
    return enqueue(name, stream, lambda: Fill(storage, number, site), wait=True)
