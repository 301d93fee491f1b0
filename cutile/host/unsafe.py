"""Tensors over raw addresses.

Nothing checks that their memory exists, is large enough, or outlives the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from cuda_async import Device, Storage, Stream
from cuda_async.core.device import as_device
from cuda_async.foreign import ForeignStorage
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.host.shapes import DTypeSpec, ShapeLike, element_type, new_shape, row_major_strides
from cutile.host.tensor import Tensor
from cutile.launch.views import View, byte_span

__all__ = ("borrow_raw_parts", "from_raw_parts")


def _layout(shape: ShapeLike, strides: Sequence[int] | None, function: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    extents = new_shape(shape, function)
    if strides is None:
        return extents, row_major_strides(extents)
    steps = tuple(_integer(stride, "strides", function) for stride in strides)
    if len(steps) != len(extents):
        raise ArgumentError(f"{function}: {len(steps)} strides for the {len(extents)} axes of shape {extents}")
    return extents, steps


def _integer(number: int, argument: str, function: str) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ArgumentTypeError(f"{function}: {argument}: expected an integer, got {as_text(number)}") from None


def _positive(address: int, function: str) -> int:
    number = _integer(address, "address", function)
    if number <= 0:
        raise ArgumentError(f"{function}: address: expected an address, got {number}")
    return number


def borrow_raw_parts(
    address: int,
    shape: ShapeLike,
    dtype: DTypeSpec,
    device: Device | int | str,
    strides: Sequence[int] | None = None,
    *,
    owner: object = None,
) -> Tensor:
    """A tensor over memory that somebody else owns and frees.

    Args:
        address: the address of the element at index 0 of every axis; positive also where there are no elements.
        shape, dtype: the elements.
        device: where the memory is, as for `Tensor.to_device`.
        strides: in elements; row-major if None.
        owner: an object that keeps the memory alive; held until our work on the memory is done.

    Raises:
        ArgumentTypeError: `address` or a stride is no integer, `shape` no shape, `dtype` no element type, or `device`
            no device.
        ArgumentError: an extent is negative or too large, `address` is not positive, there are more or fewer strides
            than axes, or no device has the name.
        NoDeviceError: this machine has no such device.

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device
        >>> from cutile.host.unsafe import borrow_raw_parts
        >>> array = np.arange(3.0)
        >>> borrow_raw_parts(array.ctypes.data, (3,), "f64", Device.host(), owner=array).to_numpy().sync()
        array([0., 1., 2.])
    """
    extents, steps = _layout(shape, strides, "borrow_raw_parts")
    start = _positive(address, "borrow_raw_parts")
    element = element_type(dtype, "borrow_raw_parts")
    # The storage of foreign memory begins at address 0 (`ForeignStorage`), so that the offset is the address.
    storage = ForeignStorage(as_device(device), owner, span=byte_span(start, element, extents, steps))
    return Tensor(View(storage, start, element, extents, steps))


def from_raw_parts(
    address: int,
    num_bytes: int,
    shape: ShapeLike,
    dtype: DTypeSpec,
    stream: Stream,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """A tensor that takes over an allocation, and frees it when it is gone.

    Args:
        address: a result of `stream.driver.allocate`; on a GPU also of cuMemAllocAsync or cuMemAlloc.
        num_bytes: the size of the allocation, in bytes.
        shape, dtype: the elements, from the allocation's first byte on.
        strides: in elements; row-major if None. A negative one would lead to bytes before the allocation.
        stream: where it was allocated, and will be freed.

    Raises:
        ArgumentTypeError, ArgumentError: as for `borrow_raw_parts`, or the elements do not lie in the allocation. The
            allocation is then not taken over.

    Example:
        >>> from cuda_async import Device
        >>> from cutile import api
        >>> from cutile.host.unsafe import from_raw_parts
        >>> stream = Device.host().new_stream()
        >>> tensor = from_raw_parts(stream.driver.allocate(64), 64, (4, 4), "f32", stream)
        >>> api.fill(tensor, 2.0).sync_on(stream).num_bytes
        64
    """
    extents, steps = _layout(shape, strides, "from_raw_parts")
    element, start = element_type(dtype, "from_raw_parts"), _positive(address, "from_raw_parts")
    begin, end = byte_span(0, element, extents, steps)  # bytes of the allocation
    if begin < 0 or end > num_bytes:
        raise ArgumentError(
            f"from_raw_parts: elements of shape {extents} and strides {steps} do not lie in {num_bytes} bytes"
        )
    return Tensor(View(Storage(stream, start, num_bytes, owned=True), 0, element, extents, steps))
