"""`Buffer`: the elements of a collective's operand, in a storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import Use
from cuda_async.core.pending import Pending
from cuda_async.core.storage import Storage
from cuda_async.errors import ArgumentError, ArgumentTypeError, as_text
from cuda_async.op import DeviceOp
from cuda_async.staging import download, upload

__all__ = ("Buffer", "HasBuffer", "buffer_of")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Elements of one dtype that lie side by side in a storage.

    Attributes:
        storage: the memory.
        dtype: the NumPy dtype of the elements.
        count: the number of elements; None for all that fit.
        start: the byte of the storage at which they begin.

    Raises:
        ValueError: the elements lie outside of the storage, or are no plain bytes (Python objects).

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device
        >>> with Device.host():
        ...     buffer = Buffer.put(np.arange(4, dtype=np.float32)).sync()
        ...     buffer.elements, buffer.get().sync()
        (4, array([0., 1., 2., 3.], dtype=float32))
    """

    storage: Storage
    dtype: np.dtype[Any]
    count: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        # By `object.__setattr__`, since the class is frozen.
        object.__setattr__(self, "dtype", _checked_dtype(np.dtype(self.dtype)))
        size, room = self.dtype.itemsize, self.storage.nbytes - self.start
        if self.count is None:
            object.__setattr__(self, "count", max(0, room) // size)
        if self.start < 0 or not 0 <= self.elements * size <= room:
            raise ArgumentError(
                f"buffer: expected a part of its {self.storage.nbytes} bytes, got {self.elements} elements of "
                f"{self.dtype} at byte {self.start}"
            )

    @classmethod
    def put(cls, array: Array) -> DeviceOp[Buffer]:
        """Copy an array to the device, in row-major order, into storage of its own.

        Raises:
            ValueError: it has no elements, or elements that are no plain bytes.
        """
        return _Put(array)

    def get(self) -> DeviceOp[Array]:
        """The elements as an array of one axis, on the host."""
        return _Get(self)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.count or 0  # never None, which `__post_init__` has replaced: `or 0` is for type checkers

    @property
    def stop(self) -> int:
        """The byte behind the last element."""
        return self.start + self.elements * self.dtype.itemsize

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self.storage.address + self.start


@runtime_checkable
class HasBuffer(Protocol):
    """An operand that has its elements in a `Buffer`, such as a tensor."""

    def __collective__(self, write: bool) -> Buffer:
        """The elements. The collective writes them if `write`, else it only reads them.

        Raises ValueError where they do not lie side by side.
        """
        ...


def _checked_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    # Pointers to objects mean nothing elsewhere, and elements of a dtype such as U0 have no bytes.
    if dtype.hasobject or not dtype.itemsize:
        raise ArgumentError(f"buffer: expected a dtype of plain bytes, such as float32, got {dtype!r}")
    return dtype


class _Put(DeviceOp[Buffer]):
    def __init__(self, array: Array) -> None:
        if not array.size:  # an allocation has at least one byte
            raise ArgumentError("put: expected an array with elements")
        _checked_dtype(array.dtype)
        super().__init__()
        self._array = array

    def execute(self, context: ExecutionContext) -> Buffer:
        array = np.ascontiguousarray(self._array)  # here, since the array is read when the operation runs
        storage = context.allocate(array.nbytes)
        upload(context, storage, array.ctypes.data, array.nbytes, keep=array)
        return Buffer(storage, array.dtype)


class _Get(DeviceOp[Array]):
    def __init__(self, buffer: Buffer) -> None:
        super().__init__()
        self._buffer = buffer
        self.lend(Use("source", buffer.storage, False, buffer.start, buffer.stop))

    def execute(self, context: ExecutionContext) -> Array:
        buffer = self._buffer
        array = np.empty(buffer.elements, buffer.dtype)
        if not array.nbytes:  # a buffer may have no elements, and `download` refuses 0 bytes
            return array
        download(context, buffer.storage, array.ctypes.data, array.nbytes, offset=buffer.start, keep=array)
        pending = Pending[Array]("the elements of a buffer", self.site)
        context.on_complete(lambda: pending.set(array))
        return cast("Array", pending)  # the run's completion replaces it by the array


def buffer_of(operand: object, name: str, *, write: bool) -> Buffer:
    """The elements of an operand.

    Raises:
        TypeError: it is neither a `Buffer` nor a tensor.
    """
    if isinstance(operand, Buffer):
        return operand
    if isinstance(operand, HasBuffer):
        return operand.__collective__(write)
    remedy = ""
    if isinstance(operand, DeviceOp):
        remedy = ", an operation that has not run: run it first (sync(), await), and pass the tensor"
    elif isinstance(operand, np.ndarray | list):
        remedy = "; make a tensor of it: cutile.api.from_numpy(array).sync()"
    raise ArgumentTypeError(
        f"{name}: expected a tensor, or a Buffer(storage, dtype), got {type(cast('object', operand)).__name__}: "
        f"{as_text(cast('object', operand))}{remedy}"
    )
