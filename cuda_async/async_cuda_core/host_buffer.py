"""`HostBuffer`: page-locked host memory, to copy from and to device buffers."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cuda_async.async_cuda_core.runtime import Call
from cuda_async.async_cuda_core.stream import Stream, current_device, enqueue
from cuda_async.async_cuda_core.transfer import Buffer, Copy, checked_count, checked_dtype, refuse_mismatch
from cuda_async.core.lease import Lease, Settling
from cuda_async.errors import ArgumentError, NotReadyError, OwnershipError
from cuda_async.site import user_site
from cuda_async.staging import Staging

if TYPE_CHECKING:
    from cuda_async.async_cuda_core.device_buffer import DeviceBuffer
    from cuda_async.async_cuda_core.device_buffer_2d import DeviceBuffer2D

__all__ = ("HostBuffer", "copy_call")

Array = np.ndarray[Any, np.dtype[Any]]


class _Pinned:
    """Page-locked memory, and the leases of the copies that use it."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.nbytes = staging.nbytes
        self.leases: list[Lease] = []


class HostBuffer:
    """Page-locked memory for a number of elements of one type.

    Made by `new`, `from_slice` and `from_array`.

    Attributes:
        dtype: the NumPy dtype of the elements.
        num_elements: the number of elements.
        nbytes: the size of the elements in bytes.
        memory: the page-locked memory, with the leases of copies that use it.
    """

    def __init__(self, staging: Staging, count: int, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.num_elements = count
        self.nbytes = staging.nbytes
        self.memory = _Pinned(staging)
        # Copies in flight that no call waits for, each with whether it writes this buffer. The runtime thread appends
        # while the user's thread removes, so the list is changed in place.
        self._flights: list[tuple[Settling, bool]] = []

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self.memory.staging.address

    # -- making -------------------------------------------------------------------------------

    @classmethod
    def new(cls, num_elements: int, dtype: npt.DTypeLike = np.float32) -> Call[HostBuffer]:
        """A buffer whose contents are undefined.

        Raises:
            ValueError: the number of elements is not positive.
            TypeError: there is no such dtype.
            OutOfMemoryError: (when awaited) there is no page-locked memory left.
        """
        count = checked_count("HostBuffer.new", num_elements)
        kind = checked_dtype("HostBuffer.new", dtype)
        return Call("HostBuffer.new", lambda: cls(Staging(current_device(), count * kind.itemsize), count, kind))

    @classmethod
    def from_slice(cls, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Call[HostBuffer]:
        """A buffer with these values, which are copied at once. Raises as `new`."""
        array = np.array(values, dtype=dtype, order="C")  # a copy: the user's array may change before the call runs
        checked_count("HostBuffer.from_slice", array.size)
        kind = checked_dtype("HostBuffer.from_slice", array.dtype)

        def make() -> HostBuffer:
            buffer = cls(Staging(current_device(), array.nbytes), array.size, kind)
            buffer.copy_from_slice(array)
            return buffer

        return Call("HostBuffer.from_slice", make)

    @classmethod
    def from_array(cls, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Call[HostBuffer]:
        """`from_slice` of an array with any number of axes, in row-major order."""
        return cls.from_slice(array, dtype)

    # -- on the host --------------------------------------------------------------------------

    def copy_from_slice(self, values: npt.ArrayLike) -> None:
        """Overwrite the contents.

        Raises:
            ValueError: the number of values differs from the buffer's.
            NotReadyError: a copy in flight writes the buffer.
            OwnershipError: a copy in flight reads the buffer.
        """
        array: Array = np.asarray(values, dtype=self.dtype)
        if array.size != self.num_elements:
            raise ArgumentError(f"copy_from_slice: the buffer has {self.num_elements} elements, got {array.size}")
        self._check_unused("copy_from_slice", writing=True)
        self._elements()[:] = array.reshape(-1)

    def copy_from_array(self, array: npt.ArrayLike) -> None:
        """`copy_from_slice` of an array with any number of axes, in row-major order."""
        self.copy_from_slice(array)

    def to_vec(self) -> Array:
        """A copy of the contents, as an array of one axis.

        Raises:
            NotReadyError: a copy in flight writes the buffer.
        """
        self._check_unused("to_vec", writing=False)
        return self._elements().copy()

    def to_array_with_shape(self, shape: tuple[int, ...]) -> Array:
        """A copy of the contents in this shape.

        Raises as `to_vec`, and ValueError where the shape does not fit.
        """
        return self.to_vec().reshape(shape)

    def _elements(self) -> Array:
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))
        return raw.view(self.dtype)

    def _check_unused(self, what: str, *, writing: bool) -> None:
        """Refuse to touch memory that a copy in flight uses."""
        self._forget_finished()
        held = [lease for lease in self.memory.leases if lease.active and not _is_over(lease.run)]
        # A lease's use is a tuple: (name, storage, write, start, stop).
        if any(writes for _, writes in self._flights) or any(
            use[2] for lease in held for use in lease.uses if use[1] is self.memory
        ):
            raise NotReadyError(f"{what}: a copy into this buffer has not finished; await stream.synchronize() first")
        if writing and (self._flights or held):
            raise OwnershipError(f"{what}: a copy from this buffer has not finished; await stream.synchronize() first")

    # -- to and from devices ------------------------------------------------------------------

    def copy_from(self, other: DeviceBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Copy a device buffer here, and wait until that is done.

        Raises:
            ValueError: the numbers of elements differ.
            TypeError: the element types differ.
            OwnershipError: (when awaited) another copy uses one of the two in a conflicting way.
        """
        return copy_call("HostBuffer.copy_from", self, other, stream, wait=True)

    def copy_to(self, other: DeviceBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Copy this to a device buffer, and wait until that is done.

        Raises as `copy_from`.
        """
        return copy_call("HostBuffer.copy_to", other, self, stream, wait=True)

    def copy_from_async(self, other: DeviceBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Enqueue a copy of a device buffer here.

        The contents are there after `stream.synchronize()`.
        """
        return copy_call("HostBuffer.copy_from_async", self, other, stream, wait=False)

    def copy_to_async(self, other: DeviceBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Enqueue a copy of this to a device buffer.

        The contents must not change before `stream.synchronize()`.
        """
        return copy_call("HostBuffer.copy_to_async", other, self, stream, wait=False)

    def note_use(self, run: Settling, *, writes: bool) -> None:
        """Remember a copy that nobody waits for. On the runtime thread."""
        self._forget_finished()
        self._flights.append((run, writes))

    def _forget_finished(self) -> None:
        for flight in list(self._flights):
            if flight[0].settle():
                with suppress(ValueError):  # another thread has removed it
                    self._flights.remove(flight)

    def __repr__(self) -> str:
        return f"<HostBuffer of {self.num_elements} {self.dtype}>"


def _is_over(run: object) -> bool:
    """Whether a copy has ended."""
    return isinstance(run, Settling) and run.settle()


def copy_call(name: str, destination: Buffer, source: Buffer, stream: Stream, *, wait: bool) -> Call[None]:
    """A call that copies between two buffers; see `HostBuffer.copy_from`."""
    refuse_mismatch(name, destination, source)
    site = user_site()

    return enqueue(name, stream, lambda: Copy(destination, source, site, exclusive=wait), wait=wait)
