"""What kernels say while they run: the same text on every backend, and assertions that name the place."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutile as ct
from cutile import Mut, api, f32, f64, i32, i64, u64
from cutile.dtypes import DTYPES, DTypeLike
from cutile.errors import KernelAssertionError, KernelTypeError
from cutile.ops.debug import percent_format, text_of
from tests.support.devices import on
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS


@ct.entry
def speak(y: Mut, n: i32, a: f32, flag: ct.bool_):
    i = ct.get_tile_block_id()[0]
    print("block", i, f"n={n:4d}|{n:<4d}|{n:+d}", a, flag, (1, n), sep=" / ")
    print(f"{y.load():.2f} 100% {{}}", end="")
    print()
    t = ct.iota((6,)).reshape((2, 3))
    print(t, t > 2, ct.convert_tile(t, ct.u64) * 10**10, -ct.convert_tile(t, ct.i8))
    ct.cuda_tile_print("<{}, {:x}> {{}}\n", i, ct.convert_tile(n, ct.u32))
    token = ct.print_tko("half {:g}\n", ct.convert_tile(a, ct.f16) / 3.0)
    ct.print_tko("{} {} {}\n", a / 0.0, -a / 0.0, a / 0.0 - a / 0.0, token=token)


SAID = """\
block / 0 / n=  12|12  |+12 / 0.1 / True / (1, 12)
[0.00, 0.00] 100% {}
[[0, 1, 2], [3, 4, 5]] [[False, False, False], [True, True, True]] \
[[0, 10000000000, 20000000000], [30000000000, 40000000000, 50000000000]] [[0, -1, -2], [-3, -4, -5]]
<0, c> {}
half 0.0333252
inf -inf nan
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_text_is_the_same_everywhere(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    with on(backend):
        speak(api.zeros((2,)).partition((2,)), 12, 0.1, True).sync()
    assert capfd.readouterr().out == SAID


@ct.entry
def speak_padded(y: Mut, a: f32):
    print(f"{a:06.1f}|{-a / 0.0:+09.2e}|{a / 0.0 - a / 0.0:08g}|{y.load() / 0.0:05}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_fill_up_what_is_no_number(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    with on(backend):
        speak_padded(api.zeros((2,)).partition((2,)), 2.5).sync()
    assert capfd.readouterr().out == "0002.5|-00000inf|00000nan|[00nan, 00nan]\n"


@dataclass(frozen=True)
class Shown:
    """Fields that Python shows."""

    a: Any
    b: Any = "x"


@dataclass(frozen=True)
class Secret:
    """A field that Python does not show."""

    a: Any = field(default=1, repr=False)


class Both(NamedTuple):
    """A named tuple, whose names Python shows."""

    a: Any
    b: Any = None


class Spoken(NamedTuple):
    """A named tuple with a text of its own."""

    a: Any

    def __repr__(self) -> str:
        return "spoken"


SHOWN = {each.__name__: each for each in (Shown, Secret, Both, Spoken)}


@pytest.mark.parametrize(
    "text",
    [
        "(n, 'a', None, True)", "((n,), ())", "[n, 'b']", "[1, [2]]", "Shown(n)", "Shown((1, n), [n])", "Shown(1, 2)",
        "Both(n, 'y')", "Both(1)", "f'{n=}'", "f'{n = :4d}'", "f'{n!r} {n!s}'", "f'{(n, 1)!r}'", "f'{3!s:4}|{3!r:>4}'",
        "f'{None!s:6}|'", "f'{\"é\"!a}'", "f'{(1, \"a\")}'", "f'{Both(n)=}'",
    ],
)  # fmt: skip
def test_values_are_shown_as_python_shows_them(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    exec(f"print({text})", {"n": 3, **SHOWN})
    expected = capfd.readouterr().out
    with on("reference"):
        kernel(f"def k(y: Mut, n: i32):\n    print({text})\n", **SHOWN)(api.zeros((2,)).partition((2,)), 3).sync()
    assert capfd.readouterr().out == expected


@pytest.mark.parametrize("text", ["Secret()", "Spoken(n)"])
def test_classes_with_a_text_of_their_own_are_refused(text: str) -> None:
    with on("reference"), pytest.raises(KernelTypeError, match="has a text of its own"):
        kernel(f"def k(y: Mut, n: i32):\n    print({text})\n", **SHOWN)(api.zeros((2,)).partition((2,)), 3).sync()


def test_formats_mean_what_they_do_in_python() -> None:
    numbers = {
        f64: (0.0, -0.0, 1.5, -2.25, 1e10, -1e-5, *map(float, ("nan", "inf", "-inf"))),
        i64: (0, 5, -37),
        u64: (9,),
    }
    formats = 0
    for parts in itertools.product("<> ", "+ ", "0 ", ("1", "6", "12", ""), (".0", ".3", ""), "dxXeEfgG"):
        spec = "".join(parts).replace(" ", "")
        for dtype, values in numbers.items():
            try:
                form = percent_format(spec, dtype)
            except KernelTypeError:
                continue
            formats += 1
            for value in values:
                assert text_of(np.asarray(value, dtype.numpy), form) == format(value, spec), spec
    assert formats > 400


@ct.entry
def speak_nul(y: Mut):
    print("a\0{}", y.load(), "\0", end="b\0\n")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nul_does_not_end_the_text(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    with on(backend):
        speak_nul(api.zeros((2,)).partition((2,))).sync()
    said = capfd.readouterr().out
    assert said.replace("\0", "") == "a{} [0, 0] b\n"
    assert backend == "cuda" or said.count("\0") == 3  # C's formats have none


HELLO = """
def k(y: Mut):
    i, j, k = ct.get_tile_block_id()
    print(f"tile <{i}, {j}, {k}>")
    y.store(y.load())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_block_speaks_once(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    with on(backend):
        kernel(HELLO)(api.zeros((2, 2)).partition((1, 1))).sync()
    said = sorted(capfd.readouterr().out.splitlines())
    assert said == ["tile <0, 0, 0>", "tile <0, 1, 0>", "tile <1, 0, 0>", "tile <1, 1, 0>"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_may_do_nothing_but_speak(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = "def hello():\n    x, y, z = ct.get_tile_block_id()\n"
    text += "    ct.cuda_tile_print('Hello, I am tile <{}, {}, {}>\\n', x, y, z)\n"
    with on(backend):
        kernel(text)().grid((2, 2, 1)).sync()
    said = sorted(capfd.readouterr().out.splitlines())
    assert said == [f"Hello, I am tile <{x}, {y}, 0>" for x in (0, 1) for y in (0, 1)]


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_integers_are_formatted_as_floats_where_that_is_asked(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = "def k(n: i32):\n    print(f'{n:.2f} {ct.iota((3,)):5.1f} {ct.iota((2,)) * 0.5:.2f} {n:e}')\n"
    with on("reference" if backend == "interpret" else backend):
        op = kernel(text.replace("ct.iota((2,)) * 0.5", "ct.iota((2,)).astype(ct.f32) * 0.5"))(-7).grid((1,))
        (op.interpret() if backend == "interpret" else op).sync()
    assert capfd.readouterr().out == "-7.00 [  0.0,   1.0,   2.0] [0.00, 0.50] -7.000000e+00\n"


EVERY = """
def k(x: Tensor):
    t = x.load_tile((2,), (0,))
    ct.cuda_tile_print("{} ", t)
    ct.print_tko("{}\\n", ct.reduce(t, 0, 0, lambda a, b: b))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_a_text(dtype: DTypeLike, backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    lowest = -1 if dtype.kind in ("int", "float") else 0
    x = np.array([lowest, 1.5]).astype(dtype.numpy)
    with on(backend):
        kernel(EVERY)(api.from_numpy(x).sync()).grid((1,)).sync()
    last = "1.5" if dtype.kind == "float" else f"{x[1]}"
    first = f"{x[0]}" if dtype.kind == "bool" else f"{lowest}"
    assert capfd.readouterr().out == f"[{first}, {last}] {last}\n"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_holds_says_nothing(dtype: DTypeLike, backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = "def k(x: Tensor):\n    ct.cuda_tile_assert(x.load_tile((3,), (0,)), 'none is zero')\n"
    with on(backend):
        kernel(text)(api.from_numpy(np.array([1, 1, 3]).astype(dtype.numpy)).sync()).grid((1,)).sync()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    with on(backend), pytest.raises(KernelAssertionError, match="none is zero"):
        kernel(text)(api.from_numpy(np.array([1, 0, 3]).astype(dtype.numpy)).sync()).grid((1,)).sync()


CHECKED = """
def k(y: Mut, n: i32):
    t = y.load()
    for i in range(4):
        assert check(t, i, n), "they must be below n"
    assert y.shape[0] == 8
    ct.cuda_tile_assert(n < 100, "n is too large")
    y.store(t + 1)

def check(t, i, n):
    return t + i < n
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failed_assertion_says_where(backend: str) -> None:
    scope = kernel("def check(t, i, n):\n    return t + i < n\n" + CHECKED[: CHECKED.index("def check")])
    with on(backend):
        y = api.arange(32, i32).sync()
        assert scope(y.mut.partition((8,)), 50).sync()[0] is not None
        assert y.to_numpy().sync()[0] == 1
        with pytest.raises(KernelAssertionError) as caught:
            scope(y.mut.partition((8,)), 20).sync()
    said = str(caught.value)
    assert re.search(r'k: they must be below n\n  File "<kernel \d+>", line \d+, in tile block \([123], 0, 0\)\n', said)
    assert 'assert check(t, i, n), "they must be below n"' in said
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("condition", ["t > 0", "(t > 0).all()", "(t > 100).any()", "(t > 0).all() and n > 3"])
def test_a_failed_assertion_of_elements_tells_no_numbers_of_its_own(backend: str, condition: str) -> None:
    """Whether all bools are true is the minimum of their integers, which nobody has written."""
    text = f"def k(y: Mut, n: i32):\n    t = y.load()\n    assert {condition}\n    y.store(t)\n"
    with on(backend), pytest.raises(KernelAssertionError) as caught:
        kernel(text)(api.arange(8, i32).partition((8,)), 5).sync()
    assert "number" not in str(caught.value)
    assert ("with n = 5" in str(caught.value)) == ("n > 3" in condition)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("word", ["and", "&"])
def test_numbers_without_names_are_an_index_only_in_a_check_of_one(word: str, backend: str) -> None:
    line = f"assert (n + 1 > 7) {word} (n * 2 < 9), 'no'"
    check = kernel(f"def check(y: Mut, n: i32):\n    {line}\n    y.store(y.load())\n")
    with on(backend), pytest.raises(KernelAssertionError) as caught:
        check(api.zeros((2,), i32).partition((2,)), 5).sync()
    assert "with number 0 = 6, number 1 = 10" in str(caught.value)


# A name, its annotation, its value, an expression of it, its format, and the text.
IN_MESSAGES = {
    "i32": ("n: i32", -7, "n", "", "-7"),
    "negated": ("n: i32", -7, "-n * 2", ":4d", "  14"),
    "i8": ("n: ct.i8", -128, "n", "", "-128"),
    "u8": ("n: ct.u8", 255, "n", ":x", "ff"),
    "u32": ("n: ct.u32", 2**32 - 1, "n", "", "4294967295"),
    "i64": ("n: i64", -(2**63), "n", "", "-9223372036854775808"),
    "u64": ("n: u64", 2**64 - 1, "n", "", "18446744073709551615"),
    "f32": ("n: f32", 0.1, "n", ":.3f", "0.100"),
    "f32 of an expression": ("n: f32", -1e30, "n * 2.0", "", "-2e+30"),
    "inf": ("n: f32", float("-inf"), "n", "", "-inf"),
    "nan": ("n: f32", float("nan"), "n", "", "nan"),
    "f64": ("n: f64", 1 / 3, "n", ":.15f", "0.333333333333333"),
    "f16": ("n: ct.f16", 1.5, "n", "", "1.5"),
    "bf16": ("n: ct.bf16", 3.0, "n", "", "3"),
    "bool": ("n: ct.bool_", True, "n", "", "True"),
    "false": ("n: ct.bool_", True, "not n", "", "False"),
    "an integer as a float": ("n: i32", 7, "n", ":.1f", "7.0"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IN_MESSAGES)
def test_a_failed_assertion_shows_the_values_of_its_message(name: str, backend: str) -> None:
    parameter, number, value, form, words = IN_MESSAGES[name]
    lines = f"i = ct.get_tile_block_id()[0]\n    assert i < 0, f'100% {{{value}{form}}} of {{i:02d}}%d'"
    with on(backend), pytest.raises(KernelAssertionError) as caught:
        kernel(f"def k(y: Mut, {parameter}):\n    {lines}\n    y.store(y.load())\n")(
            api.zeros((4,)).partition((4,)), number
        ).sync()
    said = str(caught.value)
    assert said.startswith(f"k: 100% {words} of 00%d\n"), said
    assert "with " not in said, "the message shows what the condition compares"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_message_and_the_integers_that_its_condition_compares_share_the_report(backend: str) -> None:
    text = (
        "def k(y: Mut, a: i32, b: u64, c: f32, d: i32):\n"
        "    assert (a > 1) and (b < 5) and (d > 9), f'{c:.2f} {a}'\n"
        "    y.store(y.load())\n"
    )
    with on(backend), pytest.raises(KernelAssertionError) as caught:
        kernel(text)(api.zeros((4,)).partition((4,)), 1, 2**64 - 1, 2.5, 3).sync()
    said = str(caught.value)
    assert said.startswith("k: 2.50 1\n")
    assert said.endswith("    with b = 18446744073709551615, d = 3"), said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print(f'{n:s}')", "no format 's' for i32"),
        ("print(f'{n:<06d}')", "aligns what zeros fill up"),
        ("print(f'{ct.convert_tile(n, ct.u32):+x}')", "has a sign, but u32 has none"),
        ("print(y)", "cannot print Mut of i32"),
        ("print(ct.convert_tile(ct.convert_tile(n, f32), ct.f8e5m2))", "f8e5m2 is for memory, and has no text"),
        ("print(f'{n!r:>5}')", "!r of scalar i32, with a format"),
        ("print(n, sep=n)", "sep must be a constant string"),
        ("ct.cuda_tile_print('{} {}', n)", "more places than the 1 values"),
        ("ct.cuda_tile_print('{}', n, n)", "2 values, but the format"),
        ("ct.cuda_tile_print('{', n)", "a lone '{'"),
        ("assert n > 0, f'{y.load()}'", "the message accesses memory, where it would do so even if the condition"),
        ("t = y.load()\n    assert n > 0, f'{t}'", r"the message shows a tile of shape \(4,\); it may show scalars"),
        ("assert n > 0, f'{n} {n} {n} {n} {n}'", "the message shows 5 values that .*; it may show 4"),
        ("assert n > 0, n", "the message must be a string, got scalar i32"),
        ("ct.cuda_tile_assert(n > 0, f'{y.load()}')", "the message shows a tile of shape"),
        ("ct.cuda_tile_assert(False, 'never')", "the condition is false: never"),
    ],
)
def test_what_cannot_be_said_is_refused(body: str, message: str) -> None:
    made = kernel(f"def k(y: Mut, n: i32):\n    {body}\n    y.store(y.load())\n")
    with pytest.raises(KernelTypeError, match=message):
        made(api.zeros((4,), i32).sync().partition((4,)), 3).sync()


JOINED = """
def k(y: Mut, n: i32):
    assert n > 0, "n must be positive"
    y.store(y.load() * 2.0)
"""


def test_an_assertion_does_not_keep_tile_blocks_apart() -> None:
    with on("cpu"):
        y = api.zeros((4096, 64)).sync()
        op = kernel(JOINED)(y.mut.partition((4, 8)), -1)
        lowered = op.render("lowered")
        assert "'an assert" not in lowered
        assert re.search(r"joined = (?!1\b)\d+", lowered), lowered[:400]
        with pytest.raises(KernelAssertionError, match=r"n must be positive(.|\n)*in tile block \(\d+, \d+, 0\)"):
            op.sync()
