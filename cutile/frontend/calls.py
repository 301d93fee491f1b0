"""Calls: operations of the language, methods of tiles and tensors, Python builtins. One handler each."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

from cutile.dtypes import DTypeMeta, as_dtype, i32
from cutile.frontend.frame import Frame
from cutile.frontend.operators import (
    binary,
    broadcast_shape,
    broadcast_to,
    default_dtype,
    is_number,
    materialize,
    unify,
)
from cutile.frontend.values import Method, MutRef, PartitionRef, Range, TensorRef, describe, is_tile, items_of
from cutile.ir.constant import Constant
from cutile.ir.core import Value
from cutile.ops import arith, math
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.create import Iota
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum
from cutile.ops.shape import Permute, Reshape

Handler = Callable[..., Any]
OPERATIONS: dict[str, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}
BUILTINS: dict[Any, Handler] = {}


def _operation(handler: Handler) -> Handler:
    OPERATIONS[handler.__name__.removeprefix("_").rstrip("_")] = handler
    return handler


def _method(owner: type, name: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        METHODS[owner, name] = handler
        return handler

    return register


# What arguments must be


def shape_of(frame: Frame, value: Any, what: str) -> tuple[int, ...]:
    """A shape: a tuple of constant positive integers, or one of them."""
    items = items_of(value) if isinstance(value, tuple) else (value,)
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool):
            frame.type_error(
                f"{what}: the shape must be constant integers, got {describe(item)}",
                remedy="Tile shapes are fixed when a kernel is compiled: use numbers, generics, or the shape of a Mut.",
            )
        if item < 1:
            frame.type_error(f"{what}: the shape {value} has an extent below 1")
    return tuple(items)


def constant_int(frame: Frame, value: Any, what: str) -> int:
    """A compile-time integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    frame.type_error(f"{what} must be a constant integer, got {describe(value)}")


def axis_of(frame: Frame, value: Any, rank: int, what: str) -> int:
    """A constant axis; negative ones count from the end."""
    axis = constant_int(frame, value, f"{what}: the axis")
    if not -rank <= axis < rank:
        frame.type_error(f"{what}: axis {axis} of something with {rank} axes")
    return axis % rank


def index_scalar(frame: Frame, value: Any, what: str) -> Value:
    """One index: an i32 scalar."""
    if isinstance(value, int) and not isinstance(value, bool):
        return materialize(frame, value, i32)
    if is_tile(value) and value.tile.is_scalar and value.tile.dtype.kind in ("int", "uint"):
        return value if value.tile.dtype is i32 else frame.emit(Convert(x=value, dtype=i32))
    frame.type_error(f"{what}: an index must be an integer scalar, got {describe(value)}")


def tile_of(frame: Frame, value: Any, what: str) -> Value:
    """A tile; a number becomes a scalar."""
    if is_tile(value):
        return value
    if is_number(value):
        return materialize(frame, value)
    frame.type_error(f"{what}: expected a tile, got {describe(value)}")


def dtype_of(frame: Frame, value: Any, what: str) -> Any:
    """An element type."""
    if isinstance(value, DTypeMeta):
        return value
    try:
        return as_dtype(value)
    except TypeError:
        frame.type_error(f"{what}: expected an element type such as ct.f32, got {describe(value)}")


# Grid and tensors


@_operation
def get_tile_block_id(frame: Frame) -> Any:
    return tuple(frame.emit(TileBlockId(axis=axis)) for axis in range(3))


@_operation
def get_num_tile_blocks(frame: Frame) -> Any:
    return tuple(frame.emit(NumTileBlocks(axis=axis)) for axis in range(3))


def extent(frame: Frame, value: Value, axis: int) -> Any:
    """The extent of a tensor along an axis: a constant where it is known."""
    known = value.tensor.shape[axis]
    return known if known is not None else frame.emit(TensorDim(x=value, axis=axis))


@_operation
def ceil_div(frame: Frame, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            frame.type_error("ceil_div: division by zero")
        return -(-a // b)
    if isinstance(b, int) and b > 0:  # (a + b - 1) // b needs one division and cannot round wrongly
        return binary(frame, ast.FloorDiv, binary(frame, ast.Add, a, b - 1), b)
    negated = binary(frame, ast.FloorDiv, _negate(frame, a), b)
    return _negate(frame, negated)


def _negate(frame: Frame, value: Any) -> Any:
    return frame.emit(arith.Neg(x=value)) if is_tile(value) else -value


@_operation
def num_tiles(frame: Frame, view: Any, axis: Any) -> Any:
    if isinstance(view, PartitionRef):
        tile = view.shape
    elif isinstance(view, MutRef):
        tile = view.value.mut.tile
    else:
        frame.type_error(
            f"num_tiles: expected a partition, got {describe(view)}",
            remedy="Partition the tensor first: x.partition((64, 64)).",
        )
    axis = axis_of(frame, axis, len(tile), "num_tiles")
    return ceil_div(frame, extent(frame, view.value, axis), tile[axis])


def _load(frame: Frame, value: Value, shape: tuple[int, ...], index: Any, what: str) -> Value:
    items = items_of(index) if isinstance(index, tuple) else (index,)
    rank = value.tensor.rank
    if len(shape) != rank:
        frame.type_error(
            f"{what}: {value.name!r} has {rank} axes, the tile shape {shape} has {len(shape)}",
            remedy="Give the tile one extent per axis of the tensor; reshape the loaded tile if you need fewer.",
        )
    if len(items) != rank:
        frame.type_error(f"{what}: {value.name!r} has {rank} axes, got {len(items)} indices")
    scalars = tuple(index_scalar(frame, item, what) for item in items)
    return frame.emit(LoadTile(x=value, index=scalars, shape=shape))


@_operation
def load_tile(frame: Frame, x: Any, shape: Any, index: Any) -> Any:
    if not isinstance(x, TensorRef):
        frame.type_error(f"load_tile: expected a tensor, got {describe(x)}")
    return _load(frame, x.value, shape_of(frame, shape, "load_tile"), index, "load_tile")


@_operation
def load_tile_like(frame: Frame, x: Any, y: Any) -> Any:
    if not isinstance(x, TensorRef):
        frame.type_error(f"load_tile_like: the first argument must be a Tensor, got {describe(x)}")
    if not isinstance(y, MutRef):
        frame.type_error(f"load_tile_like: the second argument must be a Mut, got {describe(y)}")
    if x.value.tensor.rank != y.value.mut.rank:
        frame.type_error(
            f"load_tile_like: {x.value.name!r} has {x.value.tensor.rank} axes, {y.value.name!r} has {y.value.mut.rank}",
            remedy="Both must have the same rank; load with x.partition(shape).load(index) instead.",
        )
    index = tuple(frame.emit(TileBlockId(axis=axis)) for axis in range(y.value.mut.rank))
    return _load(frame, x.value, y.value.mut.tile, index, "load_tile_like")


@_method(TensorRef, "partition")
def _partition(frame: Frame, self: TensorRef, shape: Any) -> Any:
    extents = shape_of(frame, shape, "partition")
    if len(extents) != self.value.tensor.rank:
        frame.type_error(
            f"partition: {self.value.name!r} has {self.value.tensor.rank} axes, "
            f"the tile shape {extents} has {len(extents)}"
        )
    return PartitionRef(self.value, extents)


@_method(TensorRef, "load_tile")
def _tensor_load_tile(frame: Frame, self: TensorRef, shape: Any, index: Any) -> Any:
    return load_tile(frame, self, shape, index)


@_method(PartitionRef, "load")
def _partition_load(frame: Frame, self: PartitionRef, index: Any) -> Any:
    return _load(frame, self.value, self.shape, index, "load")


@_method(MutRef, "load")
def _mut_load(frame: Frame, self: MutRef) -> Any:
    return frame.emit(LoadMut(x=self.value))


@_method(MutRef, "store")
def _mut_store(frame: Frame, self: MutRef, value: Any) -> None:
    mut = self.value.mut
    if is_number(value):
        value = materialize(frame, value, mut.dtype, mut.tile)
    tile = tile_of(frame, value, "store")
    if tile.tile.is_scalar and tile.tile.dtype is mut.dtype:
        tile = broadcast_to(frame, tile, mut.tile)
    frame.builder.add(StoreMut(x=self.value, value=tile))


# Creation and shape


@_operation
def constant(frame: Frame, value: Any, shape: Any, dtype: Any) -> Any:
    if not is_number(value):
        frame.type_error(
            f"constant: the value must be known when the kernel is compiled, got {describe(value)}",
            remedy="Use ct.broadcast(value, shape) for a value known when the kernel runs.",
        )
    wanted = dtype_of(frame, dtype, "constant")
    extents = () if shape == () else shape_of(frame, shape, "constant")
    if wanted.kind == "bool":
        return frame.emit(Constant(value=bool(value), dtype=wanted, shape=extents))
    return materialize(frame, value, wanted, extents)


@_operation
def iota(frame: Frame, shape: Any, dtype: Any = i32) -> Any:
    extents = shape_of(frame, shape, "iota")
    if len(extents) != 1:
        frame.type_error(f"iota: the shape must have one axis, got {extents}")
    return frame.emit(Iota(length=extents[0], dtype=dtype_of(frame, dtype, "iota")))


@_operation
def broadcast(frame: Frame, x: Any, shape: Any) -> Any:
    extents = shape_of(frame, shape, "broadcast")
    if is_number(x):
        return materialize(frame, x, default_dtype(x), extents)
    tile = tile_of(frame, x, "broadcast")
    broadcast_shape(frame, [tile.tile.shape, extents], "broadcast")
    return broadcast_to(frame, tile, extents)


@_operation
def reshape(frame: Frame, x: Any, shape: Any) -> Any:
    tile = tile_of(frame, x, "reshape")
    items = list(items_of(shape)) if isinstance(shape, tuple) else [shape]
    if items.count(-1) == 1:
        known = 1
        for item in items:
            known *= 1 if item == -1 else constant_int(frame, item, "reshape: an extent")
        if known < 1 or tile.tile.size % known:
            frame.type_error(f"reshape: {tile.tile.size} elements do not fit the shape {shape}")
        items[items.index(-1)] = tile.tile.size // known
    extents = () if not items else shape_of(frame, tuple(items), "reshape")
    return tile if extents == tile.tile.shape else frame.emit(Reshape(x=tile, shape=extents))


@_operation
def permute(frame: Frame, x: Any, axes: Any) -> Any:
    tile = tile_of(frame, x, "permute")
    if not isinstance(axes, tuple):
        frame.type_error(f"permute: the axes must be a tuple of constants, got {describe(axes)}")
    order = tuple(axis_of(frame, axis, len(tile.tile.shape), "permute") for axis in items_of(axes))
    return frame.emit(Permute(x=tile, axes=order))


@_operation
def transpose(frame: Frame, x: Any) -> Any:
    tile = tile_of(frame, x, "transpose")
    if len(tile.tile.shape) != 2:
        frame.type_error(
            f"transpose: the tile must have two axes, got {tile.tile.shape}", remedy="Use ct.permute(x, axes)."
        )
    return frame.emit(Permute(x=tile, axes=(1, 0)))


@_operation
def convert_tile(frame: Frame, x: Any, dtype: Any) -> Any:
    wanted = dtype_of(frame, dtype, "convert_tile")
    tile = tile_of(frame, x, "convert_tile")
    return tile if tile.tile.dtype is wanted else frame.emit(Convert(x=tile, dtype=wanted))


@_operation
def select(frame: Frame, condition: Any, x: Any, y: Any) -> Any:
    if not is_tile(condition):
        return x if condition else y
    left, right = unify(frame, [x, y], "select")
    shape = broadcast_shape(frame, [condition.tile.shape, left.tile.shape], "select")
    return frame.emit(
        Select(
            condition=broadcast_to(frame, condition, shape),
            x=broadcast_to(frame, left, shape),
            y=broadcast_to(frame, right, shape),
        )
    )


# Arithmetic, functions, reductions, products


@_operation
def fma(frame: Frame, x: Any, y: Any, z: Any) -> Any:
    a, b, c = unify(frame, [x, y, z], "fma")
    return frame.emit(arith.Fma(x=a, y=b, z=c))


@_operation
def min_tile(frame: Frame, x: Any, y: Any) -> Any:
    a, b = unify(frame, [x, y], "min_tile")
    return frame.emit(arith.Min(x=a, y=b))


@_operation
def max_tile(frame: Frame, x: Any, y: Any) -> Any:
    a, b = unify(frame, [x, y], "max_tile")
    return frame.emit(arith.Max(x=a, y=b))


def _register_functions() -> None:
    for op in (
        math.Exp,
        math.Exp2,
        math.Log,
        math.Log2,
        math.Sqrt,
        math.Rsqrt,
        math.Sin,
        math.Cos,
        math.Tanh,
        math.Floor,
        math.Ceil,
    ):

        def handler(frame: Frame, x: Any, *, op: Any = op) -> Any:
            tile = tile_of(frame, x, op.name)
            if tile.tile.dtype.kind != "float":
                frame.type_error(
                    f"{op.name}: expected a tile of floats, got {tile.type}",
                    remedy="Convert first: ct.convert_tile(x, ct.f32).",
                )
            return frame.emit(op(x=tile))

        OPERATIONS[op.name] = handler
    for op in (ReduceSum, ReduceProd, ReduceMax, ReduceMin):

        def reduction(frame: Frame, x: Any, axis: Any, *, op: Any = op) -> Any:
            tile = tile_of(frame, x, op.name)
            return frame.emit(op(x=tile, axis=axis_of(frame, axis, len(tile.tile.shape), op.name)))

        OPERATIONS[op.name] = reduction


_register_functions()


@_operation
def mma(frame: Frame, a: Any, b: Any, acc: Any) -> Any:
    tiles = [tile_of(frame, each, "mma") for each in (a, b, acc)]
    return frame.emit(Mma(a=tiles[0], b=tiles[1], acc=tiles[2]))


for _name, _handler in {
    "reshape": reshape,
    "broadcast": broadcast,
    "transpose": transpose,
    "astype": convert_tile,
}.items():
    METHODS[Value, _name] = _handler


# Python's builtins


@_operation
def static_range(frame: Frame, start: Any, stop: Any = None, step: Any = 1) -> Any:
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [constant_int(frame, each, "static_range: a bound") for each in (first, last, step)]
    if bounds[2] == 0:
        frame.type_error("static_range: the step is 0")
    return tuple(range(*bounds))


def _range(frame: Frame, *bounds: Any) -> Any:
    if not 1 <= len(bounds) <= 3:
        frame.type_error(f"range takes 1 to 3 arguments, got {len(bounds)}")
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step == 0:
        frame.type_error("range: the step is 0")
    return Range(start, stop, step)


def _abs(frame: Frame, x: Any) -> Any:
    return frame.emit(arith.Abs(x=x)) if is_tile(x) else abs(x)


def _min(frame: Frame, *values: Any) -> Any:
    return _extreme(frame, values, min_tile, min)


def _max(frame: Frame, *values: Any) -> Any:
    return _extreme(frame, values, max_tile, max)


def _extreme(frame: Frame, values: tuple[Any, ...], operation: Handler, python: Callable[..., Any]) -> Any:
    items = items_of(values[0]) if len(values) == 1 and isinstance(values[0], tuple) else values
    if not items:
        frame.type_error(f"{python.__name__} of nothing")
    result = items[0]
    for item in items[1:]:
        tiles = is_tile(result) or is_tile(item)
        result = operation(frame, result, item) if tiles else python(result, item)
    return result


def _float(frame: Frame, x: Any) -> Any:
    if is_tile(x):
        frame.type_error("float() of a tile", remedy="Use ct.convert_tile(x, ct.f32).")
    return float(x)


def _int(frame: Frame, x: Any) -> Any:
    if is_tile(x):
        frame.type_error("int() of a tile", remedy="Use ct.convert_tile(x, ct.i32).")
    return int(x)


def _len(frame: Frame, x: Any) -> Any:
    if isinstance(x, tuple):
        return len(items_of(x))
    frame.type_error(f"len() of {describe(x)}", remedy="Use x.shape[axis].")


BUILTINS.update({range: _range, abs: _abs, min: _min, max: _max, float: _float, int: _int, len: _len})


def handler_of(function: Any) -> Handler | None:
    """The handler of an operation, a bound method or a builtin; None for anything else."""
    if isinstance(function, Method):
        for owner in type(function.owner).__mro__:
            found = METHODS.get((owner, function.name))
            if found is not None:
                return functools.partial(_call_method, found, function.owner)
        return None
    marker = getattr(function, "__cutile__", None)
    if marker is not None:
        return OPERATIONS.get(marker)
    try:
        return BUILTINS.get(function)
    except TypeError:  # an unhashable object is no builtin
        return None


def _call_method(method: Handler, owner: Any, frame: Frame, *args: Any, **kwargs: Any) -> Any:
    return method(frame, owner, *args, **kwargs)


def call(frame: Frame, handler: Handler, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a handler; arguments that do not fit its signature are the user's error."""
    try:
        inspect.signature(handler).bind(frame, *args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{name}: {error}")
    return handler(frame, *args, **kwargs)
