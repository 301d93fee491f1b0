"""Random loops, branches and `match`: a kernel compiles if each variable is assigned on every path, and only then."""

from __future__ import annotations

import ast
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutile as ct
from tests.support.kernels import define, kernel
from tests.support.memory import launch

LAUNCHED = range(6)
SET = ["t = a", "t = b"]
GIVEN = frozenset({"n", "wide", "a", "b", "first"})
"""Names that a kernel's text reads without assigning them."""


class _Drawer:
    """Statements that assign x, y and t, in constant and other loops with `break`, `continue` and `else`.

    x and y are whole numbers: of a dtype (n), plain, or plain and more than 32 bits hold (`wide`). t is a tensor of one
    of two forms. `flag` is known when the kernel is compiled.
    """

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.loops = 0

    def block(self, depth: int, counters: list[str], in_loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.choose.randint(1, 3)):
            kind = self.choose.choice(["set", "set", "if", "if", "match", "loop", "leave", "read"])
            if kind == "set":
                numbers = ["n", *counters, self.choose.choice([*counters, "n", "wide"])]
                lines.append(self.choose.choice([f"{name} = {self.choose.choice(numbers)}" for name in "xxyy"] + SET))
            elif kind == "read":
                lines.append(self.choose.choice(["x = x + 1", "x = x + 1", "y = 7", "y = 7", "x = first(t)"]))
            elif kind == "leave" and in_loop:
                return [*lines, self.choose.choice(["break", "break", "continue"])]
            elif kind == "if" and depth:
                what = self.choose.choice(["n", *counters])
                test = f"{what} {self.choose.choice(['>', '<', '=='])} {self.choose.randint(0, 4)}"
                lines += [f"if {self.choose.choice([test] * 4 + ['flag', 'not flag'])}:"]
                lines += self._under(self.block(depth - 1, counters, in_loop))
                lines += self._else(depth, counters, in_loop)
            elif kind == "match" and depth:
                lines += self._match(depth, counters, in_loop)
            elif kind == "loop" and depth:
                lines += self._loop(depth, counters)
                lines += self._else(depth, counters, in_loop)
        return lines or ["y = 7"]

    def _under(self, lines: list[str]) -> list[str]:
        return ["    " + line for line in lines]

    def _else(self, depth: int, counters: list[str], in_loop: bool) -> list[str]:
        return ["else:", *self._under(self.block(depth - 1, counters, in_loop))] if self.choose.randint(0, 1) else []

    def _match(self, depth: int, counters: list[str], in_loop: bool) -> list[str]:
        """Cases that compare, bind, or both; guards that read what is bound."""
        numbers = ["n", *counters]
        lines = [f"match ({self.choose.choice(numbers)}, {self.choose.choice(numbers)}):"]
        for _ in range(self.choose.randint(1, 3)):
            items = [self.choose.choice(["0", "1 | 2", "(2 | 3) as x", "x", "y", "_"]) for _ in range(2)]
            if any(all(item.endswith(name) for item in items) for name in "xy"):
                items[1] = "_"  # Python binds no name twice
            readable = [*numbers, *sorted({"x", "y"} & {*items}), self.choose.choice("nxy")]
            guard = f" if {self.choose.choice(readable)} {self.choose.choice(['>', '<', '=='])} 1"
            if {*items} <= {"x", "y", "_"} or self.choose.randint(0, 1):  # Python wants a guard behind names alone
                lines += [f"    case ({', '.join(items)}){guard}:"]
            else:
                lines += [f"    case ({', '.join(items)}):"]
            lines += self._under(self._under(self.block(depth - 1, counters, in_loop)))
        if self.choose.randint(0, 1):
            lines += [f"    case {self.choose.choice(['_', '(x, _)'])}:"]
            lines += self._under(self._under(self.block(depth - 1, counters, in_loop)))
        return lines

    def _loop(self, depth: int, counters: list[str]) -> list[str]:
        self.loops += 1
        k = f"k{self.loops}"
        body = self._under(self.block(depth - 1, [*counters, k], True))
        kind = self.choose.choice(["range(1)", "range(3)", "range(n)", "True", f"{k} < n"])
        if kind.startswith("range"):
            return [f"for {k} in {kind}:", *body]
        return [f"{k} = 0", f"while {kind}:", f"    {k} = {k} + 1", f"    if {k} > 3:", "        break", *body]


State = frozenset[str] | None
"""The variables that are assigned on all paths to a place; None where no path comes to it."""


class _MaybeUnassigned(Exception):
    """A variable is read that some path to the place does not assign."""


def _join(*states: State) -> State:
    joined: State = None
    for state in states:
        joined = state if joined is None else joined if state is None else joined & state
    return joined


def _read(node: ast.AST, state: frozenset[str]) -> None:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id not in (*state, "range"):
            raise _MaybeUnassigned(each.id)


def _behind(body: list[ast.stmt], state: State, breaks: list[State], continues: list[State]) -> State:
    """The state behind statements; `breaks` and `continues` take those of paths that leave them."""
    for node in body:
        if state is None:
            return None
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _read(value, state)
                state = state | {name}
            case ast.If(test=ast.Constant(value=test), body=then, orelse=orelse):
                state = _behind(then if test else orelse, state, breaks, continues)
            case ast.If(test=test, body=then, orelse=orelse):
                _read(test, state)
                state = _join(*(_behind(side, state, breaks, continues) for side in (then, orelse)))
            case ast.Match(subject=subject, cases=cases):
                _read(subject, state)
                state = _matched(cases, state, breaks, continues)
            case ast.Break():
                breaks.append(state)
                return None
            case ast.Continue():
                continues.append(state)
                return None
            case ast.For(iter=ast.Call(args=[times]) as over, target=ast.Name(id=name), body=inner, orelse=orelse):
                _read(over, state)
                ended = _ended(inner, state | {name}, orelse, state, isinstance(times, ast.Constant), False)
                state = _join(ended[0] and _behind(orelse, ended[0], breaks, continues), *ended[1])
            case ast.While(test=test, body=inner, orelse=orelse):
                _read(test, state)
                endless = isinstance(test, ast.Constant)
                ended = _ended(inner, state, orelse, state, endless, endless)
                state = _join(ended[0] and _behind(orelse, ended[0], breaks, continues), *ended[1])
            case _:
                raise AssertionError(ast.dump(node))
    return state


def _matched(cases: list[ast.match_case], state: State, breaks: list[State], continues: list[State]) -> State:
    """The state behind a `match`. Where a guard fails, the names of its pattern are bound all the same."""
    ends: list[State] = []
    for case in cases:
        assert state is not None
        parts = [*ast.walk(case.pattern)]
        bound = state | {each.name for each in parts if isinstance(each, ast.MatchAs) and each.name is not None}
        if case.guard is not None:
            _read(case.guard, bound)
        ends.append(_behind(case.body, bound, breaks, continues))
        if not any(isinstance(each, ast.MatchValue) for each in parts):
            state = bound  # it matches whatever comes
            if case.guard is None:
                return _join(*ends)
    return _join(state, *ends)


def _ended(
    body: list[ast.stmt], inside: State, orelse: list[ast.stmt], before: State, always: bool, endless: bool
) -> tuple[State, list[State]]:
    """The state of a loop that comes to its end, and those at its `break`s."""
    breaks: list[State] = []
    continues: list[State] = []
    end = _join(_behind(body, inside, breaks, continues), *continues)
    if not always:
        end = _join(before, end)
    return (None if endless else end), breaks


class _Known(ast.NodeTransformer):
    """Puts constants in the place of the conditions `flag` and `not flag`."""

    def __init__(self, flag: bool) -> None:
        self.flag = flag

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        text = ast.unparse(node.test)
        if text in ("flag", "not flag"):
            node.test = ast.Constant(self.flag == (text == "flag"))
        return node


def assigned(body: str, flag: bool = True) -> bool:
    """Whether all paths assign what they read; conditions but `flag` may be true or false."""
    try:
        _behind(_Known(flag).visit(ast.parse(body)).body, GIVEN, [], [])
    except _MaybeUnassigned:
        return False
    return True


CALLS = """
def first(t):
    return t.load_tile((1,), (0,)).reshape(())

def k(out: Mut, a: Tensor, b: Tensor, n: i32):
    wide = a.shape[0] * 2**33
    out.store(ct.broadcast(ct.f32(f(n, wide, a, b, True)) - 2.0 * ct.f32(f(n, wide, a, b, False)), out.shape))
"""
A, B = np.arange(20, 23, dtype=np.int32), np.arange(30, 36, dtype=np.int32)[::2]
WIDE = len(A) * 2**33


def judged(body: list[str]) -> bool:
    """Whether the kernel compiles, after it was compared with Python.

    The text is a helper's, which is called once with a flag that is true, and once with a false one.
    """
    lines = "\n    ".join([*body, "z = x"])
    text = f"def f(n, wide, a, b, flag):\n    {lines}\n    return z\n"
    python = define(f"def first(t):\n    return t[0]\n\n{text}")
    compiled = kernel(text + CALLS)
    certain = all(assigned("\n".join([*body, "z = x"]), flag) for flag in (True, False))
    for n in LAUNCHED:
        out = np.full(4, np.nan, np.float32)
        try:
            launch(compiled, (out, (4,)), A, B, n)
        except ct.KernelError as error:
            if certain and "type" not in str(error):  # such as i32 on one path, and i64 on another
                raise
            return False
        assert certain, "a path reads what it has not assigned"
        x, y = (np.float32(python(n, WIDE, A, B, flag)) for flag in (True, False))
        assert (out == x - 2 * y).all(), (n, out, x, y)
    return True


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_assigned_on_every_path_compiles(choose: random.Random) -> None:
    judged(_Drawer(choose).block(4, [], False))


SEARCH = """
for k in range({times}):
    if k >= n:
        x = k
        break
"""
BOTH = """
for k in range({times}):
    if k >= n:
        x = k + 10
        break
    else:
        x = k + 20
        break
"""
CASES: dict[str, tuple[str, bool]] = {
    "both branches leave": (BOTH.format(times=5), True),
    "both branches leave, of a loop that may not run": (BOTH.format(times="n"), False),
    "both branches leave, or `else` assigns": (BOTH.format(times="n") + "else:\n    x = 99\n", True),
    "found, or not": (SEARCH.format(times="n") + "else:\n    x = 99\n", True),
    "found, or undefined": (SEARCH.format(times=5), False),
    "`else` reads what was not found": (SEARCH.format(times=5) + "else:\n    x = x + 1\n", False),
    "without an end": ("while True:\n    if n > 2:\n        x = 1\n        break\n    x = n\n    break\n", True),
    "all but the first are skipped": ("for k in range(5):\n    if k < n:\n        continue\n    x = k\n", False),
    "each is assigned, then skipped": (
        "for k in range(5):\n    if k < n:\n        x = 3\n        continue\n    x = k\n",
        True,
    ),
    "in a loop in a loop": (
        "for j in range(2):\n" + "\n".join("    " + line for line in BOTH.format(times=3).split("\n")),
        True,
    ),
    "begun by one branch alone, a tensor of either form": (
        "if n > 2:\n    t = a\nfor k in range(3):\n    t = a\n    if k < n:\n        t = b\nx = first(t)\n",
        True,
    ),
    "by one of two calls alone": (
        "for k in range(3):\n    if flag:\n        y = k\nx = n\nif flag:\n    x = y\n",
        True,
    ),
    "the first of two loops": ("for k in range(5):\n    x = k\nfor k in range(n):\n    x = 2 * k\n", True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop(name: str) -> None:
    body, compiles = CASES[name]
    assert judged([line for line in body.split("\n") if line.strip()]) is compiles


def test_the_judge_finds_what_is_not_assigned() -> None:
    verdicts: dict[str, Any] = {name: assigned(f"{body}\nz = x") for name, (body, _) in CASES.items()}
    assert verdicts == {name: compiles for name, (_, compiles) in CASES.items()}
