"""Sorts and largest elements on a GPU: networks and ranks run on NumPy, and their machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import sort
from cutile.backend.cuda.sort_lowering import TopKRoom, sort_bytes, top_k_groups
from cutile.backend.gpu.layout import Layout, along, blocked
from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from cutile.errors import KernelTypeError
from kernels.order import WARPS, largest, search_of
from tests.backend.cuda.emulated import Emulated, collect, scatter
from tests.backend.cuda.programs import compiled, lowered, shipped, written
from tests.samples.sort import _comparable, _descending, _places
from tests.support.draw import draw
from tests.support.programs import mut, tensor

EVERY = (f32, bf16, f16, f64, i8, u8, i16, u16, i32, u32, i64, u64, bool_)
TILES = (((64,), 0, 1), ((1000,), 0, 4), ((4, 33), 1, 2), ((12, 5), 0, 4), ((2, 3, 16), 1, 1), ((512,), 0, 8))
"""Shape, axis, warps: a warp, several, rows in a thread, rows with an edge, threads with the same elements."""


def same(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(_comparable(got), _comparable(wanted))


@pytest.mark.parametrize(("shape", "axis", "warps"), TILES, ids=str)
def test_a_sort(shape: tuple[int, ...], axis: int, warps: int) -> None:
    layout = along(shape, axis, warps)
    for dtype in EVERY if shape in ((64,), (12, 5)) else (f32, i64, bf16):
        x = draw(dtype, shape, "any", 3)
        for descending in (False, True):
            room = max(sort_bytes(dtype, layout, axis), 16)
            order = (_descending if descending else _places)(x, axis)
            for by_double in (False, True) if dtype is f32 else (False,):
                made = sort.sort(dtype, layout, axis, descending, by_double, 0, True)
                values, places = made.generate(Emulated(layout.threads, room), [scatter(x, layout, dtype)]).data
                same(collect(places, layout, i32), order)
                same(collect(values, layout, dtype), np.take_along_axis(x, order, axis))


def largest_by(dtype: DTypeLike, x: Any, source: Layout, axis: int, k: int) -> tuple[Any, Any]:
    target = blocked([k if each == axis else extent for each, extent in enumerate(x.shape)], source.warps)
    room = TopKRoom.of(dtype, source, axis, k)
    made = sort.top_k(dtype, source, target, axis, k, 0, True)
    values, places = made.generate(Emulated(source.threads, room.bytes), [scatter(x, source, dtype)]).data
    return collect(values, target, dtype), collect(places, target, i32)


@pytest.mark.parametrize(("shape", "axis", "warps"), TILES, ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_the_largest(shape: tuple[int, ...], axis: int, warps: int, k: int) -> None:
    for dtype in EVERY if shape in ((512,), (12, 5)) else (f32, i64, bf16):
        x = draw(dtype, shape, "any", 4)
        source = blocked(shape, warps, 2)
        source = source if top_k_groups(source, axis, k) else along(shape, axis, warps)
        values, places = largest_by(dtype, x, source, axis, k)
        wanted = np.take(_descending(x, axis), range(k), axis)
        same(places, wanted)
        same(values, np.take_along_axis(x, wanted, axis))


ROWS: dict[str, Callable[[int], Any]] = {
    "equal": lambda n: np.zeros(n),
    "ascending": lambda n: np.arange(n),
    "descending": lambda n: -np.arange(n),
    "not a number": lambda n: np.full(n, np.nan),
    "in one thread": lambda n: np.where(np.arange(n) // 4 % 64 == 5, np.arange(n) + 1000, np.arange(n)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_candidates_have_room(row: Any) -> None:
    """Rows with the most candidates: shared memory has room for all of them, and for no more."""
    for shape, k in (((2000,), 8), ((1, 2048), 32), ((130,), 20)):
        x = row(shape[-1]).astype(np.float32).reshape(shape)
        source = blocked(shape, 2, 4)
        assert top_k_groups(source, len(shape) - 1, k), "all would be sorted"
        places = largest_by(f32, x, source, len(shape) - 1, k)[1]
        same(places, np.take(_descending(x, -1), range(k), -1))


SORTED = ("def k(y: Mut, p: Mut, x: Tensor):\n"
          "    t = ct.load_tile_like(x, y)\n    y.store(ct.sort(t, 1))\n    p.store(ct.argsort(t, 1))\n")  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_nothing_spills(arch: str) -> None:
    """Rows of each width of key, on one architecture the longest, and the largest of long rows."""
    longest = ((f32, 16384), (f64, 8192), (bf16, 16384)) if arch == "sm_90a" else ((f32, 1000), (f64, 512))
    programs = [
        written(SORTED, {"y": mut(1, n, dtype=dtype), "p": mut(1, n, dtype=i32), "x": tensor(2, dtype)})
        for dtype, n in longest
    ]
    parameters = {"values": mut(1, 64, dtype=bf16), "places": mut(1, 64, dtype=i32), "x": tensor(2, bf16)}
    constants: dict[str, Any] = search_of(128256, 64, 16)
    rows = shipped(largest, parameters, **constants)
    for program in (rows,) if arch == "sm_100a" else (*programs, rows):
        facts = compiled(program, arch, **({"num_worker_warps": WARPS} if program is rows else {})).facts
        assert (facts["spills"], facts["stack"]) == (0, 0), program.name


def test_one_sort_gives_elements_and_places() -> None:
    program = written(SORTED, {"y": mut(1, 64), "p": mut(1, 64, dtype=i32), "x": tensor(2)})
    assert sum(op.name == "sort" for op in lowered(program).walk()) == 1


TWO = """
def two(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y)
    y.store(ct.sort(t, 0) + ct.sort(t, 1))
"""


def test_two_sorts_in_a_kernel() -> None:
    assert compiled(written(TWO, {"y": mut(4, 8), "x": tensor(2)})).image


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelTypeError, match=r"sort: a thread would hold 128 registers of f32<1x32768>; 64 are") as f:
        lowered(written(SORTED, {"y": mut(1, 32768), "p": mut(1, 32768, dtype=i32), "x": tensor(2)}))
    assert "Sort tiles of at most 16384 elements of f32" in str(f.value)
