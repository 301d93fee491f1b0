"""Checks of indices, and assumptions of the kernel's author.

A check stands before the access that it guards. `cutile/passes/bounds.py` proves it, or moves it to the launch. Where
neither is possible, `cutile/passes/checks.py` makes an assertion of it. An assumption returns its operand, and the
proofs rely on it. In the debug mode an assumption is asserted, too.
"""

from __future__ import annotations

from typing import Any

from cutile.errors import KernelTypeError
from cutile.ir import ANY_TENSOR, ANY_TILE, INT_TILE, SCALAR_INT, Effect, Op, Type, Value, attribute, operand


class CheckTile(Op, name="check_tile", spelled=("Partition.load", "PartitionMut.store"), effect=Effect.WRITE):
    """`index` names a tile of `x`.

    It is at least 0, and below the number of tiles along `axis`. The tiles begin at multiples of `step` elements. A
    check has the effect of a write: it stays before its access, and is not dropped as unused.

    Examples:
        >>> @ct.entry
        ... def pick(y: ct.Mut, x: ct.Tensor, n: ct.i32):
        ...     y.store(x.partition((2,)).load(n))
        >>> pick(ct.api.zeros((2,)).sync().partition((2,)), ct.api.ones((4,)).sync(), 2).sync()
        Traceback (most recent call last):
        cutile.errors.LaunchError: pick: a tile index goes up to 2 (n), and argument 'x' has 2 tiles of 2...
    """

    x: Value = operand(ANY_TENSOR)
    index: Value = operand(SCALAR_INT)
    axis: int = attribute()
    step: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rank = self.x.tensor.rank
        if not 0 <= self.axis < rank:
            raise KernelTypeError(f"check_tile: axis {self.axis} of a tensor with {rank} axes")
        if self.step < 1:
            raise KernelTypeError(f"check_tile: a step of {self.step} elements")
        return ()


class CheckIndex(Op, name="check_index", spelled=("Mut.partition_mut",), effect=Effect.WRITE):
    """`0 <= index < count`; `what` names the index in the error.

    It has the effect of a write, as `check_tile` has.

    Examples:
        >>> @ct.entry
        ... def put(y: ct.Mut, n: ct.i32):
        ...     y.partition_mut((2,)).store(1.0, n)
        >>> put(ct.api.zeros((4,)).sync().partition((4,)), -1).sync()
        Traceback (most recent call last):
        cutile.errors.LaunchError: put: store: the index along axis 0 into the nested partition of...
    """

    index: Value = operand(SCALAR_INT)
    count: Value = operand(SCALAR_INT)
    what: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Assumption(Op):
    """Base of assumptions, whose result is their operand unchanged."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)

    def reference(self, x: Any, *_: Any) -> Any:
        return x


class AssumeBounds(
    Assumption, name="assume_bounds", spelled=("assume_bounds", "assume_bounds_lower", "assume_bounds_upper")
):
    """`lower <= x <= upper`, element by element; either may be None.

    Examples:
        >>> run(lambda x: x + ct.convert_tile(ct.assume_bounds(ct.get_tile_block_id()[0], 0, 7), x.dtype), [1.0, 2.0])
        [1.0, 2.0]
    """

    x: Value = operand(INT_TILE)
    lower: int | None = attribute(None)
    upper: int | None = attribute(None)

    def infer(self) -> tuple[Type, ...]:
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise KernelTypeError(
                f"assume_bounds: nothing lies between {self.lower} and {self.upper}",
                remedy="Give the lower bound first; both are included.",
            )
        return super().infer()


class AssumeWithin(
    Assumption,
    name="assume_within",
    spelled=(
        "MappedPartitionMut.iter_indices", "MappedPartitionMut.iter_indices_with",
        "MappedPartitionMut.iter_indices_within", "MappedPartitionMut.iter_indices_within_with",
        "PartitionIndex.coords", "PartitionIndex.components",
    ),
):  # fmt: skip
    """`low <= x < high`, for an index that comes from a mapped partition.

    `reached` says that the bounds are tight: in some runs of the kernel x is `low`, and in some it is `high - 1`.

    Examples:
        >>> @ct.entry
        ... def double(z: ct.MappedPartitionMut, x: ct.Tensor):
        ...     for index in z.iter_indices():
        ...         z.store(2.0 * x.partition(z.shape).load(index), index)
        >>> z, x = ct.api.zeros((6,)).sync(), ct.api.arange(6, ct.f32).sync()
        >>> double(z.partition((2,)).map((1,), 2), x).first().unpartition().to_numpy().sync()
        array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float32)
    """

    x: Value = operand(SCALAR_INT)
    low: Value = operand(SCALAR_INT)
    high: Value = operand(SCALAR_INT)
    reached: bool = attribute(False)


class AssumeDivisible(Assumption, name="assume_div_by", spelled=("assume_div_by", "assume_div_by_every_along")):
    """Every element is a multiple of `by`.

    With `every` and `along`, the elements along the axis `along` form groups of `every` neighbours. Only the first
    element of a group is a multiple of `by`. The others follow it in steps of 1.
    """

    x: Value = operand(INT_TILE)
    by: int = attribute()
    every: int | None = attribute(None)
    along: int | None = attribute(None)

    def infer(self) -> tuple[Type, ...]:
        if self.by < 1:
            raise KernelTypeError(
                f"assume_div_by: the divisor must be at least 1, got {self.by}",
                remedy="1 says nothing; give a multiple.",
            )
        if self.every is not None and self.every < 1:
            raise KernelTypeError(
                f"assume_div_by_every_along: a group has at least 1 element, got {self.every}",
                remedy="Give the number of neighbours in a group.",
            )
        if (self.every is None) != (self.along is None):
            raise KernelTypeError("assume_div_by: give both a group and the axis it lies along")
        if self.along is not None and not 0 <= self.along < len(self.x.tile.shape):
            raise KernelTypeError(f"assume_div_by_every_along: axis {self.along} of {self.x.type}")
        if self.along is not None and self.every is not None and self.x.tile.shape[self.along] % self.every:
            raise KernelTypeError(
                f"assume_div_by_every_along: groups of {self.every} do not divide axis {self.along} of {self.x.type}"
            )
        return super().infer()


class AssumeSame(Assumption, name="assume_same_elements", spelled=("assume_same_elements",)):
    """Within each group of neighbours, all elements are equal.

    `groups[k]` neighbours along axis `k`.
    """

    groups: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        fits = len(self.groups) == len(shape) and all(
            n % group == 0 for n, group in zip(shape, self.groups, strict=True)
        )
        if not fits:
            raise KernelTypeError(
                f"assume_same_elements: groups that divide the axes of {self.x.type}, got {self.groups}",
                remedy="Give the size of a group of equal neighbours along each axis; 1 says nothing of an axis.",
            )
        return super().infer()
