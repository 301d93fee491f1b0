"""Products that are rounded to 16 bits, made in 16 bits: a pass of tile IR.

    a = convert(%w)  {f32}                     a' = convert(%w)  {bf16}
    b = convert(%scale)  {f32}         -->     z = fma(a', %scale, -0.0)
    z = convert(mul(a, b))  {bf16}

If f32 holds a product exactly, its rounding to 16 bits is the only one. An `fma` of 16 bits rounds once too, so the
result is the same to the last bit. f32 holds the product of a small whole number and a number of 16 bits, such as a
weight and its scale: their significands together have at most 24 bits. GPUs make two products of 16 bits at once. Whole
numbers of 8 bits become floats of 16 bits by a few operations on their bits (`intrinsics/cast.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cutile.conversion import NEAREST_EVEN
from cutile.dtypes import DTypeLike, bf16, f16, f32, u16
from cutile.ir import KEEP, Builder, Constant, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Add, And, Fma, Mul, Or, Shr, Sub
from cutile.ops.cast import Bitcast, Convert
from cutile.ops.shape import Broadcast, Permute, Reshape
from cutile.passes.redundancy import dce

Range = tuple[int, int]
"""The least and the greatest number."""
MOVES = (Broadcast, Permute, Reshape)
"""Operations that change no number."""


def halve_products(function: Function) -> Function:
    """A copy of `function` that makes products in 16 bits where no bit changes.

    It is the function itself where there is no such product.
    """
    products = _Products()
    copy = rewrite(function, products.rule)
    return dce(copy) if products.count else function


@dataclass
class _Products:
    """The rule that rewrites products, and how many it has rewritten."""

    count: int = 0

    def __post_init__(self) -> None:
        self._definitions: dict[Value, Op] = {}

    def rule(self, op: Op, rewriter: Rewriter) -> Replacement:
        """Replace a product that is rounded to 16 bits."""
        self._definitions.update(dict.fromkeys(op.results, op))
        if not isinstance(op, Convert) or not op.dtype.is_half or op.rounding not in (None, NEAREST_EVEN):
            return KEEP
        product = self._definitions.get(op.x)
        if not isinstance(product, Mul) or product.result.tile.dtype is not f32:
            return KEEP
        factors = (product.x, product.y)
        whole = any(whole_range(factor, self._definitions) is not None for factor in factors)
        if not whole or not all(self._fits(factor, op.dtype) for factor in factors):
            return KEEP
        self.count += 1
        x, y = (self._halved(factor, op.dtype, rewriter.builder) for factor in factors)
        # Not 0.0, which would turn a product of -0.0 into 0.0.
        zero = rewriter.builder.value(Constant(value=-0.0, dtype=op.dtype, shape=op.result.tile.shape))
        return rewriter.builder.value(Fma(x=x, y=y, z=zero))

    def _fits(self, value: Value, half: DTypeLike) -> bool:
        """Whether all numbers of an f32 tile are numbers of the 16-bit dtype `half`."""
        bounds = whole_range(value, self._definitions)
        if bounds is not None:
            return max(map(abs, bounds)) <= _largest(half)
        op = self._definitions.get(value)
        if isinstance(op, MOVES):
            return self._fits(op.x, half)
        return isinstance(op, Convert) and op.x.tile.dtype is half

    def _halved(self, value: Value, half: DTypeLike, builder: Builder) -> Value:
        """The same numbers as a tile of `half`."""
        op = self._definitions[value]
        if isinstance(op, Constant):
            return builder.value(Constant(value=op.value, dtype=half, shape=op.shape))
        if isinstance(op, MOVES):
            return builder.value(op.copy_with([self._halved(op.x, half, builder)], (), ()))
        if isinstance(op, Convert) and op.x.tile.dtype is half:
            return op.x
        moved, offset = self._moved(value, half, builder)
        if not offset:
            return moved
        one, by = (Constant(value=float(number), dtype=half, shape=moved.tile.shape) for number in (1, offset))
        return builder.value(Fma(x=moved, y=builder.value(one), z=builder.value(by)))

    def _moved(self, value: Value, half: DTypeLike, builder: Builder) -> tuple[Value, int]:
        """Whole numbers as a tile of `half`, and an offset that has yet to be added.

        Constants that are added or subtracted go to the offset, so that one `fma` adds all of them (`_halved`).
        """
        op = self._definitions[value]
        if isinstance(op, Add | Sub):
            other = self._definitions.get(op.y)
            if isinstance(other, Constant):
                moved, offset = self._moved(op.x, half, builder)
                constant = int(other.value) if isinstance(op, Add) else -int(other.value)
                if abs(offset + constant) <= _largest(half):
                    return moved, offset + constant
            x, y = (self._halved(operand, half, builder) for operand in op.operands)
            sign = builder.value(Constant(value=1.0 if isinstance(op, Add) else -1.0, dtype=half, shape=x.tile.shape))
            return builder.value(Fma(x=y, y=sign, z=x)), 0
        if isinstance(op, Convert):
            bounds = whole_range(value, self._definitions)
            unit_bits, unit = MANTISSAS[half]
            if op.x.tile.dtype.bits == 8 and bounds is not None and bounds[0] >= 0 and bounds[1] < unit:
                wide = self._wide(op.x, builder)
                bits = builder.value(Constant(value=unit_bits, dtype=u16, shape=wide.tile.shape))
                return builder.value(Bitcast(x=builder.value(Or(x=wide, y=bits)), dtype=half)), -unit
            return builder.value(Convert(x=op.x, dtype=half)), 0
        return self._halved(value, half, builder), 0

    def _wide(self, value: Value, builder: Builder) -> Value:
        """Bytes as integers of 16 bits.

        Operations on their bits are done in 16 bits too: one instruction then takes the two elements of a word.
        """
        op = self._definitions.get(value)
        if isinstance(op, Constant):
            return builder.value(Constant(value=op.value, dtype=u16, shape=op.shape))
        if isinstance(op, And) or (isinstance(op, Shr) and self._shifts_alike(op)):
            return builder.value(type(op)(x=self._wide(op.x, builder), y=self._wide(op.y, builder)))
        return builder.value(Convert(x=value, dtype=u16))

    def _shifts_alike(self, op: Shr) -> bool:
        """Whether the lower byte of a shift in 16 bits is that of the shift in 8.

        A negative byte has eight copies of its sign above it. A shift by more than eight also brings in zeros.
        """
        x, count = (whole_range(operand, self._definitions) for operand in op.operands)
        return (x is not None and x[0] >= 0) or (count is not None and count[1] <= 8)


MANTISSAS: dict[DTypeLike, tuple[int, int]] = {bf16: (0x4300, 1 << 7), f16: (0x6400, 1 << 10)}
"""The first number of a 16-bit dtype at which the mantissa's last bit is worth 1: its bits, and the number itself.

A smaller whole number fits into the mantissa: its `or` with these bits is the sum of the two numbers.
"""


def _largest(half: DTypeLike) -> int:
    """The number up to which a 16-bit float holds all whole numbers."""
    return 1 << 8 if half is bf16 else 1 << 11


def whole_range(
    value: Value, definitions: Mapping[Value, Op], ranges: dict[Value, Range | None] | None = None
) -> Range | None:
    """The range of a tile of whole numbers, as integers or f32.

    None where it is not known, or the tile holds other numbers.

    Each sum of floats on the way has to be exact in 16 bits. So its range must be one that bf16 holds, whichever half
    the product becomes: bf16 holds fewer whole numbers than f16.

    Args:
        value: the tile.
        definitions: the operation of each value.
        ranges: the ranges computed so far: a tile may be an operand of many operations.
    """
    ranges = {} if ranges is None else ranges
    if value not in ranges:
        ranges[value] = _range(value, definitions, ranges)
    return ranges[value]


def _range(value: Value, definitions: Mapping[Value, Op], ranges: dict[Value, Range | None]) -> Range | None:
    """The range of a tile, computed from those of its operands."""
    op, dtype = definitions.get(value), value.tile.dtype
    if isinstance(op, Constant):
        # `is_integer` is false for infinities and NaN, which `int` would not take.
        return (int(op.value), int(op.value)) if float(op.value).is_integer() else None
    if isinstance(op, MOVES):
        return whole_range(op.x, definitions, ranges)
    if dtype.is_integer:
        return _integers(op, dtype, definitions, ranges)
    if dtype is not f32:
        return None
    if isinstance(op, Convert):
        return whole_range(op.x, definitions, ranges) if op.x.tile.dtype.is_integer else None
    if not isinstance(op, Add | Sub):
        return None
    x, y = (whole_range(operand, definitions, ranges) for operand in op.operands)
    if x is None or y is None:
        return None
    least, greatest = (x[0] + y[0], x[1] + y[1]) if isinstance(op, Add) else (x[0] - y[1], x[1] - y[0])
    exact = max(map(abs, (*x, *y, least, greatest))) <= _largest(bf16)
    return (least, greatest) if exact else None


def _integers(
    op: Op | None, dtype: DTypeLike, definitions: Mapping[Value, Op], ranges: dict[Value, Range | None]
) -> Range | None:
    """The range of integers of up to 8 bits."""
    if dtype.bits > 8:
        return None
    widest = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
    if isinstance(op, And | Shr):
        x, y = (whole_range(operand, definitions, ranges) for operand in op.operands)
        natural = [bounds for bounds in (x, y) if bounds is not None and bounds[0] >= 0]
        if isinstance(op, And) and natural:  # the result's bits are among those of each operand
            return 0, min(bounds[1] for bounds in natural)
        if isinstance(op, Shr) and x is not None and x[0] >= 0 and y is not None and 0 <= y[0] < dtype.bits:
            return 0, x[1] >> y[0]
    return widest
