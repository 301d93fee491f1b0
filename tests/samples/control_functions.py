"""Functions of all kinds, and values made of values. What a sample is says `control_sample.py`."""

from __future__ import annotations

from tests.samples.control_sample import Sample

FUNCTIONS: dict[str, Sample] = {
    # functions
    "nested_function": Sample(
        """\
def f(x, n, m):
    def scaled(t, by=3, *, plus=1):
        return t * by + plus + m
    return scaled(x) - scaled(x, n, plus=2)
""",
    ),
    "nested_function_sees_later_values": Sample(
        """\
def f(x, n, m):
    k = 1
    def g(t):
        return t + k
    k = n
    return g(x)
""",
    ),
    "lambda": Sample(
        """\
def f(x, n, m):
    twice = lambda t, k=2: t * k + n
    return twice(x) + twice(x, 5)
""",
    ),
    "function_as_argument": Sample(
        """\
def apply(g, *args):
    return g(*args)

def f(x, n, m):
    return apply(lambda a, b, c: a * b - c, x, n, m)
""",
    ),
    "star_arguments": Sample(
        """\
def total(first, *rest, scale=1):
    for each in rest:
        first = first + each
    return first * scale

def f(x, n, m):
    return total(x, *(n, m), 4, scale=2) + total(x)
""",
    ),
    "module_lambda": Sample(
        """\
square = lambda t: t * t

def f(x, n, m):
    return square(x) + square(n)
""",
    ),
    "static_dispatch": Sample(
        """\
class Relu:
    NAME = "relu"

    @staticmethod
    def apply(t):
        return max(t, 0) if isinstance(t, int) else ct.select(t > 0, t, 0)

class Shifted(Relu):
    BY = 3

    @classmethod
    def apply(cls, t):
        return t + cls.BY

def f(x, n, m):
    for each in (Relu, Shifted):
        x = each.apply(x) * 2 + len(each.NAME)
    return x
""",
    ),
    "function_table": Sample(
        """\
def double(t, n):
    return t * 2

TABLE = (double, lambda t, n: t + n, max)

def f(x, n, m):
    a, b, _ = TABLE
    for each in TABLE[:2]:
        x = each(x, n)
    return a(b(x, n=m), m)
""",
    ),
    "closure_over_a_loop_variable": Sample(
        """\
def f(x, n, m):
    for i in range(3):
        def shifted(t, by=i):
            return t + by * n + i
        x = shifted(x) - shifted(x, 1) + x
    return x
""",
    ),
    "condition_in_a_comprehension": Sample(
        """\
def f(x, n, m):
    total = 0
    for k in [i if n > i else -i for i in range(4)]:
        total = total * 2 + k
    return x + total
""",
    ),
    "lambdas_on_one_line": Sample(
        """\
a, b, c = (lambda t: t * 2), (lambda t, k=3: t + k), lambda t: (lambda u: u - t)(t * 5)

def f(x, n, m):
    return a(b(x)) + c(x) + b(x, n)
""",
    ),
    "partial": Sample(
        """\
import functools

def g(a, b, c):
    return a * b - c

h = functools.partial(g, 3, c=2)

def f(x, n, m):
    return h(x) + h(n)
""",
    ),
    "helper_assigns_its_own": Sample(
        """\
def g(x):
    n = 100
    return x + n

def f(x, n, m):
    return g(x) + n
""",
    ),
    "captured_constants": Sample(
        """\
import math

LIMIT = 5
PAIR = (2, 3)

def f(x, n, m):
    return x * LIMIT + PAIR[1] + math.gcd(12, 18) + int(math.log2(64))
""",
    ),
    "decorated_helper": Sample(
        """\
import functools

def tripled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 3 * function(*args, **kwargs)
    return wrapper

@tripled
def g(x, offset=1):
    return x + offset

def f(x, n, m):
    return g(x) + g(x, offset=m)
""",
    ),
    "functions_of_a_comprehension": Sample(
        """\
k = 100

def f(x, n, m):
    scaled = [lambda t: t * k for k in (2, 3)]
    fixed = [lambda t, k=k: t * k for k in (2, 3)]
    pairs = [lambda t: t + a + b for a in (1, 2) for b in (a, 5)]
    return scaled[0](x) + fixed[0](n) + pairs[1](m) + k
""",
    ),
    # values made of values
    "dataclass": Sample(
        """\
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class State:
    total: object
    count: object = 0

    def add(self, t):
        return replace(self, total=self.total + t, count=self.count + 1)

    @property
    def mean(self):
        return self.total // (self.count + 1)

def f(x, n, m):
    s = State(x)
    for i in range(m):
        s = s.add(x * i)
    return s.mean + s.count
""",
    ),
    "named_tuple": Sample(
        """\
from typing import NamedTuple

class Pair(NamedTuple):
    a: object
    b: object = 4

    def sum(self):
        return self.a + self.b

def swap(p):
    return p._replace(a=p.b + p.a, b=p.a)

def f(x, n, m):
    p = Pair(x, b=x * n)
    for i in range(3):
        p = Pair(p.b, p.a + i) if i > m else swap(p)
    a, b = p
    return p.sum() + Pair(x).b + b * 3
""",
    ),
    "dataclass_in_branches": Sample(
        """\
from dataclasses import dataclass

@dataclass(frozen=True)
class S:
    a: object
    b: object

def f(x, n, m):
    if n > 0:
        s = S(x, (n, 1))
    else:
        s = S(-x, (m, 1))
    return s.a * s.b[0] + s.b[1]
""",
    ),
    "captured_dataclass": Sample(
        """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    width: int = 4
    scale: int = 3

CONFIG = Config(width=2)

def f(x, n, m):
    return x * CONFIG.scale + CONFIG.width
""",
    ),
    "tuple_of_tiles_in_loop": Sample(
        """\
def f(x, n, m):
    pair = (x, (n, 0))
    for i in range(m):
        pair = (pair[0] + pair[1][0], (i, pair[1][1] + 1))
    return pair[0] + pair[1][0] * pair[1][1]
""",
    ),
}
