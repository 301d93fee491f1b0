"""Tiles from and to memory, and the barrier between accesses of different threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.text import Call, Expression
from cutile.backend.cuda.ops import AddTile, Barrier, Store
from cutile.ir.core import Value
from cutile.ir.types import TensorType
from cutile.ops import memory

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def view(tensor: TensorType, kernel: Kernel) -> str:
    """What is known of a tensor at compile time."""
    return f"{kernel.module('memory')}.View({kernel.dtype(tensor.dtype)}, {tensor.shape!r}, {tensor.strides!r})"


def arguments(x: Value, index: tuple[Value, ...], kernel: Kernel) -> tuple[Expression, ...]:
    """The base address, the extents and strides that are arguments, and the tile index."""
    tensor = x.tensor
    extents = [kernel.part(x, "extent", axis) for axis, extent in enumerate(tensor.shape) if extent is None]
    strides = [kernel.part(x, "stride", axis) for axis, stride in enumerate(tensor.strides) if stride is None]
    return (kernel.use(x), *extents, *strides, *map(kernel.use, index))


def options(attributes: dict[str, Any]) -> list[str]:
    """What an access's intrinsic is told of how it is done."""
    made = [f"vector={attributes['vector']!r}"] if attributes["vector"] else []
    return made + (["constant=True"] if attributes.get("constant") else [])


def load(op: memory.LoadTile, kernel: Kernel) -> Call:
    """`load_x(x, x_extent_0, i)`."""
    known, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    made = kernel.bind(f"load_{op.x.name}", "memory.load", known, layout, *options(op.attributes))
    return Call(made, arguments(op.x, op.index, kernel))


def store(op: Store, kernel: Kernel) -> Call:
    """`store_y(tile, y, y_extent_0, i)`."""
    known, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    made = kernel.bind(f"store_{op.x.name}", "memory.store", known, layout, *options(op.attributes))
    return Call(made, (kernel.use(op.value), *arguments(op.x, op.index, kernel)))


def add_tile(op: AddTile, kernel: Kernel) -> Call:
    """`add_to_y(tile, y, y_extent_0, i)`."""
    known, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    made = kernel.bind(f"add_to_{op.x.name}", "memory.store", known, layout, *options(op.attributes), "adds=True")
    return Call(made, (kernel.use(op.value), *arguments(op.x, op.index, kernel)))


def barrier(op: Barrier, kernel: Kernel) -> Call:
    """`synchronize()`."""
    return Call(kernel.bind("synchronize", "shape.synchronize"), ())


EMITTERS = {memory.LoadTile: load, Store: store, AddTile: add_tile, Barrier: barrier}
