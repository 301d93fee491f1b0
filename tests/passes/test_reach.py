"""Indices far outside: what a pass does to those that it cannot prove near, and what it leaves alone."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest

import cutile as ct
from cutile.ir.core import Function
from cutile.ir.text import print_function
from cutile.ir.types import Type
from cutile.passes.bounds import reach
from cutile.passes.fold import fold
from tests.support.programs import mut, program, scalar, tensor

TYPES: dict[str, Type] = {"y": mut(8), "x": tensor(1), "t": tensor(1, ct.i32), "n": scalar(ct.i32), "w": scalar(ct.i64)}


def written(body: str, **facts: Any) -> Function:
    parameters = "y: Mut, x: Tensor, t: Tensor, n: i32, w: i64"
    made = fold(program(f"def f({parameters}):\n{indent(body, '    ')}\n", TYPES))
    made.facts.update(facts)
    return made


NEAR = (
    "y.store(ct.load_tile_like(x, y))",
    "y.store(ct.load_tile(x, (8,), ct.get_tile_block_id()[0] + 1))",
    "for k in range(ct.num_tiles(x.partition((8,)), 0)):\n    y.store(x.load_tile((8,), k))",
    "y.store(x.partition((8,)).load(n))",
    "y.store(x.partition((8,)).load(ct.load_tile(t, (1,), (0,)).reshape(())))",
    "part = y.partition_mut((4,))\nfor k in range(ct.num_tiles(part, 0)):\n    part.store(1.0, k)",
    "y.store(ct.load_tile(x, (8,), ct.assume_bounds(n, -5, 1000)))",
)


@pytest.mark.parametrize("body", NEAR)
def test_an_index_that_is_near_stays_as_it_is(body: str) -> None:
    function = written(body)
    assert reach(function) is function


FAR = (
    "y.store(ct.load_tile(x, (8,), n))",
    "y.store(ct.load_tile(x, (8,), w))",
    "y.store(ct.load_tile(x, (8,), ct.get_tile_block_id()[0] * x.shape[0]))",
    "y.store(ct.load_tile(x, (8,), ct.load_tile(t, (1,), (0,)).reshape(())))",
    "y.store(ct.load_tile(x, (8,), 2**40))",
)


@pytest.mark.parametrize("body", FAR)
def test_an_index_that_may_be_far_becomes_one_just_outside(body: str) -> None:
    made = reach(written(body))
    assert "= min(" in print_function(made)
    assert all(value.tile.dtype is ct.i32 for op in made.walk() if op.name == "load_tile" for value in op.operands[1:])


def test_a_checked_index_of_64_bits_is_cut_behind_its_check() -> None:
    text = print_function(reach(written("y.store(x.partition((8,)).load(w))")))
    assert "check_tile(%x, %w)" in text
    assert "convert(%w)" in text
    assert "= min(" not in text


def test_a_check_that_is_not_made_proves_nothing() -> None:
    text = print_function(reach(written("y.store(x.partition((8,)).load(w))", checks="none")))
    assert "= min(" in text
    assert "= max(" in text


def test_one_that_is_not_negative_is_compared_once() -> None:
    text = print_function(reach(written("y.store(ct.load_tile(x, (8,), ct.get_tile_block_id()[0] * 2**6))")))
    assert "= min(" in text
    assert "= max(" not in text
