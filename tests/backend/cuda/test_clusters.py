"""What the thread blocks of a cluster load for each other, and what they store."""

from __future__ import annotations

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import (
    TileIndex,
    TmaLoad,
    TmaStore,
)
from cutile.dtypes import bf16
from cutile.ir.control import If
from tests.backend.cuda import test_batches
from tests.backend.cuda.programs import compiled, gemm_program, lowered, source, tensor_maps, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_specialise import GEMM, column_major, refusal, types
from tests.backend.cuda.test_storing import SUMS
from tests.support.programs import mut, tensor


def test_a_result_of_one_axis_may_be_that_of_a_cluster() -> None:
    """Whose thread blocks are neighbours along the other one."""
    text = SUMS.replace("WHAT", "ct.reduce_sum(acc, 1)").replace("i, j, _ = ct", "i, j = ct")
    text = text.replace("get_tile_block_id()", "get_tile_block_id()[0], 0")
    x = tensor(2, bf16)
    made = lowered(written(text, {"z": mut(128, dtype=bf16), "x": x, "y": x}), num_cta_in_cga=2)
    assert made.facts["cluster"] == 2
    assert check_function(made) > 10


def test_a_tile_block_beyond_the_grid_stores_nothing() -> None:
    """A cluster's second block may have one, and a launch may cover a part of the tensor."""
    for cluster, guarded in ((1, False), (2, True)):
        made = lowered(written(GEMM, types((128, 160))), num_cta_in_cga=cluster)
        under = [op for each in made.walk() if isinstance(each, If) for op in each.then.operations]
        assert any(isinstance(op, TmaStore) for op in under) is guarded


def test_a_kernel_that_writes_ahead_of_its_products_has_no_cluster() -> None:
    """A tile block beyond the grid would write there, too."""
    text = GEMM.replace("z: Mut, ", "z: Mut, c: Mut, ").replace(
        "    acc = ", "    c.store(c.load() + 1)\n    acc = ", 1
    )
    made = lowered(written(text, {**types((128, 160)), "c": mut(1, 1)}), num_cta_in_cga=2)
    assert made.facts["cluster"] == 1
    assert lowered(written(GEMM, types((128, 160))), num_cta_in_cga=2).facts["cluster"] == 2


def test_blocks_of_a_cluster_load_a_part_each() -> None:
    boxes: dict[int | None, tuple[int, ...]] = {}
    for y in (tensor(2, bf16), column_major()):
        made = source(written(GEMM, types((128, 256), y=y)), num_cta_in_cga=2)
        assert made.facts["cluster"] == 2
        boxes[y.unit_axis] = [tensor_map.box for tensor_map in tensor_maps(made)][1]
    assert boxes == {1: (64, 64), 0: (64, 128)}  # two of four panels each; half of the one panel's rows
    tall = lowered(gemm_program(bf16, (256, 128), 64), num_cta_in_cga=2)
    assert [op.attributes["cluster"] for op in tall.walk() if isinstance(op, TmaLoad)] == [2, 1]
    assert "3 blocks to a cluster are asked for" in refusal(gemm_program(bf16, (128, 128), 64), num_cta_in_cga=3)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_of_tiles_as_wide_as_tall_neighbours_along_the_columns_share_rows(cluster: int) -> None:
    """Where there is one row of tile blocks alone, nobody else needs the same columns."""
    lowering = lowered(gemm_program(bf16, (64, 64), 64), num_cta_in_cga=cluster)
    assert lowering.facts["cluster"] == cluster
    assert {op.x.name: op.attributes["cluster"] for op in lowering.walk() if isinstance(op, TmaLoad)} == {
        "x": cluster,
        "y": 1,
    }
    assert {op.along for op in lowering.walk() if isinstance(op, TileIndex)} == {1}
    assert check_function(lowering) > 10
    assert_clean(compiled(gemm_program(bf16, (64, 64), 64), num_cta_in_cga=cluster))


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        (("(k, j)", "(k, j)"), [1, 2]),  # the larger one
        (("(k, j)", "(i // n * n + k, j)"), [2, 1]),  # each row of blocks has a matrix of its own
        (("range(n)", "range(i + 1)"), [2, 1]),  # or a number of steps
        (("range(n)", "range(j + 1)"), [1, 2]),
        (("(i, k)", "(i, k + j)"), [1, 2]),
        (("(k, j)", "(i // n * n + k + j, j)"), [2, 1]),
        (("range(n)", "range(i + j + 1)"), [1, 1]),
    ],
)
def test_blocks_share_only_what_both_need(change: tuple[str, str], shared: list[int]) -> None:
    made = lowered(written(GEMM.replace(*change), types((128, 256))), num_cta_in_cga=2)
    assert made.facts["cluster"] == max(shared)
    loads = [op for op in made.walk() if isinstance(op, TmaLoad)]
    assert [op.attributes["cluster"] for op in loads] == shared


def test_groups_of_a_batch_have_as_many_rows_as_those_of_one_product() -> None:
    """The rasterisation counts clusters along the axis of the rows, which is the second one of a batch's grid."""
    programs = (written(GEMM, types((128, 256))), written(test_batches.BATCH, test_batches.types((128, 256))))
    for cluster in (2, 4):
        functions = [lowered(program, num_cta_in_cga=cluster) for program in programs]
        indices = [{op for op in function.walk() if isinstance(op, TileIndex)} for function in functions]
        assert [{op.along - op.rows for op in ops} for ops in indices] == [{0}, {0}]
        one, batch = ({op.group for op in ops} for ops in indices)
        assert one == batch
