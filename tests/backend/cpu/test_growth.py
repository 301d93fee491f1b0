"""Compiling takes work in proportion to a kernel's length: calls are counted, no seconds."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import numpy as np
import pytest

from cutile.backend.interface import Source
from cutile.dtypes import i32
from cutile.errors import KernelTypeError
from cutile.ir.types import Type
from tests.backend.cpu.programs import function, source
from tests.backend.cuda import programs as cuda
from tests.support.kernels import kernel
from tests.support.memory import launch
from tests.support.programs import mut, scalar, tensor

HEAD = "def k(y: Mut, x: Tensor, n: i32):\n    t = y.load()\n"
TYPES: dict[str, Type] = {"y": mut(64), "x": tensor(1), "n": scalar(i32)}
BODIES: dict[str, Callable[[int], str]] = {
    "statements": lambda count: "    t = t + 1.5\n" * count,
    "a value used twice": lambda count: f"    for _ in ct.static_range({count}):\n        t = t * (1.5 - t)\n",
    "two loads": lambda count: "    u = ct.load_tile_like(x, y)\n" + "    t, u = t * u + 0.5, u - t * u\n" * count,
    "reshapes": lambda count: "    t = (t * 0.5).reshape((8, 8)).transpose().reshape((64,)) - t\n" * count,
    "branches": lambda count: "".join(f"    if n > {at}:\n        t = t + {at}.5\n" for at in range(count)),
    "loops": lambda count: "".join(f"    for i in range(n):\n        t = t * {at}.5\n" for at in range(count)),
}


def text(name: str, count: int) -> str:
    return HEAD + BODIES[name](count) + "    y.store(t)\n"


def calls(name: str, count: int) -> int:
    """How many calls it takes to write the generated file of a kernel with `count` statements of a kind."""
    profile = cProfile.Profile()
    with profile:
        source(text(name, count), TYPES)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", BODIES)
def test_twice_the_statements_take_about_twice_the_work(name: str) -> None:
    calls(name, 4)  # work that is done once in a process
    few, many = calls(name, 25), calls(name, 50)
    assert many < 2.6 * few, f"{few} calls for 25 statements, {many} for 50"


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["a value used twice", "statements"])
def test_hundreds_of_statements_in_a_chain_compile(name: str, backend: str) -> None:
    y = np.linspace(0, 1, 64, dtype=np.float32)
    t = y.copy()
    for _ in range(400):
        t = t * (np.float32(1.5) - t) if name == "a value used twice" else t + np.float32(1.5)
    launch(kernel(text(name, 400)), (y, (64,)), np.zeros(64, np.float32), 3, backend=backend)
    np.testing.assert_array_equal(y, t)


CHAIN = """
def chain(y: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, y)
    if n == 0:
        t = t + 1
    elif n == 1:
        t = t * 2
    elif n == 2:
        t = t * t
    y.store(t)
"""


def test_tiles_that_a_chain_of_branches_gives_have_one_place() -> None:
    assert len(source(CHAIN, TYPES).facts["scratch"]) == 1
    for n, meant in enumerate([4.0, 6.0, 9.0, 3.0]):
        y = np.zeros(64, np.float32)
        launch(kernel(CHAIN), (y, (64,)), np.full(64, 3, np.float32), n, backend="cpu")
        np.testing.assert_array_equal(y, np.full(64, meant, np.float32))


def loops(count: int, body: str) -> str:
    written = "".join(f"{'    ' * (at + 1)}for i{at} in range(n):\n" for at in range(count))
    return f"{written}{'    ' * (count + 1)}{body}\n"


def nest(count: int) -> str:
    """`count` nested loops, the inner half in a function: Python itself limits the loops in one."""
    inner = count // 2
    helper = f"def inner(t, n):\n{loops(inner, 't = t + 1.5')}    return t\n\n\n"
    return f"{helper}{HEAD}{loops(count - inner, 't = inner(t, n)')}    y.store(t)\n"


def test_loops_lie_inside_one_another_as_deeply_as_python_lets_them() -> None:
    y = np.zeros(64, np.float32)
    launch(kernel(nest(18)), (y, (64,)), np.zeros(64, np.float32), 1, backend="cpu")
    np.testing.assert_array_equal(y, np.full(64, 1.5, np.float32))


def for_cuda(text: str, types: dict[str, Type]) -> Source:
    return cuda.source(function(text, types))


@pytest.mark.parametrize("write", [source, for_cuda])
@pytest.mark.parametrize("count", [21, 30])
def test_deeper_loops_are_told_with_a_line(write: Callable[[str, dict[str, Type]], Source], count: int) -> None:
    with pytest.raises(KernelTypeError, match="loops lie inside one another") as raised:
        write(nest(count), TYPES)
    assert raised.value.location is not None
    assert "range(n * m)" in raised.value.remedy
