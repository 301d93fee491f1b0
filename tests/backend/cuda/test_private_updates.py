"""Sums kept in shared memory: the updates that get them, and their machine code."""

from __future__ import annotations

import re

import pytest

from cutile.backend.cuda.ops.memory import Barrier
from cutile.backend.cuda.ops.private import PrivateEnd, PrivateStart, PrivateUpdate
from cutile.backend.cuda.private_updates import CELLS
from cutile.dtypes import DTypeLike, i32, i64, u8
from cutile.ir.core import Function
from cutile.ir.text import parse, print_function
from cutile.ir.types import TensorType
from cutile.ops.atomic import AtomicRmw
from cutile.ops.registry import OPS
from tests.backend.cuda.programs import compiled, lowered, ptx, written
from tests.support.programs import tensor

LOOP = """
def count(y: ct.SharedMut, x: Tensor):
    part = x.partition((4096,))
    for i in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        {body}
"""
HISTOGRAM = "ct.atomic_add(y, part.load(i), 1, mask=part.inside(i))"


def shared(dtype: DTypeLike = i32, extent: int | None = None, rank: int = 1) -> TensorType:
    return TensorType(dtype, (extent,) * rank, (None,) * (rank - 1) + (1,), 16, stable=False)


def counting(body: str = HISTOGRAM, y: TensorType | None = None, index: DTypeLike = u8) -> Function:
    return written(LOOP.format(body=body), {"y": y or shared(), "x": tensor(1, index)})


def kinds(function: Function) -> list[type]:
    of_interest = PrivateStart | PrivateUpdate | PrivateEnd | AtomicRmw | Barrier
    return [type(op) for op in lowered(function).walk() if isinstance(op, of_interest)]


def test_a_loop_adds_in_shared_memory() -> None:
    assert kinds(counting()) == [PrivateStart, PrivateUpdate, PrivateEnd]
    twice = f"{HISTOGRAM}\n        ct.atomic_add(y, 255 - part.load(i), 2)"
    assert kinds(counting(twice)) == [PrivateStart, PrivateUpdate, PrivateUpdate, PrivateEnd]


@pytest.mark.parametrize(
    "function",
    [
        counting("ct.atomic_max(y, part.load(i), 1)"),
        counting(y=shared(i64)),
        counting(y=shared(extent=CELLS + 1)),
        counting(index=i64),
        counting("t = part.load(i)\n        ct.atomic_add(y, (t, t), 1)", shared(rank=2)),
    ],
    ids=["another kind", "64 bits", "too many", "far indices", "two axes"],
)
def test_other_updates_are_made_where_the_elements_are(function: Function) -> None:
    """No thread waits: this kernel does not read the tensor."""
    assert kinds(function) == [AtomicRmw]


def test_addresses_with_a_further_term_are_updated_where_they_are() -> None:
    text = print_function(counting())
    (address,) = re.finditer(r"(%\d+) = add\(%\d+, (%\d+)\) : u64<4096>.*\n", text)
    total, distance = address.groups()
    farther = f"{address[0]}%farther = add({total}, {distance}) : u64<4096>\n"
    made = text.replace(address[0], farther).replace(f"atomic_rmw({total}", "atomic_rmw(%farther")
    assert kinds(parse(made, OPS)) == [AtomicRmw]


def test_updates_that_others_see_keep_their_order() -> None:
    used = "ct.atomic_add(y, 0, ct.reduce_sum(ct.atomic_add(y, part.load(i), 1), 0))"
    assert kinds(counting(used)).count(Barrier) == 2
    before = "ct.atomic_add(y, part.load(i), 1, ordering=ct.ordering.RELEASE)"
    assert kinds(counting(before)) == [Barrier, AtomicRmw]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_usual_case_has_no_branch_and_no_test(arch: str) -> None:
    made = compiled(counting(), arch)
    assert (made.facts["spills"], made.facts["stack"], made.facts["remarks"]) == (0, 0, ())
    assert made.facts["shared_bytes"] == 4 * (CELLS + 32)
    if arch == "sm_90a":
        text = ptx(counting())
        assert text.count("red.relaxed.cta.shared::cta") == 32  # 16 elements of a thread, with and without an edge
        assert text.count("@p red.relaxed.gpu.global") == 17  # where sums do not fit, and at the end
