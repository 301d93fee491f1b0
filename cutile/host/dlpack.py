"""DLPack capsules: read those of other libraries, make our own.

Only the format; no device, no ordering.

A capsule that was read is kept as it is: its own destructor gives the memory back when nobody refers to it any more.
A capsule of ours is made by NumPy over our memory and then told the device and the element type, so that its deleter
is NumPy's and runs on any thread, at any time.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutile.dtypes import EVERY_DTYPE, DTypeLike, tf32
from cutile.errors import ArgumentTypeError
from cutile.host.memory import Array
from cutile.host.shapes import row_major_strides

__all__ = ("CPU", "CUDA", "CUDA_HOST", "CUDA_MANAGED", "EXTENSION", "Description", "make_capsule", "read_capsule")

CPU, CUDA, CUDA_HOST, EXTENSION, CUDA_MANAGED = 1, 2, 3, 12, 13
"""Kinds of device. An extension is anything; here, a simulated device."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_FLOATS = {  # beside IEEE's: code, bits and lanes; f4e2m1fn has none, since DLPack packs what is below a byte
    "bf16": (4, 16, 1),
    "f8e4m3fn": (10, 8, 1),
    "f8e5m2": (12, 8, 1),
    "f8e8m0fnu": (14, 8, 1),
    "f4e2m1fnx2": (17, 4, 2),
}
_READ_ONLY = 1
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
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
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _dtype_code(dtype: DTypeLike) -> tuple[int, int, int] | None:
    """DLPack's code, bits and lanes; None for what it has no code for."""
    if dtype.kind in _CODES and dtype.name not in _FLOATS:
        return _CODES[dtype.kind], dtype.bits, 1
    return _FLOATS.get(dtype.name)


_BY_CODE = {code: dtype for dtype in EVERY_DTYPE if (code := _dtype_code(dtype)) is not None}


@dataclass(frozen=True, slots=True)
class Description:
    """What a capsule says.

    Attributes:
        address: of the element at index 0 of every axis.
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
    """What a capsule says. It is to be kept as long as the memory is used.

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


def make_capsule(said: Description, keep: object, *, versioned: bool) -> Any:
    """A capsule of memory, which holds `keep` until its consumer is done with it.

    Raises:
        BufferError: DLPack has no code for the element type.
    """
    code = _dtype_code(said.dtype)
    if code is None:
        raise BufferError(
            f"DLPack has no code for {said.dtype.name}; convert the tensor first: api.convert(tensor, "
            f"{'f32' if said.dtype is tf32 else 'f8e4m3fn'})"
        )
    size = said.dtype.bits // 8
    reach = [(extent - 1) * stride * size for extent, stride in zip(said.shape, said.strides, strict=True)]
    low, high = sum(each for each in reach if each < 0), sum(each for each in reach if each > 0) + size
    memory: Any = (ctypes.c_char * (high - low)).from_address(said.address + low)
    memory.keep = keep
    strides = tuple(stride * size for stride in said.strides)
    array: Array = np.ndarray(said.shape, _UNSIGNED[said.dtype.bits], memory, -low, strides)
    # NumPy makes an old capsule only of what may be written, so the flag is set here.
    capsule: Any = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    address, is_versioned = _pointer(capsule)
    if is_versioned:
        managed = _Versioned.from_address(address)
        tensor = managed.tensor
        if said.read_only:
            managed.flags |= _READ_ONLY
    else:
        tensor = _Managed.from_address(address).tensor
    tensor.device.kind, tensor.device.number = said.device
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code
    return capsule
