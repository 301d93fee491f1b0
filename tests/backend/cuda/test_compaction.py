"""Chosen elements of a tile, stored side by side: seen in the IR, put together in shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import compaction
from cutile.backend.cuda.intrinsics.llvm import I32, I64
from cutile.backend.cuda.ops.memory import StoreCompacted
from cutile.backend.gpu.layout import blocked
from cutile.dtypes import DTypeLike, bool_, f16, f32, i32, i64, u8, u64
from cutile.ir import Type
from cutile.ops.pointer import StorePointer
from tests.backend.cuda.emulated import Emulated, Vector, scatter
from tests.backend.cuda.programs import compiled, lowered, written
from tests.backend.cuda.test_compile import ARCHITECTURES, assert_clean
from tests.support.programs import mut, scalar, tensor

COMPACTED = """
def compacted(y: Mut, x: Tensor, limit: f32, state: SharedMut):
    t = ct.load_tile_like(x, y)
    above = (t > limit) & y.inside()
    places = ct.cumsum(above.astype(i32), 0)
    before = ct.scan_blocks(state, ct.reduce_sum(above.astype(i32), 0), 0, operator.add)
    ct.scatter(y, INDEX, t, mask=MASK)
"""
STATE = dataclasses.replace(tensor(1, u64), stable=False)
TYPES = {"y": mut(2048), "x": tensor(1), "limit": scalar(), "state": STATE}


def stores(
    index: str, mask: str = "above", counted: str = "places", text: str = COMPACTED, types: Mapping[str, Type] = TYPES
) -> tuple[int, int]:
    """How many stores put elements together, and how many write each by its address."""
    text = text.replace("INDEX", index).replace("MASK", mask).replace("places =", f"{counted} =")
    operations = list(lowered(written(text, types)).walk())
    compacted, by_address = (sum(isinstance(op, kind) for op in operations) for kind in (StoreCompacted, StorePointer))
    return compacted, by_address


@pytest.mark.parametrize("index", ["before + places - 1", "places + (before - 1)", "places - 1 + before + 3 * before"])
def test_elements_that_follow_one_another_are_put_together(index: str) -> None:
    assert stores(index) == (1, 0)


@pytest.mark.parametrize("dtype", [u8, f16, f32], ids=str)
@pytest.mark.parametrize("counted", [i32, i64], ids=str)
def test_elements_of_any_size_are_put_together_at_an_index_of_any_width(dtype: DTypeLike, counted: DTypeLike) -> None:
    text = COMPACTED.replace("limit: f32", f"limit: {dtype.name}").replace("i32", counted.name)
    types = TYPES | {"y": mut(8192, dtype=dtype), "x": tensor(1, dtype), "limit": scalar(dtype)}
    assert stores("before + places - 1", text=text, types=types) == (1, 0)


@pytest.mark.parametrize(
    ("index", "mask"),
    [
        ("before + places - 1", "t > limit + 1"),  # others are selected than are counted
        ("before + places - 1", "above & (t < 9)"),  # holes between those that are stored
        ("before - places + 4096", "above"),  # from the last to the first
        ("before + 2 * places", "above"),  # every other element
        ("before + places + ct.iota((2048,))", "above"),
    ],
)
def test_others_are_stored_one_by_one(index: str, mask: str) -> None:
    assert stores(index, mask) == (0, 1)


def test_a_scan_that_does_not_count_is_stored_one_by_one() -> None:
    others = "places = ct.scan(above.astype(i32), 0, ct.reverse.FORWARD, 0, lambda a, b: b); sums"
    assert stores("before + places - 1", counted=others) == (0, 1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_it_spills_nothing(arch: str) -> None:
    text = COMPACTED.replace("INDEX", "before + places - 1").replace("MASK", "above")
    assert_clean(compiled(written(text, TYPES | {"y": mut(8192)}), arch, num_worker_warps=8))


@pytest.mark.parametrize(("dtype", "counted"), [(f32, i32), (f16, i64), (u8, i64)], ids=str)
@pytest.mark.parametrize("shape", [4096, 1024], ids=str)
@pytest.mark.parametrize(("first", "limit"), [(0, 400), (-5, 400), (7, 40)], ids=str)
def test_what_is_stored(dtype: DTypeLike, counted: DTypeLike, shape: int, first: int, limit: int) -> None:
    """Nothing outside of [0, limit), and nothing behind the last selected element."""
    layout, size = blocked((shape,), 2, 128 // dtype.bits), dtype.bits // 8
    rng = np.random.default_rng(shape)
    values, selected = rng.uniform(1, 100, shape).astype(dtype.numpy), rng.random(shape) < 0.4
    builder, base = Emulated(layout.threads), 32768
    builder.memory[base - 64 * size :] = 0
    compact = compaction.compact(dtype, layout, offset=64, fence=False)
    counts = layout.registers // layout.vector(0) * layout.warps
    store = compaction.store_compacted(dtype, counted, shape, counts=counts, threads=layout.threads, offset=64)
    kind = I64 if counted is i64 else I32
    scalars = [
        Vector(kind_, np.full(layout.threads, number).astype(f"i{kind_.width // 8}").view(f"u{kind_.width // 8}"))
        for kind_, number in ((I64, base), (kind, first), (I64, limit))
    ]
    tiles = [scatter(*each) for each in ((values, layout, dtype), (selected, layout, bool_))]
    compact.generate(builder, tiles)
    store.generate(builder, scalars)
    there = builder.memory[base - 64 * size :].view(dtype.numpy)
    expected = np.zeros_like(there)
    for number, value in enumerate(values[selected]):
        if 0 <= first + number < limit:
            expected[64 + first + number] = value
    np.testing.assert_array_equal(there, expected)
