"""Calls on tensors in memory: extents, loads, stores, and tokens.

There is only one token, a constant. The order that it asks for holds anyway, since all accesses of a tile block stay in
program order. An access with a token adds one thing: the threads of a GPU's block wait for one another. See
`partition.py` for more accesses.
"""

from __future__ import annotations

import ast
from typing import Any

from cutile.dtypes import i32
from cutile.frontend.expect import index_scalar, indices, marker_of, shape_of, tile_of
from cutile.frontend.families.grid import GRID_AXES, own_index
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, broadcast_to, is_number, materialize
from cutile.frontend.plain_numbers import Interval, adapted, weak
from cutile.frontend.registry import method, operation
from cutile.frontend.values import TOKEN, MutRef, PartitionRef, TensorRef, TokenRef, describe, items_of
from cutile.ir import Constant, Value
from cutile.language.markers import padding
from cutile.ops.memory import MAX_EXTENT, LoadMut, LoadTile, StoreMut, TensorDim, store_remedy
from cutile.ops.view import LoadView, StoreView


def is_ordered(frame: Frame, token: Any, what: str) -> bool:
    """Whether an access was given a token."""
    if token is None:
        return False
    if not isinstance(token, TokenRef):
        frame.type_error(
            f"{what}: the token must be what another access returned, got {describe(token)}",
            remedy="Leave it out, or begin with ct.new_token_unordered().",
        )
    return True


@operation
def new_token_unordered(frame: Frame) -> Any:
    del frame
    return TOKEN


@operation
def join_tokens(frame: Frame, *tokens: Any) -> Any:
    given = items_of(tokens[0]) if len(tokens) == 1 and isinstance(tokens[0], tuple) else tokens
    for each in given:
        is_ordered(frame, each, "join_tokens")
    return TOKEN


def _view(frame: Frame, x: Any, what: str) -> None:
    if not isinstance(x, TensorRef | MutRef | PartitionRef):
        frame.type_error(
            f"{what}: expected a tensor, a partition or a Mut, got {describe(x)}",
            remedy="Tiles are values: only what is in memory has an order of accesses.",
        )


@operation
def get_tensor_token(frame: Frame, x: Any) -> Any:
    _view(frame, x, "get_tensor_token")
    return TOKEN


@operation
def get_partition_token(frame: Frame, x: Any) -> Any:
    _view(frame, x, "get_partition_token")
    return TOKEN


@operation
def set_tensor_token(frame: Frame, x: Any, token: Any) -> Any:
    _view(frame, x, "set_tensor_token")
    is_ordered(frame, token, "set_tensor_token")


EXTENTS = Interval(1, MAX_EXTENT)
"""The interval of an extent; an extent of 0 is a constant (`extent`)."""


def extent(frame: Frame, value: Value, axis: int) -> Any:
    """The extent of a tensor along an axis: a Python integer where it is known.

    A known 0 is a scalar in the kernel, too. So a kernel compiles in the same way whether or not there are elements.
    """
    count = value.tensor.shape[axis]
    if count == 0:
        return weak(frame, frame.emit(Constant(value=0, dtype=i32, shape=())), Interval(0, 0))
    return count if count is not None else weak(frame, frame.emit(TensorDim(x=value, axis=axis)), EXTENTS)


def tiles_along(frame: Frame, length: Any, tile: Any) -> Any:
    """`length / tile` rounded up, for a length of at least 0.

    The sum does not overflow, since it gets as many bits as its interval needs (`plain_numbers.py`).
    """
    if isinstance(length, int):
        return -(-length // tile)
    return binary(frame, ast.FloorDiv, binary(frame, ast.Add, length, tile - 1), tile)


def _load(frame: Frame, value: Value, shape: tuple[int, ...], index: Any, fill: Any, what: str) -> Value:
    items = items_of(index) if isinstance(index, tuple) else (index,)
    rank = value.tensor.rank
    if len(shape) != rank:
        frame.type_error(
            f"{what}: {value.name!r} has {rank} axes, the tile shape {shape} has {len(shape)}",
            remedy="Give the tile one extent per axis of the tensor; reshape the loaded tile if you need fewer.",
        )
    if len(items) != rank:
        frame.type_error(
            f"{what}: {value.name!r} has {rank} axes, got {indices(items)}", remedy="Give one index per axis."
        )
    scalars = tuple(index_scalar(frame, item, what) for item in items)
    word = marker_of(frame, fill, padding, what).value
    if word in ("zero", "none"):
        return frame.emit(LoadTile(x=value, index=scalars, shape=shape))
    return frame.emit(LoadView(x=value, index=scalars, shape=shape, steps=shape, limited=(), padding=word))


@operation
def load_tile(frame: Frame, x: Any, shape: Any, index: Any, padding: Any = padding.ZERO) -> Any:
    if not isinstance(x, TensorRef):
        frame.type_error(
            f"load_tile: expected a tensor, got {describe(x)}",
            remedy="The tensor comes first: ct.load_tile(x, shape, index). A Mut has y.load().",
        )
    return _load(frame, x.value, shape_of(frame, shape, "load_tile"), index, padding, "load_tile")


_LIKE = "Write ct.load_tile_like(x, y): the tile of the tensor x that lies where y's own tile does."


@operation
def load_tile_like(frame: Frame, x: Any, y: Any, padding: Any = padding.ZERO) -> Any:
    if not isinstance(x, TensorRef):
        frame.type_error(f"load_tile_like: the first argument must be a Tensor, got {describe(x)}", remedy=_LIKE)
    if not isinstance(y, MutRef):
        frame.type_error(f"load_tile_like: the second argument must be a Mut, got {describe(y)}", remedy=_LIKE)
    if x.value.tensor.rank != y.value.mut.rank:
        frame.type_error(
            f"load_tile_like: {x.value.name!r} has {x.value.tensor.rank} axes, {y.value.name!r} has {y.value.mut.rank}",
            remedy="Both must have the same rank; load with x.partition(shape).load(index) instead.",
        )
    index = own_index(frame, y.value)
    return _load(frame, x.value, y.value.mut.tile, index, padding, "load_tile_like")


@method(TensorRef, "load_tile")
def _tensor_load_tile(frame: Frame, self: TensorRef, shape: Any, index: Any, padding: Any = padding.ZERO) -> Any:
    return load_tile(frame, self, shape, index, padding)


@method(MutRef, "load")
def _mut_load(frame: Frame, self: MutRef) -> Any:
    mut = self.value.mut
    if mut.rank > GRID_AXES:
        index = tuple(index_scalar(frame, each, "load") for each in own_index(frame, self.value))
        return frame.emit(LoadTile(x=self.value, index=index, shape=mut.tile))
    return frame.emit(LoadMut(x=self.value))


@method(MutRef, "store")
def _mut_store(frame: Frame, self: MutRef, value: Any) -> None:
    mut = self.value.mut
    if is_number(value):
        value = materialize(frame, value, mut.dtype, mut.tile)
    tile = tile_of(frame, adapted(frame, value, mut.dtype), "store")
    if tile.tile.is_scalar and tile.tile.dtype is mut.dtype:
        tile = broadcast_to(frame, tile, mut.tile)
    if mut.rank > GRID_AXES:
        if tile.tile != mut.tile_type:
            frame.type_error(
                f"store: the tile must be {mut.tile_type}, got {tile.type}",
                remedy=store_remedy(tile.tile.shape, mut.tile, f"ct.{mut.dtype.__name__}"),
            )
        index = tuple(index_scalar(frame, each, "store") for each in own_index(frame, self.value))
        frame.builder.add(StoreView(x=self.value, value=tile, index=index, steps=mut.tile, limited=()))
        return
    frame.builder.add(StoreMut(x=self.value, value=tile))


def _own(frame: Frame, y: Any, what: str) -> MutRef:
    if not isinstance(y, MutRef):
        frame.type_error(
            f"{what}: expected a Mut, got {describe(y)}", remedy="Annotate the parameter with Mut to write it."
        )
    return y


@operation
def load_tile_mut(frame: Frame, y: Any) -> Any:
    return _mut_load(frame, _own(frame, y, "load_tile_mut"))


@operation
def store_tile(frame: Frame, y: Any, value: Any) -> None:
    _mut_store(frame, _own(frame, y, "store_tile"), value)
