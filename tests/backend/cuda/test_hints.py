"""Hints of loads and stores are kept by every plan that has a choice."""

from __future__ import annotations

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import StageTile, TmaLoad, TmaStore
from cutile.backend.cuda.ops.pipeline import Pipeline
from cutile.dtypes import bf16, i32
from cutile.ir.core import Function
from cutile.ir.types import MutType
from cutile.ir.verify import verify
from tests.backend.cuda.programs import BLACKWELL, lowered, written
from tests.support.programs import mut, scalar, tensor

ROW = tensor(2, bf16)

STORES = """
def stores(z: Mut, u: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 64), f32)
    for t in range(n):
        for k in range(ct.num_tiles(x.partition((128, 64)), 1)):
            acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 64), (k + t, j)), acc)
    ct.store_view_tko(z.partition_mut((128, 64)), ct.convert_tile(acc, z.dtype), (0, 0){hint})
    ct.store_view_tko(u.partition_mut((128, 64)), ct.convert_tile(acc * 2.0, u.dtype), (0, 0))
"""


def stored_by_tma(hint: str) -> set[str]:
    """The results that TMA stores; threads store the others."""
    kinds = {"z": mut(128, 64, dtype=bf16), "u": mut(128, 64, dtype=bf16), "x": ROW, "y": ROW, "n": scalar(i32)}
    function = lowered(written(STORES.format(hint=hint), kinds))
    verify(function)
    assert check_function(function) > 1
    return {op.x.name for op in function.walk() if isinstance(op, TmaStore)}


def test_a_store_that_says_so_keeps_off_tma() -> None:
    assert stored_by_tma("") == stored_by_tma(", tma=ct.tma.ENABLED") == {"z", "u"}
    assert stored_by_tma(", tma=ct.tma.DISABLED") == {"u"}


WINDOWS = """
def windows(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    view = ct.make_strided_view(x, (128, 64), (1, 64))
    acc = ct.constant(0, (128, 128), f32)
    for k in range(n):
        acc = ct.mma(ct.load_view_tko(view, (i, k){hint}), ct.load_tile(y, (64, 128), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def windows(hint: str = "") -> Function:
    return written(WINDOWS.format(hint=hint), {"z": mut(128, 128, dtype=bf16), "x": ROW, "y": ROW, "n": scalar(i32)})


def test_windows_that_say_so_keep_off_tma() -> None:
    assert {op.x.name for op in lowered(windows()).walk() if isinstance(op, TmaLoad)} == {"x", "y"}
    threads = lowered(windows(", tma=ct.tma.DISABLED"))
    assert "x" not in {op.x.name for op in threads.walk() if isinstance(op, TmaLoad)}


@pytest.mark.parametrize(("latency", "stages"), [(1, 2), (2, 3)])
def test_windows_are_loaded_as_far_ahead_as_they_say(latency: int, stages: int) -> None:
    pipelines = (op for op in lowered(windows(f", latency={latency}")).walk() if isinstance(op, Pipeline))
    assert {op.stages for op in pipelines if op.buffers} == {stages}
    copies = [op for op in lowered(windows(f", latency={latency}"), BLACKWELL).walk() if isinstance(op, StageTile)]
    assert sum(op.x.name == "x" for op in copies) == stages  # all but one ahead of the loop


SOFTMAX = """
def softmax(y: Mut, x: Tensor):
    t = ct.load_view_tko(x.partition(y.shape), ct.get_tile_block_id()[:2]{hint}).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))
"""


@pytest.mark.parametrize(("hint", "whole"), [("", True), (", tma=ct.tma.DISABLED", False)], ids=["", "disabled"])
def test_a_row_that_says_so_is_copied_without_the_copy_engine(hint: str, whole: bool) -> None:
    function = written(SOFTMAX.format(hint=hint), {"y": MutType(ROW, (1, 32768)), "x": ROW})
    rows = [op for op in lowered(function).walk() if isinstance(op, StageTile)]
    assert rows
    assert {op.copies == 1 for op in rows} == {whole}
