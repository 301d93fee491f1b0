"""Tensors and partitions in notebooks and consoles: facts, a drawing, values.

The drawing shows the last two axes with their tiles, to scale. It is plain HTML with images of SVG; nothing is loaded.

A small copy reads the values. Printing never raises, and waits 0.3 s at most. Of a large tensor, it reads the first and
last three elements of each axis, as NumPy prints them. It reads nothing while operations are submitted or recorded, or
while an unfinished operation writes the tensor.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cuda_async import Device, DeviceOp, OwnershipError, Stream
from cuda_async import zip as zip_ops
from cuda_async.core.lease import current_holder
from cuda_async.core.run import Run
from cuda_async.locks import Gate
from cuda_async.svg import INK, MONOSPACED, escape, image
from cutile.host.transfer import ToHost
from cutile.host.views import piece
from cutile.launch.views import View

if TYPE_CHECKING:
    from cutile.host.tensor import Tensor

__all__ = ("MAX_SHOWN", "PrintsValues", "card", "drawing")

_MAX_SIDE, _MIN_SIDE = 180.0, 8.0  # pixels
_MAX_BORDERS = 64  # tile borders drawn along an axis; more tiles become a shade


def card(title: str, facts: Sequence[tuple[str, str]], picture: str, below: str = "") -> str:
    """HTML: a title, rows of (name, value), a drawing beside them, text below.

    `picture` is SVG, or "" for none.
    """
    cell = "text-align:left;vertical-align:top;border:0;background:none;padding:0"  # notebooks have styles of their own
    rows = "".join(
        f'<tr style="background:none"><td style="opacity:.6;{cell} 10px 0 0">{escape(name)}</td>'
        f'<td style="{cell}">{escape(value)}</td></tr>'
        for name, value in facts
    )
    text = f'<pre style="margin:6px 0 0;{MONOSPACED}">{escape(below)}</pre>' if below else ""
    shown = image(picture, "") if picture else ""
    return (
        f'<div style="display:flex;gap:16px;align-items:center;{MONOSPACED}">'
        f'<div><div style="font-weight:bold;padding-bottom:4px">{escape(title)}</div>'
        f'<table style="border-collapse:collapse;text-align:left">{rows}</table></div>{shown}</div>{text}'
    )


def drawing(shape: Sequence[int], tile: Sequence[int] | None = None) -> str:
    """The last two axes of a shape as a rectangle, cut into tiles.

    An edge tile that is not full is shaded.

    Args:
        shape: the extents; without axes or elements nothing is drawn.
        tile: the extents of a tile, one for each axis; None draws no tiles.
    """
    if not shape or 0 in shape:
        return ""
    rows, columns = (1, *shape)[-2:]
    scale = _MAX_SIDE / max(rows, columns)
    width, height = (max(_MIN_SIDE, extent * scale) for extent in (columns, rows))
    boxes = [_rectangle(0, 0, width, height, fill="#4c8bf5", opacity=0.15)]
    borders: list[str] = []  # commands of an SVG path: M moves, V and H draw
    if tile is not None:
        tile_rows, tile_columns = (1, *tile)[-2:]
        x_step, y_step = tile_columns * width / columns, tile_rows * height / rows
        x_full, y_full = columns // tile_columns * x_step, rows // tile_rows * y_step
        if x_full < width - 1e-6:
            boxes.append(_rectangle(x_full, 0, width - x_full, height, fill="#f5a04c", opacity=0.3))
        if y_full < height - 1e-6:
            boxes.append(_rectangle(0, y_full, width, height - y_full, fill="#f5a04c", opacity=0.3))
        borders += [f"M{x:.1f} 0V{height:.1f}" for x in _lines(x_step, width)]
        borders += [f"M0 {y:.1f}H{width:.1f}" for y in _lines(y_step, height)]
    grid = f'<path d="{"".join(borders)}" fill="none" stroke="{INK}" stroke-opacity=".45"/>' if borders else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2:.0f}" height="{height + 2:.0f}" '
        f'viewBox="-1 -1 {width + 2:.1f} {height + 2:.1f}">{"".join(boxes)}{grid}'
        f'<rect width="{width:.1f}" height="{height:.1f}" fill="none" stroke="{INK}"/></svg>'
    )


def _lines(step: float, length: float) -> list[float]:
    """The places of borders between tiles along an axis, in pixels."""
    count = int((length - 1e-6) / step)  # 1e-6: a border at the end, up to a rounding, is the frame, and not drawn
    return [] if count > _MAX_BORDERS else [number * step for number in range(1, count + 1)]


def _rectangle(x: float, y: float, width: float, height: float, *, fill: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
        f'fill-opacity="{opacity}"/>'
    )


Array = np.ndarray[Any, np.dtype[Any]]

MAX_SHOWN = 1000  # elements; a larger tensor shows the first and last three of each axis, as NumPy does
PATIENCE_S = 0.3  # seconds to wait for values

_EDGE = 3  # elements at each end of an axis
_AXES = 3  # trailing axes shown of a large tensor; leading ones are shown at index 0
_MAX_READ_BYTES = 1 << 20  # bytes of one read; on a GPU it copies all between its first and last element
_streams: weakref.WeakKeyDictionary[Device, Stream] = weakref.WeakKeyDictionary()


class PrintsValues:
    """The part of `Tensor` that prints it, and draws it in notebooks."""

    __slots__ = ()

    def __repr__(self) -> str:
        tensor = cast("Tensor", self)
        view = tensor._view  # pyright: ignore[reportPrivateUsage]
        parts = [view.dtype.name, f"shape={view.shape}", f"device={tensor.device}"]
        if not tensor.is_contiguous():
            parts.insert(2, f"strides={view.strides}")
        holder = tensor.holder()
        if holder is not None:
            parts.append(f"held by {holder.describe()}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __str__(self) -> str:
        """`repr` and the values, or the reason why they are not shown. Never raises."""
        return f"{self!r}\n{_values_of(cast('Tensor', self))}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        tensor = cast("Tensor", self)
        facts = [("dtype", tensor.dtype.name), ("shape", f"{tensor.shape}"), ("strides", f"{tensor.strides} elements")]
        facts += [("bytes", f"{tensor.num_bytes:,}"), ("device", f"{tensor.device}")]
        holder = tensor.holder()
        if holder is not None:
            facts.append(("held by", holder.describe()))
        return card(type(self).__name__, facts, drawing(tensor.shape), _values_of(tensor))


def _values_of(tensor: Tensor) -> str:
    """The values as text, or the reason why they are not shown; never raises."""
    try:
        return _text(tensor)
    except OwnershipError as error:
        return f"(not shown: {str(error).partition(' and has not finished')[0].partition('. ')[0]})"
    except Exception as error:  # printing must not raise, least of all another operation's error
        return f"(not shown: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"


def _text(tensor: Tensor) -> str:
    """As `_values_of`, but raises."""
    view = tensor._view  # pyright: ignore[reportPrivateUsage]
    view.storage.check_memory()
    if current_holder() is not None:
        return "(not shown: operations are being submitted, and nothing is computed yet)"
    heading = ""
    leading_axes = max(len(view.shape) - _AXES, 0)
    is_cut = math.prod(view.shape) > MAX_SHOWN
    if is_cut and leading_axes:
        heading = f"at [{', '.join(['0'] * leading_axes)}]:\n"
        view = piece(view, 0, view.shape[leading_axes:], view.strides[leading_axes:])
        is_cut = math.prod(view.shape) > MAX_SHOWN
    *outer, last = [_spans(extent, cut=is_cut) for extent in view.shape] or [[]]
    if is_cut:  # a read for each row, so that a GPU does not copy the bytes between rows
        outer = [[range(place, place + 1) for span in spans for place in span] for spans in outer]
    blocks = list(product(*outer, last)) if view.shape else [()]
    if view.storage.device.kind != "host" and any(_reach(view, block) > _MAX_READ_BYTES for block in blocks):
        return "(not shown: they lie far apart; dup() gives a copy in which they do not)"
    reads = [ToHost(_block(view, block), tuple(len(span) for span in block), "values") for block in blocks]
    parts = _read_soon(zip_ops(*reads), view.storage.device)
    if parts is None:
        return f"(not shown: the device has not computed them within {PATIENCE_S:g} s)"
    values = np.zeros([min(extent, 2 * _EDGE + 1) if is_cut else extent for extent in view.shape], parts[0].dtype)
    for block, part in zip(blocks, parts, strict=True):
        values[tuple(_places(span, extent, cut=is_cut) for span, extent in zip(block, view.shape, strict=True))] = part
    limit = 0 if is_cut else values.size + 1
    return heading + np.array2string(values, threshold=limit, edgeitems=_EDGE, separator=", ")


def _spans(extent: int, *, cut: bool) -> list[range]:
    """The parts of an axis that are read."""
    if not cut or extent <= 2 * _EDGE + 1:
        return [range(extent)]
    return [range(_EDGE), range(extent - _EDGE, extent)]


def _places(span: range, extent: int, *, cut: bool) -> slice:
    """The place of a part of an axis in the array that is printed.

    One element stays free between the two ends: NumPy prints an ellipsis there.
    """
    shift = extent - (2 * _EDGE + 1) if cut and extent > 2 * _EDGE + 1 and span.start >= _EDGE else 0
    return slice(span.start - shift, span.stop - shift)


def _reach(view: View, block: tuple[range, ...]) -> int:
    """Bytes that a read copies on a GPU."""
    start, stop = _block(view, block).byte_range
    return stop - start


def _block(view: View, block: tuple[range, ...]) -> View:
    offset = sum(span.start * stride for span, stride in zip(block, view.strides, strict=True))
    return piece(view, offset, tuple(len(span) for span in block), view.strides)


def _read_soon(op: DeviceOp[tuple[Array, ...]], device: Device) -> tuple[Array, ...] | None:
    """The result of an operation, run on a stream that only prints use.

    None after `PATIENCE_S`: the operation goes on, and nobody waits for it.
    """
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = device.new_stream()
    run = Run(op, stream)
    run.submit()
    gate = Gate()
    run.when_done(gate.open)
    run.watch()
    return run.outcome() if gate.wait(PATIENCE_S) else None
