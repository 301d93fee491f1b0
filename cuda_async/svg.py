"""A `Picture` as SVG, for notebooks: boxes and arrows from top to bottom.

No script, no style sheet, nothing loaded. The SVG is the source of an `<img>`. A page does not trust a notebook that
somebody else has run: of an SVG element it shows only the words, but it shows images.
"""

from __future__ import annotations

from cuda_async.picture import Node, Picture

__all__ = ("INK", "MONOSPACED", "escape", "html_of", "image")

INK = "#767676"
"""The colour of lines and letters. An image does not know the page's colours: the contrast is 4.5 to 1 on
white and on black."""

MONOSPACED = "font:12px/1.35 ui-monospace,Menlo,Consolas,monospace"
"""The font of all output in notebooks. Each element names it, since pages have others for `pre` and for tables."""

_CHARACTER = 7.2  # pixels: a letter of a monospaced font is 0.6 of its size wide, here 12
_PADDING = 12.0  # pixels on either side of a text
_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 40.0, 18.0, 30.0, 6.0  # pixels: a box, between boxes, around the drawing
_MAX_CHARACTERS = 34  # of a text in a box; the rest is cut off
_STYLE = f"{MONOSPACED};color:inherit"


def escape(text: str) -> str:
    """Text with HTML's characters escaped."""
    import html  # here: few processes show pictures, and it takes longer than a launch

    return html.escape(text)


def html_of(picture: Picture) -> str:
    """The picture with its title, as one element. All text is escaped."""
    levels = _levels(picture.nodes)
    widest = max((_width(node) for node in picture.nodes), default=0.0)
    places, right = _places(picture.nodes, levels, widest + _GAP_X)
    height = (max(levels, default=0) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    parts: list[str] = []
    for number, node in enumerate(picture.nodes):
        parts += [_arrow(places[source], places[number]) for source in node.sources]
    for place, node in zip(places, picture.nodes, strict=True):
        parts.append(_box(place, node))
    drawing = "".join(parts)
    width = right + _MARGIN
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="{MONOSPACED}">{drawing}</svg>'
    )
    title = f'<div style="padding:2px 0 6px">{escape(picture.title)}</div>'
    return f'<div style="{_STYLE}">{title}{image(svg, picture.title)}</div>'


def image(svg: str, label: str) -> str:
    """The SVG as an image, which pages show even where they trust no other element.

    `label` is its text, for people who do not see it.
    """
    import base64

    source = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(label)}" style="max-width:100%" src="data:image/svg+xml;base64,{source}">'


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _width(node: Node) -> float:
    longest = max(len(_cut(node.caption)), len(_cut(node.site)))
    return longest * _CHARACTER + 2 * _PADDING


def _levels(nodes: tuple[Node, ...]) -> list[int]:
    levels: list[int] = []
    for node in nodes:
        levels.append(1 + max((levels[source] for source in node.sources), default=-1))
    return levels


def _places(nodes: tuple[Node, ...], levels: list[int], step: float) -> tuple[list[tuple[float, float]], float]:
    """The middle of the upper edge of each box, and how far right the boxes reach.

    A box stands below the mean of its sources, or to the right of the boxes that its level has already.
    """
    free: dict[int, float] = {}  # of each level, the first column without a box
    columns: list[float] = []
    for node, level in zip(nodes, levels, strict=True):
        above = [columns[source] for source in node.sources]
        column = sum(above) / len(above) if above else 0.0
        column = max(column, free.get(level, 0.0))
        free[level] = column + 1
        columns.append(column)
    places = [
        (_MARGIN + (column + 0.5) * step, _MARGIN + level * (_HEIGHT + _GAP_Y))
        for column, level in zip(columns, levels, strict=True)
    ]
    return places, _MARGIN + (max(columns, default=-1) + 1) * step  # -1: no boxes, no columns


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, top), (to_x, to_y) = start, end
    y = top + _HEIGHT
    middle = (y + to_y) / 2
    # A curve down to 5 pixels above the box, and a head of 8 x 7 pixels, which covers the end of the curve.
    return (
        f'<path d="M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y - 5:.1f}" '
        f'fill="none" stroke="{INK}" stroke-opacity=".55"/>'
        f'<path d="M{to_x - 4:.1f} {to_y - 7:.1f}L{to_x:.1f} {to_y:.1f}L{to_x + 4:.1f} {to_y - 7:.1f}z" fill="{INK}" '
        f'fill-opacity=".55"/>'
    )


def _box(place: tuple[float, float], node: Node) -> str:
    x, y = place
    width = _width(node)
    # Blue: the node does work of its own. Grey: it only combines other nodes.
    fill = "#4c8bf5" if node.has_effects else INK
    opacity = ".22" if node.has_effects else ".06"
    # Base lines in pixels from the upper edge: 24 for a line alone, 16 and 31 for two.
    return (
        f"<g><title>{escape(node.caption)} {escape(node.site)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="6" '
        f'fill="{fill}" fill-opacity="{opacity}" stroke="{INK}" stroke-opacity=".5"/>'
        f'<text x="{x:.1f}" y="{y + (16 if node.site else 24):.1f}" text-anchor="middle" fill="{INK}">'
        f"{escape(_cut(node.caption))}</text>"
        + (
            f'<text x="{x:.1f}" y="{y + 31:.1f}" text-anchor="middle" fill="{INK}" fill-opacity=".85" '
            f'font-size="10">{escape(_cut(node.site))}</text>'
            if node.site
            else ""
        )
        + "</g>"
    )
