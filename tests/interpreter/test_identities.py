"""What a fold begins with must change nothing: the checker tries it on the elements that there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from tests.support.kernels import kernel

NUMBERS = np.array([-3.0, 0.5, 2.0, -0.0, 7.0, 1e-3, -8.0, 4.0], np.float32)

GOOD = {
    "sum": ("0", "lambda a, b: a + b"),
    "product": ("1.0", "lambda a, b: a * b"),
    "maximum": ("-f32.inf", "lambda a, b: max(a, b)"),
    "largest by hand": ("f32.min", "lambda a, b: a if a > b else b"),
    "logarithms": ("-f32.inf", "lambda a, b: max(a, b) + ct.log(ct.exp(-abs(a - b)) + 1.0)"),
}
BAD = {
    "sum from 1": (
        "1",
        "lambda a, b: a + b",
        r"1 is no identity .* element -3.0, function\(identity, element\) makes -2.0",
    ),
    "maximum from 0": ("0", "lambda a, b: max(a, b)", r"of the element -3.0, function\(identity, element\) makes 0.0"),
    "the later": ("0", "lambda a, b: b", r"function\(element, identity\) makes 0.0"),
    "a count": ("0", "lambda a, b: a + 1.0", "of the element -3.0"),
}
TEXT = """
def folds(y: Mut, x: Tensor):
    t = x.load_tile((8,), (0,))
    y.store({call})
"""


def run(call: str, x: Any = NUMBERS, *, check: bool = True) -> Any:
    y = api.zeros((8,)).sync()
    op = kernel(TEXT.format(call=call))(y.partition((8,)), api.from_numpy(x).sync())
    return op.interpret(check=check).first().unpartition().to_numpy().sync()


@pytest.mark.parametrize("name", GOOD)
def test_what_changes_nothing_passes(name: str) -> None:
    identity, function = GOOD[name]
    run(f"ct.broadcast(ct.reduce(t, 0, {identity}, {function}), (8,))")
    run(f"ct.scan(t, 0, ct.reverse.REVERSE, {identity}, {function})")


@pytest.mark.parametrize("name", BAD)
def test_what_changes_an_element_is_found_and_shown(name: str) -> None:
    identity, function, words = BAD[name]
    for call in (
        f"ct.reduce(t, 0, {identity}, {function}) + t",
        f"ct.scan(t, 0, ct.reverse.FORWARD, {identity}, {function})",
    ):
        with pytest.raises(ct.IdentityError, match=words) as caught:
            run(call)
        assert "    y.store(ct." in str(caught.value)
        assert isinstance(caught.value, ValueError)
        run(call, check=False)


ARGMAX = """
def folds(y: Mut, x: Tensor):
    t = x.load_tile((8,), (0,))
    best = ct.reduce((t, ct.iota((8,))), 0, {identity}, lambda a, b: a if a[0] >= b[0] else b)
    y.store(ct.broadcast(best[1].astype(f32), (8,)))
"""


@pytest.mark.parametrize("first", [-np.inf, 0.0])
def test_tiles_that_are_folded_together(first: float) -> None:
    y, x = api.zeros((8,)).sync(), api.from_numpy(NUMBERS).sync()
    op = kernel(ARGMAX.format(identity=f"(float('{first}'), 0)"))(y.partition((8,)), x).interpret()
    if first == 0.0:
        with pytest.raises(ct.IdentityError, match=r"\(0\.0, 0\) is no identity .* element -3\.0 of tile 0"):
            op.sync()
    else:
        assert op.first().unpartition().to_numpy().sync()[0] == 4
