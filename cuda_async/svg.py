"""A `Picture` as SVG, for notebooks: boxes and arrows from top to bottom.

No script, no style sheet, nothing loaded. It is the source of an image: of a notebook that somebody else has run, pages
show images, and take SVG that stands in the text away but for its words.
"""

from __future__ import annotations

from cuda_async.picture import Node, Picture

__all__ = ("INK", "MONOSPACED", "escape", "html_of", "image")

INK = "#767676"
"""The colour of lines and letters in an image, which does not know the page's: 4.5 to 1 on white, as much on black."""

MONOSPACED = "font:12px/1.35 ui-monospace,Menlo,Consolas,monospace"
"""The font of what notebooks are shown. Each element says it: pages have other ones for `pre` and for tables."""

_CHARACTER, _PADDING = 7.2, 12.0  # pixels of a 12-pixel monospaced letter, beside the text
_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 40.0, 18.0, 30.0, 6.0
_LONGEST = 34
_STYLE = f"{MONOSPACED};color:inherit"


def escape(text: str) -> str:
    """Text as HTML has it."""
    import html  # here: few processes show pictures, and it takes longer than a launch

    return html.escape(text)


def html_of(picture: Picture) -> str:
    """The picture with its title, as one element. All text is escaped."""
    levels = _levels(picture.nodes)
    width = max((_width(node) for node in picture.nodes), default=0.0)
    places, right = _places(picture.nodes, levels, width + _GAP_X)
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
    """The SVG as an element that pages show which trust nothing else.

    `label` is its text, for people who do not see it.
    """
    import base64

    source = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(label)}" style="max-width:100%" src="data:image/svg+xml;base64,{source}">'


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _width(node: Node) -> float:
    longest = max(len(_cut(node.caption)), len(_cut(node.site)))
    return longest * _CHARACTER + 2 * _PADDING


def _levels(nodes: tuple[Node, ...]) -> list[int]:
    levels: list[int] = []
    for node in nodes:
        levels.append(1 + max((levels[source] for source in node.sources), default=-1))
    return levels


def _places(nodes: tuple[Node, ...], levels: list[int], step: float) -> tuple[list[tuple[float, float]], float]:
    """The middle of the upper edge of each box, and how far right the boxes reach."""
    ends: dict[int, float] = {}
    columns: list[float] = []
    for node, level in zip(nodes, levels, strict=True):
        wished = [columns[source] for source in node.sources]
        column = sum(wished) / len(wished) if wished else 0.0
        column = max(column, ends.get(level, 0.0))
        ends[level] = column + 1
        columns.append(column)
    places = [
        (_MARGIN + (column + 0.5) * step, _MARGIN + level * (_HEIGHT + _GAP_Y))
        for column, level in zip(columns, levels, strict=True)
    ]
    return places, _MARGIN + (max(columns, default=-1) + 1) * step


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, top), (u, v) = start, end
    y = top + _HEIGHT
    middle = (y + v) / 2
    return (
        f'<path d="M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v - 5:.1f}" fill="none" '
        f'stroke="{INK}" stroke-opacity=".55"/>'
        f'<path d="M{u - 4:.1f} {v - 7:.1f}L{u:.1f} {v:.1f}L{u + 4:.1f} {v - 7:.1f}z" fill="{INK}" '
        f'fill-opacity=".55"/>'
    )


def _box(place: tuple[float, float], node: Node) -> str:
    x, y = place
    width = _width(node)
    fill = "#4c8bf5" if node.has_effects else INK
    opacity = ".22" if node.has_effects else ".06"
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
