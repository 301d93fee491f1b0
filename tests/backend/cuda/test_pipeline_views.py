"""Pipelines whose tiles overlap, or have more axes than a matrix: windows of images, and results of any rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile import bf16
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import TmaLoad, TmaStore
from cutile.backend.cuda.pipeline.epilogue import box_of_rows
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.rules import plan
from cutile.backend.cuda.target import Refused, architecture
from cutile.backend.interface import CompileOptions
from cutile.dtypes import i32
from cutile.ir.core import Function
from cutile.ir.types import MutType, Type
from cutile.ir.verify import verify
from kernels.convolution import convolution
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped, written
from tests.support.programs import mut, scalar, tensor


def convolution_program(*tile: int) -> Function:
    operand = tensor(4, bf16)
    return shipped(convolution, {"z": mut(*tile, dtype=bf16), "x": operand, "w": operand, "height": scalar(i32)})


@pytest.mark.parametrize("tile", [(8, 16, 256), (4, 16, 128), (16, 8, 128), (2, 64, 128)], ids=str)
def test_windows_are_loaded_and_pixels_stored_by_tma(tile: tuple[int, ...]) -> None:
    function = lowered(convolution_program(*tile))
    verify(function)
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert check_function(function) > 10
    check_layouts(function)
    steps = {op.x.name: op.steps for op in function.walk() if isinstance(op, TmaLoad)}
    assert steps == {"x": (1, 1, 1, 64), "w": ()}
    (store,) = (op for op in function.walk() if isinstance(op, TmaStore))
    assert store.shape == tile
    boxes = {name: box for name, _, box, *_ in function.facts["tensor_maps"]}
    assert boxes["x_map"] == (1, *tile[:2], 64)
    rows = box_of_rows(tile[:2])
    assert rows is not None
    assert boxes["z_map"] == (*rows, 64)


@pytest.mark.parametrize("extents", [(128,), (1, 64), (8, 16), (16, 8), (4, 4, 8), (32, 1, 4), (2, 48)], ids=str)
def test_sixteen_rows_of_a_warp_are_a_box(extents: tuple[int, ...]) -> None:
    box = box_of_rows(extents)
    assert box is not None
    places = np.array(list(np.ndindex(*extents)))
    for first in range(0, len(places), 16):
        rows = places[first : first + 16]
        np.testing.assert_array_equal(rows, rows[0] + np.array(list(np.ndindex(*box))))


@pytest.mark.parametrize("extents", [(24,), (8, 12), (3, 5), (6, 8, 3)], ids=str)
def test_rows_that_are_no_box_are_stored_by_threads(extents: tuple[int, ...]) -> None:
    assert box_of_rows(extents) is None


WINDOWS = """
def windows(z: Mut, x: Tensor, y: Tensor, first: i32, last: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    view = ct.make_strided_view(x, (BM, 64), (1, 64){padding})
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(last):
        acc = ct.mma(view.load((first + i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def windows(padding: str = "") -> Function:
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": operand, "y": operand}
    return written(WINDOWS.format(padding=padding), {**given, "first": scalar(i32), "last": scalar(i32)})


def test_tiles_that_begin_at_any_row_are_pipelined() -> None:
    function = lowered(windows())
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert check_function(function) > 10


def test_padding_that_tma_has_not_is_refused() -> None:
    with pytest.raises(Refused, match="the left operand's padding is not zero"):
        plan(Kernel(windows(", padding=ct.padding.NEG_INF")), architecture("sm_90a"), CompileOptions())


BOTH = """
def both(z: Mut, u: Mut, x: Tensor, y: Tensor, n: i32):
    _, BM, BN = z.shape
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for t in range(n):
        for k in range(ct.num_tiles(x.partition((1, BM, 64)), 2)):
            left = ct.load_tile(x, (1, BM, 64), (b, i, k)).reshape((BM, 64))
            acc = ct.mma(left, ct.load_tile(y, (64, BN), (k + t, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype).reshape(z.shape))
    u.store(ct.convert_tile(acc * 2.0, u.dtype).reshape(u.shape))
"""


def test_two_results_go_by_way_of_the_same_places() -> None:
    operand, tile = tensor(3, bf16), mut(1, 128, 128, dtype=bf16)
    given: dict[str, Type] = {"z": tile, "u": tile, "x": operand, "y": tensor(2, bf16), "n": scalar(i32)}
    function = lowered(written(BOTH, given))
    stores = [op for op in function.walk() if isinstance(op, TmaStore)]
    assert [op.shape for op in stores] == [(1, 128, 128)] * 2
    assert stores[0].through is stores[1].through
    assert check_function(function) > 10


def test_a_stream_of_tiles_is_stored_by_tma() -> None:
    text = """
def stream(z: ct.MappedPartitionMut, x: Tensor, y: Tensor):
    for index in z.iter_indices():
        i, j = index.coords()
        acc = ct.constant(0, z.shape, f32)
        for k in range(ct.num_tiles(x.partition((128, 64)), 1)):
            acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 128), (k, j)), acc)
        z.store(ct.convert_tile(acc, z.dtype), index)
"""
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": MutType(operand, (128, 128), map=(8, 1)), "x": operand, "y": operand}
    function = lowered(written(text, given))
    assert any(isinstance(op, TmaStore) for op in function.walk())
    assert check_function(function) > 10


@pytest.mark.slow
def test_a_convolution_neither_spills_nor_is_serialised(tmp_path: Any) -> None:
    built = compiled(convolution_program(8, 16, 256))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    names = instructions(built, tmp_path)
    assert all(any(each.startswith(start) for each in names) for start in ("HGMMA", "UTMALDG.4D", "UTMASTG.3D"))
