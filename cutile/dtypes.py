"""The element types, as classes.

`f32` annotates a scalar parameter, names a dtype, and converts to NumPy's.

Kernels compute with thirteen of them. Six more, the floats of 8 and 4 bits and tf32, are only stored, converted, and
multiplied by `mma` or `mma_scaled`. Any other operation on them is an error, whose remedy is a conversion.

The IR, the backends and the host take all facts about element types from here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, SupportsFloat, SupportsIndex, TypeGuard

import ml_dtypes
import numpy as np

from cutile.errors import as_text, closest
from cutile.tile import Tile, live

Kind = Literal["bool", "int", "uint", "float", "storage"]


@dataclass(frozen=True)
class FloatFormat:
    """The bits of a float: sign, exponent, mantissa, from the highest bit down.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa, without the leading 1 that is not written.
        bias: added to the exponent to get its bits.
        largest: the largest finite number.
        nan: the bits of the NaN that conversions give; None for a type without NaN.
        saturates: conversions of numbers out of range, and of infinities, give the largest number, as the GPU's do.
        positive: no sign bit and no zero: only powers of two.
        unused: low bits without meaning.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: float
    nan: int | None
    saturates: bool = False
    positive: bool = False
    unused: int = 0

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal number; without zero, of the smallest."""
        return -self.bias if self.positive else 1 - self.bias


class DTypeMeta(type):
    """Gives dtype classes a short repr, and their limits as attributes.

    The limits are constants, in kernels too.

    Example:
        >>> u8.max, i16.min, f16.max, f32.eps == 2.0**-23, f32.tiny == 2.0**-126, -f32.inf
        (255, -32768, 65504.0, True, True, -inf)
    """

    def __repr__(cls) -> str:
        return cls.__name__.rstrip("_")

    def __format__(cls, spec: str) -> str:
        return format(str(cls), spec)

    @property
    def is_bool(cls) -> bool:
        """Whether elements are true or false."""
        return cls._kind == "bool"

    @property
    def is_integer(cls) -> bool:
        """Whether elements are integers, signed or unsigned."""
        return cls._kind in ("int", "uint")

    @property
    def is_signed(cls) -> bool:
        """Whether elements are integers with a sign."""
        return cls._kind == "int"

    @property
    def is_float(cls) -> bool:
        """Whether elements are floats that are computed with."""
        return cls._kind == "float"

    @property
    def is_half(cls) -> bool:
        """Whether elements are floats of 16 bits, which are computed in f32."""
        return cls.is_float and getattr(cls, "bits", 0) == 16

    @property
    def is_float8(cls) -> bool:
        """Whether elements are floats of 8 bits with a sign: `f8e4m3fn` or `f8e5m2`."""
        format: FloatFormat | None = getattr(cls, "format", None)
        return format is not None and not format.positive and format.exponent + format.mantissa == 7

    @property
    def computes(cls) -> bool:
        """Whether elements are computed with.

        Others are only stored, converted and multiplied.
        """
        return cls._kind != "storage"

    @property
    def _kind(cls) -> str:
        return getattr(cls, "kind", "")

    def _integers(cls) -> tuple[int, int] | None:
        kind: str = getattr(cls, "kind", "")
        bits: int = getattr(cls, "bits", 0)
        if kind == "bool":
            return 0, 1
        if kind not in ("int", "uint"):
            return None
        return (0, 2**bits - 1) if kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def _floats(cls, what: str) -> FloatFormat:
        layout: FloatFormat | None = getattr(cls, "format", None)
        if layout is None:
            raise AttributeError(f"{cls!r} is no float and has no {what}")
        return layout

    @property
    def max(cls) -> Any:
        """The largest finite number."""
        limits = cls._integers()
        return cls._floats("max").largest if limits is None else limits[1]

    @property
    def min(cls) -> Any:
        """The smallest finite number: the most negative one, or 0 for unsigned integers."""
        limits = cls._integers()
        if limits is not None:
            return limits[0]
        format = cls._floats("min")
        return 2.0**format.least_exponent if format.positive else -format.largest

    @property
    def eps(cls) -> float:
        """The distance from 1 to the next larger number; of floats only."""
        return 2.0 ** -cls._floats("eps").mantissa

    @property
    def tiny(cls) -> float:
        """The smallest positive number that is not denormal; of floats only."""
        return 2.0 ** cls._floats("tiny").least_exponent

    @property
    def inf(cls) -> float:
        """Infinity; of floats only."""
        cls._floats("inf")
        return math.inf

    @property
    def nan(cls) -> float:
        """Not a number; of floats only."""
        cls._floats("nan")
        return math.nan


class DType(Tile, metaclass=DTypeMeta):
    """An element type. Never instantiated: the class itself is the value.

    As an annotation (`a: f32`) it declares a scalar parameter, which in the kernel is a tile of shape `()`.

    Attributes:
        name: the spelling in the IR and in `.generics`, such as `"f32"`.
        bits: the size of an element in memory.
        kind: `"bool"`, `"int"`, `"uint"`, `"float"`, or `"storage"` for floats that are not computed with.
        numpy: the NumPy dtype with the same meaning (bf16 and smaller floats from ml_dtypes).
        format: the bits of the float; None for types that are no floats, and for packed pairs.

    Example:
        >>> from cutile.dtypes import f16
        >>> f16.bits, f16.kind, f16.numpy
        (16, 'float', dtype('float16'))
    """

    if TYPE_CHECKING:

        def __launch_argument__(self) -> SupportsFloat | SupportsIndex | Awaitable[Any]: ...

    name: ClassVar[str]
    bits: ClassVar[int]
    kind: ClassVar[Kind]
    numpy: ClassVar[np.dtype[Any]]
    format: ClassVar[FloatFormat | None]

    def __init_subclass__(cls, *, bits: int, kind: Kind, numpy: Any, format: FloatFormat | None = None) -> None:
        cls.format = format
        cls.name = cls.__name__.rstrip("_")
        cls.bits = bits
        cls.kind = kind
        cls.numpy = np.dtype(numpy)

    def __new__(cls, *value: Any) -> DType:
        """In a kernel, `f32(x)` is `x` as a tile or scalar of this dtype."""
        session = live.get()
        if session is not None:
            return session.operation(cls, value, {})
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


class f16(DType, bits=16, kind="float", numpy=np.float16, format=FloatFormat(5, 10, 15, 65504.0, 0x7E00)):
    """IEEE half precision; computed in f32, rounded after every operation."""


class bf16(
    DType,
    bits=16,
    kind="float",
    numpy=ml_dtypes.bfloat16,
    format=FloatFormat(8, 7, 127, float.fromhex("0x1.fep127"), 0x7FC0),
):
    """The upper half of an f32; computed in f32, rounded after every operation."""


class f32(
    DType,
    bits=32,
    kind="float",
    numpy=np.float32,
    format=FloatFormat(8, 23, 127, float.fromhex("0x1.fffffep127"), 0x7FC00000),
):
    """IEEE single precision."""


class f64(
    DType, bits=64, kind="float", numpy=np.float64, format=FloatFormat(11, 52, 1023, sys.float_info.max, 0x7FF8 << 48)
):
    """IEEE double precision."""


class tf32(
    DType,
    bits=32,
    kind="storage",
    numpy=np.float32,
    format=FloatFormat(8, 10, 127, float.fromhex("0x1.ffcp127"), 0x7FC00000, unused=13),
):
    """An f32 of which matrix products read the upper 19 bits.

    The range of f32, the precision of f16.

    The last 13 bits mean nothing, and conversions leave them 0. On the host it is NumPy's float32.
    """


class f8e4m3fn(
    DType,
    bits=8,
    kind="storage",
    numpy=ml_dtypes.float8_e4m3fn,
    format=FloatFormat(4, 3, 7, 448.0, 0x7F, saturates=True),
):
    """8-bit float with 3 bits of mantissa, up to 448.

    It has NaN and no infinities; conversions to it saturate.
    """


class f8e5m2(
    DType,
    bits=8,
    kind="storage",
    numpy=ml_dtypes.float8_e5m2,
    format=FloatFormat(5, 2, 15, 57344.0, 0x7F, saturates=True),
):
    """8-bit float with 2 bits of mantissa, up to 57344.

    It has NaN and infinities; conversions to it saturate.
    """


class f8e8m0fnu(
    DType,
    bits=8,
    kind="storage",
    numpy=ml_dtypes.float8_e8m0fnu,
    format=FloatFormat(8, 0, 127, 2.0**127, 0xFF, saturates=True, positive=True),
):
    """A power of two from 2**-127 to 2**127, or NaN: the scale of a block.

    Conversions to it saturate.

    There is no zero: it becomes the smallest power. Negative numbers become NaN.
    """


class f4e2m1fn(
    DType, bits=8, kind="storage", numpy=ml_dtypes.float4_e2m1fn, format=FloatFormat(2, 1, 1, 6.0, None, saturates=True)
):
    """4-bit float, one to a byte: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.

    Conversions saturate, NaN to 6.
    """


class f4e2m1fnx2(DType, bits=8, kind="storage", numpy=np.uint8):
    """Two `f4e2m1fn` in a byte, the first one in the low bits.

    On the host it is NumPy's uint8.

    `unpack` takes the two apart, `pack` puts them together.
    """


DTypeLike = type[DType]

DTYPES: Final[tuple[DTypeLike, ...]] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
"""The types that are computed with."""
STORAGE_DTYPES: Final[tuple[DTypeLike, ...]] = (tf32, f8e4m3fn, f8e5m2, f8e8m0fnu, f4e2m1fn, f4e2m1fnx2)
"""The types that are stored, converted and multiplied, and nothing else."""
EVERY_DTYPE: Final[tuple[DTypeLike, ...]] = DTYPES + STORAGE_DTYPES
BY_NAME: Final[dict[str, DTypeLike]] = {dtype.name: dtype for dtype in EVERY_DTYPE}
_BY_NUMPY: Final[dict[np.dtype[Any], DTypeLike]] = {
    dtype.numpy: dtype for dtype in EVERY_DTYPE if dtype not in (tf32, f4e2m1fnx2)
}
"""Without tf32 and packed pairs, which have to be named: NumPy's float32 and uint8 mean f32 and u8."""

_REFUSED: Final = {
    **dict.fromkeys(
        map(str, ("i4", "u4", "int4", "uint4")),  # else type checkers take these literals for the only keys
        "there are no integers of 4 bits, since memory is addressed in bytes: keep them in i8 or u8, two to a byte if "
        "need be, and take them apart with shifts (x << 4 >> 4, x >> 4)",
    ),
    **dict.fromkeys(
        ("complex", "<class 'complex'>", "complex64", "complex128", "c8", "c16"),
        "a complex array is two tensors here, array.real and array.imag",
    ),
    **dict.fromkeys(
        ("|V1", "|V2"),
        "NumPy's files lose the names of types that are not NumPy's: read array.view(ml_dtypes.bfloat16), or another "
        "type of as many bytes",
    ),
}
"""What to write for a type that is no element type, by its name."""


_OTHERS_PREFIX: Final = r"^(b?f|i|u)(?:p|loat|nt|int)(?=\d)"  # of fp16, bfloat16, int8, uint8; its group is our prefix


_TEXT: Final = "text is bytes here: np.frombuffer(text.encode(), np.uint8)"


def _is_text(spec: object) -> bool:
    """Whether `spec` is a NumPy dtype of strings."""
    return isinstance(spec, np.dtype) and spec.kind in "SU"


def _all_names(spec: object = "") -> str:
    """The names of all element types, after the one that a foreign name may mean."""
    name = re.sub(_OTHERS_PREFIX, r"\1", _name(spec).rpartition(".")[2])
    guesses = [name] if name in BY_NAME else closest(name, BY_NAME)
    guess = f"did you mean {guesses[0]!r}? " if guesses else ""
    return f"{guess}there are {', '.join(each.name for each in EVERY_DTYPE)}"


def _name(spec: object) -> str:
    """An object's `str`; empty where that fails, as for an int of many digits."""
    try:
        return str(spec)
    except Exception:
        return ""


def from_numpy(dtype: Any) -> DTypeLike:
    """The element type of a NumPy (or ml_dtypes) dtype.

    Raises:
        TypeError: there is no such element type.

    Example:
        >>> from_numpy("float32")
        f32
    """
    element = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    if element is None:
        name = str(np.dtype(dtype))
        raise TypeError(f"no element type for NumPy dtype {name}; {_REFUSED.get(name) or _all_names()}")
    return element


def is_dtype(spec: object) -> TypeGuard[DTypeLike]:
    """Whether `spec` is an element type, a class such as `f32`."""
    return isinstance(spec, DTypeMeta) and spec is not DType


def as_dtype(spec: Any) -> DTypeLike:
    """The element type of a class (`f32`), a name (`"float32"`), or a NumPy dtype.

    Raises:
        TypeError: `spec` names no element type.
    """
    if is_dtype(spec):
        return spec
    if spec is None:  # np.dtype(None) is float64
        raise TypeError(f"None names no element type; {_all_names()}")
    if isinstance(spec, str) and spec in BY_NAME:
        return BY_NAME[spec]
    if isinstance(spec, str) and spec in _REFUSED:
        raise TypeError(f"{spec!r} names no element type; {_REFUSED[spec]}")
    try:
        return from_numpy(spec)
    # NumPy reads strings as lists of fields, and may find no end of one. It reads the `dtype` of a module or class.
    except (TypeError, SyntaxError, ValueError):
        why = _REFUSED.get(_name(spec)) or (_TEXT if _is_text(spec) else _all_names(spec))
        raise TypeError(f"{as_text(spec)} names no element type; {why}") from None
