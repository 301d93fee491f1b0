"""The element types, as classes: `f32` annotates a scalar parameter, names a dtype, and converts to NumPy's.

A leaf: the IR, the backends and the host side all take their facts about element types from here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import ml_dtypes
import numpy as np

from cutile.tile import Tile

Kind = Literal["bool", "int", "uint", "float"]


class DTypeMeta(type):
    """Gives dtype classes a short repr."""

    def __repr__(cls) -> str:
        return cls.__name__.rstrip("_")


class DType(Tile, metaclass=DTypeMeta):
    """An element type. Never instantiated: the class itself is the value.

    As an annotation (`a: f32`) it declares a scalar parameter, which in the kernel is a tile of shape `()`.

    Attributes:
        name: the spelling in the IR and in `.generics`, such as `"f32"`.
        bits: the size of an element.
        kind: `"bool"`, `"int"`, `"uint"` or `"float"`.
        numpy: the NumPy dtype with the same meaning (bf16 from ml_dtypes).

    Example:
        >>> from cutile.dtypes import f16
        >>> f16.bits, f16.kind, f16.numpy
        (16, 'float', dtype('float16'))
    """

    name: ClassVar[str]
    bits: ClassVar[int]
    kind: ClassVar[Kind]
    numpy: ClassVar[np.dtype[Any]]

    def __init_subclass__(cls, *, bits: int, kind: Kind, numpy: Any) -> None:
        cls.name = cls.__name__.rstrip("_")
        cls.bits = bits
        cls.kind = kind
        cls.numpy = np.dtype(numpy)

    def __new__(cls) -> DType:
        raise TypeError(f"{cls.name} is an element type, not a value: write the number itself, or annotate with it")


class bool_(DType, bits=8, kind="bool", numpy=np.bool_):
    """True or false, one byte in memory."""


class i8(DType, bits=8, kind="int", numpy=np.int8):
    """Signed 8-bit integer; arithmetic wraps."""


class i16(DType, bits=16, kind="int", numpy=np.int16):
    """Signed 16-bit integer; arithmetic wraps."""


class i32(DType, bits=32, kind="int", numpy=np.int32):
    """Signed 32-bit integer; arithmetic wraps."""


class i64(DType, bits=64, kind="int", numpy=np.int64):
    """Signed 64-bit integer; arithmetic wraps."""


class u8(DType, bits=8, kind="uint", numpy=np.uint8):
    """Unsigned 8-bit integer; arithmetic wraps."""


class u16(DType, bits=16, kind="uint", numpy=np.uint16):
    """Unsigned 16-bit integer; arithmetic wraps."""


class u32(DType, bits=32, kind="uint", numpy=np.uint32):
    """Unsigned 32-bit integer; arithmetic wraps."""


class u64(DType, bits=64, kind="uint", numpy=np.uint64):
    """Unsigned 64-bit integer; arithmetic wraps."""


class f16(DType, bits=16, kind="float", numpy=np.float16):
    """IEEE half precision; computed in f32, rounded after every operation."""


class bf16(DType, bits=16, kind="float", numpy=ml_dtypes.bfloat16):
    """The upper half of an f32; computed in f32, rounded after every operation."""


class f32(DType, bits=32, kind="float", numpy=np.float32):
    """IEEE single precision."""


class f64(DType, bits=64, kind="float", numpy=np.float64):
    """IEEE double precision."""


DTypeLike = type[DType]

DTYPES: Final[tuple[DTypeLike, ...]] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
BY_NAME: Final[dict[str, DTypeLike]] = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY: Final[dict[np.dtype[Any], DTypeLike]] = {dtype.numpy: dtype for dtype in DTYPES}


def from_numpy(dtype: Any) -> DTypeLike:
    """The element type of a NumPy (or ml_dtypes) dtype.

    Raises:
        TypeError: there is no such element type.

    Example:
        >>> from_numpy("float32")
        f32
    """
    found = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    if found is None:
        known = ", ".join(each.name for each in DTYPES)
        raise TypeError(f"no element type for NumPy dtype {np.dtype(dtype)}; there are {known}")
    return found


def as_dtype(spec: Any) -> DTypeLike:
    """The element type named by a class (`f32`), a name (`"f32"`, `"float32"`), or a NumPy dtype.

    Raises:
        TypeError: `spec` names no element type.
    """
    if isinstance(spec, DTypeMeta) and spec is not DType:
        return spec  # type: ignore[return-value]
    if isinstance(spec, str) and spec in BY_NAME:
        return BY_NAME[spec]
    try:
        return from_numpy(spec)
    except TypeError:
        known = ", ".join(each.name for each in DTYPES)
        raise TypeError(f"{spec!r} names no element type; there are {known}") from None
