"""Helpers of whole numbers whose text Python runs as well: the kernel gives what Python gives."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from cutile.errors import KernelError
from tests.support.kernels import kernel
from tests.support.memory import launch


@dataclass(frozen=True)
class Named:
    """A number, and a note that `==` does not look at."""

    n: Any
    note: Any = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class Derived(Named):
    """Its `==` is that of `Named`, which knows nothing of `more`."""

    more: Any = 0


@dataclass(frozen=True)
class Residue:
    """A number modulo 3."""

    n: Any

    def __eq__(self, other: Any) -> bool:
        return self.n % 3 == other.n % 3

    def __hash__(self) -> int:
        return hash(self.n % 3)


class First(NamedTuple):
    """A pair of which `==` compares the first item."""

    n: Any
    other: Any

    def __eq__(self, other: Any) -> bool:
        return self.n == other[0]

    __hash__ = None  # pyright: ignore


class Mode(enum.Enum):
    """Names without numbers."""

    RELU = "relu"


class Pairs:
    """A tuple that a pattern names."""

    SMALL = (1, 2)
    MODE = Mode.RELU
    NONE = None
    TABLE = {1: 2}  # noqa: RUF012 (a pattern names it)
    SHAPE = Named(2)


class Color(enum.IntEnum):
    """Numbers with names."""

    RED = 1
    BLUE = 2


NAMES: dict[str, Any] = {each.__name__: each for each in (Named, Derived, Residue, First, Pairs, Color)}
NAMES["math"] = math
TEXTS = (
    # dataclasses and named tuples compare as their classes say
    "1 if Named(n, 1) == Named(n, 2) else 0",
    "1 if Named(2, 1) == Named(2, 2) else 0",
    "1 if Named(n, 1) != Named(2, 1) else 0",
    "1 if (Named(n, 1), 2) == (Named(2, 5), 2) else 0",
    "1 if Named(n, 7) in (Named(1), Named(5)) else 0",
    "1 if Named(n) == (n, 0) or Named(n) == None else 0",
    "1 if Derived(n, 1, 2) == Derived(n, 3, 4) else 0",
    "1 if Residue(n) == Residue(2) else 0",
    "1 if Residue(5) == Residue(2) else 0",
    "1 if Residue(n) != Residue(2) else 0",
    "1 if Residue(n) in (Residue(1), Residue(0)) else 0",
    "1 if First(n, 1) == First(2, 5) else 0",
    "1 if First(n, 1) == (2, 5) else 0",
    # lists and dicts are themselves
    "1 if [n] == (n,) or (n,) == [n] else 2 if [n] == [n] else 3",
    "1 if {1: n, 'a': 3} == {'a': 3, 1: 2} else 0",
    "1 if {1: n} == {2: n} or {1: 2} == {1: 3} or {1: n} == (1,) or {1: n} == {1: n, 2: n} else 0",
    "1 if {1: 2} == {1: 2} and {1: n} != {1: n + 1} and {1: n} in ((1,), {1: n}) else 0",
    # operators
    "n // -2 * 100 + n % -3 * 10 + -n // 2",
    "divmod(n - 7, -3)[0] * 100 + divmod(n - 7, -3)[1]",
    "n << 2 | n >> 1 ^ 5 & n",
    "1 if 0 < n < 4 != 2 else 7",
    "(n and 5) + (n or 9)",
    "-n ** 2 + ~n",
    "5 if n is None else Color.BLUE * n + (Color.RED == 1)",
    "int(n > 1) + int((0 <= n < 3) == True)",
    # functions of Python's
    "sum((True,)) + sum((n,), True) + n",
    "sum([1 if i else n for i in range(3)]) + max([n, 1]) * 10 + min((n, 2)) * 100",
    "sum(i * n for i in range(4) if i % 2) + len([n] * 3)",
    "sum(x * y for x, y in zip((1, n), (3, 4))) + sum(i * x for i, x in enumerate((n, 2), 1))",
    "sum((True,)) + sum((True, False)) + n",
    "len(str(sum((7,), 0.0))) + len(str(sum((True,)))) + len(str(math.prod((True,)))) + n",
    "(lambda *a, k=n, **kw: sum(a) + k * 10 + len(kw))(*(n, 1), z=2)",
)
STATEMENTS = (
    # patterns that name a tuple
    "match (n, 2):\n        case Pairs.SMALL:\n            return 1\n    return 0",
    "match (1, 2):\n        case Pairs.SMALL:\n            return n\n    return -n",
    # patterns of values that no number equals
    "match n:\n        case Pairs.MODE:\n            return 1\n"
    "        case 'a' | Pairs.SMALL | Pairs.NONE:\n            return 2\n"
    "        case Pairs.TABLE | Pairs.SHAPE | Color.BLUE:\n            return 3\n    return 0",
    "match Named(n):\n        case Named(Pairs.MODE):\n            return 1\n"
    "        case Named(2):\n            return 2\n    return 0",
    "match {1: n}:\n        case Pairs.TABLE:\n            return 1\n    return 0",
    # assignments
    "a = n\n    a, b = 1, a\n    return a * 10 + b",
    "(a, (b, *c)), d = (n, (1, 2, 3)), 4\n    return a + b * 10 + c[1] * 100 + d * 1000",
    "x = n\n    y = x + (x := 3) * 10 + x\n    return y",
    "a = (n,)\n    b = a\n    a += (2,)\n    return len(a) * 10 + len(b)",
    "t = 0\n    for i in range(n):\n        i = i * 2\n        t += i\n    return t",
    # lists and iterators of one name
    "a = [n]\n    a += [2]\n    a *= 2\n    b = a\n    a = a + [3]\n    return len(a) * 10 + len(b)",
    "a = [n for _ in range(2)]\n    a += (3, 4)\n    return sum(a)",
    "a = [n]\n    if n > 1:\n        a = [5]\n    a += [2]\n    return len(a) * 10 + a[0]",
    "a, *b = (n, 1, 2)\n    b += [3]\n    return sum(b)",
    "def longer(ts):\n        ts += [2]\n        return ts\n    return len(longer([n]))",
    "z = zip((1, 2), (n, 4))\n    t = 0\n    for a, b in z:\n        t += a * b\n    return t",
    "t = 0\n    for i in range(3):\n        g = (q * i for q in (1, n))\n        t += sum(g)\n    return t",
    # scopes
    "fs = [lambda x: x + i for i in range(3)]\n    return fs[0](n)",
    "t = n\n    def g():\n        return t\n    t = t + 5\n    return g()",
    "g = lambda x, y=n: x * 10 + y\n    n = n + 1\n    return g(n)",
    "def even(k):\n        return True if k == 0 else odd(k - 1)\n"
    "    def odd(k):\n        return False if k == 0 else even(k - 1)\n    return 3 if even(6) else n",
)


@pytest.mark.parametrize("backend", ["reference", "interpret"])
@pytest.mark.parametrize("text", [*(f"return {each}" for each in TEXTS), *STATEMENTS])
def test_kernel_gives_what_python_gives(text: str, backend: str) -> None:
    """For a parameter, which has a dtype, and for an extent, which is a plain number."""
    function = f"def f(n):\n    {text}\n"
    names: dict[str, Any] = dict(NAMES)
    exec(function, names)
    for argument in ("n", "x.shape[0]"):
        body = f"    y.store(ct.broadcast(ct.i64(f({argument})), y.shape))\n"
        launched = kernel(f"{function}def k(y: Mut, x: Tensor, n: i32):\n{body}", **NAMES)
        for n in (0, 1, 2, 5):
            y = np.zeros(2, np.int64)
            launch(launched, (y, (2,)), np.zeros(n, np.float32), n, backend=backend)
            assert y.tolist() == [names["f"](n)] * 2, (argument, n)


def test_plain_numbers_are_integers_and_floats_of_python() -> None:
    """An extent is an int; a parameter has its dtype."""
    body = "int(isinstance(x.shape[0], int)) + 2 * int(isinstance(x.shape[0] / 2, float))"
    body += " + 4 * int(isinstance(n, int | float)) + 8 * int(isinstance(n, i32))"
    body += " + 16 * int(isinstance(x.shape[0], float))"
    launched = kernel(f"def k(y: Mut, x: Tensor, n: i32):\n    y.store(ct.broadcast(ct.i64({body}), y.shape))\n")
    y = np.zeros(2, np.int64)
    launch(launched, (y, (2,)), np.zeros(3, np.float32), 1)
    assert y.tolist() == [1 + 2 + 8] * 2


@dataclass(frozen=True, eq=False)
class Alone:
    """An object that equals itself alone."""

    n: Any


REFUSED = {
    # lists under several names
    "a = [n]\n    b = a\n    a += [2]\n    return len(b)": "not the only name of this list",
    "a = [n]\n    b = (a, 1)\n    a *= 2\n    return len(b[0])": "not the only name of this list",
    "a = [1] + [n]\n    b = a\n    a += [2]\n    return len(b)": "not the only name of this list",
    "def add(ts):\n        ts += [2]\n    a = [n]\n    add(a)\n    return len(a)": "not the only name of this list",
    "a = [n]\n    b = {1: a}\n    a += [2]\n    return len(b[1])": "not the only name of this list",
    "a = [n]\n    f = lambda c=a: len(c)\n    a += [2]\n    return f()": "not the only name of this list",
    "a = [n]\n    b = [a for _ in range(2)]\n    a += [2]\n    return len(b[0])": "not the only name of this list",
    "a = [n]\n    b = Named(a, 1)\n    a += [2]\n    return len(b.n)": "not the only name of this list",
    "a = [n]\n    b = a if n > 0 else a\n    a += [2]\n    return len(b)": "not the only name of this list",
    "a = [n]\n    b = a\n    if n > 0:\n        n = 2\n    a += [2]\n    return len(b)": "not the only name",
    "a = [n]\n    b = [2]\n    c = a if n > 0 else b\n    c += [2]\n    return len(a)": "not the only name",
    "a, *b = (n, 1)\n    c = b\n    b += [2]\n    return len(c)": "not the only name of this list",
    "match (n, 1):\n        case (_, *b):\n            c = b\n    b += [2]\n    return len(c)": "not the only name",
    "a = [n]\n    f = lambda *ts: ts\n    b = f(a)\n    a += [2]\n    return len(b[0])": "not the only name",
    "a = [n]\n    f = lambda **ts: ts\n    b = f(q=a)\n    a += [2]\n    return len(b['q'])": "not the only name",
    "f = lambda *ts: ts\n    b = f([n])\n    a = b[0]\n    a += [2]\n    return len(b[0])": "not the only name",
    "def f(a=[n]):\n        a += [2]\n        return len(a)\n    return f() * 10 + f()": "not the only name",
    # iterators that were gone through
    "z = zip((1, 2), (n, 4))\n    if n > 0:\n        n = 2\n    return len(list(z)) + len(list(z))": "gone through",
    "z = zip((1, 2), (n, 4))\n    return len(list(z)) * 10 + len(list(z))": "gone through in line 3",
    "g = (q for q in (1, n))\n    return sum(g) * 10 + sum(g)": "gone through in line 3",
    "r = reversed((1, n))\n    a, b = r\n    return sum([a, b, *r])": "gone through in line 3",
    "e = enumerate((1, n))\n    for i, q in e:\n        n += q\n    return n + len([*e])": "gone through in line 3",
    "g = (q for q in (1, n))\n    t = 0\n    for i in range(3):\n        t += sum(g)\n    return t": "iteration before",
    "g = (q for q in (1, n))\n    t = 0\n    for i in (1, 2):\n        t += max(g)\n    return t": "iteration before",
    # objects
    "return 1 if Alone(n) == Alone(n) else 0": "Alone has eq=False",
    "return 1 if (1, Alone(2)) == (1, Alone(2)) else 0": "Alone has eq=False",
}


@pytest.mark.parametrize("text", REFUSED)
def test_meaning_that_kernels_do_not_have_is_refused(text: str) -> None:
    launched = kernel(
        f"def f(n):\n    {text}\ndef k(y: Mut, n: i32):\n    y.store(ct.broadcast(ct.i64(f(n)), y.shape))\n",
        **NAMES,
        Alone=Alone,
    )
    with pytest.raises(KernelError, match=REFUSED[text]):
        launch(launched, (np.zeros(2, np.int64), (2,)), 1)
