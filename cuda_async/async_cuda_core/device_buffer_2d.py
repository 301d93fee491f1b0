"""`DeviceBuffer2D`: device memory of an image: rows of pixels with channels."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda_async.async_cuda_core.device_buffer import fill_call
from cuda_async.async_cuda_core.host_buffer import HostBuffer, copy_call
from cuda_async.async_cuda_core.runtime import Call
from cuda_async.async_cuda_core.stream import Stream, enqueue
from cuda_async.async_cuda_core.transfer import Create, checked_count, checked_dtype
from cuda_async.core.lease import Settling
from cuda_async.core.storage import Storage
from cuda_async.errors import ArgumentError
from cuda_async.op import DeviceOp

__all__ = ("DeviceBuffer2D",)


class DeviceBuffer2D:
    """An image on a device: `height` rows, `width` pixels, `num_channels` elements.

    Made by `new` and `from_array`. Rows follow one another without padding, so that a copy is one piece.

    Attributes:
        storage: the memory, for operations of `cuda_async`.
        dtype: the NumPy dtype of the elements.
        width, height, num_channels: the extents.
    """

    def __init__(self, storage: Storage, width: int, height: int, num_channels: int, dtype: np.dtype[Any]) -> None:
        self.storage = storage
        self.width, self.height, self.num_channels = width, height, num_channels
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
    def num_elements(self) -> int:
        """The number of elements."""
        return self.width * self.height * self.num_channels

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.num_elements * self.dtype.itemsize

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next: the size of a row, as there is no padding."""
        return self.width * self.num_channels * self.dtype.itemsize

    @classmethod
    def new(
        cls, width: int, height: int, num_channels: int, stream: Stream, dtype: npt.DTypeLike = np.float32
    ) -> Call[DeviceBuffer2D]:
        """An image whose contents are undefined.

        Raises:
            ValueError: an extent is not positive.
            TypeError: there is no such dtype.
            OutOfMemoryError: (when awaited) it does not fit.
        """
        checked_count("DeviceBuffer2D.new", width, height, num_channels)
        # As Python's integers: the product of NumPy's may overflow.
        width, height, num_channels = map(operator.index, (width, height, num_channels))
        kind = checked_dtype("DeviceBuffer2D.new", dtype)
        return enqueue(
            "DeviceBuffer2D.new", stream, lambda: cls._created(None, width, height, num_channels, kind), wait=False
        )

    @classmethod
    def from_array(
        cls, array: npt.ArrayLike, stream: Stream, dtype: npt.DTypeLike | None = None
    ) -> Call[DeviceBuffer2D]:
        """An image with the contents of an array of the axes (height, width, channels).

        The array is copied when this is called.

        Raises:
            ValueError: it has other axes, or no elements.
            TypeError: its elements are no plain numbers.
            OutOfMemoryError: (when awaited) it does not fit.
        """
        pixels = np.array(array, dtype=dtype, order="C")  # a copy: the user's array may change before the call runs
        if pixels.ndim != 3:
            raise ArgumentError(
                f"DeviceBuffer2D.from_array: expected the axes (height, width, channels), got shape {pixels.shape}"
            )
        height, width, channels = pixels.shape
        checked_count("DeviceBuffer2D.from_array", width, height, channels)
        kind = checked_dtype("DeviceBuffer2D.from_array", pixels.dtype)
        return enqueue(
            "DeviceBuffer2D.from_array",
            stream,
            lambda: cls._created(pixels, width, height, channels, kind),
            wait=True,
        )

    @classmethod
    def _created(
        cls,
        pixels: np.ndarray[Any, np.dtype[Any]] | None,
        width: int,
        height: int,
        channels: int,
        dtype: np.dtype[Any],
    ) -> DeviceOp[DeviceBuffer2D]:
        create = Create(width * height * channels * dtype.itemsize, pixels)
        return create.map(lambda storage: cls(storage, width, height, channels, dtype))

    def copy_from(self, other: HostBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Copy another buffer here, and wait until that is done.

        Errors as for `DeviceBuffer.copy_from`.
        """
        return copy_call("DeviceBuffer2D.copy_from", self, other, stream, wait=True)

    def copy_to(self, other: HostBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Copy this to another buffer, and wait until that is done.

        Errors as for `DeviceBuffer.copy_from`.
        """
        return copy_call("DeviceBuffer2D.copy_to", other, self, stream, wait=True)

    def copy_from_async(self, other: HostBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Enqueue a copy of another buffer here; see `DeviceBuffer.copy_from_async`."""
        return copy_call("DeviceBuffer2D.copy_from_async", self, other, stream, wait=False)

    def copy_to_async(self, other: HostBuffer | DeviceBuffer2D, stream: Stream) -> Call[None]:
        """Enqueue a copy of this to another buffer; see `DeviceBuffer.copy_to_async`."""
        return copy_call("DeviceBuffer2D.copy_to_async", other, self, stream, wait=False)

    def fill_with_byte(self, byte: int, stream: Stream) -> Call[None]:
        """Set every byte to `byte`, and wait. Raises as `DeviceBuffer.fill_with_byte`."""
        return fill_call("DeviceBuffer2D.fill_with_byte", self.storage, byte, stream)

    def note_use(self, run: Settling, *, writes: bool) -> None:
        """Note nothing: streams order the uses of device memory."""

    def __repr__(self) -> str:
        return (
            f"<DeviceBuffer2D of {self.width} x {self.height} x {self.num_channels} {self.dtype} "
            f"on {self.storage.device}>"
        )
