"""Tiles that change layouts on their way, and scans, in machine code: wide accesses, few barriers, nothing spilt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cutile.backend.cuda.exchange import access_cycles, exchange_of, lanes_of, sectors
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import ConvertLayout, Store
from cutile.backend.gpu.layout import blocked
from cutile.dtypes import DTypeLike, bf16, f32, f64, i8
from cutile.ir.core import Function
from cutile.ir.types import MutType, TensorType
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Reshape
from tests.backend.cuda.programs import compiled, instructions, lowered, written
from tests.support.programs import mut, tensor

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
TRANSPOSE = """
def turn(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    y.store(ct.load_tile(x, (64, 64), (j, i)).transpose())
"""
COPY = """
def same(y: Mut, x: Tensor):
    y.store(ct.load_tile_like(x, y))
"""
SCAN = """
def sums(y: Mut, x: Tensor):
    y.store(ct.scan_sum(ct.load_tile_like(x, y), 1))
"""


def machine_code(function: Function, arch: str, folder: Path) -> Counter[str]:
    made = compiled(function, arch)
    assert made.facts["spills"] == made.facts["stack"] == 0
    return instructions(made, folder)


def count(found: Counter[str], *parts: str) -> int:
    return sum(number for name, number in found.items() if all(part in name for part in parts))


@pytest.mark.parametrize(("dtype", "arch"), [(bf16, "sm_90a"), *((f32, arch) for arch in ARCHITECTURES)], ids=str)
def test_a_transposed_tile_is_loaded_and_stored_in_wide_accesses(dtype: DTypeLike, arch: str, tmp_path: Path) -> None:
    opcodes = machine_code(written(TRANSPOSE, {"y": mut(64, 64, dtype=dtype), "x": tensor(2, dtype)}), arch, tmp_path)
    accesses = 64 * 64 * dtype.bits // 8 // 16 // 256
    assert count(opcodes, "STS", ".128") == accesses
    assert (
        count(opcodes, "LDG", ".128") == count(opcodes, "STG", ".128") == 2 * accesses
    )  # within the tensor, and at its edge
    assert count(opcodes, "BAR") == 1


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_single_elements_are_exchanged_too(dtype: DTypeLike) -> None:
    """Of rows that begin at odd places: else each element that is stored would have a sector of its own."""
    odd = TensorType(dtype, (None, None), (None, 1), dtype.bits // 8)
    function = lowered(written(TRANSPOSE, {"y": MutType(odd, (64, 64)), "x": odd}))
    assert [op.attributes["how"] for op in function.walk() if isinstance(op, ConvertLayout)] == ["swizzle"]
    layouts = layouts_of(function)
    for op in function.walk():
        if isinstance(op, LoadTile | Store):
            touched, least = sectors(layouts[op.attributes["layout"]], 1, 1, dtype.bits // 8)
            assert touched == least


GROUPS = """
def scaled(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y).reshape((2, 16, 128))
    y.store((t / ct.reduce_max(t, 2)[:, :, None]).reshape((2, 2048)))
"""


def test_parts_of_a_row_stay_where_they_are() -> None:
    """A row that is cut into groups, and put together again, does not pass through shared memory."""
    function = lowered(written(GROUPS, {"y": mut(2, 2048), "x": tensor(2)}))
    assert [op.attributes["how"] for op in function.walk() if isinstance(op, Reshape) and op.x.tile.size > 32] == [
        "keep", "keep",
    ]  # fmt: skip
    assert function.facts["shared_bytes"] == 0


def test_so_is_one_of_a_tensor_that_lies_by_columns(tmp_path: Path) -> None:
    by_columns = TensorType(f32, (None, None), (1, None), 16)
    found = machine_code(written(COPY, {"y": mut(64, 64), "x": by_columns}), "sm_90a", tmp_path)
    assert count(found, "LDG", ".128") == count(found, "STG", ".128") == 2 * 4
    assert count(found, "BAR") == 1


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_row_is_scanned_with_one_barrier(arch: str, tmp_path: Path) -> None:
    opcodes = machine_code(written(SCAN, {"y": mut(1, 4096), "x": tensor(2)}), arch, tmp_path)
    assert count(opcodes, "BAR") == 1
    assert count(opcodes, "LDG", ".128") == count(opcodes, "STG", ".128") == 2 * 4
    # For each of four runs of 1024: five steps, what lies before, the last. For all runs: three steps over the totals
    # of eight warps. For each run again: what lies before this warp, the total.
    assert count(opcodes, "SHFL") <= 4 * 7 + 3 + 4 * 2


def test_rows_of_one_warp_are_scanned_without_one(tmp_path: Path) -> None:
    found = machine_code(written(SCAN, {"y": mut(8, 32), "x": tensor(2)}), "sm_90a", tmp_path)
    assert count(found, "BAR") == 0


@pytest.mark.parametrize("dtype", [i8, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (32, 128), (128, 32)], ids=str)
def test_no_bank_is_asked_for_more_than_it_gives(shape: tuple[int, int], dtype: DTypeLike) -> None:
    """A wide access of a warp takes as many cycles as it has lines of 128 bytes, a narrow one twice as many at most."""
    width = 16 * 8 // dtype.bits
    rows, columns = blocked(shape, 8, width, (1, 0)), blocked(shape, 8, width, (0, 1))
    for source, target in ((rows, columns), (columns, rows)):
        exchange = exchange_of(dtype, source, target)
        for layout, per_access in zip((source, target), exchange.widths, strict=True):
            lines = -(-per_access * dtype.bits // 8 * 32 // 128)
            most = lines if per_access == width else 2 * lines
            assert access_cycles(exchange, lanes_of(layout), per_access) <= most
        assert exchange.nbytes == shape[0] * shape[1] * dtype.bits // 8


def test_sectors_tell_a_scattered_access() -> None:
    rows = blocked((64, 64), 8, 4)
    assert sectors(rows, 1, 4, 4) == (16, 16)
    assert sectors(rows, 0, 1, 4) == (16, 4)  # by columns: four bytes of each sector that two lanes share


def test_a_large_tile_takes_no_more_room_than_it_needs() -> None:
    """Rows of 600 have 150 chunks, and 152 places in a swizzle."""
    text = """
def turn(y: Mut, x: Tensor, z: Tensor):
    t = ct.load_tile(x, (600, 36), (0, 0)).transpose()
    y.store(t + ct.load_tile_like(z, y))
"""
    lowering = lowered(written(text, {"y": mut(36, 600), "x": tensor(2), "z": tensor(2)}))
    (moved,) = (op for op in lowering.walk() if isinstance(op, ConvertLayout))
    assert moved.attributes["how"] == "move"
    assert lowering.facts["shared_bytes"] == 36 * 600 * 4
