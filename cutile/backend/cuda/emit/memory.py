"""Effects: elements from and to global memory, atomics, prints and assertions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cutile.backend.common.abi import REPORT
from cutile.backend.cuda.emit.generic import emitter, offset
from cutile.backend.cuda.ops import AddTile, FailUnless, PadEdges, Store
from cutile.backend.cuda.ops.memory import Compact, StoreCompacted
from cutile.backend.cuda.ops.private import PrivateEnd, PrivateStart, PrivateUpdate
from cutile.backend.gpu.emitter import Call, Expression, Intrinsic, quoted
from cutile.ir import Op, TensorType, Value
from cutile.ops import atomic, debug, memory, pointer
from cutile.ops.view import LoadView, StoreView, TensorView, padding_value

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def view(tensor: TensorType, kernel: Kernel) -> str:
    """Compile-time facts of a tensor, as text of the file."""
    return f"{kernel.module('memory')}.View({kernel.dtype(tensor.dtype)}, {tensor.shape!r}, {tensor.strides!r})"


def arguments(x: Value, index: tuple[Value, ...], kernel: Kernel) -> tuple[Expression, ...]:
    """The base address, the dynamic extents and strides, and the tile index."""
    tensor = x.tensor
    extents = [kernel.part(x, "extent", axis) for axis, extent in enumerate(tensor.shape) if extent is None]
    strides = [kernel.part(x, "stride", axis) for axis, stride in enumerate(tensor.strides) if stride is None]
    return (kernel.use(x), *extents, *strides, *map(kernel.use, index))


def options(attributes: dict[str, Any]) -> list[str]:
    """Keyword arguments of an access: its width, and its flags."""
    vector = [f"vector={attributes['vector']!r}"] if attributes["vector"] else []
    flags = [f"{name}=True" for name in ("constant", "wide_edges") if attributes.get(name)]
    return vector + flags


def load(op: memory.LoadTile, kernel: Kernel) -> Call:
    """`load_x(x, x_extent_0, i)`."""
    tensor, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    function = kernel.bind(f"load_{op.x.name}", "memory.load", tensor, layout, *options(op.attributes))
    return Call(function, arguments(op.x, op.index, kernel))


def store(op: Store, kernel: Kernel) -> Call:
    """`store_y(tile, y, y_extent_0, i)`."""
    return _store(f"store_{op.x.name}", op, kernel, options(op.attributes))


def add_tile(op: AddTile, kernel: Kernel) -> Call:
    """`add_to_y(tile, y, y_extent_0, i)`."""
    return _store(f"add_to_{op.x.name}", op, kernel, [*options(op.attributes), "adds=True"])


def _store(stem: str, op: Store | AddTile | StoreView, kernel: Kernel, how: list[str]) -> Call:
    tensor, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    function = kernel.bind(stem, "memory.store", tensor, layout, *how)
    return Call(function, (kernel.use(op.value), *arguments(op.x, op.index, kernel)))


# Tiles at any step, and tensors at an address that the kernel computes.


def _view_options(op: LoadView | StoreView, tile: Value) -> list[str]:
    steps = [f"steps={op.steps!r}"] if op.steps != tile.tile.shape else []
    return [*options(op.attributes), *steps, *([f"limited={op.limited!r}"] if op.limited else [])]


def load_view(op: LoadView, kernel: Kernel) -> Call:
    """`load_x(x, x_extent_0, i)`."""
    tensor, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    how = _view_options(op, op.result)
    if op.padding not in ("zero", "none"):
        how.append(f"padding={kernel.float_text(op.padding_value)}")
    function = kernel.bind(f"load_{op.x.name or 'view'}", "memory.load", tensor, layout, *how)
    return Call(function, arguments(op.x, op.index, kernel))


def pad_edges(op: PadEdges, kernel: Kernel) -> Call:
    """`pad_x(tile, x, x_extent_0, i)`."""
    tensor, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    steps = [f"steps={op.steps!r}"] if op.steps != op.value.tile.shape else []
    limited = [f"limited={op.limited!r}"] if op.limited else []
    how = [*steps, *limited, f"padding={kernel.float_text(padding_value(op.padding))}"]
    function = kernel.bind(f"pad_{op.x.name or 'view'}", "memory.pad", tensor, layout, *how)
    return Call(function, (kernel.use(op.value), *arguments(op.x, op.index, kernel)))


def store_view(op: StoreView, kernel: Kernel) -> Call:
    """`store_y(tile, y, y_extent_0, i)`."""
    return _store(f"store_{op.x.name or 'view'}", op, kernel, _view_options(op, op.value))


def tensor_view(op: TensorView, kernel: Kernel) -> Call:
    """`x_extent_0 = n`, and so on, then `x = pointer_at(address)`."""
    stem = op.result.name or "view"
    for kind, numbers in (("extent", op.extents), ("stride", op.steps)):
        for axis, number in enumerate(numbers):
            if isinstance(number, Value):
                name = kernel.names.invented(f"{stem}_{kind}_{axis}")
                kernel.body.write(f"{name} = ", kernel.typed(number))
                kernel.set_part(op.result, kind, axis, name)
    dtype: Any = op.address.tile.dtype
    return Call(kernel.bind("pointer_at", "pointer.pointer_at", kernel.dtype(dtype)), (kernel.use(op.address),))


# Elements by address.


def _lanes(op: Op, kernel: Kernel) -> str:
    """The layout of an access's lanes, as text of the file; "None" for a scalar."""
    name = op.attributes.get("lanes")
    return kernel.layout(name) if name else "None"


def _exchange(op: Op) -> str:
    """Where the result of an access is handed to other threads, as text of the file.

    It is "None" if every thread reads its own elements.
    """
    if not op.attributes.get("exchange"):
        return "None"
    return repr((op.attributes["offset"], op.attributes["fence"]))


def load_pointer(op: pointer.LoadPointer, kernel: Kernel) -> Call:
    """`load_at(addresses, mask, pad)`."""
    function = kernel.bind(
        "load_at",
        "pointer.load",
        kernel.dtype(op.pad.tile.dtype),
        _lanes(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"constant={op.constant}",
        f"exchange={_exchange(op)}",
        *_width(op),
    )
    return Call(function, tuple(map(kernel.use, op.operands)))


def _width(op: Op) -> list[str]:
    """`width=2`, if one instruction moves two elements that lie side by side."""
    return [f"width={op.attributes['width']}"] if op.attributes.get("width", 1) > 1 else []


def store_pointer(op: pointer.StorePointer, kernel: Kernel) -> Call:
    """`store_at(addresses, value, mask)`."""
    dtype = kernel.dtype(op.value.tile.dtype)
    how = (quoted(op.order), quoted(op.scope), *_width(op))
    function = kernel.bind("store_at", "pointer.store", dtype, _lanes(op, kernel), *how)
    return Call(function, tuple(map(kernel.use, op.operands)))


def compact(op: Compact, kernel: Kernel) -> Call:
    """`compact(value, mask)`."""
    dtype, facts = kernel.dtype(op.value.tile.dtype), op.attributes
    how = (_lanes(op, kernel), f"offset={facts['offset']}", f"fence={facts['fence']}")
    return Call(kernel.bind("compact", "compaction.compact", dtype, *how), tuple(map(kernel.use, op.operands)))


def store_compacted(op: StoreCompacted, kernel: Kernel) -> Call:
    """`store_compacted(base, first, limit)`."""
    facts, dtypes = op.attributes, [kernel.dtype(x) for x in (op.dtype, op.first.tile.dtype)]
    how = (str(op.extent), *(f"{name}={facts[name]}" for name in ("counts", "threads", "offset")))
    function = kernel.bind("store_compacted", "compaction.store_compacted", *dtypes, *how)
    return Call(function, tuple(map(kernel.use, op.operands)))


def stride(op: pointer.TensorStride, kernel: Kernel) -> str:
    """`x_stride_0`: a parameter."""
    constant = op.x.tensor.strides[op.axis]
    return kernel.part(op.x, "stride", op.axis) if constant is None else str(constant)


def update(op: atomic.AtomicRmw, kernel: Kernel) -> Call:
    """`atomic_add(addresses, value, mask)`."""
    facts = op.attributes
    function = kernel.bind(
        f"atomic_{op.kind}",
        "atomic.update",
        quoted(op.kind),
        kernel.dtype(op.value.tile.dtype),
        _lanes(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"used={facts['used']}",
        f"native={facts['native']}",
        f"exchange={_exchange(op)}",
        *_width(op),
    )
    return Call(function, tuple(map(kernel.use, op.operands)))


def private_start(op: PrivateStart, kernel: Kernel) -> Call:
    """`private_start(extent)`."""
    facts = op.attributes
    how = [f"offset={facts['offset']}", f"threads={facts['threads']}"]
    return Call(kernel.bind("private_start", "private.start", *how), tuple(map(kernel.use, op.operands)))


def private_update(op: PrivateUpdate, kernel: Kernel) -> Call:
    """`private_update(index, value, base, extent, limit, masks...)`."""
    dtypes = [kernel.dtype(each.tile.dtype) for each in (op.index, op.value)]
    masks = len(op.conditions) - op.limited  # if `limited`, the first condition is the limit
    how = [_lanes(op, kernel), f"offset={op.attributes['offset']}", f"limited={op.limited}", f"masks={masks}"]
    return Call(kernel.bind("private_update", "private.update", *dtypes, *how), tuple(map(kernel.use, op.operands)))


def private_end(op: PrivateEnd, kernel: Kernel) -> Call:
    """`private_end(base, extent)`."""
    facts = op.attributes
    how = [f"offset={facts['offset']}", f"threads={facts['threads']}"]
    return Call(kernel.bind("private_end", "private.end", *how), tuple(map(kernel.use, op.operands)))


def compare_and_swap(op: atomic.AtomicCas, kernel: Kernel) -> Call:
    """`atomic_cas(addresses, expected, value, mask)`."""
    function = kernel.bind(
        "atomic_cas",
        "atomic.compare_and_swap",
        kernel.dtype(op.value.tile.dtype),
        _lanes(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"exchange={_exchange(op)}",
    )
    return Call(function, tuple(map(kernel.use, op.operands)))


# Prints and assertions.


def say(op: debug.Print, kernel: Kernel) -> Call:
    """`say(x, y)`."""
    facts = op.attributes  # `sources` are the layouts of tiles, None for scalars
    values = [
        f"({quoted(spec)}, {kernel.dtype(value.tile.dtype)}, {kernel.layout(name) if name else None})"
        for spec, value, name in zip(op.specs, op.values, facts["sources"], strict=True)
    ]
    listed = f"({', '.join(values)}{',' * (len(values) == 1)})"
    place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
    function = kernel.bind("say", "debug.say", quoted(tuple(op.pieces)), listed, *place)
    return Call(function, tuple(map(kernel.use, op.values)))


def fail_unless(op: FailUnless, kernel: Kernel) -> Call:
    """`fail_unless(condition, report, block_0, block_1, block_2, k)`."""
    dtypes = "".join(f"{kernel.dtype(each.tile.dtype)}, " for each in op.numbers[3:])  # behind the block's index
    function = kernel.bind(
        "fail_unless",
        "debug.fail_unless",
        str(op.site),
        f"({dtypes.rstrip() if dtypes.count(',') == 1 else dtypes.rstrip(', ')})",
        *([f"speaker={op.thread}"] if op.thread else []),
        *([] if op.flag is None else [f"flag={offset(op.flag, kernel)}"]),
    )
    condition, *numbers = map(kernel.use, (op.condition, *op.numbers))
    return Call(function, (condition, REPORT, *numbers))


EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    memory.LoadTile: load,
    Store: store,
    AddTile: add_tile,
    LoadView: load_view,
    StoreView: store_view,
    PadEdges: pad_edges,
    TensorView: tensor_view,
    pointer.LoadPointer: load_pointer,
    pointer.StorePointer: store_pointer,
    Compact: compact,
    StoreCompacted: store_compacted,
    pointer.TensorAddress: emitter(Intrinsic("pointer.address", stem="address_of")),
    pointer.TensorStride: stride,
    atomic.AtomicRmw: update,
    atomic.AtomicCas: compare_and_swap,
    PrivateStart: private_start,
    PrivateUpdate: private_update,
    PrivateEnd: private_end,
    debug.Print: say,
    FailUnless: fail_unless,
}
