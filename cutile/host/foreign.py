"""Tensors of other libraries as ours, without copying.

PyTorch, CuPy, JAX, Numba, NumPy, and what speaks DLPack, `__cuda_array_interface__`, `__array_interface__` or the
buffer protocol.

Here is what a library's tensors are, and which stream it uses; ordering and lifetime are `cuda_async.foreign`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from cuda_async import Device
from cuda_async.foreign import LEGACY_STREAM, ForeignStorage, import_stream
from cutile.dtypes import DTypeLike, as_dtype
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, EXTENSION, read_capsule
from cutile.host.memory import Array
from cutile.host.shapes import as_shape, row_major_strides
from cutile.launch.views import View

__all__ = ("foreign_view", "from_dlpack_view", "is_foreign", "refuse_without_values", "torch_dtype")

_IMMUTABLE = frozenset({"jax", "jaxlib"})
_NUMBA = frozenset({"numba", "numba_cuda"})


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def is_foreign(value: object) -> bool:
    """Whether a value may be passed to a kernel as a tensor, on any device."""
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def foreign_view(value: Any, function: str, device: Device | None = None) -> View:
    """The elements of another library's tensor.

    Raises:
        ArgumentTypeError: it offers none of the protocols, or elements of a type that there is none for here.
        ArgumentError: it has no elements, or is on a device that cannot be used.
    """
    refuse_without_values(value, function)
    if _library(value) == "torch":
        quick = _torch_view(value, function)
        if quick is not None:
            return quick
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return _array_view(array, array, function)
    if hasattr(value, "__dlpack__"):
        return from_dlpack_view(value, function, device)
    if hasattr(value, "__cuda_array_interface__"):
        return _interface_view(value, function)
    try:
        array = np.asarray(value if hasattr(value, "__array_interface__") else memoryview(value))
    except TypeError:
        raise ArgumentTypeError(
            f"{function}: expected a tensor of another library (with __dlpack__, __cuda_array_interface__, "
            f"__array_interface__ or the buffer protocol), got {type(value).__name__}"
        ) from None
    return _array_view(array, array, function)


def refuse_without_values(value: Any, function: str) -> None:
    """Refuse an array with a mask, which would be lost, and a tracer of an array.

    Raises:
        ArgumentTypeError: with what to pass.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{function}: a masked array would lose its mask; pass array.filled(value), or array.data and, as a tensor "
            "of its own, np.ma.getmaskarray(array)"
        )
    kinds = type(value).__mro__
    if any(each.__name__ == "Tracer" and each.__module__.partition(".")[0] in _IMMUTABLE for each in kinds):
        raise ArgumentTypeError(
            f"{function}: a tracer of JAX has no values: inside jax.jit (grad, vmap) call this through "
            "jax.pure_callback, or call it outside, on arrays"
        )


def _view(storage: ForeignStorage, address: int, dtype: DTypeLike, shape: Any, strides: Any, function: str) -> View:
    extents = tuple(int(extent) for extent in shape)
    if 0 in extents:
        raise ArgumentError(
            f"{function}: the tensor has no elements (shape {extents}); one has at least one in each axis"
        )
    as_shape(extents)
    return View(storage, address, dtype, extents, tuple(int(stride) for stride in strides))


def _element_type(dtype: Any, function: str) -> DTypeLike:
    try:
        return as_dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"{function}: {error}") from None


# -- DLPack -----------------------------------------------------------------------------------


def _device_of(said: tuple[int, int], device: Device | None, function: str) -> Device:
    kind, number = int(said[0]), int(said[1])
    if kind in (CPU, CUDA_HOST):
        return Device.host()
    if kind in (CUDA, CUDA_MANAGED):
        return Device(number)
    if kind == EXTENSION and device is not None:
        return device
    raise ArgumentError(
        f"{function}: the tensor is on a device of DLPack kind {kind}; those that can be used are {CPU} (CPU), {CUDA} "
        f"(CUDA), {CUDA_HOST} (page-locked) and {CUDA_MANAGED} (managed)"
    )


def from_dlpack_view(value: Any, function: str, device: Device | None = None) -> View:
    """The elements of what has `__dlpack__`. Raises as `foreign_view`."""
    refuse_without_values(value, function)
    where = _device_of(value.__dlpack_device__(), device, function)
    on_host = where.kind == "host"
    arguments: dict[str, Any] = {} if on_host else {"stream": import_stream(where).cu_stream()}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # a library from before that argument
        capsule = value.__dlpack__(**arguments)
    said = read_capsule(capsule)
    storage = ForeignStorage(
        where,
        (capsule, value),
        None if on_host else _lender(value, where),
        read_only=said.read_only or _library(value) in _IMMUTABLE,
        imported=not on_host,
    )
    return _view(storage, said.address, said.dtype, said.shape, said.strides, function)


def _lender(value: Any, device: Device) -> Callable[[], int | None] | None:
    """What tells the stream that a library uses now, if the library can be asked."""
    library, ordinal = _library(value), device.ordinal
    if library == "torch":
        return _torch_stream(ordinal)
    if library == "cupy":
        current: Any = sys.modules["cupy"].cuda.get_current_stream
        return lambda: int(current().ptr)
    if library in _NUMBA:  # which names no stream where it uses the default one
        return lambda: _interface_stream(value.__cuda_array_interface__) or LEGACY_STREAM
    interface = device.driver.array_interface
    if interface and hasattr(value, interface):
        return lambda: _interface_stream(getattr(value, interface))
    stream_of: Any = getattr(value, "current_stream", None)  # a library of a test, on a simulated device
    return stream_of if device.kind == "sim" else None


# -- PyTorch, whose tensors tell all without a capsule ----------------------------------------


def _torch_stream(ordinal: int) -> Callable[[], int]:
    torch: Any = sys.modules["torch"]
    raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda: int(raw(ordinal))
    return lambda: int(torch.cuda.current_stream(ordinal).cuda_stream)


_torch_dtypes: dict[Any, DTypeLike | None] = {}
_torch_streams: dict[int, Callable[[], int]] = {}


def torch_dtype(dtype: Any) -> DTypeLike | None:
    """The element type for one of PyTorch's; None where there is none."""
    found = _torch_dtypes.get(dtype, False)
    if found is False:
        name = str(dtype).removeprefix("torch.")
        spelled = {"bfloat16": "bf16", "bool": "bool", "float4_e2m1fn_x2": "f4e2m1fnx2"}.get(name, name)
        try:
            found = as_dtype(spelled)
        except TypeError:
            found = None
        _torch_dtypes[dtype] = found
    return cast("DTypeLike | None", found)


def _torch_view(value: Any, function: str) -> View | None:
    """The elements of a dense tensor of PyTorch's.

    None for what only its own exporter can judge.
    """
    torch: Any = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    kind = value.device.type
    if kind not in ("cpu", "cuda") or value.is_conj() or value.is_neg():
        return None
    dtype = torch_dtype(value.dtype)
    if dtype is None:
        raise ArgumentTypeError(f"{function}: no element type for {value.dtype}")
    if value.requires_grad:
        raise ArgumentError(
            f"{function}: the tensor requires a gradient, which is not recorded here; pass tensor.detach()"
        )
    if kind == "cpu":
        storage = ForeignStorage(Device.host(), value)
    else:
        ordinal = int(value.device.index)
        lender = _torch_streams.get(ordinal)
        if lender is None:
            lender = _torch_streams[ordinal] = _torch_stream(ordinal)
        storage = ForeignStorage(Device(ordinal), value, lender)
    return _view(storage, value.data_ptr(), dtype, value.shape, value.stride(), function)


# -- interfaces of arrays ---------------------------------------------------------------------


def _array_view(array: Array, owner: object, function: str) -> View:
    dtype = _element_type(array.dtype, function)
    if array.dtype != dtype.numpy:
        raise ArgumentTypeError(f"{function}: the bytes of {array.dtype} are in another order than this machine's")
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise ArgumentError(
            f"{function}: strides of {array.strides} bytes are no multiples of the {size} of an element"
        )
    storage = ForeignStorage(Device.host(), owner, read_only=not array.flags.writeable)
    strides = tuple(stride // size for stride in array.strides)
    return _view(storage, array.ctypes.data, dtype, array.shape, strides, function)


def _interface_stream(interface: dict[str, Any]) -> int | None:
    stream = interface.get("stream")
    if stream == 0:
        raise ArgumentError("__cuda_array_interface__: stream 0 is ambiguous; 1 is the legacy default stream")
    return None if stream is None else int(stream)


def _interface_view(value: Any, function: str) -> View:
    interface: dict[str, Any] = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentTypeError(f"{function}: masked arrays are not known here")
    address, read_only = interface["data"]
    numpy_type = np.dtype(interface["typestr"])
    dtype = _element_type(numpy_type, function)
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if strides is None:
        steps = row_major_strides(shape)
    else:
        if any(stride % numpy_type.itemsize for stride in strides):
            raise ArgumentError(f"{function}: strides of {strides} bytes are no multiples of an element's size")
        steps = tuple(stride // numpy_type.itemsize for stride in strides)
    from cuda_async.driver.cuda.pointer import ordinal_of

    device = Device(ordinal_of(int(address)))
    storage = ForeignStorage(device, value, _lender(value, device), read_only=bool(read_only))
    return _view(storage, int(address), dtype, shape, steps, function)
