"""Operations and graphs as text and as drawings."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, value, zip
from cuda_async.picture import MAX_NODES, Node, Picture, picture_of_op, picture_of_steps
from cuda_async.recorder import Step
from cuda_async.svg import html_of
from tests.cuda_async.work import Affine, CopyTo, words
from tests.support.pictures import svg_of

SVG = "{http://www.w3.org/2000/svg}"


def increment(x: int) -> int:
    return x + 1


def shown(item: Any) -> str:
    """The HTML that a notebook shows."""
    return item._repr_html_()


def drawing(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg_of(html))


def texts(html: str) -> list[str]:
    return ["".join(each.itertext()) for each in drawing(html).iter(f"{SVG}text")]


def without_sites(diagram: str) -> list[str]:
    return [line.rpartition("test_picture.py:")[0].rstrip() or line for line in diagram.splitlines()]


def test_the_composition_as_text(sim_device: Device) -> None:
    x, y = words(1).sync(), words(2).sync()
    five = value(5).shared()
    op = zip(Affine(x, 2, 0), CopyTo(y, words(3).sync()), five, five.clone()).map(len)
    assert without_sites(op.diagram()) == [
        "map, built, made at",
        "  1  affine writes x",
        "  2  copyto writes destination, reads source",
        "  3  value 5",
        "  4  shared                                   after 3",
        "  5  shared                                   after 3",
        "  6  zip                                      after 1, 2, 4, 5",
        "  7  map len                                  after 6",
    ]
    assert repr(op).startswith("<map(zip(affine, copyto, shared(value), shared(value))) made at ")
    op.discard()
    assert op.diagram().startswith("map, discarded")


def test_a_result_that_is_there_has_no_past(sim_device: Device) -> None:
    one = value(1).shared()
    one.sync()
    assert [node.label for node in picture_of_op(one).nodes] == ["shared"]


def test_the_branches_of_unzip_share_one_source() -> None:
    left, right = zip(value(1), value(2)).unzip()
    nodes = picture_of_op(zip(right, left)).nodes
    assert [node.label for node in nodes] == ["value", "value", "zip", "unzip[1]", "unzip[0]", "zip"]
    assert [node.sources for node in nodes] == [(), (), (0, 1), (2,), (2,), (3, 4)]
    for branch in (left, right):
        branch.discard()


def test_a_chain_of_ten_thousand_is_cut() -> None:
    op: DeviceOp[int] = value(0)
    for _ in range(10_000):
        op = op.map(increment)
    picture = picture_of_op(op)
    assert len(picture.nodes) == MAX_NODES + 1
    assert picture.nodes[0].label == f"… {10_001 - MAX_NODES:,} more"
    assert picture.nodes[1].sources == (0,)
    assert len(repr(op)) < 200 + len(__file__)
    assert len(drawing(shown(op)).findall(f"{SVG}g")) == MAX_NODES + 1


def test_the_drawing_has_a_box_for_each_operation_and_an_arrow_for_each_edge(sim_device: Device) -> None:
    op = zip(value(1), value(2).map(increment)).map(lambda pair: pair)
    html = shown(op)
    root = drawing(html)
    assert len(root.findall(f"{SVG}g")) == 5
    assert len([path for path in root.findall(f"{SVG}path") if path.get("fill") == "none"]) == 4
    assert "map increment" in texts(html)
    assert not {"script", "style", "link", "image"} & {each.tag.removeprefix(SVG) for each in root.iter()}
    op.discard()


def test_whatever_a_value_says_is_text() -> None:
    html = shown(value("<script>&").map(len))
    assert "<script" not in html
    assert "value '<script>&'" in texts(html)


def test_boxes_do_not_overlap() -> None:
    ops: Any = [value(n) for n in range(6)]
    html = shown(zip(zip(*ops[:3]), zip(*ops[3:]).map(len), value("a rather long text, longer than others")))
    boxes = [[float(each.get(key, "")) for key in ("x", "y", "width")] for each in drawing(html).iter(f"{SVG}rect")]
    for number, (x, y, width) in enumerate(boxes):
        assert x >= 0
        assert x + width <= float(drawing(html).get("width", ""))
        for other in boxes[number + 1 :]:
            assert other[1] != y or other[0] >= x + width or x >= other[0] + other[2]


def test_a_graph_shows_what_follows_what(device: Device) -> None:
    x, y = words(1, count=8).sync(), words(2, count=8).sync()
    op = zip(Affine(x, 2, 0).then(lambda s: Affine(s, 3, 1)), Affine(y, 1, 1)).then(lambda p: CopyTo(p[0], p[1]))
    with op.graph() as graph:
        assert without_sites(graph.diagram())[1:] == [
            "  1  affine writes #1",
            "  2  affine writes #1            after 1",
            "  3  affine writes #2",
            "  4  copyto writes #1, reads #2  after 2, 3",
        ]
        html = shown(graph)
        assert len(drawing(html).findall(f"{SVG}g")) == 4
    assert "closed" in graph.diagram()


def test_a_scope_shows_its_records_and_readers_are_not_ordered(device: Device) -> None:
    x, y, z = (words(n, count=8).sync() for n in range(3))
    stream = device.new_stream()
    with CudaGraph.scope(stream) as scope:
        scope.record(CopyTo(y, x))
        scope.record(CopyTo(z, x))
        scope.record(Affine(x, 2, 0))  # behind both readers
    nodes = scope.graph.picture().nodes
    assert [node.sources for node in nodes] == [(), (), (0, 1)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, [()]), (1, [(), (0,)]), (2, [(), (), (0, 1)]), (3, [(), (), (0,), (1, 2)]), (5, [(), (), (0,), (1,), (2,)])],
)
def test_steps_that_are_not_drawn_follow_what_they_use(limit: int, expected: list[tuple[int, ...]]) -> None:
    steps = [Step("fill", ("a.py", 1), {storage: True}) for storage in (1, 2, 1, 2, 1)]
    picture = picture_of_steps("steps", steps, limit)
    assert [node.sources for node in picture.nodes] == expected
    assert picture.nodes[-1].label == ("fill" if limit == 5 else f"… {5 - limit} more")


def test_a_recorded_failure_leaves_no_step_open(sim_device: Device) -> None:
    x = words(1, count=8).sync()

    def fail(_: object) -> DeviceOp[Any]:
        raise KeyError("no")

    stream = sim_device.new_stream()
    for _ in range(2):
        with pytest.raises(KeyError, match="no"):
            Affine(x, 2, 0).then(fail).graph_on(stream)
    assert len(Affine(x, 2, 0).graph_on(stream).picture().nodes) == 1


def test_an_empty_picture_is_drawn() -> None:
    assert Picture("nothing", ()).text() == "nothing"
    assert "<svg" in svg_of(html_of(Picture("nothing", ())))
    assert html_of(Picture("<one>", (Node("a", "", "", ()),))).startswith("<div")
