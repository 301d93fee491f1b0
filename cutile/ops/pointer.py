"""Memory by address.

A pointer is an address in bytes, a u64. It has no element type: the operation's value, or padding, has that type.

Lane `i` reads or writes the element at the address in lane `i` of the pointers, if lane `i` of the mask is true.
`order` says how the access is ordered with accesses of the other tile blocks in `scope`. Both are values of markers
(`cutile.language.markers`). An `ordered` access comes after every earlier access of its own tile block, by whichever
thread.
"""

from __future__ import annotations

from cutile.dtypes import EVERY_DTYPE, DTypeLike, i64, u64
from cutile.errors import KernelTypeError
from cutile.ir import ANY_TENSOR, ANY_TILE, BOOL_TILE, Constraint, Effect, Op, TileType, Type, Value, attribute, operand

ADDRESSES = Constraint("a tile of addresses (u64)", lambda t: isinstance(t, TileType) and t.dtype is u64)

LOAD_ORDERS = ("weak", "relaxed", "acquire")
STORE_ORDERS = ("weak", "relaxed", "release")
SCOPES = ("tile_block", "device", "system")


def check_lanes(op: Op, pointers: Value, **others: Value) -> None:
    """Check that tiles have one lane per pointer.

    Raises:
        KernelTypeError: a tile has another shape.
    """
    for name, value in others.items():
        if value.tile.shape != pointers.tile.shape:
            raise KernelTypeError(
                f"{op.name}: {name} has the shape {value.tile.shape}, the pointers {pointers.tile.shape}"
            )


def check_words(op: Op, order: str, orders: tuple[str, ...], scope: str) -> None:
    """Check an ordering and a scope.

    Raises:
        KernelTypeError: the operation does not take the ordering, or there is no such scope.
    """
    if order not in orders:
        raise KernelTypeError(f"{op.name}: the ordering must be one of {', '.join(orders)}, got {order}")
    if scope not in SCOPES:
        raise KernelTypeError(f"{op.name}: the scope must be one of {', '.join(SCOPES)}, got {scope}")


class TensorAddress(Op, name="tensor_address", spelled=("gather", "scatter", "Tensor.slice")):
    """The address of a tensor's element at index 0 of every axis, as a u64 scalar.

    Examples:
        >>> run(lambda x: ct.gather(x_in, 1 - ct.iota((2,))), [1.0, 2.0])
        [2.0, 1.0]
    """

    x: Value = operand(ANY_TENSOR)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(u64),)


class TensorStride(Op, name="tensor_stride", spelled=("gather", "scatter", "Tensor.slice")):
    """The stride of a tensor along an axis, in elements, as an i64 scalar.

    Examples:
        >>> run(lambda x: ct.gather(x_in, ct.iota((2,))), [1.0, 2.0])
        [1.0, 2.0]
    """

    x: Value = operand(ANY_TENSOR)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rank = self.x.tensor.rank
        if not 0 <= self.axis < rank:
            raise KernelTypeError(f"axis {self.axis} of a tensor with {rank} axes")
        return (TileType(i64),)


class LoadPointer(
    Op,
    name="load_pointer",
    spelled=("gather", "load_ptr_tko", "make_gather_scatter_view", "load_gather_scatter_view_tko", "Ptr.load"),
    effect=Effect.READ,
):
    """The elements at `pointers` where `mask` holds, `pad` elsewhere.

    Nothing is read where the mask is false.

    `constant` says that nothing writes to these elements while the kernel runs. Passes may then move the load, and
    merge it with others.

    Examples:
        >>> run(lambda x: ct.gather(x_in, ct.iota((2,)), mask=ct.iota((2,)) > 0, padding_value=7.0), [1.0, 2.0])
        [7.0, 2.0]
    """

    pointers: Value = operand(ADDRESSES)
    mask: Value = operand(BOOL_TILE)
    pad: Value = operand(ANY_TILE)
    order: str = attribute("weak")
    scope: str = attribute("device")
    ordered: bool = attribute(False)
    constant: bool = attribute(False)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of the elements, not of their addresses."""
        return EVERY_DTYPE

    @property
    def effect(self) -> Effect:
        # Other tile blocks may write there meanwhile: such a load keeps its place among all accesses of its block.
        return Effect.READ if self.constant else Effect.OUTSIDE

    def infer(self) -> tuple[Type, ...]:
        check_lanes(self, self.pointers, mask=self.mask, pad=self.pad)
        check_words(self, self.order, LOAD_ORDERS, self.scope)
        return (self.pad.type,)


class StorePointer(
    Op,
    name="store_pointer",
    spelled=("scatter", "store_ptr_tko", "store_gather_scatter_view_tko", "Ptr.store"),
    effect=Effect.OUTSIDE,
):
    """Write `value` to the elements at `pointers` where `mask` holds.

    Where lanes have the same address, one of their values stays.
    """

    pointers: Value = operand(ADDRESSES)
    value: Value = operand(ANY_TILE)
    mask: Value = operand(BOOL_TILE)
    order: str = attribute("weak")
    scope: str = attribute("device")
    ordered: bool = attribute(False)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of the elements, not of their addresses."""
        return EVERY_DTYPE

    def infer(self) -> tuple[Type, ...]:
        check_lanes(self, self.pointers, value=self.value, mask=self.mask)
        check_words(self, self.order, STORE_ORDERS, self.scope)
        return ()
