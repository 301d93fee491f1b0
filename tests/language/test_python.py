"""Python in kernels: functions that Python computes, `and` and `or`, comparisons of tuples, constants behind loops."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Const, Mut, Tensor, api, f32, i32
from cutile.errors import KernelTypeError
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import kernel

X = np.arange(8, dtype=np.float32) - 3


def part() -> Any:
    return api.zeros((8,)).sync().partition((8,))


def result(op: Any) -> Any:
    return op.sync().y.unpartition().to_numpy().sync()


# Functions that Python computes

calls: list[int] = []


def primes(n: int) -> list[int]:
    """A list, a `while`, a `break` and a nested function."""
    primes: list[int] = []

    def divides(k: int) -> bool:
        return any(k % each == 0 for each in primes)

    k = 2
    while True:
        if len(primes) == n:
            break
        if not divides(k):
            primes.append(k)
        k += 1
    return primes


@functools.lru_cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def factor(n: int) -> int:
    table = {each: n % each for each in range(1, n + 1)}
    return max(each for each, rest in table.items() if rest == 0 and each < n)


@functools.cache
def scaled(t: Any, n: int) -> Any:
    return t * n


def noted(n: int) -> int:
    calls.append(n)
    return n


@ct.entry
def constants(y: Mut, x: Tensor, *, N: Const = 6):
    ct.static_assert(fibonacci(N) < 100)
    ct.static_assert(primes(N)[-1] == 13 and sum(primes(3)) == 10)
    ct.static_assert(math.gcd(factor(4 * N), 8) == 4)
    t = x.load_tile((8,), (0,))
    for p in primes(2):
        t = t * p
    parts = [ct.constant(i, (i + 1,), f32) for i in range(3)]
    for i, each in enumerate(range(2)):
        t += ct.reduce_sum(parts[i + 1], 0) * each
    table = ct.static_eval({"a": [fibonacci(k) for k in range(N)], "b": {3}}["a"])
    t += ct.static_eval(functools.reduce(operator.add, table)) + len(table) + ct.static_eval(y.shape[0] ** 2)
    y.store(scaled(t, 2))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_functions_of_constants_are_computed(backend: str) -> None:
    with on(backend):
        x = api.from_numpy(X).sync()
        np.testing.assert_array_equal(result(constants(part(), x)), 2 * (6 * X + 6 + 12 + 6 + 64))


def test_what_has_effects_is_not_computed() -> None:
    """A function that changes something outside is compiled, which says what cannot be."""
    text = "def effect(y: Mut):\n    y.store(noted(1))\n"
    with pytest.raises(KernelTypeError, match="'calls' comes from outside the kernel"):
        kernel(text, noted=noted)(part()).sync()
    assert calls == []


def test_what_a_computed_function_reads_is_watched() -> None:
    scope: dict[str, Any] = {"BASE": 3}
    source = "def power(n):\n    r = 1\n    for _ in range(n):\n        r *= BASE\n    return r\n"
    reader: Any = kernel(source + "\ndef reading(y: Mut, *, N: Const = 2):\n    y.store(power(N))\n", **scope)
    assert result(reader(part()))[0] == 9
    reader.__wrapped__.__globals__["BASE"] = 5
    assert result(reader(part()))[0] == 25
    assert result(reader(part(), N=3))[0] == 125


OBJECTS = """
@dataclass(frozen=True)
class Line:
    slope: int = 1
    STEP = 1

    def at(self, n):
        return self.slope * n * BASE

    @property
    def twice(self):
        return 2 * BASE

    def __add__(self, other):
        return other + BASE

class Kind(enum.Enum):
    ODD = 1

    def rank(self):
        return self.value * BASE

LINE = Line()
PAIR = (LINE, 2)

def first(n, kind=Kind.ODD):
    return max([USE])

def reading(y: Mut):
    y.store(first(2, Kind.ODD))
"""


@pytest.mark.parametrize(
    "use",
    [
        "LINE.at(n)",
        "Line(2).at(n)",
        "LINE.twice",
        "LINE + n",
        "Kind.ODD.rank()",
        "kind.rank()",
        "PAIR[0].at(n)",
        "n * LINE.STEP * BASE",
    ],
)
def test_what_methods_of_a_computed_functions_objects_read_is_watched(use: str) -> None:
    reader: Any = kernel(OBJECTS.replace("USE", use), BASE=3, dataclass=dataclass, enum=enum, __name__=__name__)
    scope = reader.__wrapped__.__globals__
    for scope["BASE"] in (3, 5):
        assert result(reader(part()))[0] == scope["first"](2)


def test_an_object_with_a_list_is_not_computed_with() -> None:
    """Python would compute with the numbers of now, which may change."""
    text = "def reading(y: Mut):\n    y.store(first(1))\n"
    text = "def first(n):\n    return max([LISTS.items[n]])\n" + text
    with pytest.raises(KernelTypeError, match="'LISTS' comes from outside the kernel"):
        kernel(text, LISTS=Lists([1, 2]))(part()).sync()


# Objects


@dataclass(frozen=True)
class Lists:
    items: list[int]


@dataclass(frozen=True)
class Polynomial:
    coefficients: tuple[float, ...]

    def __call__(self, t: Any) -> Any:
        total = t * 0.0
        for c in self.coefficients:
            total = total * t + c
        return total

    def __getitem__(self, k: int) -> float:
        return self.coefficients[-1 - k]


CUBIC = Polynomial((1.0, -2.0, 0.5))
NOTHING: Any = None
SCALES = {"half": 0.5, "double": 2.0, 3: 1.0}


def power(t: Any, n: int) -> Any:
    if n == 0:
        return t * 0.0 + 1.0
    half = power(t, n // 2)
    return half * half * t if n % 2 else half * half


@contextlib.contextmanager
def framed(part: Any, value: Any, at: int = 0) -> Any:
    part.store(value, at)
    try:
        yield value + 1
    finally:
        part.store(value + 2, at + 2)


@contextlib.contextmanager
def doubly_framed(part: Any) -> Any:
    try:
        try:
            yield 5.0
        finally:
            part.store(6.0, 1)
    finally:
        part.store(7.0, 2)


@ct.entry
def nested_finally(y: Mut):
    r = y.partition_mut((1,))
    with doubly_framed(r) as first:
        r.store(first, 0)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_finally_within_a_finally(backend: str) -> None:
    with on(backend):
        np.testing.assert_array_equal(result(nested_finally(part()))[:3], [5, 6, 7])


@ct.entry
def objects(y: Mut, a: f32, *, MODE: Const[str] = "half"):
    r = y.partition_mut((1,))
    with framed(r, ct.broadcast(a, (1,))) as following, framed(r, following * 10.0, at=3) as other:
        r.store(following, 1)
        r.store(other, 4)
    local = {"a": (CUBIC, a), "b": NOTHING}
    t = local["a"][0](a) + CUBIC[1] + SCALES.get(MODE, 0.0) + SCALES.get("none", 0.25)
    for name, each in SCALES.items():
        t += each if isinstance(name, str) else len(SCALES)
    r.store(t, 6)
    r.store(power(a, 5), 7)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_objects_dicts_recursion_and_context_managers(backend: str) -> None:
    with on(backend):
        for mode in ("half", "double", "other"):
            a = 1.5
            got = result(objects(part(), a, MODE=mode))
            t = a * a - 2 * a + 0.5 - 2.0 + SCALES.get(mode, 0.0) + 0.25 + 2.5 + 3
            np.testing.assert_array_equal(got, np.array([a, a + 1, a + 2, 25, 26, 27, t, a**5], np.float32))


def with_keywords(t: Any, **more: Any) -> Any:
    return t * more.get("by", 1.0) + (more["plus"] if len(more) == 2 else 0.0) + len(more)


SAME: Any = {"by": 3.0}


@ct.entry
def spelled(y: Mut, *, MODE: Const[str] = "relu6"):
    ct.static_assert(MODE[0] == "r" and MODE[1:-1] == "elu" and MODE.upper().startswith("RELU"))
    ct.static_assert(tuple(MODE) == (*"relu", "6") and "-".join([c.upper() for c in MODE[:2]]) == "R-E")
    ct.static_assert(len(MODE.split("l")) == 2 and str(3) + MODE.ljust(6, "z") == "3relu6z" and (3).bit_length() == 2)
    ct.static_assert((1, 2, 2).index(2) == 1 and (1, 2, 2).count(2) == 2)
    first, *_ = MODE
    most = 0 if first == "r" else 1
    for letter in MODE:
        most = most + int(letter) if letter.isdigit() else most
    t = y.load() + most
    y.store(with_keywords(t) + with_keywords(t, by=2.0, plus=0.5) + with_keywords(t, **SAME))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_text_and_keywords_are_as_in_python(backend: str) -> None:
    with on(backend):
        np.testing.assert_array_equal(result(spelled(part())), np.full(8, 6 + 12 + 0.5 + 2 + 18 + 1, np.float32))


def test_a_dict_that_changes_is_seen() -> None:
    table = {"a": 1.0}
    reading = kernel("def reading(y: Mut):\n    y.store(table['a'] * len(table))\n", table=table)
    assert result(reading(part()))[0] == 1
    table["a"] = 4.0
    assert result(reading(part()))[0] == 4
    table["b"] = 0.0
    assert result(reading(part()))[0] == 8


# Conditions


@dataclass(frozen=True)
class Pair:
    a: Any
    b: Any


@ct.entry
def chosen(y: Mut, n: i32, m: i32, a: f32):
    r = y.partition_mut((1,))
    flag = n > 1
    r.store(ct.f32(flag or m), 0)
    r.store(ct.f32(flag and m), 1)
    r.store(ct.f32(m or flag), 2)
    r.store(ct.f32((n > 0) and (a > 0.5) and 7), 3)
    r.store(a or 3.5, 4)
    pairs = ((n, m) == (2, 0), (n, (m, 1)) != (2, (0, 1)), (n, m) in ((0, 0), (2, 0)), n in (0, 2, 5))
    r.store(ct.f32(sum([ct.i32(p) * 10**i for i, p in enumerate(pairs)])), 5)
    same = Pair(n, a) == Pair(2, 0.0), (n, m) == (n, m, 1), (n, "x") == (2, "y"), 2 in (n, m), (n, "x") != (n, "x")
    r.store(ct.f32(sum([ct.i32(p) * 10**i for i, p in enumerate(same)])), 6)
    r.store(1.0 if (n, m) not in ((1, 1), (2, 0)) else 2.0, 7)


def python(n: int, m: int, a: float) -> list[float]:
    flag = n > 1
    pairs = ((n, m) == (2, 0), (n, (m, 1)) != (2, (0, 1)), (n, m) in ((0, 0), (2, 0)), n in (0, 2, 5))
    same = Pair(n, a) == Pair(2, 0.0), False, False, 2 in (n, m), False
    return [
        flag or m, flag and m, m or flag, n > 0 and a > 0.5 and 7, a or 3.5,
        sum(p * 10**i for i, p in enumerate(pairs)), sum(p * 10**i for i, p in enumerate(same)),
        1.0 if (n, m) not in ((1, 1), (2, 0)) else 2.0,
    ]  # fmt: skip


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_and_or_and_tuples_mean_what_they_mean_in_python(backend: str) -> None:
    with on(backend):
        for n, m, a in ((2, 0, 0.0), (1, 5, 1.0), (0, 0, 2.0), (5, 2, 0.0), (1, 1, -1.0), (2, 3, 0.25)):
            got = result(chosen(part(), n, m, a))
            np.testing.assert_array_equal(got, np.array(python(n, m, a), np.float32), str((n, m, a)))


@ct.entry
def streamed(y: ct.MappedPartitionMut, x: Tensor, z: Tensor, n: i32):
    for index in y.iter_indices():
        at = index.coords()
        first = (at[0], n) == (0, 3) or (n, at[0]) in ((3, 2), (1, 1))
        t = (x, z)[at[0] % 2].load_tile((2,), (0,)) + ct.f32(n > 3 or at[0])
        y.store(t + (10.0 if first else 20.0), index)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_components_of_indices_are_integers_here_too(backend: str) -> None:
    with on(backend):
        y = api.zeros((8,)).sync().partition((2,)).map((1,), 2)
        got = result(streamed(y, api.from_numpy(X).sync(), api.from_numpy(-X).sync(), 3))
    wanted = [(X if k % 2 == 0 else -X)[:2] + k + (10 if k in (0, 2) else 20) for k in range(4)]
    np.testing.assert_array_equal(got, np.concatenate(wanted))


# Constants behind loops


@ct.entry
def behind(y: Mut, n: i32):
    same = 4
    for _ in range(n):
        same = 4
    at_least_once = 0
    for _ in range(3):
        at_least_once = 2
    i = 0
    for_certain = 0
    while True:
        i += 1
        for_certain = 8
        if i > n:
            break
    both = 0
    for i in range(n):
        both = 1
        if i > 2:
            break
    else:
        both = 1
    changing = 1
    for _ in range(n):
        changing = 5
    t = ct.constant(1.0, (same, at_least_once), f32)
    t = ct.reduce_sum(ct.reduce_sum(t, 1), 0) + ct.constant(0.0, (for_certain,), f32)
    y.store(t + ct.reduce_sum(ct.constant(1.0, (both,), f32), 0) + ct.f32(changing))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_constants_stay_constants_behind_loops(backend: str) -> None:
    with on(backend):
        for n in (0, 2, 6):
            np.testing.assert_array_equal(result(behind(part(), n)), np.full(8, 9.0 + (5 if n else 1)))


def kind_of(t: Any) -> int:
    if isinstance(t, ct.Tensor):
        return 1
    if isinstance(t, Mut):
        return 2
    return 3 if isinstance(t, int | float) else 4


def test_isinstance_tells_what_a_parameter_is_annotated_with() -> None:
    body = "y.store(kind_of(x) + 10.0 * kind_of(y) + 100.0 * kind_of(0.5) + 1000.0 * kind_of(y.load()))"
    told = kernel(f"def told(y: Mut, x: Tensor):\n    {body}\n", kind_of=kind_of)
    with ct.use_backend("reference"):
        assert result(told(part(), api.ones((8,)).sync())).tolist() == [4321.0] * 8


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_patterns_of_classes_match_numbers_of_the_run_time(backend: str) -> None:
    """`case int():` matched constants alone, although `isinstance(x.shape[0], int)` was true."""
    text = """
def matched(y: Mut, x: Tensor, n: i32):
    k = 0
    for value in (x.shape[0], x.shape[0] / 2, n, 3, 0.5):
        match value:
            case int(size) if size > 5:
                k = 10 * k + 1
            case int():
                k = 10 * k + 2
            case float():
                k = 10 * k + 3
            case _:
                k = 10 * k + 4
    y.store(y.load() + k)
"""
    with on(backend):
        op = kernel(text)(part(), api.ones((8,)).sync(), 7)
        assert result(op).tolist() == [13423.0] * 8


FOLDED = (
    "functools.reduce(lambda a, c: a * t + c, TABLE, t)",
    "functools.reduce(operator.add, [t, t * 2.0, t * t])",
    "functools.reduce(lambda a, b: a - b, (), t)",
    "functools.reduce(lambda a, b: (a[1], a[0] + b), (t, t + 1.0), (0.0, 1.0))[1] + t",
    "sum(a * b * t for a, b in itertools.product(TABLE, TABLE[:2]))",
    "sum([a * t + b * c for a, b, c in itertools.product((0.0, 1.0, 3.0), repeat=3)])",
    "sum(a * t for a in itertools.chain(TABLE, range(3), (2.0,)))",
    "t + {name: value for name, value in zip('abc', TABLE)}['b']",
    "{k: t * k for k in range(4) if k % 2}[3]",
    "sum({a: i * t for i, a in enumerate((1, 1, 2))}.values())",
    "sum(v * t for k, v in {j + k: j for k in range(3) for j in range(k + 1)}.items())",
)
TABLE = (1.0, 2.0, 3.0, -4.0)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_folds_and_products_of_tuples_are_as_in_python(backend: str) -> None:
    names: dict[str, Any] = {"functools": functools, "itertools": itertools, "operator": operator, "TABLE": TABLE}
    lines = "".join(f"    part.store(({each})[None, :], ({k}, 0))\n" for k, each in enumerate(FOLDED))
    head = "def f(y: Mut, x: Tensor):\n    part, t = y.partition_mut((1, 8)), x.load_tile((8,), 0)\n"
    folds = kernel(head + lines, **names)
    with on(backend):
        got = result(folds(api.zeros((len(FOLDED), 8)).partition((len(FOLDED), 8)), X))
    for each, row in zip(FOLDED, got, strict=True):
        np.testing.assert_array_equal(row, eval(each, names | {"t": X}), each)
