"""An index that is out of range where a kernel runs on the CPU is told with its extent, its axis and its line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.errors import KernelAssertionError, LaunchError, OutOfBoundsError
from cutile.launch.target import INTERPRET
from tests.support.devices import on
from tests.support.kernels import kernel

LOAD = kernel(
    """
def load(y: Mut, x: Tensor, at: Tensor):
    y.store(x.partition((4,)).load(at.load_tile((1,), (0,)).reshape(())))
"""
)
STORE = kernel(
    """
def store(y: Mut, x: Tensor, at: Tensor):
    y.partition_mut((2,)).store(ct.constant(1.0, (2,), f32), at.load_tile((1,), (0,)).reshape(()))
"""
)
ASSERT = kernel(
    """
def check(y: Mut, x: Tensor, at: Tensor):
    i = at.load_tile((1,), (0,)).reshape(())
    assert i < x.shape[0], "i is too large"
    y.store(y.load())
"""
)


def failure(function: Any, index: int, backend: str) -> str:
    at = api.from_numpy(np.array([index], np.int32)).sync()
    with ct.use_backend(backend), pytest.raises(KernelAssertionError) as raised:
        function(api.zeros((4,)).sync().partition((4,)), api.ones((8,)).sync(), at).sync()
    return str(raised.value)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("index", [99, -1])
def test_the_index_and_the_extent_are_told(index: int, backend: str) -> None:
    text = failure(LOAD, index, backend)
    assert "the tile index along axis 0 of 'x', in tiles of 4, is out of range" in text
    assert text.endswith(f"    with index = {index}, count = 2")
    assert "line 3, in tile block (0, 0, 0)\n    y.store(x.partition((4,)).load(" in text


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_extent_that_is_known_before_stands_in_the_message(backend: str) -> None:
    text = failure(STORE, 7, backend)
    assert "the index along axis 0 into the nested partition of 'y' is out of range: there are 2" in text
    assert text.endswith(" = 7")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_numbers_of_an_assertion_are_told(backend: str) -> None:
    assert failure(ASSERT, 9, backend).endswith("    with i = 9, number 1 = 8")


def test_a_failure_tells_nothing_of_the_one_before() -> None:
    for index in (50, 60):
        assert failure(LOAD, index, "cpu").endswith(f"    with index = {index}, count = 2")


EMPTY = {
    "the launch's number": ("x.slice(0, 0, n)", 0),
    "both ends": ("x.slice(0, n, n)", 3),
    "behind the end": ("x.slice(0, n)", 8),
    "from data": ("x.slice(0, 0, at.load_tile((1,), (0,)).reshape(()))", 0),
    "of a slice": ("x.slice(0, 0, n).slice(0, 0, 3)", 0),
    "chosen": ("(x.slice(0, 0, n) if n < 3 else x)", 0),
    "carried": ("x.slice(0, 0, n)", 0),
}


@pytest.mark.parametrize("backend", ["cpu", "reference", INTERPRET])
@pytest.mark.parametrize("name", EMPTY)
def test_a_slice_without_elements_has_no_first_tile(name: str, backend: str) -> None:
    part, n = EMPTY[name]
    access = "y.store(part.load(0))"
    if name == "carried":
        access = "for i in range(2):\n        y.store(part.load(i))"
    function = kernel(
        f"def load(y: Mut, x: Tensor, at: Tensor, n: i32):\n    part = {part}.partition((4,))\n    {access}\n"
    )
    at = api.from_numpy(np.zeros(1, np.int32)).sync()
    with on(backend), pytest.raises((KernelAssertionError, OutOfBoundsError, LaunchError)) as raised:
        function(api.ones((4,)).sync().partition((4,)), api.ones((8,)).sync(), at, n).sync()
    assert "the tile index along axis 0 of " in str(raised.value)
    assert "there are 0 tiles of 4" in str(raised.value) or str(raised.value).endswith("count = 0")


GUARDS = {
    "and": "if at.shape[0] > 0 and sure(i):\n        pass",
    "or": "if at.shape[0] < 0 or sure(i):\n        pass",
    "case": "match i - i:\n        case 0 if sure(i):\n            pass",
    "chain": "if -1 < i > -1 < sure(i):\n        pass",
    "chain that fails": "if -1 < i > -1 > sure(i):\n        pass",
    "while": "while sure(i):\n        break",
    "while with an exit at run time": "while sure(i):\n        i = i + 1\n        if i > 9:\n            break",
    "while it is false": "while not sure(i):\n        i = i + 1",
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_condition_that_is_known_before_is_checked_where_it_is_asked_for(guard: str, backend: str) -> None:
    """A function that asserts something and returns a constant."""
    body = f"""
def sure(i):
    assert i < 8, "i is too large"
    return True

def check(y: Mut, x: Tensor, at: Tensor):
    i = at.load_tile((1,), (0,)).reshape(())
    {GUARDS[guard]}
    y.store(y.load())
"""
    assert "i is too large" in failure(kernel(body), 9, backend)
