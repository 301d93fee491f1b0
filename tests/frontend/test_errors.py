"""Every mistake has its message, a caret under the expression, and a remedy: read the golden files in review."""

import dataclasses
import enum
import functools
import itertools
import linecache
import operator
import os
import random
import re
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple, Self

import numpy as np
import pytest

import cutile as ct
from cutile import api, entry
from cutile.dtypes import i32
from cutile.errors import KernelError
from cutile.frontend.build import build
from cutile.frontend.signature import read_signature
from cutile.frontend.source import take_source
from tests.frontend.errors import BODIES, HEAD, HELPERS, SIGNATURES
from tests.support.golden import Golden
from tests.support.kernels import define
from tests.support.programs import mut, scalar, tensor


class Checked(NamedTuple("Checked", [("total", float)])):
    """A named tuple whose making runs code."""

    def __new__(cls, total: float) -> Self:
        return super().__new__(cls, total + 1)


def cdiv(a: int, b: int) -> int:
    """As Triton's own: a function written in Python that runs in its kernels alone."""
    raise ValueError("called outside of a kernel of its own")


cdiv.__module__ = "triton.language.core"


CHECKED_BLOCK = define(
    "def checked_block(n):\n    if n % 8:\n        raise ValueError(f'{n} is no multiple of 8')\n    return n\n"
)


TWICE_STORED = define(
    "import contextlib\n@contextlib.contextmanager\ndef twice_stored(y):\n    yield y.load()\n    y.store(y.load())\n"
)


class ChangingObject:
    """An object whose attributes may change, so that no kernel calls it."""

    def __call__(self, t: Any) -> Any:
        return t


class Shade(enum.Flag):
    """Members of an enum, which a kernel names."""

    LIGHT = 1
    DARK = 2


@dataclasses.dataclass(frozen=True)
class Switch:
    """An object that is false, whatever it holds."""

    value: float

    def __bool__(self) -> bool:
        return False


class Dispatched:
    """A function that another compiler has wrapped, as `numba.njit` does."""

    def __init__(self) -> None:
        self.py_func = message_of

    __call__: Any = int.__add__


def message_of(error: KernelError) -> str:
    return re.sub(r"<kernel \d+>", "<kernel>", f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("name", BODIES)
def test_a_mistake_in_a_body(name: str, golden: Golden) -> None:
    if name == "print_conversion" and sys.version_info < (3, 12):
        pytest.skip("this Python tells no places within an f-string")
    golden(f"errors/body/{name}", message_of(mistake(BODIES[name])))


def mistake(body: str) -> KernelError:
    """What compiling a kernel with this body raises."""
    text = HELPERS + HEAD + textwrap.indent(body, "    ") + "\n"
    names = {"table": np.zeros(3), "api": api, "Checked": Checked, "cdiv": cdiv, "checked_block": CHECKED_BLOCK}
    names |= {"changing_object": ChangingObject(), "twice_stored": TWICE_STORED, "LIST": [1, 2]}
    names |= {"Shade": Shade, "Switch": Switch}
    names |= {"random": random, "dispatched": Dispatched(), "VARIABLE": ct.Global(i32, 0)}
    function = define(text, **names, operator=operator, functools=functools, itertools=itertools, __name__=__name__)
    source = take_source(function)
    read_signature(function, source)
    types = {"y": mut(8), "a": scalar(), "n": scalar(i32), "x": tensor(1)}
    with pytest.raises(KernelError) as caught:
        build(function, source, types, {"BK": 8})
    for error in caught.value.errors:
        assert error.location is not None
        assert "^" in str(error)
        assert error.remedy, f"no remedy: {error}"
    return caught.value


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_mistake_in_a_signature(name: str, golden: Golden) -> None:
    function = define(SIGNATURES[name])
    with pytest.raises(KernelError) as caught:
        read_signature(function, take_source(function))
    golden(f"errors/signature/{name}", message_of(caught.value))


def test_a_function_without_source_is_refused_with_the_remedy() -> None:
    scope: dict[str, object] = {}
    exec("def kernel(y): pass", scope)
    with pytest.raises(KernelError, match=r"source text cannot be found(.|\n)*linecache"):
        take_source(scope["kernel"])  # type: ignore[arg-type]


TYPED = """
import cutile as ct
from cutile import api

def twice(t):
    return t + t

@ct.entry
def typed(y: ct.Mut):
    y.store(twice(y.load()))

@ct.entry
def wrong(y: ct.Mut):
    y.store(twice(missing))

y = api.ones((4,)).sync()
print(typed(y.mut.partition((4,))).sync().y.tensor.to_numpy().sync())
try:
    wrong(y.mut.partition((4,))).sync()
except ct.KernelError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python keeps the text that is given by -c since 3.13")
def test_a_kernel_that_is_no_files_is_found() -> None:
    """Python 3.14 keeps such text by code, 3.13 by the name of a file."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_ASYNC_DEVICE": "cpu"}
    command = [sys.executable, "-c", TYPED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2. 2. 2. 2.]\nname 'missing' is not defined"), done.stdout
    assert "    y.store(twice(missing))\n                  ^^^^^^^\n" in done.stdout


def register(file: str, text: str) -> None:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def test_text_that_is_not_the_functions_is_not_taken_for_it() -> None:
    for text in ("x = 1\ndef other(y): pass\n", "x = 1\nexec('''\n"):
        register("<elsewhere>", text)
        for source in ("def kernel(y): pass", "\ndef kernel(y): pass"):
            scope: dict[str, Any] = {}
            exec(compile(source, "<elsewhere>", "exec"), scope)
            with pytest.raises(KernelError, match="source text cannot be found"):
                take_source(scope["kernel"])


def test_the_caret_stands_under_the_expression() -> None:
    function = define("def kernel(y: Mut):\n        y.store(y.load() + missing)\n")
    source = take_source(function)
    with pytest.raises(KernelError) as caught:
        build(function, source, {"y": mut(8)}, {})
    line, caret = str(caught.value).splitlines()[2:4]
    assert line[caret.index("^") : caret.rindex("^") + 1] == "missing"


@pytest.mark.parametrize("begin", ["t = y.load(); s = 'αβγ'", "t = 'ab'; é = y.load(); s = '…'"])
def test_the_caret_counts_characters_and_not_bytes(begin: str) -> None:
    error = mistake(f"{begin}; y.store(y.load() + missing)")
    line, caret = str(error).splitlines()[2:4]
    assert line[caret.index("^") : caret.rindex("^") + 1] == "missing"


def test_a_function_that_raises_is_shown_with_the_caret_in_characters() -> None:
    raising = define("def raising(n):\n    return 'αβγ' if n < 0 else 1 // (n - n)\n")
    function = define("def kernel(y: Mut):\n    y.store(y.load() * raising(3))\n", raising=raising)
    with pytest.raises(KernelError, match="ZeroDivisionError") as caught:
        build(function, take_source(function), {"y": mut(8)}, {})
    line, caret = str(caught.value).splitlines()[2:4]
    assert line[caret.index("^") : caret.rindex("^") + 1] == "1 // (n - n)"


@pytest.mark.parametrize(
    "body",
    [
        "# left of the definition\n        y.store(y.load())",
        "        y.store(y.load()\n+ 1)",
        '        """Text that\ngoes on at the margin."""\n        y.store(y.load())',
        '        ct.static_assert(len("""a\n        b""") == 11)\n        y.store(y.load())',
    ],
)
def test_an_indented_kernel_may_have_lines_left_of_its_definition(body: str) -> None:
    outer = define(f"def outer():\n    def kernel(y: Mut):\n{body}\n    return kernel\n")
    function = outer()
    source = take_source(function)
    assert source.lines[source.first_line].startswith("    def kernel")
    program = build(function, source, {"y": mut(8)}, {})
    assert any(op.name == "store_mut" for op in program.function.walk())


def test_errors_are_also_the_builtin_that_a_user_expects() -> None:
    for text, builtin in (("t = nothing", NameError), ("t = {1}", SyntaxError), ("t = y.load()[0]", TypeError)):
        function = define(f"def kernel(y: Mut):\n    {text}\n")
        with pytest.raises(builtin):
            build(function, take_source(function), {"y": mut(8)}, {})


@pytest.mark.parametrize("use", ["y.store(x.load_tile((8,), 0))", "t = y.load()"])
def test_a_mut_that_the_kernel_uses_may_give_its_name_away(use: str) -> None:
    function = define(f"def kernel(y: Mut, x: Tensor):\n    {use}\n    y = x.load_tile((8,), 0)\n")
    program = build(function, take_source(function), {"y": mut(8), "x": tensor(1)}, {})
    assert any(op.name == "load_tile" for op in program.function.walk())


def test_what_is_no_function_is_no_kernel() -> None:
    kernel = entry(define("def kernel(y: Mut):\n    y.store(y.load())\n"))
    for wrong, words in ((kernel, "kernel 'kernel' is a kernel already"), (int, "kernel 'int' is a class")):
        untyped: Any = wrong
        with pytest.raises(KernelError, match=f"{words}\n.*once"):
            entry(untyped)


@pytest.mark.parametrize("leave", ["if t > 0:\n    break", "t -= 1\nif t > 0:\n    break", "if nothing:\n    break"])
def test_a_loop_that_a_failed_statement_would_leave_is_not_called_endless(leave: str) -> None:
    error = mistake("t = nothing\nwhile True:\n" + textwrap.indent(leave, "    "))
    assert {part.message for part in error.errors} == {"name 'nothing' is not defined"}


@pytest.mark.parametrize("first", ["u = ct.erf(t)", "u = ct.erf(t) if k > 0 else ct.exp(t)", "u = ct.fma(t, t, t)"])
def test_a_loop_is_endless_whatever_a_dropped_guess_has_failed_at(first: str) -> None:
    """`t` is guessed to stay a whole number: there `u` fails, and `v`, which uses it, only for that."""
    inner = f"t = 0\nfor k in range(n):\n    {first}\n    v = u + 1.0\n    t = t + 1.5\n"
    error = mistake("while True:\n" + textwrap.indent(inner, "    "))
    assert error.message == "the condition of this loop is always true, and nothing leaves it"


def test_lines_of_a_lambda_are_counted_as_python_counts_them() -> None:
    """A form feed and the separators of Unicode end no line of Python's."""
    text = "\x0c\n# \x1c a \u2028 b\nadd = lambda a, b: a + nothing\n"
    linecache.cache["<separators>"] = (len(text), None, re.findall(r"[^\n]*\n", text), "<separators>")
    scope: dict[str, Any] = {}
    exec(compile(text, "<separators>", "exec"), scope)
    assert take_source(scope["add"]).lines == {3: "add = lambda a, b: a + nothing"}


THROUGH_FUNCTIONS = {
    "a function of the kernel's": "def f(t):\n    return s + t\na, b = f(1), f(2)",
    "a lambda": "f = lambda t: s * t\na, b = f(1), f(2)",
    "a function that names it": "def f(t):\n    u = s + t\n    return u\na, b = f(1), f(2)",
    "a function of a function": "def f(t):\n    return g(t)\ndef g(t):\n    return s + t\na, b = f(1), f(2)",
    "a function in a loop": "def f(t):\n    return s + t\na = b = 0\nfor k in range(n):\n    a, b = f(1), f(2)",
    "one path of a function": "def f(t):\n    if n > 0:\n        return s + t\n    return t\na, b = f(1), f(2)",
    "no value": "def f():\n    y.store(s)\nf()\na, b = 2, 1",
    "items": "f = lambda t: (s, t)\n(a, _), (b, _) = f(1), f(2)",
    "a comprehension": "a, b = (s + k for k in (1, 2))",
}


@pytest.mark.parametrize("begin", ["s = nothing", "s = y.load() + nothing", "s = ct.exp(nothing)", "s, _ = nothing"])
@pytest.mark.parametrize("way", THROUGH_FUNCTIONS)
def test_what_a_function_makes_of_a_faulty_value_is_not_reported(way: str, begin: str) -> None:
    error = mistake(f"{begin}\n{THROUGH_FUNCTIONS[way]}\ny.store(y.load() * (b - a) + a)")
    assert error.message == "name 'nothing' is not defined"


@pytest.mark.parametrize("kind", [ct.Partition, ct.PartitionMut, ct.PartitionIndex, ct.Tile, ct.Token])
def test_annotations_of_helpers_may_have_facts_in_brackets(kind: Any) -> None:
    """Python evaluates them where a module does not import `annotations`, and kernels ignore them."""
    alias = kind[ct.f32, 2]
    assert (alias.__origin__, alias.__args__) == (kind, (ct.f32, 2))
