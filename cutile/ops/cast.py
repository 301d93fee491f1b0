"""Conversions between element types.

`cutile.conversion` defines the result for each pair of types.
"""

from __future__ import annotations

from typing import Any

from cutile.conversion import ROUNDINGS, bits
from cutile.conversion import convert as converted
from cutile.dtypes import DTypeLike, f4e2m1fnx2
from cutile.errors import KernelTypeError
from cutile.ir import ANY_TILE, Op, Type, Value, attribute, operand


class Convert(
    Op,
    name="convert",
    spelled=("convert_tile", "Tile.astype", "convert_scalar", "ftof", "ftoi", "itof", "exti", "trunci"),
):
    """The elements as another dtype.

    To floats: rounded once, to nearest even unless `rounding` says otherwise. Numbers beyond the range become infinity
    in f16, bf16, tf32, f32 and f64. In floats of 8 and 4 bits they become the largest number, and so do infinities. NaN
    stays NaN (f4e2m1fn has none, and gives 6). f8e8m0fnu has neither zero nor sign: 0 and numbers below 2**-127 give
    2**-127, negative numbers give NaN, and a tie goes up.

    From floats to integers: truncated unless `rounding` says otherwise, and saturated; NaN gives 0. Between integers:
    the low bits, or more bits by extending the sign or zeros. To bool: false for 0, true for anything else, NaN
    included. From bool: 0 or 1.

    Every backend gives the same bits, except for the bits of a NaN.

    Examples:
        >>> run(lambda x: x.astype(ct.f8e4m3fn).astype(ct.f32), [0.3, 1000.0])
        [0.3125, 448.0]
        >>> run(lambda x: ct.ftoi(x, ct.i8, rounding=ct.rounding.NEAREST_EVEN).astype(ct.f32), [2.5, 3.5, 1000.0])
        [2.0, 4.0, 127.0]
    """

    x: Value = operand(ANY_TILE)
    dtype: DTypeLike = attribute()
    rounding: str | None = attribute(default=None)

    def infer(self) -> tuple[Type, ...]:
        if f4e2m1fnx2 in (self.x.tile.dtype, self.dtype) and self.x.tile.dtype is not self.dtype:
            raise KernelTypeError(
                f"convert: f4e2m1fnx2 holds pairs, and {self.x.tile.dtype} cannot be converted to {self.dtype}",
                remedy="ct.unpack(x, ct.f4e2m1fn) takes pairs apart, ct.pack(x, ct.f4e2m1fnx2) puts them together.",
            )
        if self.rounding is not None and self.rounding not in ROUNDINGS:
            raise KernelTypeError(
                f"convert: there is no rounding {self.rounding!r}", remedy=f"There are {', '.join(ROUNDINGS)}."
            )
        return (self.x.tile.with_dtype(self.dtype),)

    def reference(self, x: Any) -> Any:
        return converted(x, self.x.tile.dtype, self.dtype, self.rounding)


class Bitcast(Op, name="bitcast", spelled=("bitcast", "pack", "unpack", "Tile.pack", "Tile.unpack")):
    """The same bits as another dtype of the same width.

    Unused bits (the last 13 of a tf32, the upper 4 of an f4e2m1fn) are 0. A NaN of 16 bits may become another NaN: the
    CPU holds 16-bit floats as f32.

    `pack` and `unpack` change the width, by shifts of integers between two bitcasts. `pack` makes bytes of a tile of
    one axis, in the order of memory (the lowest byte first), and `unpack` reverses that. Two floats of 4 bits make a
    byte, the first one in its low bits; so packing halves the last axis, and unpacking doubles it.

    Examples:
        >>> run(lambda x: ct.convert_tile(x, ct.f4e2m1fn).pack().unpack().astype(ct.f32), [-1.4, 100.0])
        [-1.5, 6.0]
    """

    x: Value = operand(ANY_TILE)
    dtype: DTypeLike = attribute()

    def infer(self) -> tuple[Type, ...]:
        source = self.x.tile.dtype
        if "bool" in (source.kind, self.dtype.kind):
            raise KernelTypeError(
                f"bitcast: from {source} to {self.dtype}: a bool has one bit, whatever its byte holds",
                remedy="Convert: ct.convert_tile(x, ct.u8).",
            )
        if source.bits != self.dtype.bits:
            raise KernelTypeError(
                f"bitcast: {source} has {source.bits} bits, {self.dtype} has {self.dtype.bits}",
                remedy="ct.convert_tile converts the numbers; ct.pack and ct.unpack go by bytes.",
            )
        return (self.x.tile.with_dtype(self.dtype),)

    def reference(self, x: Any) -> Any:
        return bits(x, self.x.tile.dtype).view(self.dtype.numpy)
