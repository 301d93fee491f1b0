"""Operands that lie across K: threads read the right elements, and no two lanes meet in a bank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import wgmma_rs
from cutile.backend.cuda.intrinsics.llvm import I32, ir
from cutile.backend.cuda.model.pipelines import check, check_function
from cutile.backend.cuda.model.protocol import ProtocolError, protocol
from cutile.backend.cuda.ops import Store
from cutile.backend.cuda.pipeline.accumulators import a_from_registers_accumulator
from cutile.backend.cuda.smem_layout import BufferStages, SmemLayout
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e5m2, f32, i8, i32, tf32, u8
from cutile.ir.core import Function
from cutile.ir.types import TensorType
from kernels.gemm import gemm
from kernels.gemm_variants import gemm_integers, gemm_tf32
from tests.backend.cuda.emulated import Emulated, Vector, collect, scatter
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped
from tests.support.programs import mut

Array = np.ndarray[Any, Any]


class Group(Emulated):
    """Emulates what a warp group reads and multiplies, as PTX defines it (ISA 9.7.14 and 9.7.15), and counts for each
    access to shared memory how many lanes at most meet in one bank."""

    def __init__(self, threads: int, shared: Array, numbers: Any) -> None:
        super().__init__(threads, len(shared))
        self.memory[:] = shared
        self._numbers = numbers
        self.worst = 0

    def ptrtoint(self, x: Vector, kind: Any) -> Vector:
        return Vector(kind, x.data)

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if isinstance(function, str):
            return super().call(function, operands, attrs)
        text, values = function.asm, [self._of(each) for each in operands]
        if text.startswith("prmt"):
            return Vector(I32, np.array([_permuted(*map(int, each)) for each in zip(*values, strict=True)], np.uint32))
        if text.startswith("ld.shared.v2"):
            return self._several(self._read(values[0], 8, phase=16).view(np.uint32).T)
        if text.startswith("ldmatrix"):
            return self._several(self._turned(values[0]))
        if "wgmma.mma_async" in text:
            return self._product(text, values)
        assert re.match(r"wgmma\.(fence|commit_group|wait_group)", text), text
        return None

    def _several(self, columns: Any) -> Vector:
        kind = ir.LiteralStructType([I32] * len(columns))
        return Vector(kind, [Vector(I32, np.ascontiguousarray(each)) for each in columns])

    def _read(self, addresses: Array, size: int, phase: int) -> Array:
        """What threads read, `phase` of them at a time."""
        places = addresses[:, None].astype(np.int64) + np.arange(size)
        for some in places.reshape(-1, phase * size):
            words = np.unique(some // 4)
            self.worst = max(self.worst, int(np.bincount(words % 32).max()))
        return np.ascontiguousarray(self.memory[places])

    def _turned(self, addresses: Array) -> list[Array]:
        """`ldmatrix.x4.trans`: lane `l` gives the address of row `l % 8` of matrix `l // 8`."""
        rows = self._read(addresses, 16, phase=8).view(np.uint16).reshape(-1, 4, 8, 8)  # warp, matrix, row, column
        lane = np.arange(32)
        low, high = (rows[:, :, lane % 4 * 2 + i, lane // 4].astype(np.uint32) for i in (0, 1))
        return [(low | high << 16)[:, matrix].reshape(-1) for matrix in range(4)]

    def _product(self, text: str, values: list[Array]) -> Vector:
        """`wgmma` with its left operand in registers and its right one in panels along K."""
        (columns,) = (int(each) for each in re.findall(r"m64n(\d+)k", text))
        sums, words, at = values[: columns // 2], values[columns // 2 : columns // 2 + 4], values[columns // 2 + 4]
        size = np.dtype(self._numbers).itemsize
        groups, lane = self._threads // 128, np.arange(128)
        totals = [each.copy() for each in sums]
        for group in range(groups):
            mine = slice(group * 128, group * 128 + 128)
            left = np.zeros((64, 32 // size), self._numbers)
            for i, word in enumerate(words):
                numbers = word[mine].copy().view(self._numbers).reshape(128, -1)
                for j in range(4 // size):
                    row = lane // 32 * 16 + lane % 32 // 4 + i % 2 * 8
                    left[row, (lane % 4 + i // 2 * 4) * (4 // size) + j] = numbers[:, j]
            linear = (int(at[mine][0]) & 0x3FFF) * 16 + np.arange(columns)[:, None] * 128 + np.arange(32)
            right = np.ascontiguousarray(self.memory[linear ^ (linear >> 7 & 7) << 4]).view(self._numbers)
            kind = np.int32 if size == 1 else np.float32
            product = left.astype(kind) @ right.astype(kind).T
            for i in range(columns // 2):
                row = lane // 32 * 16 + lane % 32 // 4 + i % 4 // 2 * 8
                column = lane % 4 * 2 + i % 2 + i // 4 * 8
                totals[i].view(kind)[mine] += product[row, column]
        kind = ir.LiteralStructType([I32 if size == 1 else ir.FloatType()] * len(totals))
        return Vector(kind, [Vector(kind.elements[0], each) for each in totals])


def _permuted(low: int, high: int, selector: int) -> int:
    both = low | high << 32
    return sum((both >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i for i in range(4))


def in_panels(tile: Array, smem_layout: SmemLayout) -> Array:
    """The bytes of a tile, (along, across), as TMA writes them to shared memory."""
    place = np.zeros(smem_layout.place_bytes, np.uint8)
    size = smem_layout.size
    for panel in range(smem_layout.count):
        for row in range(smem_layout.length):
            data = np.ascontiguousarray(tile[row, panel * smem_layout.span : (panel + 1) * smem_layout.span]).view(
                np.uint8
            )
            linear = row * smem_layout.swizzle + np.arange(smem_layout.span * size)
            bits = smem_layout.swizzle.bit_length() - 5
            place[panel * smem_layout.panel_bytes + (linear ^ (linear >> 7 & (1 << bits) - 1) << 4)] = data
    return place


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize(("tall", "groups"), [(64, 1), (128, 2), (128, 1), (256, 2), (256, 4)])
@pytest.mark.parametrize("dtype", [tf32, i8], ids=str)
def test_a_product_of_what_threads_read(dtype: DTypeLike, tall: int, groups: int, exchanged: bool) -> None:
    size, wide = dtype.bits // 8, 24
    depth, numbers = 128 // size, np.int8 if size == 1 else np.float32
    random = np.random.default_rng(tall)
    x, y = (random.integers(-8, 8, shape).astype(numbers) for shape in ((tall, depth), (wide, depth)))
    left, right = SmemLayout(tall, depth, size, k_major=False), SmemLayout(depth, wide, size, k_major=True)
    layout = a_from_registers_accumulator((tall, wide), groups, size, transposed=exchanged)
    sums = i32 if dtype is i8 else f32
    start = random.integers(-8, 8, (tall, wide)).astype(sums.numpy)
    slot = np.concatenate([in_panels(np.ascontiguousarray(x.T), left), in_panels(y, right)])
    memory = np.concatenate([np.full(1024 + len(slot), 0xA5, np.uint8), slot])
    group = Group(layout.threads, memory, numbers)
    x_stages = BufferStages(left, 2, len(slot), 1024)
    y_stages = BufferStages(right, 2, len(slot), 1024 + left.place_bytes)
    made = wgmma_rs.multiply(dtype, dtype, sums, layout, x_stages, y_stages, depth)
    turn = Vector(I32, np.full(layout.threads, 3, np.uint32))
    result = collect(made.generate(group, [turn, scatter(start, layout, sums)]), layout, sums)
    product = x.astype(np.int64) @ y.T.astype(np.int64)
    np.testing.assert_array_equal(result, start + product)
    assert group.worst == 1


def by_rows(dtype: DTypeLike) -> TensorType:
    return TensorType(dtype, (None, None), (None, 1), 16)


def by_columns(dtype: DTypeLike) -> TensorType:
    return TensorType(dtype, (None, None), (1, None), 16)


def product(dtype: DTypeLike, tile: tuple[int, int], *, right: bool) -> Function:
    """A shipped product of which one operand lies across K: the right one by rows, or the left one by columns."""
    kernel, sums, depth = gemm, bf16, 128
    if dtype is f32:
        kernel, sums, depth = gemm_tf32, f32, 32
    elif dtype in (i8, u8):
        kernel, sums = gemm_integers, i32
    way = by_rows if right else by_columns
    return shipped(kernel, {"z": mut(*tile, dtype=sums), "x": way(dtype), "y": way(dtype)}, BK=depth)


INSTRUCTIONS: dict[DTypeLike, str] = {
    f32: "HGMMA.64",
    f8e4m3fn: "QGMMA.64",
    f8e5m2: "QGMMA.64",
    i8: "IGMMA.64",
    u8: "IGMMA.64",
}


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("dtype", INSTRUCTIONS, ids=str)
def test_nothing_is_spilled_or_put_in_line(dtype: DTypeLike, right: bool, tmp_path: Path) -> None:
    small = () if dtype in (f8e5m2, u8) else ((96, 64),)  # as their twins of as many bits
    for wide, tall in ((192, 128), *small):
        function = product(dtype, (wide, tall) if right else (tall, wide), right=right)
        built = compiled(function)
        assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
        opcodes = instructions(built, tmp_path)
        read = "LDS.64" if dtype is f32 else "LDSM.16.MT88.4"
        assert opcodes[read] >= 4
        assert any(each.startswith(INSTRUCTIONS[dtype]) for each in opcodes)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("dtype", [f32, f8e4m3fn, i8], ids=str)
def test_every_warp_says_that_it_has_read(dtype: DTypeLike, cluster: int, right: bool) -> None:
    made = lowered(product(dtype, (192, 128) if right else (128, 192), right=right), num_cta_in_cga=cluster)
    assert check_function(made) > 10
    ring = protocol(made, tiles=1, iterations=9)
    assert ring is not None
    assert (ring.groups, ring.arrivals) == (8, 8 * cluster)
    with pytest.raises(ProtocolError, match="groups read, `empty` waits for"):
        check(replace(ring, arrivals=2 * cluster))


def test_what_is_read_by_neighbours_is_stored_by_neighbours() -> None:
    made = lowered(product(f32, (192, 128), right=True))
    (store,) = (op for op in made.walk() if isinstance(op, Store))
    assert store.attributes["vector"] == (1, 2)


def test_sums_that_do_not_fit_twice_are_refused() -> None:
    made = lowered(product(f8e4m3fn, (256, 128), right=True))
    assert "a thread would hold 128 sums twice" in dict(made.facts["refused"])["specialised warps"]
    made = lowered(product(f32, (128, 96), right=True))
    assert "cannot change places with the left one" in dict(made.facts["refused"])["specialised warps"]
    made = lowered(product(f32, (128, 256), right=True))
    assert "would hold 160 sums and operands" in dict(made.facts["refused"])["specialised warps"]
