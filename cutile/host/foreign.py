"""Tensors of other libraries as ours, without copying, and DLPack capsules.

The libraries are PyTorch, CuPy, JAX, Numba and NumPy. Any other object may have DLPack, `__cuda_array_interface__`,
`__array_interface__` or the buffer protocol. This file reads a library's tensors, and finds the stream that the library
uses; `cuda_async.foreign` has ordering and lifetime.

A capsule that was read is not renamed to `used_dltensor`: its own destructor gives the memory back when nobody refers
to it any more. A capsule of ours is made by NumPy over our memory; then its device and element type are overwritten. So
its deleter is NumPy's, which may run on any thread, at any time.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cuda_async import Device
from cuda_async.foreign import LEGACY_STREAM, ForeignStorage, import_stream
from cutile.dtypes import EVERY_DTYPE, DTypeLike, as_dtype, tf32
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.memory import Array
from cutile.host.shapes import as_shape, row_major_strides
from cutile.launch.views import View, byte_span

__all__ = (
    "CPU",
    "CUDA",
    "CUDA_HOST",
    "CUDA_MANAGED",
    "EXTENSION",
    "Description",
    "dlpack_code",
    "make_capsule",
    "read_capsule",
    "foreign_view",
    "from_dlpack_view",
    "is_foreign",
    "refuse_without_values",
    "torch_dtype",
)

CPU, CUDA, CUDA_HOST, EXTENSION, CUDA_MANAGED = 1, 2, 3, 12, 13
"""DLPack's kinds of device. `EXTENSION` means any other device; here, a simulated one."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}  # DLDataTypeCode of dlpack.h, as are those of `_FLOATS`
_FLOATS = {  # other floats than IEEE's: code, bits, lanes. f4e2m1fn has none: DLPack packs elements below a byte
    "bf16": (4, 16, 1),
    "f8e4m3fn": (10, 8, 1),
    "f8e5m2": (12, 8, 1),
    "f8e8m0fnu": (14, 8, 1),
    "f4e2m1fnx2": (17, 4, 2),
}
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY of dlpack.h
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class _Device(ctypes.Structure):
    """`DLDevice` of dlpack.h, as the structures below are those of its `DL...` types."""

    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    """`DLDataType`."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """`DLTensor`. Strides count elements; a null pointer means row-major."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor`, of a capsule named `dltensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """`DLManagedTensorVersioned`, of a capsule named `dltensor_versioned`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _dtype_code(dtype: DTypeLike) -> tuple[int, int, int] | None:
    """DLPack's code, bits and lanes of an element type; None if it has none."""
    if dtype.kind in _CODES and dtype.name not in _FLOATS:
        return _CODES[dtype.kind], dtype.bits, 1
    return _FLOATS.get(dtype.name)


def dlpack_code(dtype: DTypeLike) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes of an element type.

    Raises:
        BufferError: there is no such code.
    """
    code = _dtype_code(dtype)
    if code is None:
        raise BufferError(
            f"DLPack has no code for {dtype.name}; convert the tensor first: api.convert(tensor, "
            f"{'f32' if dtype is tf32 else 'f8e4m3fn'})"
        )
    return code


_BY_CODE = {code: dtype for dtype in EVERY_DTYPE if (code := _dtype_code(dtype)) is not None}


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of a capsule.

    Attributes:
        address: the address of the element at index 0 of every axis.
        device: the kind of device and its number.
        dtype, shape, strides: the elements; strides count elements.
        read_only: whether they must not be written.
    """

    address: int
    device: tuple[int, int]
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool


def _pointer(capsule: Any) -> tuple[int, bool]:
    """The address behind a capsule, and whether it is a versioned one."""
    get: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid: Any = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    for name, versioned in ((b"dltensor_versioned", True), (b"dltensor", False)):
        if valid(capsule, name):
            return int(get(capsule, name)), versioned
    raise ArgumentTypeError("from_dlpack: __dlpack__() returned no capsule that was not consumed")


def read_capsule(capsule: Any) -> Description:
    """Read a capsule. The caller keeps it as long as it uses the memory.

    Raises:
        ArgumentTypeError: it is no capsule, or of a version or element type that is not known here.
    """
    address, versioned = _pointer(capsule)
    read_only = False
    if versioned:
        managed = _Versioned.from_address(address)
        if managed.major != 1:
            raise ArgumentTypeError(f"from_dlpack: version {managed.major}.{managed.minor} of DLPack is not known here")
        read_only = bool(managed.flags & _READ_ONLY)
        tensor = managed.tensor
    else:
        tensor = _Managed.from_address(address).tensor
    kind = tensor.dtype
    dtype = _BY_CODE.get((kind.code, kind.bits, kind.lanes))
    if dtype is None:
        names = ", ".join(each.name for each in _BY_CODE.values())
        raise ArgumentTypeError(
            f"from_dlpack: no element type for DLPack type code {kind.code} with {kind.bits} bits and {kind.lanes} "
            f"lanes; there are {names}"
        )
    rank = int(tensor.ndim)
    shape = tuple(int(tensor.shape[axis]) for axis in range(rank))
    strides = tuple(int(tensor.strides[axis]) for axis in range(rank)) if tensor.strides else row_major_strides(shape)
    start = int(tensor.data or 0) + int(tensor.byte_offset)
    return Description(start, (int(tensor.device.kind), int(tensor.device.number)), dtype, shape, strides, read_only)


def make_capsule(description: Description, keep: object, *, versioned: bool) -> Any:
    """A capsule over memory; it holds `keep` until its consumer is done with it.

    Raises:
        BufferError: DLPack has no code for the element type.
    """
    code = dlpack_code(description.dtype)
    size = description.dtype.bits // 8
    reach = [
        (extent - 1) * stride * size for extent, stride in zip(description.shape, description.strides, strict=True)
    ]
    low, high = sum(each for each in reach if each < 0), sum(each for each in reach if each > 0) + size
    memory: Any = (ctypes.c_char * (high - low)).from_address(description.address + low)
    memory.keep = keep
    strides = tuple(stride * size for stride in description.strides)
    array: Array = np.ndarray(description.shape, _UNSIGNED[description.dtype.bits], memory, -low, strides)
    # Writable even for read-only memory: NumPy exports no read-only array without a version. The flag is set below.
    capsule: Any = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    address, is_versioned = _pointer(capsule)
    if is_versioned:
        managed = _Versioned.from_address(address)
        tensor = managed.tensor
        if description.read_only:
            managed.flags |= _READ_ONLY
    else:
        tensor = _Managed.from_address(address).tensor
    tensor.device.kind, tensor.device.number = description.device
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code
    return capsule


_IMMUTABLE = frozenset({"jax", "jaxlib"})  # their arrays are never written, though capsules do not say so
_NUMBA = frozenset({"numba", "numba_cuda"})


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def is_foreign(value: object) -> bool:
    """Whether a value may be passed to a kernel as a tensor, on any device."""
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def foreign_view(value: Any, function: str, device: Device | None = None) -> View:
    """The elements of another library's tensor.

    Args:
        value: the tensor.
        function: the function that errors name.
        device: the tensor's device, if DLPack has no number for it: a simulated device.

    Raises:
        ArgumentTypeError: it has none of the protocols, or its element type has no counterpart here.
        ArgumentError: it requires a gradient, or is on a device that cannot be used.
    """
    refuse_without_values(value, function)
    if _library(value) == "torch":
        view = _torch_view(value, function)
        if view is not None:
            return view
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
    """Refuse a masked array, whose mask would be lost, and a tracer of JAX.

    Raises:
        ArgumentTypeError: names what to pass in its place.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{function}: a masked array would lose its mask; pass array.filled(value), or array.data and, as a tensor "
            "of its own, np.ma.getmaskarray(array)"
        )
    classes = type(value).__mro__
    if any(each.__name__ == "Tracer" and each.__module__.partition(".")[0] in _IMMUTABLE for each in classes):
        raise ArgumentTypeError(
            f"{function}: a tracer of JAX has no values: inside jax.jit (grad, vmap) call this through "
            "jax.pure_callback, or call it outside, on arrays"
        )


def _view(
    device: Device,
    owner: object,
    lender: Callable[[], int | None] | None,
    address: int,
    dtype: DTypeLike,
    shape: Any,
    strides: Any,
    *,
    read_only: bool = False,
    imported: bool = False,
) -> View:
    """Elements of memory that `owner` keeps alive.

    `lender` is the result of `_lender`; the other arguments are those of `ForeignStorage` and `View`.
    """
    extents, steps = tuple(int(extent) for extent in shape), tuple(int(stride) for stride in strides)
    as_shape(extents)
    span = byte_span(address, dtype, extents, steps)
    storage = ForeignStorage(device, owner, lender, span=span, read_only=read_only, imported=imported)
    return View(storage, address, dtype, extents, steps)


def _element_type(dtype: Any, function: str) -> DTypeLike:
    try:
        return as_dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"{function}: {error}") from None


# -- DLPack -----------------------------------------------------------------------------------


def _device_of(description: tuple[int, int], device: Device | None, function: str) -> Device:
    """The device that DLPack describes; `device` where DLPack has no number for it."""
    kind, number = int(description[0]), int(description[1])
    if kind == EXTENSION and device is not None:
        return device
    if kind in (CPU, CUDA_HOST, CUDA, CUDA_MANAGED):
        home = Device.host() if kind in (CPU, CUDA_HOST) else Device(number)
        if device is not None and device is not home:
            raise ArgumentError(
                f"{function}: the tensor is on {home}, not on {device}, and its memory is shared, not copied; leave "
                "device=... out, and copy with to_device"
            )
        return home
    raise ArgumentError(
        f"{function}: the tensor is on a device of DLPack kind {kind}; those that can be used are {CPU} (CPU), {CUDA} "
        f"(CUDA), {CUDA_HOST} (page-locked) and {CUDA_MANAGED} (managed)"
    )


def from_dlpack_view(value: Any, function: str, device: Device | None = None) -> View:
    """The elements of an object with `__dlpack__`. Raises as `foreign_view`."""
    refuse_without_values(value, function)
    where = _device_of(value.__dlpack_device__(), device, function)
    on_host = where.kind == "host"
    arguments: dict[str, Any] = {} if on_host else {"stream": import_stream(where).cu_stream()}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # the library is older than that argument
        capsule = value.__dlpack__(**arguments)
    description = read_capsule(capsule)
    return _view(
        where,
        (capsule, value),
        None if on_host else _lender(value, where),
        description.address,
        description.dtype,
        description.shape,
        description.strides,
        read_only=description.read_only or _library(value) in _IMMUTABLE,
        imported=not on_host,
    )


def _lender(value: Any, device: Device) -> Callable[[], int | None] | None:
    """The function that returns a library's current stream; None if there is none.

    All tensors of PyTorch on one device share one function, as do all of CuPy: graphs call each function once.
    """
    library, ordinal = _library(value), device.ordinal
    if library == "torch":
        return _torch_stream(ordinal)
    if library == "cupy":
        return _cupy_stream()
    if library in _NUMBA:  # it names no stream if it uses the default one
        return lambda: _interface_stream(value.__cuda_array_interface__) or LEGACY_STREAM
    interface = device.driver.array_interface
    if interface and hasattr(value, interface):
        return lambda: _interface_stream(getattr(value, interface))
    stream_of: Any = getattr(value, "current_stream", None)  # a library of a test, on a simulated device
    return stream_of if device.kind == "sim" else None


@functools.cache
def _cupy_stream() -> Callable[[], int]:
    current: Any = sys.modules["cupy"].cuda.get_current_stream
    return lambda: int(current().ptr)


# -- PyTorch: read by attributes, which takes less time than a capsule --------------------------


@functools.cache
def _torch_stream(ordinal: int) -> Callable[[], int]:
    torch: Any = sys.modules["torch"]
    raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda: int(raw(ordinal))
    return lambda: int(torch.cuda.current_stream(ordinal).cuda_stream)


_torch_dtypes: dict[Any, DTypeLike | None] = {}


def torch_dtype(dtype: Any) -> DTypeLike | None:
    """The element type for one of PyTorch's; None without a counterpart."""
    element = _torch_dtypes.get(dtype, False)  # False: not looked up yet; None: no counterpart
    if element is False:
        name = str(dtype).removeprefix("torch.")
        spelling = {"bfloat16": "bf16", "bool": "bool", "float4_e2m1fn_x2": "f4e2m1fnx2"}.get(name, name)
        try:
            element = as_dtype(spelling)
        except TypeError:
            element = None
        _torch_dtypes[dtype] = element
    return cast("DTypeLike | None", element)


def _torch_view(value: Any, function: str) -> View | None:
    """The elements of a dense tensor of PyTorch.

    None for other tensors: PyTorch's own `__dlpack__` exports or refuses them.
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
    elements = value.data_ptr(), dtype, value.shape, value.stride()
    if kind == "cpu":
        return _view(Device.host(), value, None, *elements)
    ordinal = int(value.device.index)
    return _view(Device(ordinal), value, _torch_stream(ordinal), *elements)


# -- interfaces of arrays ---------------------------------------------------------------------


def _array_view(array: Array, owner: object, function: str) -> View:
    dtype = _element_type(array.dtype, function)
    if array.dtype != dtype.numpy:
        raise ArgumentTypeError(
            f"{function}: the bytes of {array.dtype} are in another order than this machine's; "
            f"pass array.astype(array.dtype.newbyteorder('='))"
        )
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise ArgumentError(
            f"{function}: strides of {array.strides} bytes are no multiples of the {size} of an element"
        )
    strides = tuple(stride // size for stride in array.strides)
    read_only = not array.flags.writeable
    return _view(Device.host(), owner, None, array.ctypes.data, dtype, array.shape, strides, read_only=read_only)


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
    from cuda_async.driver.cuda.api import ordinal_of

    device = Device(ordinal_of(int(address)))
    lender = _lender(value, device)
    return _view(device, value, lender, int(address), dtype, shape, steps, read_only=bool(read_only))
