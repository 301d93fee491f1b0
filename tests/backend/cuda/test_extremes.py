"""The lesser and the greater of integers, with linkers that drop the sign of the middle one of three."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.backend.cuda.intrinsics import arith, compare
from cutile.dtypes import i8, i32, u16
from tests.backend.cuda.programs import compiled, instructions, written
from tests.support.devices import on
from tests.support.kernels import define
from tests.support.programs import mut, tensor

MOST = """
def most(z: Mut, x: Tensor):
    t = ct.load_tile(x, (8, 32), (0, 0))
    z.store(max(max(t, -t - t), t + 1))
"""
PICKED = """
def picked(z: Mut, x: Tensor):
    t = ct.load_tile(x, (8, 32), (0, 0))
    u = -t - t
    most = ct.select(t < u, u, t)
    z.store(ct.select(most > t + 1, most, t + 1))
"""

COLUMNS = """
def most(z: Mut, x: Tensor):
    t = ct.load_tile(x, (16, 16), (0, 0))
    z.store(ct.reduce_max((-t) - t, 0).reshape((1, 16)))
"""


@pytest.fixture(params=[(13, 3), (13, 4)], ids=["before 13.4", "since 13.4"])
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[int, int]]:
    """A linker's version, as the code generator sees it."""
    monkeypatch.setattr(compare, "linker_version", lambda: request.param)
    compare.drops_signs.cache_clear()
    arith.binary.cache_clear()
    yield request.param
    monkeypatch.undo()
    compare.drops_signs.cache_clear()
    arith.binary.cache_clear()


@pytest.mark.parametrize(
    ("text", "dtype"), [(MOST, i8), (MOST, u16), (PICKED, i32)], ids=["max-i8", "max-u16", "select-i32"]
)
def test_signs_are_safe_from_linkers_that_drop_them(
    linker: tuple[int, int], dtype: Any, text: str, tmp_path: Path
) -> None:
    program = written(text, {"z": mut(8, 32, dtype=dtype), "x": tensor(2, dtype)})
    opcodes = instructions(compiled(program), tmp_path)
    if linker < compare.MIN_SOUND_LINKER:
        assert not any(name.startswith("VIMNMX3") for name in opcodes)
    else:
        assert any(name.startswith("VIMNMX3") for name in opcodes)


@pytest.mark.gpu
def test_the_greatest_of_negated_numbers_is_right_on_a_gpu() -> None:
    kernel = ct.entry(define(COLUMNS))
    numbers = np.random.default_rng(0).integers(-50, 50, (16, 16)).astype(np.int32)
    with on("cuda"):
        x = api.from_numpy(numbers.T.copy()).sync().transpose()
        z = api.zeros((1, 16), i32).sync()
        kernel(z.partition((1, 16)), x).sync()
        np.testing.assert_array_equal(z.to_numpy().sync()[0], (-2 * numbers).max(0))
