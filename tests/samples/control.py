"""Python as people write it: branches, conditions, assignment, `match`. Loops and functions have files of their own."""

from __future__ import annotations

from tests.samples.control_functions import FUNCTIONS
from tests.samples.control_loops import LOOPS
from tests.samples.control_sample import Sample

MANY = 110
"""Branches of one `if`, which Python reads; of as many levels of indentation it reads 100."""


def elif_of_many() -> str:
    """A chain with another one in it, whose sides assign the same variables, some, or none."""
    lines = ["def f(x, n, m):", "    t, s = 1, 2"]
    for k in range(MANY):
        lines.append(f"    {'elif' if k else 'if'} n == {k}:")
        if k == MANY // 2:
            for j in range(MANY // 2):
                lines += [f"        {'elif' if j else 'if'} m == {j}:", f"            s = {j}"]
        elif k % 3 == 0:
            lines.append(f"        t = m + {k}")
        else:
            lines.append(f"        s = {2 * k}")
    return "\n".join([*lines, "    else:", "        t = 7", "    return x * t + s"]) + "\n"


def returns_of_many() -> str:
    """A function whose branches leave it, each behind a number that later ones use."""
    lines = ["def g(n, m):", "    t_0 = m"]
    for k in range(MANY):
        lines += [
            f"    t_{k + 1} = (t_{k} + t_{k // 2} + {k}) & 1023",
            f"    if n == {k}:",
            f"        return t_{k // 2} + {k}",
        ]
    return "\n".join([*lines, "    return n", "", "def f(x, n, m):", "    return x * g(n, m)"]) + "\n"


SAMPLES: dict[str, Sample] = {
    **LOOPS,
    **FUNCTIONS,
    # branches
    "if": Sample(
        """\
def f(x, n, m):
    if n > 0:
        x = x * 2
    return x
""",
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
    "elif_of_many": Sample(elif_of_many(), ((0, 3), (1, 0), (38, 1), (55, 2), (55, 52), (108, 5), (109, 5), (110, 5))),
    "returns_of_many": Sample(returns_of_many(), ((0, 2), (3, 1), (17, 0), (50, -1), (90, 3), (109, 1), (110, 1))),
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
    "matrix_product": Sample(
        """\
def f(x, n, m):
    row = ct.convert_tile(x, ct.f32)
    return x + ct.convert_tile(row @ row, ct.i32) + m
""",
    ),
    "conditional_scalar": Sample(
        """\
def f(x, n, m):
    k = n if n > m else m * 2
    return x + k
""",
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
    "both_sides_alike": Sample(
        """\
def f(x, n, m):
    b = 7
    if n > 0:
        b = 3
    else:
        b = 3
    return x + b
""",
    ),
    "scalars_of_outside_in_branches": Sample(
        """\
def f(x, n, m):
    b = m * 2
    c = 3
    i = 0
    while i < 3:
        i += 1
        if n + i > 2:
            if m != 7:
                b = (n * c) % 17
                c = 1
        elif b > i:
            c = 1
    return x + b + c * m
""",
    ),
    # conditions
    "chained": Sample(
        """\
def f(x, n, m):
    return x + 1 if 0 <= n < m < 100 else x - 1
""",
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
    ),
    "not": Sample(
        """\
def f(x, n, m):
    return x + 1 if not n > 0 else x - 1
""",
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
    ),
    "is_none": Sample(
        """\
def g(x, k=None):
    return x if k is None else x + k

def f(x, n, m):
    return g(x) + g(x, n) if g is not None else x
""",
    ),
    "in": Sample(
        """\
def f(x, n, m):
    return x + 1 if 3 in (1, 2, 3) and 5 not in (1, 2) else x
""",
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
    ),
    "annotated": Sample(
        """\
def f(x, n, m):
    k: int = 3
    t: object
    return x + k
""",
    ),
    "several_targets": Sample(
        """\
def f(x, n, m):
    a = b = x + n
    return a * b
""",
    ),
    "walrus": Sample(
        """\
def f(x, n, m):
    if (k := n * 2) > m:
        x = x + k
    return x + k
""",
    ),
    "unary": Sample(
        """\
def f(x, n, m):
    return -x + +n + ~m
""",
    ),
    "power_and_division": Sample(
        """\
def f(x, n, m):
    k = int(7 / 2 * 4)
    return x ** 3 + 2 ** 5 + k
""",
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
    "dict_display": Sample(
        """\
def f(x, n, m):
    by_name = {'n': n, 2: x, None: (m, 3)}
    by_name = {key: item for key, item in by_name.items() if key != 'k'}
    total = by_name['n'] * by_name.get('absent', 2) + by_name[2]
    for key in by_name:
        total = total + (1 if key == 'n' else len(by_name))
    return total + by_name[None][1] if 'n' in by_name and 'm' not in by_name else x
""",
    ),
    "with_a_generator": Sample(
        """\
import contextlib

@contextlib.contextmanager
def shifted(x, by=1):
    y = x + by
    try:
        yield y, by
    finally:
        pass

def f(x, n, m):
    with shifted(x, by=3) as (a, b), shifted(a):
        c = a * b
        if n > m:
            c = c + n
    return c
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
    ),
    "docstring": Sample(
        '''\
def f(x, n, m):
    """Return x."""
    pass
    ...
    return x
''',
    ),
    "f_string": Sample(
        """\
NAME = 'a'

def f(x, n, m):
    return x if f'{NAME}-{3}' == 'a-3' else x * 0
""",
    ),
    "dtype_limits": Sample(
        """\
def f(x, n, m):
    big = 1 if ct.u8.max == 255 and ct.u8.min == 0 and ct.f32.eps < 1e-6 and -ct.f32.inf < ct.f16.min else 0
    return (x * n + ct.i8.min - ct.i8.max) * big
""",
    ),
    "typed_scalar": Sample(
        """\
def f(x, n, m):
    return x + ct.i32(4) * ct.i32(n)
""",
    ),
    "match_guard_fails": Sample(  # the names of the pattern stay bound
        """\
def f(x, n, m):
    k = 7
    match n:
        case k if k > 9:
            x = x - 1
        case 0 | 5:
            x = x + k
        case (j):
            x = x * j + k
    return x * k
""",
    ),
    "match_constant_guard_fails": Sample(
        """\
LIMIT = 9

def f(x, n, m):
    match (n, 4):
        case (a, b) if b > LIMIT:
            return x
        case (_, c) if c < 0:
            return x
    return x * a + b * c
""",
    ),
    "match_guard_of_a_pattern_at_run_time": Sample(
        """\
def f(x, n, m):
    k, j, s = 100, 200, 0
    match (n, m, m + n):
        case (0, k, j) if ct.reduce_max(x, 0) < j * 2 and m > 3:
            x = x * 2 + k
        case (5, j, k) if (s := k * 2) < m:
            x = x * 3
        case (-3, k, _) if False:
            return x
        case (-3, _, j) if True:
            x = x + j * k
    return x * k + j + s * 7
""",
        ((0, 3), (0, 4), (0, 5), (0, 20), (5, -13), (5, 2), (-3, 7), (9, 9)),
    ),
    "match_guard_not_asked": Sample(
        """\
def small(k):
    assert k < 8, "asked"
    return k < 2

def sure(k):
    assert k < 8, "asked"
    return True

def f(x, n, m):
    match (n, m):
        case (0, k) if small(k):
            return x * k
        case (5, k) if sure(k):
            return x * m
        case (_, k) if n > 7 and sure(k):
            return x + m
        case (_, k) if n > 6 or sure(k - 4):
            return x + k
    return x - k
""",
        ((0, 1), (0, 6), (5, 3), (-3, 11), (8, 2), (7, 20)),
    ),
    "conjunction_asserts": Sample(
        """\
def sure(k):
    assert k < 8, "asked"
    return True

def f(x, n, m):
    if n > 0 and sure(m):
        x = x + 1
    if n > 0 or sure(m):
        x = x * 2
    return x
""",
        ((1, 7), (0, 7)),
    ),
}
