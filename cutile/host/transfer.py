"""Copies of elements: to and from the host, on a device and between devices.

Contiguous elements are one copy. Others are gathered: by the workers on the CPU, by a kernel on a GPU. On the way from
a GPU to the host their whole range of bytes is copied, and the host gathers.

Between devices, elements must be contiguous. Between two GPUs the driver copies: directly if the two reach each other,
else through page-locked memory. Events order the streams of both. Between host and GPU the copy goes through
page-locked memory, on the GPU's stream, which orders the copy with the GPU's other work. The driver cannot make the
host's stream and the GPU's wait for each other. So the host's pending work is waited for first: by `await` on a thread
of its own, by `sync()` on the caller's.

`ReadsValues` has the methods of a tensor that read its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from cuda_async import (
    ContextError,
    Device,
    DeviceOp,
    ExecutionContext,
    NotReadyError,
    Pending,
    Storage,
    Use,
    copy_storage,
    download,
    global_policy,
    upload,
)
from cuda_async.core.capture import refuse_in_trace
from cuda_async.core.nesting import is_closure
from cuda_async.foreign import import_stream, wait_for_writer
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.memory import Array, array_of, contiguous_view, for_rows, runs_host_code
from cutile.host.shapes import is_contiguous, new_bytes, row_major_strides
from cutile.launch.views import View

__all__ = (
    "CopyAcross",
    "FromHost",
    "Memcpy",
    "ToDevice",
    "ToHost",
    "copy_into",
    "duplicate",
    "enqueue_copy_across",
    "fresh",
    "fresh_op",
    "number_of_bytes",
    "refuse_strided",
    "values_now",
    "ReadsValues",
)

T = TypeVar("T")


def fresh(context: ExecutionContext, dtype: DTypeLike, shape: tuple[int, ...], *, spare: int = 0) -> View:
    """Allocate a new contiguous tensor's elements, and room for `spare` more.

    The contents are undefined.
    """
    view = contiguous_view(dtype, shape)
    return view.at(context.allocate(new_bytes(dtype, shape, view.strides, spare=spare)))


class _Fresh(DeviceOp[View]):
    """Allocates the elements of a new tensor."""

    __slots__ = ("_dtype", "_shape")

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._dtype = dtype
        self._shape = shape

    def label(self) -> str:
        return "empty"

    def execute(self, context: ExecutionContext) -> View:
        return fresh(context, self._dtype, self._shape)


def fresh_op(dtype: DTypeLike, shape: tuple[int, ...]) -> DeviceOp[View]:
    """An op that allocates a new contiguous tensor, contents undefined."""
    return _Fresh(dtype, shape)


def number_of_bytes(view: View) -> int:
    """The size of the elements, in bytes."""
    return math.prod(view.shape) * (view.dtype.bits // 8)


def _is_contiguous(view: View) -> bool:
    return is_contiguous(view.shape, view.strides)


def _gather(destination: Array, source: Array) -> Callable[[int, int], None]:
    """The function of `for_rows` that copies rows."""
    if destination.ndim == 0:
        return lambda start, stop: np.copyto(destination, source)
    return lambda start, stop: np.copyto(destination[start:stop], source[start:stop])


class FromHost(DeviceOp[T]):
    """Copies an array of the host to a new tensor; yields `make(view)`.

    It holds the array until the copy is done; the array must not change until then.
    """

    __slots__ = ("_array", "_dtype", "_make")

    def __init__(self, array: Array, dtype: DTypeLike, make: Callable[[View], T]) -> None:
        super().__init__()
        self._array = array
        self._dtype = dtype
        self._make = make

    def label(self) -> str:
        return "copy_host_to_device"

    def execute(self, context: ExecutionContext) -> T:
        array = self._array
        view = fresh(context, self._dtype, array.shape)
        if not array.size:
            return self._make(view)
        if not array.flags.c_contiguous:
            if runs_host_code(context.device):
                view.storage.use(context.stream, write=True)
                for_rows(context.stream, array.shape, array.nbytes, _gather(array_of(view), array))
                return self._make(view)
            array = np.ascontiguousarray(array)
        upload(context, view.storage, array.ctypes.data, array.nbytes, keep=array)
        return self._make(view)


class ToHost(DeviceOp[Array]):
    """Copies elements to a new NumPy array of shape `shape`, in row-major order."""

    __slots__ = ("_name", "_shape", "_view")

    def __init__(self, view: View, shape: tuple[int, ...], name: str) -> None:
        super().__init__()
        self._view = view
        self._shape = shape
        self._name = name
        self.lend(Use("tensor", view.storage, False, *view.byte_range))

    def label(self) -> str:
        return self._name

    def execute(self, context: ExecutionContext) -> Array:
        view, storage = self._view, self._view.storage
        result = np.empty(view.shape, view.dtype.numpy)
        pending = Pending[Array](f"the values of a tensor ({self._name})", self.site)
        if not result.size:
            pass  # no copy; the result still comes in the order of the stream
        elif _is_contiguous(view):
            download(context, storage, result.ctypes.data, result.nbytes, offset=view.offset, keep=result)
        elif runs_host_code(context.device):
            storage.use(context.stream, write=False)
            for_rows(context.stream, view.shape, result.nbytes, _gather(result, array_of(view)))
        else:
            _download_range(context, view, result)
        context.on_complete(lambda: pending.set(result.reshape(self._shape)))
        return cast("Array", pending)  # the run puts the array in its place


def values_now(view: View) -> Array:
    """The elements as a new array of the host; waits for them.

    Raises:
        NotReadyError: inside a function given to then(), map() or inspect().
    """
    if is_closure():
        raise NotReadyError(
            "numpy: the values were read inside a function given to then(), map() or inspect(): it is called at "
            "submission, before the device has computed the values. Read them after sync() or await, or with "
            ".then(lambda tensor: tensor.to_numpy())."
        )
    return ToHost(view, view.shape, "numpy").sync_on(global_policy(view.storage.device).next_stream())


def _download_range(context: ExecutionContext, view: View, result: Array) -> None:
    """Enqueue the copy of a view's range of bytes; the host gathers its elements."""
    low, high = view.byte_range
    raw = np.empty(high - low, np.uint8)
    download(context, view.storage, raw.ctypes.data, raw.nbytes, offset=low, keep=raw)
    strides = tuple(stride * result.itemsize for stride in view.strides)
    source = np.ndarray(view.shape, result.dtype, raw, view.offset - low, strides)
    context.on_complete(lambda: np.copyto(result, source))  # runs after the callback of `download`, which fills `raw`


class _Dup(DeviceOp[T]):
    """Copies elements to a new contiguous tensor; yields `make(view)`."""

    __slots__ = ("_make", "_view")

    def __init__(self, view: View, make: Callable[[View], T]) -> None:
        super().__init__()
        self._view = view
        self._make = make
        self.lend(Use("tensor", view.storage, False, *view.byte_range))

    def label(self) -> str:
        return "dup"

    def execute(self, context: ExecutionContext) -> T:
        copy = fresh(context, self._view.dtype, self._view.shape)
        if context.device is not self._view.storage.device:
            refuse_strided(self._view, "dup")
            enqueue_copy_across(context, copy, self._view)
            return self._make(copy)
        _enqueue_copy(context, copy, self._view)
        return self._make(copy)


def duplicate(view: View, make: Callable[[View], T]) -> DeviceOp[T]:
    """An op that copies elements to a new contiguous tensor and yields `make` of it.

    Raises:
        ArgumentError: on a GPU, the elements are not contiguous and have more than 3 axes.
        OwnershipError: an operation that has not finished writes the elements.
    """
    if _is_contiguous(view) or runs_host_code(view.storage.device):
        return _Dup(view, make)
    from cutile.host.kernels import gather_to_new

    return gather_to_new(view, make)


class Memcpy(DeviceOp[None]):
    """Copies elements onto others of the same device."""

    __slots__ = ("_destination", "_source")

    has_effects = True
    graph_node = True

    def __init__(self, destination: View, source: View) -> None:
        super().__init__()
        self._destination = destination
        self._source = source
        self.lend(
            Use("dst", destination.storage, True, *destination.byte_range),
            Use("src", source.storage, False, *source.byte_range),
        )

    def label(self) -> str:
        return "memcpy"

    def execute(self, context: ExecutionContext) -> None:
        _enqueue_copy(context, self._destination, self._source)


def copy_into(destination: View, source: View) -> DeviceOp[None]:
    """An op that copies the elements of `source` onto those of `destination`.

    Elements correspond in row-major order.

    Raises:
        ArgumentTypeError: the dtypes differ.
        ArgumentError: the numbers of elements differ; the shapes differ, and neither view is contiguous; or one view is
            not contiguous, and has more than 3 axes on a GPU or is on another device than the other.
        OwnershipError: the two overlap, or an operation that has not finished uses one of them.
    """
    if destination.dtype is not source.dtype:
        raise ArgumentTypeError(
            f"memcpy: dst is {destination.dtype.name}, src is {source.dtype.name}; the element types must be the same"
        )
    if number_of_bytes(destination) != number_of_bytes(source):
        size = source.dtype.bits // 8
        raise ArgumentError(
            f"memcpy: dst has {number_of_bytes(destination) // size} elements (shape {destination.shape}), src has "
            f"{number_of_bytes(source) // size} (shape {source.shape}); the numbers must be the same"
        )
    if destination.storage.device is not source.storage.device:
        return CopyAcross(destination, source)
    are_contiguous = _is_contiguous(destination) and _is_contiguous(source)
    if not are_contiguous and destination.shape != source.shape:
        destination, source = _match(destination, source)
    if are_contiguous or runs_host_code(destination.storage.device):
        return Memcpy(destination, source)
    from cutile.host.kernels import gather_onto

    return gather_onto(destination, source)


def _match(destination: View, source: View) -> tuple[View, View]:
    """Give the contiguous view the shape of the other one."""
    if _is_contiguous(source):
        shape = destination.shape
        return destination, View(source.storage, source.offset, source.dtype, shape, row_major_strides(shape))
    if _is_contiguous(destination):
        dtype, shape = destination.dtype, source.shape
        return View(destination.storage, destination.offset, dtype, shape, row_major_strides(shape)), source
    raise ArgumentError(
        f"memcpy: neither dst (shape {destination.shape}, strides {destination.strides}) nor src (shape "
        f"{source.shape}, strides {source.strides}) is contiguous, and their shapes differ; make src contiguous (dup())"
    )


def _enqueue_copy(context: ExecutionContext, destination: View, source: View) -> None:
    """Enqueue a copy between views of one shape, or between contiguous views.

    A GPU copies only between contiguous views.
    """
    if 0 in source.shape:
        return
    stream = context.stream
    source.storage.use(stream, write=False)
    if _is_contiguous(destination):
        context.overwrite(destination.storage, *destination.byte_range)
    else:
        destination.storage.use(stream, write=True)
    if _is_contiguous(source) and _is_contiguous(destination):
        stream.copy(destination.address, source.address, number_of_bytes(source))
    else:
        for_rows(stream, source.shape, number_of_bytes(source), _gather(array_of(destination), array_of(source)))


def refuse_strided(view: View, name: str) -> None:
    """Raise ArgumentError for elements that do not follow one another in memory."""
    if not is_contiguous(view.shape, view.strides):
        raise ArgumentError(
            f"{name}: the elements of shape {view.shape} and strides {view.strides} do not follow one another in "
            "memory, and a copy to another device moves one run of bytes; dup() gives a contiguous tensor"
        )


def enqueue_copy_across(context: ExecutionContext, destination: View, source: View) -> None:
    """Enqueue a copy of contiguous elements on the context's stream.

    The stream is of one of the two devices.

    Raises:
        ContextError: the stream is of a third device, or of the host where the other is a GPU.
    """
    refuse_in_trace(context.stream.recorder, "a copy between devices")
    target, origin, device = destination.storage.device, source.storage.device, context.device
    nbytes = number_of_bytes(source)
    if not nbytes:
        return
    if target.kind == origin.kind:
        copy_storage(
            context,
            destination.storage,
            source.storage,
            nbytes,
            destination_offset=destination.offset,
            source_offset=source.offset,
        )
    elif device is target and origin.kind == "host":
        wait_for_writer(source.storage, submitting=True)
        upload(context, destination.storage, source.address, nbytes, offset=destination.offset, keep=source)
    elif device is origin and target.kind == "host":
        wait_for_writer(destination.storage, readers=True, submitting=True)
        download(context, source.storage, destination.address, nbytes, offset=source.offset, keep=destination)
    else:
        raise ContextError(
            device.ordinal,
            f"a copy from {origin} to {target} was run on {device}; run it on a stream of the GPU: sync_on(stream), or "
            "'with device:' around it",
        )


def _preparations(*views: View) -> Iterable[Callable[[], object]]:
    """Functions that wait for the host's pending work on views.

    After them a GPU's stream may use the views.
    """
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
        refuse_in_trace(context.stream.recorder, "a copy between devices")
        strides = row_major_strides(source.shape)
        nbytes = new_bytes(source.dtype, source.shape, strides)
        if context.device is self._device:
            storage = context.allocate(nbytes)
        else:
            storage = Storage.allocate(import_stream(self._device), nbytes)
            context.run.storages.append(storage)  # a run that fails marks its storages as spoiled
        result = View(storage, 0, source.dtype, source.shape, strides)
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


class ReadsValues:
    """The methods of `Tensor` that read its values."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _usable(self, use: str) -> View: ...

    def to_host_vec(self) -> DeviceOp[Array]:
        """An op that yields the values as a NumPy array of one axis, in row-major order.

        Raises as `dup`.

        Example:
            >>> api.eye(2).sync().to_host_vec().sync()
            array([1., 0., 0., 1.], dtype=float32)
        """
        view = self._usable("to_host_vec")
        return ToHost(view, (math.prod(view.shape),), "to_host_vec")

    def to_numpy(self) -> DeviceOp[Array]:
        """An op that yields the values as a NumPy array of this shape. Raises as `dup`.

        Example:
            >>> from cutile import api, f32
            >>> api.ones((2, 2), f32).to_numpy().sync()
            array([[1., 1.],
                   [1., 1.]], dtype=float32)
        """
        view = self._usable("to_numpy")
        return ToHost(view, view.shape, "to_numpy")

    def numpy(self) -> Array:
        """The values as a NumPy array of this shape, now: waits for them.

        `await tensor.to_numpy()` does not block.

        Raises:
            OwnershipError: the tensor is held, or an operation that has not finished writes it.
            NotReadyError: called inside a function given to then(), map() or inspect(); or the tensor is one of
                `api.meta`, without memory.

        Example:
            >>> from cutile import api, f32
            >>> api.ones((3,), f32).sync().numpy()
            array([1., 1., 1.], dtype=float32)
        """
        return values_now(self._usable("numpy"))
