"""What messages name in place of other libraries' names is there."""

import ast
import contextlib
import re

import pytest

import cutile as ct
from cutile.errors import KernelError
from cutile.frontend.build import build
from cutile.frontend.elsewhere import FUNCTIONS, METHODS, OUTPUTS, TENSORS
from cutile.frontend.source import take_source
from tests.support.kernels import define
from tests.support.programs import mut, tensor


def test_every_counterpart_exists() -> None:
    named = set(re.findall(r"\bct\.(\w+)", " ".join([*FUNCTIONS.values(), *METHODS.values(), *OUTPUTS.values()])))
    assert named <= set(dir(ct))
    methods = set(re.findall(r"\btile\.(\w+)", " ".join([*FUNCTIONS.values(), *METHODS.values()])))
    assert all(hasattr(ct.Tile, name) for name in methods)


def test_names_of_ours_are_not_corrected() -> None:
    assert not set(FUNCTIONS) & set(dir(ct))
    assert not [name for name in METHODS if hasattr(ct.Tile, name)]


KERNEL = """
def k(y: Mut, x: Tensor, v: Tensor):
    tile, acc, condition = y.load(), y.load(), y.load() > 0.0
    seed, counter, start, step, k = 7, ct.iota((8,)), 0, 1, 2
    axis, shape, axes, dtype, value, count, low, high = 0, (8, 8), (1, 0), f32, 1.0, 8, -1.0, 1.0
    places = ct.iota((8,))[:, None].broadcast((8, 8))
    index, mask = (ct.iota((8,)), 0), ct.iota((8,)) > 2
    {bound}
    found = {expression}
"""
BOUND = (
    "pass",
    "x, y, a, b = tile, tile, tile, tile",
    "a, b, index, divisor, low, high = 7, 2, ct.iota((8,)), 8, 0, 7",
    "x, y, axis = tile, tile, 1",
    "shape = (1, 8, 8)",
    "shape, dtype = (8,), ct.i32",
    "index = (0, 0)",
    "tile = ct.constant(0.0, (1, 1), f32)",
)
"""What the names of a counterpart may stand for."""


def expressions() -> list[str]:
    """The counterparts that are written out; the others are said in words."""
    parts: list[str] = []
    for text in (*FUNCTIONS.values(), *METHODS.values(), *TENSORS.values(), *OUTPUTS.values()):
        for part in re.split(r", or |, which |, whose | for elements| of loaded| of tiles|, of the", text):
            with contextlib.suppress(SyntaxError):
                ast.parse(part, mode="eval")
                parts.append(part)
    return list(dict.fromkeys(parts))


def compiles(expression: str, bound: str) -> bool:
    function = define(KERNEL.format(bound=bound, expression=expression))
    types = {"y": mut(8, 8), "x": tensor(2), "v": tensor(1)}
    try:
        build(function, take_source(function), types, {})
    except KernelError:
        return False
    return True


@pytest.mark.parametrize("expression", expressions())
def test_what_messages_say_to_write_compiles(expression: str) -> None:
    operands = "its operands are to have names that KERNEL and BOUND above bind"
    assert any(compiles(expression, bound) for bound in BOUND), f"{expression} does not compile: {operands}"


def test_most_of_them_are_written_out() -> None:
    assert len(expressions()) > 50
    assert not any(compiles("ct.no_such(tile)", bound) for bound in BOUND)
