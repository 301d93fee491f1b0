"""What becomes of control flow in the IR. The backends' plans look for `for`: loops stay that where they can."""

from __future__ import annotations

from collections import Counter

import pytest

from cutile.dtypes import i32
from cutile.ir.control import For, If, While
from cutile.ir.core import Function
from tests.support.programs import mut, program, scalar, tensor

HEAD = "def kernel(y: Mut, x: Tensor, n: i32):\n    t = y.load()\n"


def built(body: str) -> Function:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    types = {"y": mut(8, dtype=i32), "x": tensor(1, i32), "n": scalar(i32)}
    return program(f"{HEAD}{lines}    y.store(t)\n", types)


def shape(body: str) -> dict[str, int]:
    """How many operations of each kind of control flow there are."""
    return dict(Counter(op.name for op in built(body).walk() if isinstance(op, For | While | If)))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("for i in range(n):\n    t = t + i", {"for": 1}),
        ("for i in range(n, 0, -2):\n    t = t + i", {"for": 1}),
        ("for i in range(n):\n    if i > 3:\n        continue\n    t = t + i", {"for": 1, "if": 1}),
        ("for i in range(n):\n    if i > 3:\n        break\n    t = t + i", {"while": 1, "if": 1}),
        (
            "for i in range(n):\n    for j in range(i):\n        if j > 3:\n            break\n        t += j",
            {"for": 1, "while": 1, "if": 1},
        ),
        ("for i in range(n):\n    if 1 > 2:\n        break\n    t = t + i", {"for": 1}),
        ("for i in range(4, 4):\n    t = t + i", {}),
        ("for i in ct.static_range(4):\n    t = t + i", {}),
        ("while False:\n    t = t + 1", {}),
        ("if 1 > 2:\n    t = t + 1", {}),
        ("if n > 2:\n    pass", {}),
        ("if n > 2 and n < 7 or n == 9:\n    t = t + 1", {"if": 1}),
        ("if n > 2 and ct.reduce_max(t, 0) < 7:\n    t = t + 1", {"if": 2}),
        ("if 2 < n < 7:\n    t = t + 1", {"if": 1}),
    ],
)  # fmt: skip
def test_the_form_of_control_flow(body: str, wanted: dict[str, int]) -> None:
    assert shape(body) == wanted


def carried(body: str) -> list[str]:
    (loop,) = [op for op in built(body).walk() if isinstance(op, For)]
    return [value.name for value in loop.results]


def test_a_loop_carries_what_it_assigns_and_no_more() -> None:
    assert carried("u = t\nfor i in range(n):\n    w = t * 2\n    t = w + i") == ["t"]


def test_a_loop_passes_on_what_is_used_after_it() -> None:
    assert carried("for i in range(4):\n    u = t * i\n    w = u\nt = u") == ["u"]
    assert carried("for i in range(4):\n    t = t * i\nt = t + i") == ["t", "i"]
    assert carried("i = n\nfor i in range(n):\n    t = t * i") == ["t"]
    assert sorted(carried("i = n\nfor i in range(n):\n    t = t * i\nt = t + i")) == ["i", "t"]


def test_the_same_text_gives_the_same_ir() -> None:
    body = "m = 0\nfor i in range(9):\n    if i > n:\n        break\n    m = m + t\nt = t + m + i"
    assert built(body) == built(body)
