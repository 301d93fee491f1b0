"""What a notebook shows of a tensor and of a partition: its facts, and its last two axes with the tiles, to scale.

Below a tensor's are its values, which `values.py` reads. Plain HTML and images of SVG; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cuda_async.svg import INK, MONOSPACED, image

__all__ = ("card", "drawing")

_LONGEST, _SHORTEST = 180.0, 8.0  # pixels of a side
_MOST_LINES = 64  # more tiles than this along an axis are a shade, not lines


def card(title: str, facts: Sequence[tuple[str, str]], picture: str, below: str = "") -> str:
    """A title, rows of (name, value), a drawing beside them, text below. `picture` is SVG or ""."""
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
    """The last two axes of a shape as a rectangle, cut into tiles; an edge tile that is not full is shaded.

    Args:
        shape: the extents; of a scalar nothing is drawn.
        tile: the extents of a tile, one for each axis; None draws no tiles.
    """
    if not shape or 0 in shape:
        return ""
    rows, columns = (1, *shape)[-2:]
    scale = _LONGEST / max(rows, columns)
    width, height = (max(_SHORTEST, extent * scale) for extent in (columns, rows))
    parts = [_rectangle(0, 0, width, height, fill="#4c8bf5", opacity=0.15)]
    if tile is not None:
        tile_rows, tile_columns = (1, *tile)[-2:]
        x_step, y_step = tile_columns * width / columns, tile_rows * height / rows
        x_full, y_full = columns // tile_columns * x_step, rows // tile_rows * y_step
        if x_full < width - 1e-6:
            parts.append(_rectangle(x_full, 0, width - x_full, height, fill="#f5a04c", opacity=0.3))
        if y_full < height - 1e-6:
            parts.append(_rectangle(0, y_full, width, height - y_full, fill="#f5a04c", opacity=0.3))
        parts += [f"M{x:.1f} 0V{height:.1f}" for x in _lines(x_step, width)]
        parts += [f"M0 {y:.1f}H{width:.1f}" for y in _lines(y_step, height)]
    lines = "".join(part for part in parts if part.startswith("M"))
    boxes = "".join(part for part in parts if not part.startswith("M"))
    grid = f'<path d="{lines}" fill="none" stroke="{INK}" stroke-opacity=".45"/>' if lines else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2:.0f}" height="{height + 2:.0f}" '
        f'viewBox="-1 -1 {width + 2:.1f} {height + 2:.1f}">{boxes}{grid}'
        f'<rect width="{width:.1f}" height="{height:.1f}" fill="none" stroke="{INK}"/></svg>'
    )


def _lines(step: float, length: float) -> list[float]:
    count = int((length - 1e-6) / step)
    return [] if count > _MOST_LINES else [number * step for number in range(1, count + 1)]


def _rectangle(x: float, y: float, width: float, height: float, *, fill: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
        f'fill-opacity="{opacity}"/>'
    )
