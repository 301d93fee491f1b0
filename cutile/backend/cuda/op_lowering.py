"""Lowering of tile IR's operations: layouts, conversions, accesses, shared memory.

    %y_tile = load_mut(%y) : f32<1024>
    %t = add(%y_tile, %x_tile) : f32<1024>
    store_mut(%y, %t)
-->
    %i = tile_block_id() {axis = 0} : i32
    %y_tile = load_tile(%y, %i) {shape = [1024], layout = 'tile', vector = [0, 4], ...} : f32<1024>
    %t = add(%y_tile, %x_tile) {layout = 'tile'} : f32<1024>
    cuda.store(%y, %t, %i) {layout = 'tile', vector = [0, 4]}
"""

from functools import singledispatch
from typing import Any

from cutile.analysis.affine import access_run
from cutile.backend.cuda.held_rows import LOWERINGS as HELD
from cutile.backend.cuda.long_rows import LOWERINGS as CLUSTER
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops import Barrier, FailUnless, Store, Subtile
from cutile.backend.cuda.smem_sizes import fold_bytes, move_bytes, product_bytes, reduce_bytes, scan_bytes
from cutile.backend.cuda.sort_lowering import LOWERINGS as SORTS
from cutile.backend.gpu.layout import Layout, blocked, extended, register_map
from cutile.backend.gpu.layout_assignment import broadcast_source, is_tile
from cutile.backend.gpu.op_facts import updated_at_once
from cutile.backend.gpu.reshaped_layout import reshaped
from cutile.dtypes import bf16
from cutile.ir import Constant, For, If, Op, Value, While, Yield
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.create import Iota
from cutile.ops.debug import Assert, Print, reported
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.reduce import Folding, Reduce, Scan
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.view import LoadView, StoreView

Access = LoadPointer | StorePointer | AtomicRmw | AtomicCas


def lower_operation(context: LoweringContext, op: Op) -> None:
    """Lower one operation."""
    context.builder.location = op.location
    _lower(op, context)


@singledispatch
def _lower(op: Op, context: LoweringContext) -> None:
    """Control flow, and operations that work register by register."""
    is_loop = isinstance(op, For | While)
    context.loops += is_loop  # depth of the loops around the operations
    regions = [context.block(nested) for nested in op.regions]
    context.loops -= is_loop
    context.builder.location = op.location  # again: the nested operations have set their own
    copy = context.copied(op, regions)
    tiles = [value for value in op.results if is_tile(value)]
    if tiles and not isinstance(op, For | While | If):
        copy.attributes["layout"] = context.name_of(tiles[0])
    elif not isinstance(op, For | While | If | Yield) and any(map(is_tile, op.operands)):
        raise AssertionError(f"{op.name} has no lowering on cuda")
    context.finish(op, copy)


@_lower.register
def _block_id(op: TileBlockId, context: LoweringContext) -> None:
    context.lowered[op.result] = context.block_ids[op.axis]


@_lower.register
def _assert(op: Assert, context: LoweringContext) -> None:
    names, dtypes, values = reported(op, context.definitions)
    site = len(context.failures)
    context.failures.append((op.message, tuple(op.where), names, dtypes))
    thread, *flag = context.on_failure
    index = [context.block_ids[axis] for axis in range(3)]
    numbers = (*index, *(context.lowered[value] for value in values), *flag)
    condition = context.lowered[op.condition]
    fail = FailUnless(condition, numbers, message=op.message, where=op.where, site=site, thread=thread, leaves=not flag)
    context.builder.add(fail)


# Memory.


def load_in(context: LoweringContext, op: LoadTile | LoadMut, layout: Layout) -> Value:
    """Load a tile in a layout."""
    x = context.lowered[op.operands[0]]
    if isinstance(op, LoadTile):
        index, shape = tuple(context.lowered[value] for value in op.index), op.shape
    else:
        index, shape = context.own_index(op.x.mut), op.x.mut.tile
    context.meet_before(op.operands[0])
    load = LoadTile(x=x, index=index, shape=shape)
    context.add(load, **context.access(x.tensor, layout), constant=context.is_constant(op.operands[0]))
    load.result.name = op.result.name
    return load.result


@_lower.register
def _load(op: LoadTile | LoadMut, context: LoweringContext) -> None:
    layout = context.access_layout(op.operands[0].tensor, op.result)
    context.place(op.result, load_in(context, op, layout), layout)


@_lower.register
def _store(op: StoreMut, context: LoweringContext) -> None:
    own, layout = context.layout(op.value), context.access_layout(op.x.tensor, op.value)
    value = context.converted(context.lowered[op.value], own, layout)
    context.meet_before(op.x)
    index = context.allowed_index(context.own_index(op.x.mut))
    store = Store(x=context.lowered[op.x], value=value, index=index)
    context.add(store, **context.access(op.x.tensor, layout))


@_lower.register
def _view_access(op: LoadView | StoreView, context: LoweringContext) -> None:
    """A tile of a view, whose tiles begin at multiples of any steps."""
    tile = op.result if isinstance(op, LoadView) else op.value
    layout = context.access_layout(op.x.tensor, tile, op.steps)
    operands = [context.lowered[value] for value in op.operands]
    if isinstance(op, StoreView):
        operands[1] = context.converted(operands[1], context.layout(tile), layout)
        operands[2:] = context.allowed_index(tuple(operands[2:]))
    context.meet_before(op.x)
    access = op.copy_with(operands, (), ())
    access.attributes.update(context.access(op.x.tensor, layout, op.steps))
    context.add(access)
    if isinstance(op, LoadView):
        access.attributes["constant"] = context.is_constant(op.x)
        context.place(op.result, access.result, layout)


# Accesses by address. A tile block is one thread in the memory model of the language, and many threads of the device.
# The many threads keep the order of that one: they meet before an access that is ordered after others, before a
# release, and after an acquire.


def broadcasts_result(op: Op, layout: Layout | None, used: bool) -> bool:
    """Whether one thread has to hand its result to the others that hold the element.

    It has to, unless the result is unused or the access is a weak load: each of them then loads the element. With any
    other access, the element may change between two threads' accesses.

    Args:
        op: the access.
        layout: the layout of the addresses; None for a single address.
        used: whether the result is used.
    """
    is_weak_load = isinstance(op, LoadPointer) and op.order == "weak"
    if not used or is_weak_load or not isinstance(op, LoadPointer | AtomicRmw | AtomicCas):
        return False
    return layout is None or bool(layout.free_lanes or layout.free_warps)


@_lower.register
def _access_by_address(op: Access, context: LoweringContext) -> None:
    if op.ordered or op.order in ("release", "acq_rel"):  # first all threads have to make their earlier accesses
        context.builder.add(Barrier())
    pointers = op.operands[0]
    layout = context.layouts[pointers] if is_tile(pointers) else None
    operands = op.lanes if isinstance(op, AtomicRmw) else op.operands
    access = op.copy_with([context.lowered[value] for value in operands], (), ())
    if layout is not None:
        access.attributes["lanes"] = context.layout_name(layout)
        if op.results:
            access.attributes["layout"] = context.layout_name(layout)
    run = access_run(op, context.definitions) if layout is not None else None
    if run and layout and not broadcasts_result(op, layout, used=True):
        # Elements of one instruction: they are neighbours along axis `run[0]` in memory, and in a thread's registers.
        access.attributes["width"] = min(run[1], layout.vector(run[0]))
    if isinstance(access, LoadPointer) and context.early:
        access.attributes["constant"] = False  # see `is_constant`
    used = bool(op.results) and bool(context.users[op.results[0]])
    if isinstance(op, AtomicRmw):
        access.attributes["used"] = used
        # Additions of bf16 are instructions from sm_90 on (PTX ISA, "atom").
        emulated = op.kind == "addf" and op.value.tile.dtype is bf16 and context.arch.major < 9
        access.attributes["native"] = not emulated  # whether it is one instruction
        # Updates of several elements at once exist from sm_90 on, without results (PTX ISA, "red").
        if layout is not None and not used and context.arch.major >= 9:
            access.attributes["width"] = updated_at_once(op, layout, context.definitions)
    if broadcasts_result(op, layout, used):
        dtype = op.results[0].tile.dtype
        size = move_bytes(dtype, layout) if layout is not None else dtype.bits // 8
        context.in_shared(access, size, exchange=True)
    else:
        context.add(access)
    context.map(op, access)
    if op.order in ("acquire", "acq_rel"):  # no thread may go on before the access is made
        context.builder.add(Barrier())


@_lower.register
def _print(op: Print, context: LoweringContext) -> None:
    layouts = [context.layouts[value] if is_tile(value) else None for value in op.values]
    sizes = [move_bytes(x.tile.dtype, layout) for x, layout in zip(op.values, layouts, strict=True) if layout]
    names = tuple(None if layout is None else context.layout_name(layout) for layout in layouts)
    context.in_shared(context.copied(op), max(sizes, default=0), sources=names)


# Operations through shared memory.


@_lower.register
def _reduce(op: Reduce | Folding, context: LoweringContext) -> None:
    source, dtypes = context.layouts[op.operands[0]], [value.tile.dtype for value in op.operands]
    natural = source if isinstance(op, Scan) else source.collapse(op.axis).drop(op.axis)
    if isinstance(op, Reduce):
        size = reduce_bytes(dtypes[0], source, op.axis)
    else:
        size = (scan_bytes if isinstance(op, Scan) else fold_bytes)(dtypes, source, op.axis)
    copy = context.copied(op, [context.block(nested) for nested in op.regions])
    names = context.names(source, natural) if natural.rank else {"source": context.layout_name(source)}
    context.in_shared(copy, size, **names)
    for old, new in zip(op.results, copy.results, strict=True):
        context.place(old, new, natural)


for _kind, _lowering in (*CLUSTER, *HELD, *SORTS):
    _lower.register(_kind, _lowering)


@_lower.register
def _cat_or_extract(op: Cat | Extract, context: LoweringContext) -> None:
    """Put tiles side by side, or take a part of one.

    Elements that move to other threads go through shared memory.
    """
    layout = context.name_of(op.result)
    if isinstance(op, Extract) and (columns := _columns_of(op, context)) is not None:
        subtile = Subtile(x=context.lowered[op.x], part=columns, parts=op.x.tile.shape[1] // op.shape[1])
        result = context.add(subtile, source=context.name_of(op.x), layout=layout).result
        context.place(op.result, result, context.layouts[op.result])
        return
    if isinstance(op, Cat):
        source: Any = (context.name_of(op.x), context.name_of(op.y))
        parts = {(part.type, extended(context.layouts[part], op.result.tile.shape)) for part in op.operands}
        # No shared memory if a thread's elements of the result are its own elements of both operands.
        alike = parts == {(op.x.type, context.layouts[op.result])}
        size = 0 if alike else op.result.tile.size * op.result.tile.dtype.bits // 8
    else:
        source, size = context.name_of(op.x), move_bytes(op.x.tile.dtype, context.layouts[op.x])
    copy = context.in_shared(context.copied(op), size, source=source, layout=layout)
    context.place(op.result, copy.result, context.layouts[op.result])


def _columns_of(op: Extract, context: LoweringContext) -> int | None:
    """The number of an extracted part among equal parts of a tile's columns.

    None for any other part, and where a thread's elements of the part are not in its own registers.
    """
    source, target = context.layouts[op.x], context.layouts[op.result]
    index = [context.definitions.get(value) for value in op.index]
    if source != extended(target, source.shape) or source.rank != 2 or source.shape[0] != target.shape[0]:
        return None
    numbers = [at.value for at in index if isinstance(at, Constant)]
    if len(numbers) != source.rank or not 0 <= numbers[1] < source.shape[1] // target.shape[1]:
        return None
    return int(numbers[1])


@_lower.register
def _mma(op: Mma, context: LoweringContext) -> None:
    accumulator = context.layouts.accumulator(op)
    acc = context.converted(context.lowered[op.acc], context.layouts[op.acc], accumulator)
    product = op.copy_with([context.lowered[op.a], context.lowered[op.b], acc], (), ())
    size = product_bytes(op.a.tile.dtype, accumulator, op.a.tile.shape[-1])
    names = (context.name_of(op.a), context.name_of(op.b))
    context.in_shared(product, size, source=names, layout=context.layout_name(accumulator))
    context.place(op.result, product.result, accumulator)


# The same elements as another tile.


@_lower.register
def _broadcast(op: Broadcast, context: LoweringContext) -> None:
    if not is_tile(op.x) or not is_tile(op.result):
        _between_number_and_tile(context, op)
        return
    target = context.layouts[op.result]
    natural = broadcast_source(op, target)
    copy = op.copy_with([context.converted(context.lowered[op.x], context.layouts[op.x], natural)], (), ())
    copy.attributes.update(how="repeat", **context.names(natural, target))
    context.finish(op, copy)


@_lower.register
def _reshape(op: Reshape | Permute, context: LoweringContext) -> None:
    if not is_tile(op.x) or not is_tile(op.result):
        _between_number_and_tile(context, op)
        return
    old, new = context.layouts[op.x], context.layouts[op.result]
    value, origin = context.lowered[op.x], context.definitions.get(op.x)
    natural = old.permute(op.axes) if isinstance(op, Permute) else reshaped(old, new.shape)
    # With products, a reshape keeps the registers if no element moves to another thread, or if it only adds or drops
    # axes of extent 1. Other reshapes that keep them were measured in kernels of rows alone.
    if context.products and isinstance(op, Reshape) and natural and register_map(natural, new) is None:
        natural = reshaped(old, new.shape, cuts=False)
    if natural != new and isinstance(origin, Iota) and (source := reshaped(new, old.shape, not context.products)):
        # One `iota` may count the rows and the columns of a square tile. To move it takes barriers, a second one none.
        value, old, natural = context.add_in(origin.copy_with((), (), ()), source), source, new
    copy, names = op.copy_with([value], (), ()), context.names(old, natural or new)
    if natural is not None:
        context.add(copy, **names, how="keep")
    else:
        context.in_shared(copy, move_bytes(op.x.tile.dtype, old), **names, how="move")
    context.place(op.result, copy.result, natural or new)


def _between_number_and_tile(context: LoweringContext, op: Broadcast | Reshape | Permute) -> None:
    """Make a tile of one number, or a number of a tile's only element.

    Every thread has a number. So a tile first gets a layout in which every thread has its element.
    """
    value = context.lowered[op.x]
    names: dict[str, Any] = {"how": "splat" if is_tile(op.result) else "keep"}
    if is_tile(op.result):
        names["layout"] = context.name_of(op.result)
    elif is_tile(op.x):
        everywhere = blocked(context.layouts[op.x].shape, context.warps)
        value = context.converted(value, context.layouts[op.x], everywhere)
        names = {"how": "first", "source": context.layout_name(everywhere)}
    copy = op.copy_with([value], (), ())
    copy.attributes.update(names)
    context.finish(op, copy)
