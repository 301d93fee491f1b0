"""Operations of a kernel lowered for the CPU.

The scalar operations of `cutile/ops` stay beside them.

A lowered kernel has no tiles: it is loops over elements, in i64 indices, that read and write flat memory. Scalars keep
their dtype; f16 and bf16 scalars are held as f32 values that the dtype can represent.
"""

from cutile.dtypes import DTypeLike, bool_, f32, f64, i64
from cutile.errors import KernelTypeError
from cutile.ir.core import (
    ANY_TENSOR,
    ANY_TILE,
    BOOL_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Constraint,
    Effect,
    Op,
    Value,
    attribute,
    operand,
    operands,
)
from cutile.ir.types import TensorType, TileType, Type

STAGE = "cpu"
INDEX = TileType(i64)

AN_INDEX = Constraint("an i64 scalar", lambda t: t == INDEX)
OFFSETS = Constraint("a tile of i64", lambda t: isinstance(t, TileType) and t.dtype is i64)
A_BOOL = Constraint("a bool scalar", lambda t: t == TileType(bool_))


class Scratch(Op, name="cpu.scratch"):
    """Memory of one worker for `size` elements, kept between tile blocks.

    f16 and bf16 elements take 32 bits, unless they are `stored` as in tensors.
    """

    dtype: DTypeLike = attribute()
    size: int = attribute()
    stored: bool = attribute(default=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        bits = 32 if self.dtype.is_half and not self.stored else max(self.dtype.bits, 8)
        return self.size * bits // 8

    def infer(self) -> tuple[Type, ...]:
        # The alignment tells it from tensors (`is_scratch` in `emit/memory.py`). `stored` memory counts as a tensor.
        return (TensorType(self.dtype, (self.size,), (1,), 32 if self.stored else 64),)


class Size(Op, name="cpu.size"):
    """The extent of a tensor along an axis, as an index."""

    x: Value = operand(ANY_TENSOR)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (INDEX,)


class GridSize(Op, name="cpu.grid_size"):
    """The extent of the grid along an axis, as an index."""

    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (INDEX,)


class Stride(Op, name="cpu.stride"):
    """The stride of a tensor along an axis, in elements."""

    x: Value = operand(ANY_TENSOR)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (INDEX,)


class Read(Op, name="cpu.read", effect=Effect.READ):
    """The element at an offset."""

    x: Value = operand(ANY_TENSOR)
    at: Value = operand(AN_INDEX)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.x.tensor.dtype),)


class TensorAt(Op, name="cpu.tensor_at"):
    """The tensor whose first element is at an address."""

    address: Value = operand(AN_INDEX)
    dtype: DTypeLike = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TensorType(self.dtype, (None,), (1,), self.dtype.bits // 8, stable=False),)


class ReadInside(Op, name="cpu.read_inside", effect=Effect.READ):
    """The element at an offset where `inside`, else `padding`.

    Where it is not inside, no memory is accessed.
    """

    x: Value = operand(ANY_TENSOR)
    at: Value = operand(AN_INDEX)
    inside: Value = operand(A_BOOL)
    padding: float = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.x.tensor.dtype),)


class Gather(Op, name="cpu.gather", effect=Effect.READ):
    """A tile of the elements at offsets in a tensor where `inside`, else of `padding`.

    Nothing writes the tensor during a launch. Lowering takes the operation apart: each element is a `ReadInside`.
    """

    x: Value = operand(ANY_TENSOR)
    at: Value = operand(OFFSETS)
    inside: Value = operand(BOOL_TILE)
    padding: float = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.x.tensor.dtype, self.at.tile.shape),)


class Write(Op, name="cpu.write", effect=Effect.WRITE):
    """Store an element at an offset."""

    x: Value = operand(ANY_TENSOR)
    at: Value = operand(AN_INDEX)
    value: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        if self.value.type != TileType(self.x.tensor.dtype):
            raise KernelTypeError(f"cpu.write: {self.value.type} into a tensor of {self.x.tensor.dtype}")
        return ()


class Truncate(Op, name="cpu.truncate"):
    """A float in an integer dtype's range as that integer: truncated, or rounded.

    Unlike `convert` it checks nothing: NaN, or a number beyond the range, gives any integer.
    """

    x: Value = operand(ANY_TILE)
    dtype: DTypeLike = attribute()
    rounding: str | None = attribute(default=None)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.tile.with_dtype(self.dtype),)


class TimesReciprocal(Op, name="cpu.times_reciprocal"):
    """The quotient of two f32: `x` by the number whose reciprocal, an f64, is given."""

    x: Value = operand(NUMBER_TILE)
    reciprocal: Value = operand(NUMBER_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class CopyTransposed(Op, name="cpu.copy_transposed", effect=Effect.WRITE):
    """`strip[row * step + column] = x[at + column * stride + row]`.

    There are at most 16 rows. The strip's memory behind the rows may be written, too.
    """

    strip: Value = operand(ANY_TENSOR)
    x: Value = operand(ANY_TENSOR)
    at: Value = operand(AN_INDEX)
    stride: Value = operand(AN_INDEX)
    rows: Value = operand(AN_INDEX)
    columns: Value = operand(AN_INDEX)
    step: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        if self.strip.tensor.dtype != self.x.tensor.dtype:
            raise KernelTypeError(f"cpu.copy_transposed: {self.x.type} into {self.strip.type}")
        return ()


class Step(Op, name="cpu.step"):
    """One step of a reduction; the steps may be reordered.

    Attributes:
        kind: "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_max_or_nan" or "reduce_min_or_nan".
    """

    acc: Value = operand(NUMBER_TILE)
    x: Value = operand(NUMBER_TILE)
    kind: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class _Pick(Op):
    x: Value = operand(AN_INDEX)
    y: Value = operand(AN_INDEX)

    def infer(self) -> tuple[Type, ...]:
        return (INDEX,)


class Smaller(_Pick, name="cpu.smaller"):
    """The smaller of two indices."""


class Larger(_Pick, name="cpu.larger"):
    """The larger of two indices."""


class TripCount(Op, name="cpu.trip_count"):
    """The iterations of a loop from `start` to before `stop` by `step`.

    0 where the step is 0; at most 2**63 - 1.
    """

    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (INDEX,)


class Gemm(Op, name="cpu.gemm", effect=Effect.WRITE):
    """`c[:rows, :cols] = a @ b + beta * c` by the BLAS.

    Each matrix is memory, an offset, and the step between rows. A transposed operand is stored column by column, and
    its step is the one between columns. All three have the same float type, f32 or f64: the BLAS gets addresses, and
    knows no types.
    """

    rows: Value = operand(AN_INDEX)
    cols: Value = operand(AN_INDEX)
    depth: Value = operand(AN_INDEX)
    a: Value = operand(ANY_TENSOR)
    a_at: Value = operand(AN_INDEX)
    a_step: Value = operand(AN_INDEX)
    b: Value = operand(ANY_TENSOR)
    b_at: Value = operand(AN_INDEX)
    b_step: Value = operand(AN_INDEX)
    c: Value = operand(ANY_TENSOR)
    c_at: Value = operand(AN_INDEX)
    c_step: Value = operand(AN_INDEX)
    a_transposed: bool = attribute(False)
    b_transposed: bool = attribute(False)
    beta: float = attribute(1.0)

    def infer(self) -> tuple[Type, ...]:
        dtypes = {memory.tensor.dtype for memory in (self.a, self.b, self.c)}
        if len(dtypes) > 1 or not dtypes <= {f32, f64}:
            raise KernelTypeError(f"cpu.gemm: memory of {self.a.type}, {self.b.type} and {self.c.type} to the BLAS")
        return ()


class Order(Op, name="cpu.order", effect=Effect.WRITE):
    """Write the places of `count` elements, in order, to `places`.

    The elements are `step` apart in `x`, from `at` on. `spare` has room for as many places.

    Attributes:
        descending: whether the largest comes first.
        k: how many of the largest elements' places to write; 0 for all elements.
    """

    x: Value = operand(ANY_TENSOR)
    at: Value = operand(AN_INDEX)
    step: Value = operand(AN_INDEX)
    places: Value = operand(ANY_TENSOR)
    spare: Value = operand(ANY_TENSOR)
    count: Value = operand(AN_INDEX)
    descending: bool = attribute()
    k: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Say(Op, name="cpu.say", effect=Effect.OUTSIDE):
    """Print the values in scratch memory, as `print` does.

    `shapes` has the dtype and the shape of each.
    """

    memories: tuple[Value, ...] = operands(ANY_TENSOR)
    pieces: tuple[str, ...] = attribute()
    specs: tuple[str, ...] = attribute()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class FailUnless(Op, name="cpu.fail_unless", effect=Effect.WRITE):
    """Unless the condition holds, note a failure and leave the kernel.

    `x`, `y`, `z` are the index of the tile block. `numbers`, whose dtypes are `kinds`, are told: the first ones by the
    message, the others under their `names`.
    """

    condition: Value = operand(A_BOOL)
    x: Value = operand(AN_INDEX)
    y: Value = operand(AN_INDEX)
    z: Value = operand(AN_INDEX)
    numbers: tuple[Value, ...] = operands(AN_INDEX)
    names: tuple[str, ...] = attribute()
    kinds: tuple[str, ...] = attribute()
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()
