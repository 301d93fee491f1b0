"""The SVG of an image that HTML holds."""

from __future__ import annotations

import base64


def svg_of(html: str) -> str:
    """The text of the first image of SVG in it. Raises IndexError where there is none."""
    return base64.b64decode(html.split("data:image/svg+xml;base64,")[1].partition('"')[0]).decode()
