"""Python as people write it: functions that mean the same when Python runs them on NumPy arrays as in a kernel.

Each `text` defines `f(x, n, m)`: `x` is a tile of i32, `n` and `m` are i32 scalars; `f` returns a tile. `nodes` are the
classes of syntax that the sample is about. `ct` is `PLAIN` where Python runs the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A function in the kernel language, with the scalars to call it with."""

    text: str
    nodes: str = ""
    calls: tuple[tuple[int, int], ...] = ((0, 3), (5, 2), (-3, 7))


def _static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


PLAIN = SimpleNamespace(
    static_range=range,
    static_assert=_static_assert,
    select=np.where,
    reduce_max=np.max,
    i32=np.int32,
)
"""The operations that the samples use, as NumPy has them."""

SAMPLES: dict[str, Sample] = {
    # for
    "for_up": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        x = x + i
    return x
""",
        nodes="For",
    ),
    "for_bounds": Sample(
        """\
def f(x, n, m):
    for i in range(n, m):
        x = x * 2 + i
    return x
""",
    ),
    "for_down": Sample(
        """\
def f(x, n, m):
    for i in range(m, n, -1):
        x = x * 3 - i
    return x
""",
    ),
    "for_down_by_two": Sample(
        """\
def f(x, n, m):
    for i in range(n + 9, -m, -2):
        x = x * 3 - i
    return x
""",
    ),
    "for_by_three": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20, 3):
        x = x ^ i
    return x
""",
    ),
    "for_dynamic_step": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20 * m, m):
        x = x * 3 + i
    return x
""",
        calls=((0, 3), (100, -7), (5, 5), (3, -1)),
    ),
    "for_constant_bounds": Sample(
        """\
def f(x, n, m):
    for i in range(3, 11, 4):
        x = x * i
    return x
""",
    ),
    "for_empty": Sample(
        """\
def f(x, n, m):
    for i in range(4, 4):
        x = x * 0
    return x
""",
    ),
    "for_nested": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        for j in range(i, m):
            x = x + i * j
    return x
""",
    ),
    "for_in_if": Sample(
        """\
def f(x, n, m):
    if n > 0:
        for i in range(10):
            x = x + 1
    else:
        x = x - 1
    return x
""",
    ),
    "for_if_for": Sample(
        """\
def f(x, n, m):
    for i in range(3):
        if n > 0:
            for j in range(m):
                x = x + 2
        else:
            x = x - 1
    return x
""",
    ),
    "for_tuple": Sample(
        """\
def f(x, n, m):
    for a, (b, c) in ((1, (2, n)), (3, (4, m))):
        x = x * a + b - c
    return x
""",
        nodes="Tuple",
    ),
    "for_static_range": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(4):
        if i % 2 == 0:
            x = x + i * n
    return x
""",
    ),
    "for_last_value": Sample(
        """\
def f(x, n, m):
    for i in range(7):
        t = x + i * n
    return t + i
""",
    ),
    "for_number_becomes_tile": Sample(
        """\
def f(x, n, m):
    total = 0
    for i in range(m):
        total = total + x * i
    return total + x
""",
    ),
    "for_number_becomes_tile_twice": Sample(
        """\
def f(x, n, m):
    a = 0
    b = 1
    for i in range(m):
        a, b = b + a, x + a
    return a + b + x
""",
    ),
    # break, continue, else
    "for_break": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i == n:
            break
        x = x + i
    return x
""",
        nodes="Break",
    ),
    "for_break_at_the_end": Sample(
        """\
def f(x, n, m):
    for i in range(n, n + 9, 2):
        x = x + i
        if i > m:
            break
    return x
""",
    ),
    "for_break_value": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i * i > n:
            x = x * 7
            break
    return x + i
""",
    ),
    "for_break_down": Sample(
        """\
def f(x, n, m):
    for i in range(20, -20, -3):
        if i < n:
            break
        x = x * 3 + i
    return x
""",
    ),
    "for_break_dynamic_step": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20 * m, m):
        if i > 30:
            break
        x = x * 3 + i
    return x
""",
        calls=((0, 3), (100, -7), (5, 5), (3, -1)),
    ),
    "for_break_wide": Sample(
        """\
def f(x, n, m):
    for i in range(-2147483648, 2147483647, 1000000007):
        if i > n * 1000000:
            break
        x = x * 3 + i // 1000
    return x
""",
    ),
    "for_continue": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i % m == 0:
            continue
        x = x * 2 + i
    return x
""",
        nodes="Continue",
    ),
    "for_continue_break": Sample(
        """\
def f(x, n, m):
    for i in range(12):
        if i % 3 == 1:
            continue
        if i > n:
            break
        x = x * 2 + i
        if i == m:
            continue
        x = x - 1
    return x
""",
    ),
    "for_break_under_ifs": Sample(
        """\
def f(x, n, m):
    for i in range(12):
        if i > 2:
            if i > n:
                if i > m:
                    x = x + 100
                    break
                x = x + 10
            else:
                continue
        x = x * 2 + i
    return x
""",
    ),
    "for_break_nested": Sample(
        """\
def f(x, n, m):
    for i in range(5):
        for j in range(5):
            if j > n:
                break
            x = x + i * j
        if i == m:
            break
        x = x * 3
    return x
""",
    ),
    "for_else": Sample(
        """\
def f(x, n, m):
    for i in range(6):
        if i == n:
            break
        x = x + i
    else:
        x = x * 5
    return x
""",
    ),
    "for_else_break_outer": Sample(
        """\
def f(x, n, m):
    for i in range(4):
        for j in range(3):
            x = x + j
            if j == n:
                break
        else:
            x = x * 3
            if i == m:
                break
        x = x - 1
    return x
""",
        calls=((0, 3), (5, 2), (9, 1)),
    ),
    "for_else_plain": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        x = x + i
    else:
        x = x * 5
    return x
""",
    ),
    "unrolled_break": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        if i == n:
            break
        x = x * 2 + i
    else:
        x = -x
    return x
""",
    ),
    "unrolled_continue": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        t = x + i
        if i < n:
            continue
        x = x * 2 + t
    return x + t
""",
    ),
    "unrolled_static_break": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        if i == 3:
            break
        x = x * 2 + i
    return x + i
""",
    ),
    # while
    "while": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < n:
        x = x + i
        i += 1
    return x
""",
        nodes="While",
    ),
    "while_break": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 20:
        i += m
        if i > n:
            break
        x = x * 2 + i
    return x + i
""",
    ),
    "while_continue": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 9:
        i += 1
        if i % 2 == 0:
            continue
        x = x * 3 + i * n
    return x
""",
    ),
    "while_true": Sample(
        """\
def f(x, n, m):
    i = n
    while True:
        i += m
        x = x + i
        if i > 12:
            break
    return x
""",
    ),
    "while_true_value": Sample(
        """\
def f(x, n, m):
    i = 0
    while True:
        i += m
        if i > 9:
            t = x * i
            break
        if i > n:
            t = x - i
            break
    return t
""",
    ),
    "while_else": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 5:
        x = x + i
        if i == n:
            break
        i += 1
    else:
        x = x * 9
    return x
""",
    ),
    "while_never": Sample(
        """\
def f(x, n, m):
    while False:
        x = x * 0
    return x
""",
    ),
    "while_lazy_condition": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 10 and ct.reduce_max(x, 0) < 1000:
        x = x * 2
        i += 1
        if i == n:
            break
    return x
""",
    ),
    "collatz": Sample(
        """\
def f(x, n, m):
    steps = 0
    k = m
    while k != 1:
        k = k // 2 if k % 2 == 0 else 3 * k + 1
        steps += 1
    return x + steps
""",
    ),
    # return
    "return_early": Sample(
        """\
def f(x, n, m):
    if n > m:
        return x * 2
    x = x + 1
    return x - m
""",
        nodes="Return",
    ),
    "return_from_branches": Sample(
        """\
def f(x, n, m):
    if n > m:
        return x * 2
    elif n < 0:
        return x * 3
    else:
        return x * 5
""",
    ),
    "return_from_loop": Sample(
        """\
def f(x, n, m):
    for i in range(9):
        x = x + i
        if i == n:
            return x * 100
    return x
""",
    ),
    "return_from_nested_loops": Sample(
        """\
def f(x, n, m):
    for i in range(4):
        for j in range(4):
            if i * j > m:
                return x * 100 + i
            if j == n:
                break
            x = x + j
    return x
""",
    ),
    "return_from_while_true": Sample(
        """\
def f(x, n, m):
    i = 0
    while True:
        i += m
        if i > 20:
            return x + i
        x = x * 3
""",
    ),
    "return_tuple": Sample(
        """\
def both(x, n):
    if n > 0:
        return x, n
    return -x, 7

def f(x, n, m):
    a, b = both(x, n)
    return a * b
""",
    ),
    "return_from_unrolled": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(5):
        if i == n:
            return x * 11
        x = x + i
    return x
""",
    ),
    "return_nothing": Sample(
        """\
def check(n):
    if n > 0:
        return
    n = n + 1

def f(x, n, m):
    check(n)
    return x
""",
    ),
    # branches
    "if": Sample(
        """\
def f(x, n, m):
    if n > 0:
        x = x * 2
    return x
""",
        nodes="If",
    ),
    "if_elif_else": Sample(
        """\
def f(x, n, m):
    if n < 0:
        t = 1
    elif n == 0:
        t = 2
    else:
        t = 3
    return x + t
""",
    ),
    "if_local_names": Sample(
        """\
def f(x, n, m):
    if n > 0:
        t = x * 2
        x = t + 1
    else:
        t = 5
        x = x - t
    return x
""",
    ),
    "if_folds": Sample(
        """\
def f(x, n, m):
    if 3 > 4:
        x = x.no_such_thing
    return x
""",
    ),
    "conditional_scalar": Sample(
        """\
def f(x, n, m):
    k = n if n > m else m * 2
    return x + k
""",
        nodes="IfExp",
    ),
    "conditional_tile": Sample(
        """\
def f(x, n, m):
    return x * 2 if n > m else x - 1
""",
    ),
    "conditional_folds": Sample(
        """\
def f(x, n, m):
    return x * 2 if 2 > 1 else x.no_such_thing
""",
    ),
    "flags": Sample(
        """\
def f(x, n, m):
    found = False
    for i in range(9):
        if i == n:
            found = True
    return x + 1 if found else x - 1
""",
    ),
    # conditions
    "chained": Sample(
        """\
def f(x, n, m):
    return x + 1 if 0 <= n < m < 100 else x - 1
""",
        nodes="Compare",
    ),
    "chained_tiles": Sample(
        """\
def f(x, n, m):
    return ct.select((-5 < x) & (x <= n), x, m)
""",
    ),
    "and_or": Sample(
        """\
def f(x, n, m):
    return x + 1 if n > 0 and m > 2 or n < -2 else x - 1
""",
        nodes="BoolOp And Or",
    ),
    "not": Sample(
        """\
def f(x, n, m):
    return x + 1 if not n > 0 else x - 1
""",
        nodes="Not",
    ),
    "or_gives_a_value": Sample(
        """\
def f(x, n, m):
    return x + (n or m)
""",
    ),
    "and_gives_a_value": Sample(
        """\
def f(x, n, m):
    return x + (n and m)
""",
    ),
    "truth_of_an_integer": Sample(
        """\
def f(x, n, m):
    if n:
        x = x + 1
    return x
""",
    ),
    "lazy_right_side": Sample(
        """\
def f(x, n, m):
    return x + 1 if n > 0 and ct.reduce_max(x, 0) > m else x - 1
""",
    ),
    "comparisons": Sample(
        """\
def f(x, n, m):
    a = (n == m) | (n != 3)
    b = (n >= m) & (n <= 9)
    return x + 1 if a ^ b else x
""",
        nodes="Eq NotEq GtE LtE Gt Lt",
    ),
    "is_none": Sample(
        """\
def g(x, k=None):
    return x if k is None else x + k

def f(x, n, m):
    return g(x) + g(x, n) if g is not None else x
""",
        nodes="Is IsNot",
    ),
    "in": Sample(
        """\
def f(x, n, m):
    return x + 1 if 3 in (1, 2, 3) and 5 not in (1, 2) else x
""",
        nodes="In NotIn",
    ),
    # assignment
    "unpacking": Sample(
        """\
def f(x, n, m):
    (a, b), c = (x, n), m
    a, b = b, a
    return a + b * c
""",
    ),
    "starred": Sample(
        """\
def f(x, n, m):
    a, *b, c = x, n, m, 4, 5
    d = (*b, 6)
    return a + b[0] * d[-1] + b[2] * c + len(d)
""",
        nodes="Starred",
    ),
    "augmented": Sample(
        """\
def f(x, n, m):
    x += n
    x -= 1
    x *= 3
    x //= 2
    x %= 50
    x <<= 1
    x >>= 2
    x |= 8
    x &= 63
    x ^= m
    return x
""",
        nodes="AugAssign Add Sub Mult FloorDiv Mod LShift RShift BitOr BitAnd BitXor",
    ),
    "annotated": Sample(
        """\
def f(x, n, m):
    k: int = 3
    t: object
    return x + k
""",
        nodes="AnnAssign",
    ),
    "several_targets": Sample(
        """\
def f(x, n, m):
    a = b = x + n
    return a * b
""",
        nodes="Assign",
    ),
    "walrus": Sample(
        """\
def f(x, n, m):
    if (k := n * 2) > m:
        x = x + k
    return x + k
""",
        nodes="NamedExpr",
    ),
    "unary": Sample(
        """\
def f(x, n, m):
    return -x + +n + ~m
""",
        nodes="UnaryOp USub UAdd Invert",
    ),
    "power_and_division": Sample(
        """\
def f(x, n, m):
    k = int(7 / 2 * 4)
    return x ** 3 + 2 ** 5 + k
""",
        nodes="Pow Div BinOp",
    ),
    "shadowing": Sample(
        """\
def f(x, n, m):
    n = x + n
    x = n * 2
    n = 4
    return x * n
""",
    ),
    # functions
    "nested_function": Sample(
        """\
def f(x, n, m):
    def scaled(t, by=3, *, plus=1):
        return t * by + plus + m
    return scaled(x) - scaled(x, n, plus=2)
""",
        nodes="FunctionDef",
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
        nodes="Lambda",
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
        nodes="Attribute Subscript",
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
    # match
    "match_constants": Sample(
        """\
KIND = 2

def f(x, n, m):
    match KIND:
        case 1:
            return x.no_such_thing
        case 2 | 3:
            return x * 2
        case _:
            return x
""",
        nodes="Match match_case MatchValue MatchOr MatchAs",
    ),
    "match_scalar": Sample(
        """\
def f(x, n, m):
    match n:
        case 0:
            x = x + 1
        case 5 | 6:
            x = x * 2
        case k if k < 0:
            x = x - k
        case _:
            x = x * 0
    return x
""",
    ),
    "match_tuples": Sample(
        """\
def f(x, n, m):
    match (x, n, (m, 4)):
        case (a, b):
            return a
        case (a, *rest, (c, 4)):
            return a * c + rest[0]
    return x
""",
        nodes="MatchSequence MatchStar",
    ),
    "match_classes": Sample(
        """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Scale:
    by: object

@dataclass(frozen=True)
class Shift:
    by: object
    sign: int = 1

def g(x, what):
    match what:
        case Scale(by):
            return x * by
        case Shift(by=by, sign=-1):
            return x - by
        case Shift():
            return x + what.by
        case None:
            return x
        case int(k):
            return x * k

def f(x, n, m):
    return g(x, Scale(n)) + g(x, Shift(m)) * 3 + g(x, Shift(n, -1)) * 5 + g(x, None) * 7 + g(x, 9)
""",
        nodes="MatchClass MatchSingleton",
    ),
    # comprehensions, builtins
    "comprehension": Sample(
        """\
def f(x, n, m):
    parts = [x * i + n for i in range(5) if i != 2]
    pairs = [(i, j) for i in range(2) for j in range(i, 3)]
    total = parts[0]
    for p in parts[1:]:
        total = total * 3 + p
    return total + sum(i * j for i, j in pairs)
""",
        nodes="ListComp GeneratorExp comprehension Slice List",
    ),
    "builtins": Sample(
        """\
def f(x, n, m):
    t = x
    for i, (a, b) in enumerate(zip((n, m, 3), reversed((4, 5, 6)))):
        t = t * 2 + a * b - i
    q, r = divmod(n, 4)
    return t + max(n, m, 2) - min((n, 7)) + abs(n) + q * 10 + r + sum((n, m)) + sorted((3, 1, 2))[0]
""",
    ),
    "any_and_all": Sample(
        """\
def f(x, n, m):
    if any((n > 4, m > 6)):
        x = x + 1
    if all([n > -9, m > 2]):
        x = x * 2
    return x + len(tuple(range(4)))
""",
    ),
    "isinstance": Sample(
        """\
def f(x, n, m):
    return x + 1 if isinstance((1, 2), tuple) and not isinstance(3, tuple) else x
""",
    ),
    "list_display": Sample(
        """\
def f(x, n, m):
    a, b = [n, m]
    return x * a + b
""",
    ),
    # compile time
    "assert_constant": Sample(
        """\
def f(x, n, m):
    assert 3 > 2, 'of course'
    ct.static_assert(len((1, 2)) == 2, 'two')
    return x
""",
        nodes="Assert Expr Pass",
    ),
    "docstring": Sample(
        '''\
def f(x, n, m):
    """Return x."""
    pass
    ...
    return x
''',
        nodes="Constant Pass Expr",
    ),
    "f_string": Sample(
        """\
NAME = 'a'

def f(x, n, m):
    return x if f'{NAME}-{3}' == 'a-3' else x * 0
""",
        nodes="JoinedStr FormattedValue",
    ),
    "typed_scalar": Sample(
        """\
def f(x, n, m):
    return x + ct.i32(4) * ct.i32(n)
""",
        nodes="Call Name",
    ),
}
