"""Operators that a dataclass or named tuple defines: a kernel calls the methods that Python calls."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cutile import api, i32
from cutile.errors import KernelTypeError
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import define, kernel

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
SPELLED = dict(zip(BINARY, ("+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>"), strict=True))
ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
PREFIX = {"neg": "-", "pos": "+", "invert": "~"}


def methods(names: tuple[str, ...], kind: str, factor: int) -> str:
    """Methods whose results tell which of them was called."""
    lines: list[str] = []
    for k, name in enumerate(names, factor):
        accepts = f"isinstance(o, {'Number' if k % 3 else '(Number, Pair)'})" if k % 2 else "True"
        lines += [f"    def __{name}__(self, o):", f"        if not {accepts}:", "            return NotImplemented"]
        lines += [f"        return {kind}(self.t * {2 * k + 3} + number(o))"]
    return "\n".join(lines)


def classes() -> Any:
    """A dataclass with all operators, one that derives from it, and a named tuple."""
    exchanged = tuple(f"r{name}" for name in BINARY)
    prefixes = "\n".join(
        f"    def __{name}__(self):\n        return Number(self.t * {k} - 5)"
        for k, name in enumerate((*PREFIX, "abs"), 90)
    )
    text = f"""
from dataclasses import dataclass
from typing import Any, NamedTuple


def number(o):
    return o.t if isinstance(o, (Number, Pair)) else -(-o)  # of no other tuple


@dataclass(frozen=True)
class Number:
    t: Any
    __array_ufunc__ = None  # arrays of NumPy leave operators to this class, as tiles do

{methods((*BINARY, *exchanged, *ORDER), "Number", 1)}
{prefixes}


class Derived(Number):
{methods((*BINARY[:5], *exchanged[:9:2], "lt", "ge"), "Derived", 40)}


class Pair(NamedTuple):
    t: Any
    u: Any = 1

{methods((*BINARY[1::2], *exchanged[::3], "gt"), "Number", 60)}


def made(a, b, c):
    return Number(a), Derived(b), Pair(c)
"""
    return define(text)


MADE = classes()
COUNT = 48


def expression(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(("p", "q", "r", "p", "q", "t", "3"))
    sides = [expression(draw, depth - 1) for _ in range(2)]
    if not set("pqr") & set("".join(sides)):
        sides[draw.randrange(2)] = draw.choice("pqr")
    if draw.random() < 0.1:
        return f"{draw.choice((*PREFIX.values(), 'abs'))}({draw.choice(('p', 'q'))})"
    return f"({sides[0]} {draw.choice((*SPELLED.values(), *ORDER.values()))} {sides[1]})"


def meaning(text: str, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Any:
    """What Python makes of it; None where it refuses it, or makes no object of the classes of it."""
    p, q, r = MADE(x, y, x - y)
    try:
        result = eval(text, {"abs": abs}, {"p": p, "q": q, "r": r, "t": x})
    except (TypeError, ValueError):
        return None
    return result if hasattr(result, "t") and not isinstance(result, type(r)) else None


def expressions(count: int) -> list[str]:
    draw, texts = random.Random(1), list[str]()
    x = np.arange(4, dtype=np.int32)
    while len(texts) < count:
        text = expression(draw, draw.choice((1, 1, 2)))
        with np.errstate(all="ignore"):
            if meaning(text, x + 1, x + 2) is not None and text not in texts:
                texts.append(text)
    return texts


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_operators_call_the_methods_that_python_calls(backend: str) -> None:
    texts = expressions(COUNT)
    lines = "\n".join(f"    z.store(number({text}).reshape((1, 4)), ({k}, 0))" for k, text in enumerate(texts))
    text = "def own(y: Mut, a: Tensor, b: Tensor):\n    z = y.partition_mut((1, 4))\n"
    text += "    t, s = a.load_tile((4,), 0), b.load_tile((4,), 0)\n    p, q, r = made(t, s, t - s)\n"
    own = kernel(f"{text}{lines}\n", made=MADE, number=MADE.__globals__["number"])
    x, y = np.arange(1, 5, dtype=np.int32), np.arange(2, 6, dtype=np.int32)
    with on(backend):
        got = own(api.zeros((COUNT, 4), i32).partition((COUNT, 4)), x, y).first().unpartition().sync().numpy()
    for k, text in enumerate(texts):
        np.testing.assert_array_equal(got[k], meaning(text, x, y).t, err_msg=text)


def test_a_class_without_the_operator_says_which_method_to_define() -> None:
    text = "def bare(y: Mut):\n    q = made(y.load())\n    y.store((q {} q).t)\n"
    lines = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Bare:\n    t: ct.Tile\n"
    bare = define(f"{lines}def made(t):\n    return Bare(t)\n")
    for name, spelling in (SPELLED | ORDER).items():
        with pytest.raises(KernelTypeError, match=f"cannot use a Bare.*\n(.*\n)*Define __{name}__ in Bare"):
            kernel(text.format(spelling), made=bare)(api.zeros((4,)).partition((4,))).sync()


def test_a_method_that_takes_no_such_operand_is_named() -> None:
    text = "def own(y: Mut):\n    p, _, _ = made(y.load(), 0, 0)\n    y.store((p + 1).t)\n"
    with pytest.raises(KernelTypeError, match="__add__ of Number gives NotImplemented"):
        kernel(text, made=MADE)(api.zeros((4,)).partition((4,))).sync()


def test_a_method_that_changes_is_seen() -> None:
    """A kernel depends on the operators of the classes that it uses."""
    text = "def doubled(y: Mut):\n    p, _, _ = made(y.load(), 0, 0)\n    y.store((p + p).t)\n"
    doubled = kernel(text, made=MADE)
    kind: Any = MADE.__globals__["Number"]

    def run() -> list[int]:
        return doubled(api.full(7, (2,), i32).partition((2,))).first().unpartition().sync().numpy().tolist()

    before, own = run(), kind.__add__
    kind.__add__ = kind.__sub__
    try:
        assert run() != before
    finally:
        kind.__add__ = own
    assert run() == before


IN_PLACE = """
from dataclasses import dataclass
from typing import Any


def number(o):
    return o.t if isinstance(o, Sum) else o


@dataclass(frozen=True)
class Sum:
    t: Any

{methods}


class Derived(Sum):
    def __isub__(self, o):
        return NotImplemented  # so that __sub__ is asked


def made(a):
    return Sum(a), Derived(a + 1)
"""


def in_place_classes() -> Any:
    """Classes with a method for each operator in place, whose results tell it from the plain one."""
    lines: list[str] = []
    for k, name in enumerate(BINARY, 2):
        # Every third has no operator in place, and Python takes the plain one.
        for factor, prefix in ((k, ""), (k + 20, "i")):
            if not prefix or k % 3:
                lines += [f"    def __{prefix}{name}__(self, o):", f"        return Sum(self.t * {factor} + number(o))"]
    return define(IN_PLACE.format(methods="\n".join(lines)))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_an_operator_in_place_calls_the_method_that_python_calls(backend: str) -> None:
    operands = in_place_classes()
    # A loop carries values of one class; the methods of a Derived give a Sum.
    steps = [(subject, spelling) for subject in ("p", "q") for spelling in SPELLED.values()]
    text = "def own(y: Mut, a: Tensor):\n    z, t = y.partition_mut((1, 4)), a.load_tile((4,), 0)\n    p, q = made(t)\n"
    for row, (subject, spelling) in enumerate(steps):
        loop = "    for _ in range(2):\n    " if subject == "p" else ""
        text += f"    r = {subject}\n{loop}    r {spelling}= t\n    z.store(r.t.reshape((1, 4)), ({row}, 0))\n"
    x = np.arange(1, 5, dtype=np.int32)
    with on(backend):
        y = api.zeros((len(steps), 4), i32).partition((len(steps), 4))
        got = kernel(text, made=operands)(y, x).first().unpartition().sync().numpy()
    for row, (subject, spelling) in enumerate(steps):
        p, q = operands(x)
        values: dict[str, Any] = {"r": p if subject == "p" else q, "t": x}
        exec(f"r {spelling}= t\n" * (2 if subject == "p" else 1), {}, values)
        np.testing.assert_array_equal(got[row], values["r"].t, err_msg=f"{subject} {spelling}= t")
