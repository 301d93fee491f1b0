"""Tiles at any step through Numba, NVVM and the linker: no spills, and accesses as wide as their places allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.dtypes import i32, i64
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.core import Function
from cutile.ir.types import MutType, Type
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.programs import compiled, instructions, written
from tests.support.kernels import define
from tests.support.programs import mut, scalar, tensor

PADDED = """
def pad(y: Mut, x: Tensor):
    part = x.partition((1024,), padding=ct.padding.NEG_INF)
    y.store(part.load((ct.get_tile_block_id()[0],)))
"""

NESTED = """
def nested(y: Mut, x: Tensor):
    part, source = y.partition_mut((8, {width})), x.partition((8, {width}))
    i, j, _ = ct.get_tile_block_id()
    for a in range(ct.num_tiles(part, 0)):
        for b in range(ct.num_tiles(part, 1)):
            part.store(source.load((i * 2 + a, b)) + 1.0, (a, b))
"""

PERMUTED = """
def permuted(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    y.store(x.partition_permuted((64, 64), (1, 0)).load((i, j)))
"""


GATHER = """
def gather(y: Mut, x: Tensor, t: Tensor):
    at = ct.reduce_max(t.load_tile((1,), (ct.get_tile_block_id()[0],)), 0)
    y.store(x.partition((1024,)).load((at,)))
"""

WINDOWS = """
def windows(y: Mut, x: Tensor):
    i = ct.get_tile_block_id()[0]
    y.store(ct.load_strided_view_tko(ct.make_strided_view(x, (1024,), (256,)), (i,)))
"""

BY_ADDRESS = """
def by_address(y: Mut, rows: Tensor, n: i32):
    row = ct.load_tensor(rows, ct.get_tile_block_id()[0], (n,), (1,), ct.f32, alignment=16)
    acc = y.load()
    for j in range(ct.num_tiles(row.partition((1024,)), 0)):
        acc = acc + row.partition((1024,)).load((j,))
    y.store(acc)
"""

MAPPED = """
def mapped(z: ct.MappedPartitionMut, x: Tensor):
    part = x.partition((64, 64))
    for index in z.iter_indices():
        z.store(part.load(index) * 2.0, index)
"""


def unsafe(text: str, parameters: dict[str, Type]) -> Function:
    """The IR of a kernel that says that it is unsafe, after the neutral passes."""
    function = define(text)
    return run_passes(build(function, take_source(function), parameters, {}, unsafe=True).function)


def programs() -> dict[str, Function]:
    return {
        "padded": written(PADDED, {"y": mut(1024), "x": tensor(1)}),
        "nested": written(NESTED.format(width=128), {"y": mut(16, 128), "x": tensor(2)}),
        "nested, dividing nothing": written(NESTED.format(width=96), {"y": mut(12, 128), "x": tensor(2)}),
        "checked in the kernel": written(GATHER, {"y": mut(1024), "x": tensor(1), "t": tensor(1, i32)}),
        "windows": written(WINDOWS, {"y": mut(1024), "x": tensor(1)}),
        "by address": unsafe(BY_ADDRESS, {"y": mut(1024), "rows": tensor(1, i64), "n": scalar(i32)}),
        "mapped": written(MAPPED, {"z": MutType(tensor(2), (64, 64), (4, 2)), "x": tensor(2)}),
        "permuted": written(PERMUTED, {"y": mut(64, 64), "x": tensor(2)}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_views_compile_clean(arch: str) -> None:
    for name, function in programs().items():
        executable = compiled(function, arch)
        # what an assertion prints goes to `vprintf` through the stack
        assert executable.facts["spills"] == 0, name
        assert executable.facts["stack"] <= (16 if "checked" in name else 0), name


def test_padding_costs_no_width(tmp_path: Path) -> None:
    found = instructions(compiled(programs()["padded"]), tmp_path)
    assert any(each.startswith("LDG.E.128") for each in found)
    assert found["STG.E.128"] > 0


def test_nested_tiles_are_read_and_written_in_vectors(tmp_path: Path) -> None:
    for name in ("nested", "nested, dividing nothing", "windows", "by address", "mapped"):
        found = instructions(compiled(programs()[name]), tmp_path)
        assert any(each.startswith(("LDG.E.128", "LDGSTS.E.BYPASS.128")) for each in found), name
        assert found["STG.E.128"] > 0, name
