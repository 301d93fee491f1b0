"""Loads and stores of tiles at any step, with a chosen padding.

Along each axis the tile at index `i` begins at the element `i * step`. Where the step is the tile's own extent, these
are the tiles of `load_tile`. A limit on an axis ends the tensor earlier. It serves a block's own tile that is cut into
smaller tiles: these may not divide it, and must end where the next block's tile begins. A tile that begins before
element 0 lies wholly outside.
"""

from __future__ import annotations

from cutile.dtypes import EVERY_DTYPE, DTypeLike
from cutile.errors import KernelTypeError
from cutile.ir.core import ANY_TENSOR, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TensorType, TileType, Type

PADDINGS = ("none", "zero", "neg_zero", "nan", "pos_inf", "neg_inf")
_FLOATS_ONLY = {"neg_zero": -0.0, "nan": float("nan"), "pos_inf": float("inf"), "neg_inf": float("-inf")}


def padding_value(padding: str) -> float:
    """The number past the edges; 0 for "none", which promises no number."""
    return _FLOATS_ONLY.get(padding, 0.0)


def _check_access(op: LoadView | StoreView, shape: tuple[int, ...]) -> None:
    rank = op.x.tensor.rank
    if not len(shape) == len(op.steps) == len(op.starts) == rank or len(op.limits) != len(op.limited):
        raise KernelTypeError(
            f"{op.name}: a tensor of rank {rank} takes a tile of rank {rank} and {rank} indices, "
            f"got a tile of shape {shape} and {len(op.starts)} indices"
        )


class LoadView(
    Op,
    name="load_view",
    spelled=(
        "load_view_tko", "load_strided_view_tko", "make_partition_view", "make_strided_view", "get_index_space_shape",
        "Tensor.partition", "Tensor.partition_permuted", "Partition.load", "Partition.load_pipelined",
        "Partition.load_unchecked", "Partition.load_index", "load_tile", "load_tile_like", "Tensor.load_tile",
    ),
    effect=Effect.READ,
):  # fmt: skip
    """The tile of `shape` whose axis `k` begins at the element `index[k] * steps[k]`.

    Elements past the edges are `padding`.

    `index` has one integer scalar per axis, then the limit (in elements) of each axis in `limited`. `latency` and
    `bulk` are hints, as in `load_tile`.
    """

    x: Value = operand(ANY_TENSOR)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    steps: tuple[int, ...] = attribute()
    limited: tuple[int, ...] = attribute(())
    padding: str = attribute("zero")
    latency: int = attribute(default=0)
    bulk: bool = attribute(default=True)

    @property
    def starts(self) -> tuple[Value, ...]:
        """The tile index: one scalar per axis."""
        return self.index[: self.x.tensor.rank]

    @property
    def limits(self) -> tuple[Value, ...]:
        """One limit for each axis in `limited`."""
        return self.index[self.x.tensor.rank :]

    @property
    def padding_value(self) -> float:
        """The number that the load gives past the edges."""
        return padding_value(self.padding)

    @property
    def is_plain(self) -> bool:
        """Whether it reads a tile of `load_tile`'s grid, whatever the padding."""
        return self.steps == self.shape and not self.limited

    def infer(self) -> tuple[Type, ...]:
        _check_access(self, self.shape)
        dtype = self.x.tensor.dtype
        if self.padding not in PADDINGS:
            raise KernelTypeError(f"load_view: no padding {self.padding!r}; there are {', '.join(PADDINGS)}")
        if self.padding in _FLOATS_ONLY and not dtype.is_float:
            raise KernelTypeError(
                f"load: the padding {self.padding!r} is a float's, and the tensor's dtype is {dtype}",
                remedy="Tensors of integers and bools are padded with zeros. Another number takes their place by "
                f"ct.select(x.partition(shape).inside(index), tile, {_limit(self.padding, dtype)}).",
            )
        return (TileType(dtype, self.shape),)


def _limit(padding: str, dtype: DTypeLike) -> str:
    """The number that replaces a padding for floats, as a kernel writes it."""
    if not dtype.is_integer or padding not in ("neg_inf", "pos_inf"):
        return "number"
    return f"ct.{dtype.__name__}.{'min' if padding == 'neg_inf' else 'max'}"


class StoreView(
    Op,
    name="store_view",
    spelled=(
        "store_view_tko", "make_partition_view_mut",
        "Mut.partition_mut", "Mut.partition_full_mut", "PartitionMut.store", "PartitionMut.store_unchecked",
        "PartitionMut.store_index", "MappedPartitionMut.store",
    ),
    effect=Effect.WRITE,
):  # fmt: skip
    """Write a tile whose axis `k` begins at the element `index[k] * steps[k]`.

    Elements past the edges are dropped.

    `index` is as in `load_view`. `bulk` is a hint: whether a GPU's TMA unit may store the tile.

    Examples:
        >>> @ct.entry
        ... def pieces(y: ct.Mut):
        ...     part = y.partition_mut((2,))
        ...     for i in range(ct.num_tiles(part, 0)):
        ...         part.store(ct.convert_tile(i, y.dtype), i)
        >>> y = ct.api.zeros((6,), ct.i32).sync()
        >>> pieces(y.partition((3,))).first().unpartition().to_numpy().sync()
        array([0, 0, 1, 0, 0, 1], dtype=int32)
    """

    x: Value = operand(ANY_TENSOR)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    steps: tuple[int, ...] = attribute()
    limited: tuple[int, ...] = attribute(())
    bulk: bool = attribute(default=True)

    @property
    def starts(self) -> tuple[Value, ...]:
        """The tile index: one scalar per axis."""
        return self.index[: self.x.tensor.rank]

    @property
    def limits(self) -> tuple[Value, ...]:
        """One limit for each axis in `limited`."""
        return self.index[self.x.tensor.rank :]

    def infer(self) -> tuple[Type, ...]:
        _check_access(self, self.value.tile.shape)
        if self.value.tile.dtype is not self.x.tensor.dtype:
            raise KernelTypeError(
                f"store: the tile must be of {self.x.tensor.dtype}, got {self.value.type}",
                remedy="Convert it: ct.convert_tile(value, part.dtype).",
            )
        return ()


class TensorView(Op, name="tensor_view", spelled=("make_tensor_view", "load_tensor", "Tensor.slice")):
    """A tensor at an address known only when the kernel runs.

    None in `shape` or `strides` stands for a number that is known only then. `numbers` has these: first the extents
    (i32), then the strides (i64, in elements).
    """

    address: Value = operand(SCALAR_INT)
    numbers: tuple[Value, ...] = operands(SCALAR_INT)
    dtype: DTypeLike = attribute()
    shape: tuple[int | None, ...] = attribute()
    strides: tuple[int | None, ...] = attribute()
    alignment: int = attribute()

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of the elements, not of their address."""
        return EVERY_DTYPE

    @property
    def extents(self) -> tuple[Value | int, ...]:
        """The extents, one per axis: a constant, or the operand."""
        rest = iter(self.numbers)
        return tuple(next(rest) if each is None else each for each in self.shape)

    @property
    def steps(self) -> tuple[Value | int, ...]:
        """The strides, one per axis: a constant, or the operand."""
        rest = iter(self.numbers[self.shape.count(None) :])
        return tuple(next(rest) if each is None else each for each in self.strides)

    def infer(self) -> tuple[Type, ...]:
        if len(self.shape) != len(self.strides):
            raise KernelTypeError(f"tensor_view: {len(self.shape)} extents and {len(self.strides)} strides")
        if len(self.numbers) != self.shape.count(None) + self.strides.count(None):
            raise KernelTypeError(f"tensor_view: {len(self.numbers)} numbers for the open extents and strides")
        return (TensorType(self.dtype, self.shape, self.strides, self.alignment, stable=False),)
