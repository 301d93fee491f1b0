"""Views: tensors at an address, partitions with explicit controls, windows."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import i32, i64, u64
from cutile.frontend.expect import (
    A_STORE,
    BY_ADDRESS,
    axis_of,
    constant_int,
    dtype_of,
    indices,
    latency_of,
    marker_of,
    shape_of,
)
from cutile.frontend.families.element import Elements, along_tile, elements_of, is_constant
from cutile.frontend.families.memory import extent, is_ordered
from cutile.frontend.families.partition import (
    Place,
    as_it_lies,
    indices_of,
    load,
    loadable_windows,
    padding_of,
    partition_of,
    place_of,
    require_written,
    store,
    stored_tile,
)
from cutile.frontend.families.pointer import advance, load_lanes, ordering_of, scope_of, store_lanes, wide
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_to, materialize
from cutile.frontend.plain_numbers import interval_of, is_whole
from cutile.frontend.registry import OPERATIONS, method, operation
from cutile.frontend.tensor_parts import Form, parts_of, tensor_of
from cutile.frontend.values import (
    TOKEN,
    MutRef,
    PartitionRef,
    PointerRef,
    TensorRef,
    WindowRef,
    describe,
    is_tile,
    items_of,
)
from cutile.ir.core import Value
from cutile.language import markers
from cutile.language.markers import ordering, padding, scope, tma
from cutile.ops.arith import Add, And, Max, Min, Mul, Sub
from cutile.ops.bound import AssumeDivisible, CheckIndex
from cutile.ops.cast import Convert
from cutile.ops.compare import Lt, Select
from cutile.ops.pointer import TensorStride
from cutile.ops.shape import Permute, Reshape
from cutile.ops.view import TensorView

# Tensors at an address


def _numbers(frame: Frame, items: Any, what: str, dtype: Any) -> tuple[tuple[int | None, ...], list[Value]]:
    """Integers as constants, with None in place of scalars; and the scalars."""
    extents = items_of(items) if isinstance(items, tuple) else (items,)
    constants: list[int | None] = []
    open_: list[Value] = []
    for item in extents:
        if isinstance(item, int) and not isinstance(item, bool):
            constants.append(item)
            continue
        if not is_tile(item) or not item.tile.is_scalar or not item.tile.dtype.is_integer:
            frame.type_error(f"{what} must be integers, got {describe(item)}", remedy="Convert it: ct.i64(x).")
        constants.append(None)
        open_.append(item if item.tile.dtype is dtype else frame.emit(Convert(x=item, dtype=dtype)))
    return tuple(constants), open_


def tensor_at(
    frame: Frame, address: Value, dtype: Any, shape: Any, strides: Any, alignment: Any, what: str
) -> TensorRef:
    """The tensor whose first element is at an address."""
    extents, open_extents = _numbers(frame, shape, f"{what}: the extents", i32)
    if any(each is not None and each < 1 for each in extents):
        frame.type_error(f"{what}: the shape {shape} has an extent below 1", remedy="Every extent is at least 1.")
    steps, open_steps = _numbers(frame, strides, f"{what}: the strides", i64)
    if len(extents) != len(steps):
        frame.type_error(
            f"{what}: {len(extents)} extents and {len(steps)} strides",
            remedy="Give one stride, in elements, for each extent.",
        )
    size = dtype.bits // 8
    if alignment is None:
        alignment = _assumed_alignment(frame, address, strides, size)
    bytes_ = size if alignment is None else constant_int(frame, alignment, f"{what}: the alignment")
    if bytes_ not in (1, 2, 4, 8, 16) or bytes_ < size:
        frame.type_error(
            f"{what}: the alignment must be 1, 2, 4, 8 or 16 bytes and at least an element, got {bytes_}",
            remedy="Leave it out for the size of an element.",
        )
    # A tensor's type has no constant stride but 1: other constants become operands, as a launch's strides do.
    fixed = tuple(1 if step == 1 else None for step in steps)
    rest = iter(open_steps)
    all_steps = [next(rest) if step is None else materialize(frame, step, i64) for step in steps if step != 1]
    op = TensorView(
        address=address,
        numbers=(*open_extents, *all_steps),
        dtype=dtype,
        shape=extents,
        strides=fixed,
        alignment=bytes_,
    )
    return TensorRef(frame.emit(op))


def _assumed_alignment(frame: Frame, address: Value, strides: Any, size: int) -> int | None:
    """16 bytes if `assume_div_by` says so and all strides keep it; else None."""
    made = (op for block in frame.builder.open_blocks for op in block.operations)
    for op in made:
        if isinstance(op, AssumeDivisible) and op.result is address and op.by % 16 == 0:
            steps = items_of(strides) if isinstance(strides, tuple) else (strides,)
            if all(isinstance(step, int) and (step == 1 or step * size % 16 == 0) for step in steps):
                return 16
    return None


@operation
def make_tensor_view(
    frame: Frame, base: Any, shape: Any, strides: Any, dtype: Any = None, token: Any = None, alignment: Any = None
) -> Any:
    frame.require_unsafe("make_tensor_view")
    is_ordered(frame, token, "make_tensor_view")
    if isinstance(base, PointerRef):
        if not base.value.tile.is_scalar:
            frame.type_error(
                f"make_tensor_view: the base must be one pointer, got {describe(base)}",
                remedy="Reshape a tile of one to (): ct.reshape_ptr(pointers, ()).",
            )
        return tensor_at(frame, base.value, base.dtype, shape, strides, alignment, "make_tensor_view")
    if not is_tile(base) or not base.tile.is_scalar or base.tile.dtype not in (i64, u64) or dtype is None:
        frame.type_error(
            f"make_tensor_view: the base must be a pointer, got {describe(base)}",
            remedy="Give a Ptr parameter, or an address as an i64 or u64 scalar with the dtype of what is there.",
        )
    return tensor_at(
        frame, base, dtype_of(frame, dtype, "make_tensor_view"), shape, strides, alignment, "make_tensor_view"
    )


@operation
def load_tensor(
    frame: Frame, pointers: Any, index: Any, shape: Any, strides: Any, dtype: Any, alignment: Any = None
) -> Any:
    frame.require_unsafe("load_tensor")
    if not isinstance(pointers, TensorRef) or pointers.value.tensor.dtype not in (i64, u64):
        frame.type_error(
            f"load_tensor: expected a tensor of addresses (i64), got {describe(pointers)}",
            remedy="Make one on the host: api.device_vec([a, b, c]).",
        )
    items = items_of(index) if isinstance(index, tuple) else (index,)
    rank = pointers.value.tensor.rank
    if len(items) != rank:
        frame.type_error(
            f"load_tensor: {pointers.value.name!r} has {rank} axes, got {indices(items)}",
            remedy="Give an integer for each axis, as a tuple.",
        )
    one = PartitionRef(pointers.value, (1,) * rank)
    address = frame.emit(Reshape(x=load(frame, one, index, "load_tensor"), shape=()))
    return tensor_at(frame, address, dtype_of(frame, dtype, "load_tensor"), shape, strides, alignment, "load_tensor")


# Parts of tensors


@method(TensorRef, "slice")
def _slice(frame: Frame, self: TensorRef, axis: Any, start: Any = None, stop: Any = None) -> Any:
    what = "slice"
    tensor = self.value
    form = Form.of(tensor)
    along = axis_of(frame, axis, len(form.shape), what)
    whole_extent = form.shape[along]
    constants = [each is None or (isinstance(each, int) and not isinstance(each, bool)) for each in (start, stop)]
    first, last, _ = slice(start, stop).indices(whole_extent or 0) if all(constants) else (0, 0, 1)
    length: int | None = last - first
    if length > 0:  # constant bounds with elements between them; the extent of an empty slice is a scalar
        begin = materialize(frame, first, i64)
        new_extent = materialize(frame, length, i32)
    else:
        whole = wide(frame, extent(frame, tensor, along), what)
        begin = _bound(frame, 0 if start is None else start, whole)
        end = whole if stop is None else _bound(frame, stop, whole)
        end = frame.emit(Max(x=end, y=begin))
        length = None
        new_extent = frame.emit(Convert(x=frame.emit(Sub(x=end, y=begin)), dtype=i32))
    address, *numbers = parts_of(frame, tensor, form)
    open_axes = [k for k, each in enumerate(form.shape) if each is None]
    extents = dict(zip(open_axes, numbers, strict=False)) | {along: new_extent}
    shape = tuple(length if k == along else each for k, each in enumerate(form.shape))
    step = materialize(frame, 1, i64) if form.strides[along] == 1 else frame.emit(TensorStride(x=tensor, axis=along))
    base = advance(frame, PointerRef(address, form.dtype), frame.emit(Mul(x=begin, y=step)))
    size = form.dtype.bits // 8
    constant_start = 0 if start is None else start if isinstance(start, int) and start >= 0 else None
    # An alignment beyond an element's size divides all strides but 1 (`TensorType`). So a step along such an axis keeps
    # it. Along an axis of stride 1 a constant start keeps it if its bytes are a multiple.
    keeps = form.strides[along] != 1 or (constant_start is not None and constant_start * size % form.alignment == 0)
    cut = Form(form.dtype, shape, form.strides, form.alignment if keeps else size)
    parts = [base.value, *(extents[k] for k, each in enumerate(shape) if each is None), *numbers[len(open_axes) :]]
    return tensor_of(frame, cut, parts, tensor.name)


def _bound(frame: Frame, value: Any, extent: Value) -> Value:
    """A bound of a slice, clamped to the tensor; a negative one counts from the end."""
    if not (isinstance(value, int) and not isinstance(value, bool)) and not (
        is_tile(value) and value.tile.is_scalar and value.tile.dtype.kind in ("int", "uint")
    ):
        frame.type_error(
            f"slice: a bound must be an integer, got {describe(value)}",
            remedy="Load it as a scalar: ct.tile_to_scalar(offsets.load_tile((1,), i).reshape(())).",
        )
    least = interval_of(frame, value).low if isinstance(value, int) or is_whole(frame, value) else -1
    if is_tile(value) and value.tile.dtype is u64:
        # Clamped before `wide`, which makes numbers from 2**63 on negative.
        value = frame.emit(Min(x=value, y=frame.emit(Convert(x=extent, dtype=u64))))
    bound = wide(frame, value, "slice")
    zero = materialize(frame, 0, i64)
    if least < 0 and (isinstance(value, int) or value.tile.dtype.kind == "int"):
        from_end = frame.emit(Add(x=bound, y=extent))
        bound = frame.emit(Select(condition=frame.emit(Lt(x=bound, y=zero)), x=from_end, y=bound))
        bound = frame.emit(Max(x=bound, y=zero))
    return frame.emit(Min(x=bound, y=extent))


# Partitions with explicit controls


def _tensor(frame: Frame, x: Any, what: str) -> Value:
    if not isinstance(x, TensorRef | MutRef):
        frame.type_error(
            f"{what}: expected a tensor, got {describe(x)}", remedy="Give a Tensor or Mut parameter, or a tensor view."
        )
    return x.value


@operation
def make_partition_view(
    frame: Frame, x: Any, tile: Any, padding: Any = padding.ZERO, dim_map: Any = None, token: Any = None
) -> Any:
    what = "make_partition_view"
    is_ordered(frame, token, what)
    fill = padding_of(frame, padding, what)
    return partition_of(frame, _tensor(frame, x, what), tile, what, fill=fill, order=dim_map)


@operation
def make_partition_view_mut(
    frame: Frame, x: Any, tile: Any, padding: Any = padding.ZERO, dim_map: Any = None, token: Any = None
) -> Any:
    what = "make_partition_view_mut"
    frame.require_unsafe(what)
    is_ordered(frame, token, what)
    value = _tensor(frame, x, what)
    if isinstance(x, TensorRef) and value.tensor.stable:
        frame.type_error(
            f"{what}: {value.name!r} is read only", remedy="Write to a Mut parameter, or to a view of an address."
        )
    fill = padding_of(frame, padding, what)
    return partition_of(frame, value, tile, what, fill=fill, order=dim_map, writes="full")


@operation
def make_strided_view(
    frame: Frame,
    x: Any,
    tile: Any,
    strides: Any,
    padding: Any = padding.ZERO,
    dim_map: Any = None,
    starts: Any = None,
) -> Any:
    what = "make_strided_view"
    fill = padding_of(frame, padding, what)
    part = partition_of(frame, _tensor(frame, x, what), tile, what, fill=fill, order=dim_map)
    steps = shape_of(frame, strides, what)
    if len(steps) != len(part.shape):
        frame.type_error(
            f"{what}: the tile has {len(part.shape)} axes, got {len(steps)} strides",
            remedy="Give one stride, in elements, for each axis of the tile.",
        )
    if starts is not None:
        items = items_of(starts) if isinstance(starts, tuple) else (starts,)
        begins = tuple(constant_int(frame, each, f"{what}: a start") for each in items)
        if len(begins) != len(steps):
            frame.type_error(
                f"{what}: the tile has {len(part.shape)} axes, got {len(begins)} starts",
                remedy="Give one start, in elements, for each axis of the tile: (-1, -1) pads by one.",
            )
        if any(begins):
            return WindowRef(part.value, part.shape, part.padding, part.order, steps, starts=begins)
    # Windows may overlap, so that two tile blocks may store one element. Only an unsafe kernel may write them.
    writes = "full" if isinstance(x, MutRef) and frame.unsafe else ""
    return PartitionRef(part.value, part.shape, part.padding, part.order, steps, writes)


@method(WindowRef, "load")
def _load_window(frame: Frame, self: WindowRef, index: Any) -> Any:
    """Load a window element by element, since it may begin before the tensor."""
    what = "load"
    order = self.order or tuple(range(len(self.shape)))
    scalars = indices_of(frame, self, index, what)
    steps = self.steps or self.shape
    places: list[Any] = [None] * len(order)
    for k, (axis, scalar) in enumerate(zip(order, scalars, strict=True)):
        text = f"{what}: the index along axis {k} of the windows of {self.value.name or 'the view'!r}"
        count = materialize(frame, loadable_windows(frame, self, k))
        frame.builder.add(CheckIndex(index=scalar, count=count, what=text))
        along = along_tile(frame, scalar, self.shape[k], steps[k])
        start = materialize(frame, self.starts[k], i64, along.tile.shape)
        along = frame.emit(Add(x=along, y=start))
        alone = tuple(self.shape[k] if each == axis else 1 for each in range(len(order)))
        places[axis] = along if alone == along.tile.shape else frame.emit(Reshape(x=along, shape=alone))
    where = elements_of(frame, self.value, tuple(places), None, what)
    ordered_ = not is_constant(self.value)
    tile = load_lanes(
        frame, where.pointers, mask=where.mask, pad=markers.padding(self.padding), what=what, ordered=ordered_
    )
    return frame.emit(Permute(x=tile, axes=self.order)) if self.order else tile


def _load(frame: Frame, view: Any, index: Any, what: str, order: Any, scope: Any, latency: Any, through: Any) -> Any:
    """One load with its controls.

    The hints `latency` and `through` (a `tma` marker) are for WEAK loads: the compiler moves no others.
    """
    part = _partition(frame, view, what)
    bulk = marker_of(frame, through, tma, what) is tma.ENABLED
    word = ordering_of(frame, order, what, stores=False)
    scope_of(frame, scope, what)
    by_address = isinstance(part, WindowRef) or word != "weak"
    iterations = latency_of(frame, latency, what, BY_ADDRESS if by_address else "")
    if isinstance(part, WindowRef):
        if word != "weak":
            frame.type_error(f"{what}: windows with starts are loaded WEAK", remedy="Leave the ordering out.")
        return _load_window(frame, part, index)
    if word == "weak":
        return load(frame, part, index, what, latency=iterations, bulk=bulk)
    return _load_ordered(frame, part, index, what, word, scope)


def _partition(frame: Frame, view: Any, what: str) -> PartitionRef:
    if not isinstance(view, PartitionRef):
        frame.type_error(
            f"{what}: expected a partition, got {describe(view)}",
            remedy="Partition the tensor first: x.partition((64, 64)).",
        )
    return view


def _register_loads() -> None:
    """Register loads of tiles and of windows: one handler under two names."""
    for what in ("load_view_tko", "load_strided_view_tko"):

        def loads(
            frame: Frame,
            view: Any,
            index: Any,
            ordering: Any = ordering.WEAK,
            scope: Any = scope.DEVICE,
            latency: Any = None,
            tma: Any = tma.ENABLED,
            *,
            op: str = what,
        ) -> Any:
            return _load(frame, view, index, op, ordering, scope, latency, tma)

        OPERATIONS[what] = loads


_register_loads()


@operation
def store_view_tko(
    frame: Frame,
    view: Any,
    value: Any,
    index: Any,
    ordering: Any = ordering.WEAK,
    scope: Any = scope.DEVICE,
    latency: Any = None,
    tma: Any = tma.ENABLED,
) -> Any:
    what = "store_view_tko"
    part = _partition(frame, view, what)
    latency_of(frame, latency, what, A_STORE)
    bulk = marker_of(frame, tma, markers.tma, what) is markers.tma.ENABLED
    word = ordering_of(frame, ordering, what, stores=True)
    scope_of(frame, scope, what)
    if word == "weak":
        store(frame, part, value, index, what, bulk=bulk)
    else:
        _store_ordered(frame, part, value, index, what, word, scope)
    return TOKEN


# Accesses of whole tiles that are ordered with those of other tile blocks: element by element, by address.
#
# An ordering other than WEAK applies to single elements. A reader of a tile finds each element as some store left it,
# not all of them as one store did. An ACQUIRE load or a RELEASE store orders the tile block's other accesses.


def _load_ordered(frame: Frame, part: PartitionRef, index: Any, what: str, order: str, scope: Any) -> Value:
    """The tile at an index, each element read as `order` says."""
    place = place_of(frame, part, index, what)
    where = _tile_elements(frame, part, place, what)
    how = {"order": order, "scope": scope_of(frame, scope, what), "ordered": True}
    tile = load_lanes(frame, where.pointers, mask=where.mask, pad=markers.padding(part.padding), what=what, **how)
    return frame.emit(Permute(x=tile, axes=part.order)) if part.order else tile


def _store_ordered(frame: Frame, part: PartitionRef, value: Any, index: Any, what: str, order: str, scope: Any) -> None:
    """Write the tile at an index, each element as `order` says."""
    require_written(frame, part, what)
    tile = as_it_lies(frame, part, stored_tile(frame, part, value, what))
    where = _tile_elements(frame, part, place_of(frame, part, index, what), what)
    how = {"order": order, "scope": scope_of(frame, scope, what), "ordered": True}
    store_lanes(frame, where.pointers, tile, mask=where.mask, what=what, **how)


def _tile_elements(frame: Frame, part: PartitionRef, place: Place, what: str) -> Elements:
    """The elements of a tile, in the order of the tensor's axes.

    Elements past its edges, or its limits, are masked off.
    """
    indices: list[Value] = []
    mask: Value | None = None
    for axis, (index, size, step) in enumerate(zip(place.index, place.shape, place.steps, strict=True)):
        along = along_tile(frame, index, size, step)
        alone = tuple(size if each == axis else 1 for each in range(len(place.shape)))
        along = along if alone == (size,) else frame.emit(Reshape(x=along, shape=alone))
        indices.append(along)
        if axis in place.limits:
            limit = broadcast_to(frame, wide(frame, place.limits[axis], what), alone)
            mask = _conjunction(frame, mask, frame.emit(Lt(x=along, y=limit)), place.shape)
    return elements_of(frame, part.value, tuple(indices), mask, what)


def _conjunction(frame: Frame, x: Value | None, y: Value, shape: tuple[int, ...]) -> Value:
    y = broadcast_to(frame, y, shape)
    return y if x is None else frame.emit(And(x=x, y=y))
