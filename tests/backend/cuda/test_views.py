"""Tiles at any step through Numba, NVVM and the linker: no spills, and accesses as wide as their places allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.ir.core import Function
from tests.backend.cuda.programs import compiled, instructions, written
from tests.support.programs import mut, tensor

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


def programs() -> dict[str, Function]:
    return {
        "padded": written(PADDED, {"y": mut(1024), "x": tensor(1)}),
        "nested": written(NESTED.format(width=128), {"y": mut(16, 128), "x": tensor(2)}),
        "nested, dividing nothing": written(NESTED.format(width=96), {"y": mut(12, 128), "x": tensor(2)}),
        "permuted": written(PERMUTED, {"y": mut(64, 64), "x": tensor(2)}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_views_compile_clean(arch: str) -> None:
    for name, function in programs().items():
        made = compiled(function, arch)
        assert (made.facts["spills"], made.facts["stack"]) == (0, 0), name


def test_padding_costs_no_width(tmp_path: Path) -> None:
    found = instructions(compiled(programs()["padded"]), tmp_path)
    assert any(each.startswith("LDG.E.128") for each in found)
    assert found["STG.E.128"] > 0


def test_nested_tiles_are_read_and_written_in_vectors(tmp_path: Path) -> None:
    for name in ("nested", "nested, dividing nothing"):
        found = instructions(compiled(programs()[name]), tmp_path)
        assert any(each.startswith("LDG.E.128") for each in found), name
        assert found["STG.E.128"] > 0, name
