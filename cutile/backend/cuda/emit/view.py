"""Tiles at any step, and tensors at an address that the kernel computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.memory import arguments, options, view
from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Value
from cutile.ops.view import LoadView, StoreView, TensorView

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def _options(op: LoadView | StoreView, tile: Value) -> list[str]:
    made = options(op.attributes)
    if op.steps != tile.tile.shape:
        made.append(f"steps={op.steps!r}")
    if op.limited:
        made.append(f"limited={op.limited!r}")
    return made


def load_view(op: LoadView, kernel: Kernel) -> Call:
    """`load_x(x, x_extent_0, i)`."""
    known, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    chosen = _options(op, op.result)
    if op.padding not in ("zero", "none"):
        chosen.append(f"padding={kernel.float_text(op.padding_value)}")
    made = kernel.bind(f"load_{op.x.name or 'view'}", "memory.load", known, layout, *chosen)
    return Call(made, arguments(op.x, op.index, kernel))


def store_view(op: StoreView, kernel: Kernel) -> Call:
    """`store_y(tile, y, y_extent_0, i)`."""
    known, layout = view(op.x.tensor, kernel), kernel.layout(op.attributes["layout"])
    made = kernel.bind(f"store_{op.x.name or 'view'}", "memory.store", known, layout, *_options(op, op.value))
    return Call(made, (kernel.use(op.value), *arguments(op.x, op.index, kernel)))


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
    return Call(kernel.bind("pointer_at", "view.pointer_at", kernel.dtype(dtype)), (kernel.use(op.address),))


EMITTERS = {LoadView: load_view, StoreView: store_view, TensorView: tensor_view}
