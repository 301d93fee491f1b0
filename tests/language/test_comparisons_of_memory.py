"""Tensors and other memory in comparisons: their elements are not loaded, so no comparison asks for them.

Each kind of memory is put into each way to compare values, directly, among the items of `in`, and in tuples, lists,
dicts and dataclasses. An answer of True or False would be that of Python's objects, whatever the elements are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import cutile as ct
from cutile import api, i32
from cutile.errors import KernelTypeError
from tests.support.devices import on
from tests.support.kernels import define

MEMORY = {
    "tensor": "x",
    "Mut": "y",
    "partition": "x.partition((8,))",
    "SharedMut": "c",
    "pointer": "p",
}

COMPARISONS = [
    "{m} == 0",
    "0 != {m}",
    "{m} == n",
    "{m} == [0]",
    "{m} in (0, 1)",
    "{m} not in (0, 1)",
    "{m} in [0, 1]",
    "{m} in (None, 0)",
    "{m} in (0, n)",
    "0 in ({m}, 1)",
    "1 not in ({m}, 1)",
    "n in ({m}, 1)",
    "({m},) == (0,)",
    "({m}, n) != (0, 3)",
    "(0, ({m},)) == (0, (1,))",
    "({m},) in ((0,), (1,))",
    "(0,) in (({m},), (1,))",
    "[{m}] == [0]",
    "{{1: {m}}} == {{1: 0}}",
    "Pair({m}, 1) == Pair(0, 1)",
]

ANSWERS = {
    "{m} == None": False,
    "None != {m}": True,
    "{m} in (None,)": False,
    "None in ({m}, None)": True,
    "({m},) == (None,)": False,
    "(0, {m}) == (1, {m})": False,
    "({m}, 1) == ({m}, 1)": True,
    "({m}, 1) == ({m}, 1, 2)": False,
    "{m} in ({m}, 0)": True,
}
"""Comparisons that ask for no element: with None, of one and the same, and those that are decided before."""


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


def outcome(comparison: str, memory: str, backend: str) -> int:
    """What a kernel stores: 1 where the comparison is True, 0 where it is False."""
    text = (
        "def f(y: Mut, x: Tensor, c: ct.SharedMut, p: ct.Ptr[i32], n: i32):\n"
        f"    y.store(1 if {comparison.format(m=MEMORY[memory])} else 0)\n"
    )
    kernel = ct.entry(unsafe=True)(define(text, Pair=Pair))
    with on(backend):
        y, x, c = (api.zeros((8,), i32).sync() for _ in range(3))
        op = kernel(y.partition((8,)), x, c.mut, x.device_pointer(), 3)
        return int(op.sync()[0].unpartition().to_numpy().sync()[0])


@pytest.mark.parametrize("backend", ["reference", "interpret"])
@pytest.mark.parametrize("memory", MEMORY)
def test_no_comparison_asks_for_elements_that_are_not_loaded(memory: str, backend: str) -> None:
    for comparison in COMPARISONS:
        with pytest.raises(KernelTypeError, match=r"cannot use a|expected a tile or a number") as caught:
            outcome(comparison, memory, backend)
        assert "^" in str(caught.value), comparison


@pytest.mark.parametrize("backend", ["reference", "interpret"])
@pytest.mark.parametrize("memory", ["tensor", "Mut", "SharedMut", "pointer"])
def test_comparisons_that_need_no_element_have_an_answer(memory: str, backend: str) -> None:
    answers = {comparison: bool(outcome(comparison, memory, backend)) for comparison in ANSWERS}
    assert answers == ANSWERS
