"""What a notebook shows of tensors and partitions."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from cutile import api, f32
from cutile.host.display import card, drawing
from tests.support.pictures import svg_of

SVG = "{http://www.w3.org/2000/svg}"


def shown(item: Any) -> str:
    return item._repr_html_()


def picture(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html if html.startswith("<svg") else svg_of(html))


def lines(html: str) -> int:
    return sum(path.get("d", "").count("M") for path in picture(html).iter(f"{SVG}path"))


def test_a_tensor_is_a_card_with_its_shape_to_scale() -> None:
    x = api.zeros((4, 8), f32).sync()
    html = shown(x)
    for fact in ("Tensor", "f32", "(4, 8)", "(8, 1) elements", "128", "cpu"):
        assert fact in html
    outline = picture(html).findall(f"{SVG}rect")[-1]
    assert float(outline.get("width", "")) == 2 * float(outline.get("height", ""))
    assert lines(html) == 0


def test_a_held_tensor_says_by_whom() -> None:
    x = api.zeros((4, 8), f32).sync()
    part = x.partition((2, 2))
    assert "held by" in shown(x)
    part.unpartition()
    assert "held by" not in shown(x)


@pytest.mark.parametrize(
    ("tile", "expected", "shaded"),
    [((2, 2), 1 + 3, 0), ((4, 8), 0, 0), ((3, 8), 1, 1), ((4, 3), 2, 1), ((8, 16), 0, 2)],
)
def test_a_partition_shows_its_tiles(tile: tuple[int, int], expected: int, shaded: int) -> None:
    html = shown(api.zeros((4, 8), f32).partition(tile).sync())
    assert str(tile) in html
    assert lines(html) == expected
    assert len(picture(html).findall(f"{SVG}rect")) == 2 + shaded


def test_other_ranks() -> None:
    assert drawing(()) == ""
    assert lines(drawing((7,), (2,))) == 3
    assert lines(drawing((2, 3, 4, 6), (1, 1, 2, 3))) == 2
    assert lines(drawing((1_000_000, 10), (1, 5))) == 1  # a million lines would be a black box


def test_text_is_escaped() -> None:
    assert "<b>" not in card("<b>", [("<b>", "<b>")], "")
