"""The model of pipelines: the plans of shipped kernels pass, and each broken protocol is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutile.backend.cuda.model.pipelines import check, check_function
from cutile.backend.cuda.model.properties import check_stores
from cutile.backend.cuda.model.protocol import Event, Protocol, ProtocolError, protocol
from cutile.backend.cuda.ops import TmaStore
from cutile.dtypes import bf16, f8e4m3fn, f16, f32
from cutile.ir.core import Function
from cutile.ir.types import TensorType
from kernels.gemm import gemm
from tests.backend.cuda.programs import AMPERE, gemm_program, lowered, shipped
from tests.backend.cuda.test_products import fused
from tests.support.programs import mut

TILES = ((64, 64), (64, 256), (128, 128), (128, 192), (128, 208), (128, 256), (256, 128))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_plan_of_a_product_deadlocks_or_overwrites(tile: tuple[int, int], cluster: int) -> None:
    by_fma = ((f32, 32),) if tile[0] * tile[1] <= 128 * 256 and tile[1] % 64 == 0 else ()
    for dtype, depth in ((bf16, 64), (f16, 32), (bf16, 128), *by_fma):
        assert check_function(lowered(gemm_program(dtype, tile, depth), num_cta_in_cga=cluster)) > 10


def test_a_kernel_without_pipelines_has_nothing_to_check() -> None:
    assert check_function(lowered(gemm_program(f32, (64, 64), 32), AMPERE)) == 0
    assert check_function(lowered(gemm_program(bf16, (128, 128), 32), AMPERE)) == 0


def example(tiles: int = 1, iterations: int = 9) -> Protocol:
    made = protocol(_gemm(), tiles, iterations)
    assert made is not None
    return made


def _gemm() -> Function:
    return lowered(gemm_program(bf16, (128, 256), 64), num_cta_in_cga=1)


def test_the_protocol_is_what_the_lowered_kernel_does() -> None:
    model = example(tiles=2, iterations=2)
    assert (model.stages, model.arrivals, model.groups, model.cluster) == (4, 2, 2, 1)
    assert [each.what for each in model.loads] == ["acquire", "load", "load"] * 4
    one_tile = ["wait", "begin", "finish", "wait", "begin", "finish", "release", "finish", "release"]
    assert [each.what for each in model.reads] == one_tile * 2
    assert [each.count for each in model.reads if each.what == "release"] == [0, 1, 2, 3]


def test_two_blocks_of_a_cluster_wait_for_each_other() -> None:
    model = protocol(lowered(gemm_program(bf16, (128, 256), 64), num_cta_in_cga=2), tiles=1, iterations=9)
    assert model is not None
    assert (model.arrivals, model.groups, model.cluster) == (4, 2, 2)
    assert check(model) == 9
    with pytest.raises(ProtocolError, match="4 groups read, `empty` waits for 2"):
        check(replace(model, arrivals=2))


def test_too_many_arrivals_expected_are_found() -> None:
    with pytest.raises(ProtocolError, match="2 groups read, `empty` waits for 3"):
        check(replace(example(), arrivals=3))


def test_a_stage_that_is_never_released_is_found() -> None:
    made = example()
    with pytest.raises(ProtocolError, match="are released, 9 are loaded"):
        check(replace(made, reads=tuple(each for each in made.reads if each != Event("release", 3))))


def test_a_stage_that_is_released_too_early_is_found() -> None:
    model = example()
    early = tuple(Event("finish", 2) if each == Event("finish", 1) else each for each in model.reads)
    with pytest.raises(ProtocolError, match="released while its product is under way"):
        check(replace(model, reads=early))


def test_a_product_that_does_not_wait_is_found() -> None:
    made = example()
    with pytest.raises(ProtocolError, match="iteration 2 is read without having been waited for"):
        check(replace(made, reads=tuple(each for each in made.reads if each != Event("wait", 2))))


def test_bytes_that_do_not_arrive_are_found() -> None:
    model = example()
    more = tuple(replace(each, nbytes=each.nbytes + 16) if each.what == "acquire" else each for each in model.loads)
    with pytest.raises(ProtocolError, match="announced are"):
        check(replace(model, loads=more))


def test_readers_that_wait_for_one_another_are_found() -> None:
    """A reader that releases nothing until it has seen more iterations than there are stages."""
    model = example()
    waits = [each for each in model.reads if each.what in ("wait", "begin")]
    rest = [each for each in model.reads if each.what in ("finish", "release")]
    with pytest.raises(ProtocolError, match="deadlock"):
        check(replace(model, reads=(*waits, Event("finish", 0), *(each for each in rest if each.what == "release"))))


def test_a_place_written_while_it_is_read_is_found() -> None:
    lowering = lowered(fused(128, 256))  # four pieces of 64 columns, each a store of its own
    check_stores(lowering)
    first, second, *_ = (op for op in lowering.walk() if isinstance(op, TmaStore))
    second.attributes["first"] = first.attributes["first"]
    with pytest.raises(ProtocolError, match="subtile 1 is written to a place that is still being read"):
        check_stores(lowering)


def test_a_tile_that_does_not_wait_for_the_places_of_the_one_before_is_found() -> None:
    lowering = lowered(gemm_program(bf16, (128, 160), 64))  # five pieces of 32 columns in two places
    check_stores(lowering)
    (store,) = (op for op in lowering.walk() if isinstance(op, TmaStore))
    assert store.attributes["buffers"] == 2
    store.attributes["begins"] = False
    with pytest.raises(ProtocolError, match="subtile 0 is written to a place that is still being read"):
        check_stores(lowering)


def test_releases_in_another_order_are_found() -> None:
    model = example()
    order = {0: 4, 4: 0}
    swapped = tuple(
        replace(each, count=order.get(each.count, each.count)) if each.what == "release" else each
        for each in model.reads
    )
    with pytest.raises(ProtocolError, match="iteration 4 is released without having been waited for"):
        check(replace(model, reads=swapped))


def eights() -> Function:
    """A product of 8-bit floats, whose partial accumulators are added in f32 every four iterations."""
    x, y = (TensorType(f8e4m3fn, (None, None), each, 16) for each in ((None, 1), (1, None)))
    return shipped(gemm, {"z": mut(128, 192, dtype=bf16), "x": x, "y": y}, BK=128)


def test_of_two_groups_one_adds_its_products_while_the_other_multiplies() -> None:
    model = protocol(lowered(eights()), tiles=1, iterations=12)
    assert model is not None
    assert check(model) == 12
    drained: list[list[int]] = []
    for reads in (model.reads, *model.others):
        begun, ended = 0, list[int]()
        for event in reads:
            begun += event.what == "begin"
            if event == Event("finish", 0):
                ended.append(begun)
        drained.append(ended)
    assert drained == [[4, 8, 12], [2, 6, 10, 12]]


def test_each_groups_own_events_are_checked() -> None:
    model = protocol(lowered(eights()), tiles=1, iterations=12)
    assert model is not None
    (second,) = model.others
    never = tuple(each for each in second if each != Event("release", 5))
    with pytest.raises(ProtocolError, match="are released, 12 are loaded"):
        check(replace(model, others=(never,)))


def test_a_loop_without_iterations_adds_nothing() -> None:
    made = protocol(lowered(eights()), tiles=3, iterations=0)
    assert made is not None
    assert (made.loads, made.reads, made.others) == ((), (), ())


def pingpong(tiles: int, iterations: int) -> Protocol:
    made = protocol(lowered(gemm_program(bf16, (128, 192), 64), num_worker_warps=4), tiles, iterations)
    assert made is not None
    return made


def test_groups_with_tile_blocks_of_their_own_read_every_other() -> None:
    made = pingpong(tiles=3, iterations=2)
    assert (made.arrivals, made.groups, made.sharing) == (1, 2, 1)
    begun = [[each.count for each in made.reads_of(group) if each.what == "begin"] for group in (0, 1)]
    assert begun == [[0, 1, 4, 5], [2, 3]]
    for tiles, iterations in ((0, 3), (1, 9), (2, 0), (4, 1), (5, 3), (4, 9)):
        assert check(pingpong(tiles, iterations)) == tiles * iterations
    for tile in ((128, 64), (128, 128), (128, 160)):
        assert check_function(lowered(gemm_program(f16, tile, 64), num_worker_warps=4)) > 10


def without(what: str, made: Protocol) -> Protocol:
    reads, *others = (tuple(each for each in made.reads_of(group) if each.what != what) for group in (0, 1))
    return replace(made, reads=reads, others=tuple(others))


def test_a_group_that_does_not_wait_for_the_other_is_found() -> None:
    with pytest.raises(ProtocolError, match=r"is waited for before iteration .* arrives, which looks the same"):
        check(without("order wait", pingpong(tiles=4, iterations=9)))


def test_a_group_that_does_not_hand_over_is_found() -> None:
    made = pingpong(tiles=4, iterations=3)
    late = replace(made, others=(tuple(e for e in made.reads_of(1) if e.what != "order arrive"),))
    with pytest.raises(ProtocolError, match="arrival on its order barrier, which does not happen"):
        check(late)


@pytest.mark.parametrize("iterations", [0, 1])
def test_a_late_warp_that_misses_a_handing_over_is_found(iterations: int) -> None:
    """Only a warpgroup's first warp arrives on the order barrier, and no product keeps the other warps up with it."""
    model = pingpong(tiles=4, iterations=iterations)
    assert model.handing == 4
    with pytest.raises(ProtocolError, match=r"a warp of warpgroup . may miss phase \d+ of its order barrier"):
        check(replace(model, handing=1))
    check(replace(pingpong(tiles=4, iterations=2), handing=1))


def test_a_stage_that_two_warpgroups_release_is_found() -> None:
    made = pingpong(tiles=2, iterations=2)
    with pytest.raises(ProtocolError, match="are released, 4 are loaded"):
        check(replace(made, reads=(*made.reads, Event("wait", 2), Event("release", 2))))
