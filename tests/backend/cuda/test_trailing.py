"""Delayed epilogues: results that are stored while the next tile block's products run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.properties import check_stores
from cutile.backend.cuda.model.protocol import OF_RESULTS, ProtocolError, first_group
from cutile.backend.cuda.ops import Dot, PackPairs, TmaStore
from cutile.dtypes import bf16, f8e4m3fn, f16
from cutile.ir.control import For
from cutile.ir.core import Block, Function, Op
from tests.backend.cuda.programs import gemm_program, lowered, written
from tests.backend.cuda.test_products import fused, stacked
from tests.support.programs import mut, tensor

EVERY_OTHER = """
def f(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((128, 64)), y.partition((64, 256))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 256), ct.f32)
    for k in range(1, ct.num_tiles(part_x, 1), 2):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""

Kind = TypeVar("Kind", bound=Op)
TRAILING = ((128, 256), (128, 192), (128, 128), (256, 128), (128, 64))


def of_kind(function: Function, kind: type[Kind]) -> list[Kind]:
    return [op for op in function.walk() if isinstance(op, kind)]


def product_loops(block: Block) -> Iterator[For]:
    """The innermost loops with products."""
    for op in block.operations:
        if isinstance(op, For) and any(isinstance(each, Dot) for each in op.body.operations):
            yield op
        for region in op.regions:
            yield from product_loops(region)


@pytest.mark.parametrize("tile", TRAILING, ids=str)
def test_a_result_is_put_off_and_each_piece_of_it_written_once(tile: tuple[int, int]) -> None:
    for dtype in (bf16, f16):
        lowering = lowered(gemm_program(dtype, tile, 64))
        assert len(of_kind(lowering, PackPairs)) == 1
        assert check_function(lowering) > 10
        pieces = tile[0] // 128 * -(-tile[1] // 64)
        for tiles, turns in ((1, 9), (3, 9), (2, 1), (2, 0)):
            events = first_group(lowering, tiles, turns)
            found = [(event.what, event.count) for event in events if event.what in OF_RESULTS]
            written = [(what, piece) for piece in range(pieces) for what in ("fill", "store")]
            assert found == [("pack", 0), *written] * (tiles - 1) + written


def test_one_piece_is_written_under_each_of_the_first_products() -> None:
    (loop,) = product_loops(lowered(gemm_program(bf16, (128, 256), 64)).body)
    operations = loop.body.operations
    begun = next(place for place, op in enumerate(operations) if isinstance(op, Dot))
    written = [
        (place > begun, each.attributes["piece"])
        for place, op in enumerate(operations)
        for region in op.regions
        for each in region.walk()
        if isinstance(each, TmaStore)
    ]
    assert written == [(True, piece) for piece in range(4)]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (fused(128, 256), {}),  # more than a conversion follows
        (gemm_program(bf16, (128, 256), 64), {"num_cta_in_cga": 2}),  # the last block of a cluster may have no tile
        (gemm_program(bf16, (128, 192), 64), {"num_worker_warps": 4}),  # the other group multiplies meanwhile
        (gemm_program(bf16, (64, 256), 64), {}),
        (gemm_program(bf16, (128, 160), 64), {}),  # five pieces
        (gemm_program(f8e4m3fn, (128, 192), 128), {}),
    ],
    ids=["fused", "cluster", "alone", "one group", "pieces", "promoted"],
)
def test_other_results_are_written_at_once(made: Function, options: dict[str, Any]) -> None:
    assert not of_kind(lowered(made, **options), PackPairs)


def test_a_loop_may_count_by_more_than_one() -> None:
    made = lowered(written(EVERY_OTHER, {"z": mut(128, 256, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}))
    assert of_kind(made, PackPairs)
    assert check_function(made) > 10


def test_batches_put_their_results_off_too() -> None:
    assert of_kind(lowered(stacked(128, 256)), PackPairs)


def test_a_piece_left_out_is_found() -> None:
    lowering = lowered(gemm_program(bf16, (128, 256), 64))
    store = next(op for op in of_kind(lowering, TmaStore) if op.attributes["piece"] == 2)
    store.attributes["piece"] = 1
    with pytest.raises(ProtocolError, match=r"the subtiles .* are stored"):
        check_stores(lowering)


def test_a_place_that_is_not_waited_for_is_found() -> None:
    lowering = lowered(gemm_program(bf16, (128, 256), 64))
    for op in of_kind(lowering, TmaStore):
        op.attributes["first"] = 0
    with pytest.raises(ProtocolError, match="is written to a place that is still being read"):
        check_stores(lowering)
