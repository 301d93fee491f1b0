"""Layouts against brute force: every element somewhere, and where the constructors say."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutile.backend.cuda.mma_layouts import mma_accumulator
from cutile.backend.gpu.layout import (
    Layout,
    blocked,
    blocked_for_sums,
    outer_accumulator,
    register_map,
    split_warps,
)
from cutile.backend.gpu.reshaped_layout import reshaped

SHAPES = ((7,), (96,), (4096,), (1, 777), (96, 80), (1, 1), (3, 5, 7), (128, 64), (2, 33), (16, 1))


def owners(layout: Layout) -> dict[tuple[int, ...], list[tuple[int, int, int]]]:
    """Who holds each element, straight from the definition."""
    holders: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for where, register, lane, warp in layout.elements():
        holders.setdefault(where, []).append((register, lane, warp))
    return holders


def check_complete(layout: Layout) -> None:
    """Every element is held, equally often, and stored exactly once."""
    elements = owners(layout)
    assert elements.keys() == set(itertools.product(*map(range, layout.shape)))
    copies = 1 << (layout.free_lanes.bit_count() + layout.free_warps.bit_count())
    for holders in elements.values():
        assert len(holders) == copies
        assert len({register for register, _, _ in holders}) == 1
        assert sum(layout.owner(lane, warp) for _, lane, warp in holders) == 1


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocked_holds_every_element_once(shape: tuple[int, ...], vector: int, warps: int) -> None:
    check_complete(blocked(shape, warps, vector))


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(96, 80), (128, 128), (16, 8), (1, 1), (5, 130), (48, 24)], ids=str)
def test_accumulators_hold_every_element(shape: tuple[int, int], warps: int) -> None:
    check_complete(mma_accumulator(shape, warps))
    check_complete(outer_accumulator(shape, warps))


@given(
    shape=st.lists(st.integers(1, 70), min_size=1, max_size=3).filter(lambda s: math.prod(s) < 3000),
    warps=st.sampled_from((1, 2, 4)),
    vector=st.sampled_from((1, 2, 4, 8)),
    data=st.data(),
)
def test_any_blocked_layout_is_complete(shape: list[int], warps: int, vector: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    layout = blocked(shape, warps, vector, order)
    check_complete(layout)
    axis = data.draw(st.sampled_from(range(len(shape))))
    check_complete(layout.collapse(axis))
    check_complete(layout.collapse(axis).drop(axis).insert(axis))
    check_complete(layout.permute(order))


def test_blocked_wastes_no_registers_on_odd_tiles() -> None:
    layout = blocked((96, 80), warps=4, vector=4)
    assert (layout.registers, layout.core) == (60, (32, 16))
    assert blocked((1, 777), warps=4).registers == 7


def test_neighbouring_lanes_hold_neighbouring_vectors() -> None:
    layout = blocked((8, 512), warps=2, vector=4)
    assert [layout.coordinate(0, lane, 0) for lane in range(3)] == [(0, 0), (0, 4), (0, 8)]
    assert [layout.coordinate(register, 0, 0) for register in range(4)] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert layout.vector(1) == 4
    assert layout.vector(0) == 1


def test_the_order_chooses_the_contiguous_axis() -> None:
    layout = blocked((512, 8), warps=2, vector=4, order=(0, 1))
    assert layout.vector(0) == 4
    assert layout.coordinate(0, 1, 0) == (4, 0)


def test_a_reduced_axis_is_spread_over_threads_only_where_that_exchanges_fewer_sums() -> None:
    layout = blocked_for_sums((32, 64, 32), 16, 4, [1])
    check_complete(layout)
    assert layout.collapse(1).registers == 4
    assert blocked((32, 64, 32), 16, 4).collapse(1).registers == 128
    assert blocked_for_sums((64, 64), 8, 4, [1]) == blocked((64, 64), 8, 4)  # 4 sums of 16 threads in both
    assert blocked_for_sums((32, 64, 32), 16, 4, []) == blocked((32, 64, 32), 16, 4)


@pytest.mark.parametrize("lane", range(32))
def test_the_accumulator_is_where_the_instruction_leaves_it(lane: int) -> None:
    # PTX ISA, m16n8k16: groupID = lane / 4; c0, c1 in row groupID, c2, c3 eight rows below; columns 2 * (lane % 4) + i
    layout = mma_accumulator((16, 8), warps=1)
    row, column = lane // 4, lane % 4 * 2
    wanted = [(row, column), (row, column + 1), (row + 8, column), (row + 8, column + 1)]
    assert [layout.coordinate(register, lane, 0) for register in range(4)] == wanted


def test_split_warps_prefers_squares() -> None:
    assert split_warps((128, 128), (16, 8), 4) == (2, 2)
    assert split_warps((16, 256), (16, 8), 8) == (1, 8)


def test_edges_are_known_per_register() -> None:
    layout = blocked((7,), warps=1)
    assert layout.edge_axes(0) == (0,)
    assert blocked((8,), warps=1).edge_axes(0) == ()
    wide = blocked((1, 777), warps=4)
    assert [wide.edge_axes(register) for register in (0, 6)] == [(), (1,)]


def test_register_map_finds_permutations_and_refuses_moves() -> None:
    a = Layout((8,), ((1,), (2,)), ((4,), (0,), (0,), (0,), (0,)), ())
    b = Layout((8,), ((2,), (1,)), ((4,), (0,), (0,), (0,), (0,)), ())
    c = Layout((8,), ((1,), (4,)), ((2,), (0,), (0,), (0,), (0,)), ())
    assert register_map(a, b) == (0, 2, 1, 3)
    assert register_map(a, c) is None
    for register, other in enumerate(register_map(a, b) or ()):
        assert b.coordinate(register, 1, 0) == a.coordinate(other, 1, 0)


def test_equal_layouts_are_equal_and_print_alike() -> None:
    a, b = blocked((96, 80), 4, 4), blocked((96, 80), 4, 4)
    assert a == b
    assert hash(a) == hash(b)
    assert str(a) == "96x80: 60 each of 128 threads, core 32x16"
    assert eval(repr(a)) == a


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((8,), (), ((1,),), ()), "5 lane bits"),
        (((8,), (), ((1,), (2,), (4,), (0,), (0, 0)), ()), "1 components"),
        (((8,), ((0,),), ((1,), (2,), (4,), (0,), (0,)), ()), "never free"),
        (((8,), (), ((1,), (1,), (4,), (2,), (0,)), ()), "none occurs twice"),
        (((8,), (), ((1,), (2,), (0,), (0,), (0,)), ()), "covers"),
    ],
)
def test_a_wrong_layout_is_refused(fields: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(*fields)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("old", "new", "stays"),
    [
        ((1, 4096), (1, 32, 128), True),
        ((2, 3072), (2, 24, 128), True),
        ((2, 3, 8, 128), (2, 3, 1024), True),
        ((3, 4000), (3, 250, 16), True),
        ((4, 96), (4, 32, 3), False),  # 3 is no power of two
        ((64, 64), (4096,), True),
        ((8, 2048), (16384,), True),  # the core has half of a row, and its repetition the rest
        ((6, 2048), (12288,), False),  # and six rows
        ((128, 64), (128, 4, 2, 4, 2), True),
        ((1, 64), (1, 64), True),
    ],
)
def test_a_reshape_leaves_every_element_where_it_is(old: tuple[int, ...], new: tuple[int, ...], stays: bool) -> None:
    """Or says that it cannot: no element may be taken for another."""
    source = blocked(old, warps=4, vector=8)
    target = reshaped(source, new)
    assert (target is not None) == stays
    if target is None:
        return
    assert target.registers == source.registers
    for where, register, lane, warp in source.elements():
        number = 0
        for coordinate, extent in zip(where, old, strict=True):
            number = number * extent + coordinate
        place: list[int] = []
        for extent in reversed(new):
            number, coordinate = divmod(number, extent)
            place.insert(0, coordinate)
        assert target.coordinate(register, lane, warp) == tuple(place)
