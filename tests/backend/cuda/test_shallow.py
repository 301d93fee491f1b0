"""Products whose operands do not fit into registers, in steps of less depth: the same sums, and no spills."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest

from cutile.backend.cuda.lower import key_of, with_half_steps
from cutile.backend.reference.interpret import Walker
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f32
from cutile.ir.core import Function
from cutile.ir.types import TensorType, Type
from cutile.ir.verify import verify
from cutile.ops.matmul import Mma
from kernels.gemm import gemm
from tests.backend.cuda.programs import AMPERE, compiled, lowered, shipped, written
from tests.backend.cuda.test_compile import assert_clean
from tests.support.draw import draw
from tests.support.programs import mut, tensor

TURNED = """
    def turned(z: Mut, x: Tensor, y: Tensor):
        acc = ct.constant(0, (16, 8), ct.f32)
        for k in range(ct.num_tiles(x.partition((32, 16)), 0)):
            acc = ct.mma(ct.load_tile(x, (32, 16), (k, 0)).transpose(), ct.load_tile(y, (32, 8), (k, 0)), acc)
        z.store(acc)
"""


def products(function: Function) -> list[Mma]:
    return [op for op in function.walk() if isinstance(op, Mma)]


def test_two_steps_of_half_the_depth_add_up_to_one() -> None:
    function = written(dedent(TURNED), {"z": mut(16, 8), "x": tensor(2), "y": tensor(2)})
    lowering = with_half_steps(function, {key_of(op) for op in products(function)})
    verify(lowering)
    assert [op.a.tile.shape for op in products(lowering)] == [(16, 16)] * 2
    x, y = draw(f32, (75, 16), "small", 1), draw(f32, (75, 8), "small", 2)  # the last step ends within its first half
    found = np.full((16, 8), np.nan, np.float32)
    Walker({}, (0, 0, 0), (1, 1, 1)).block(lowering.body, [found, x, y])
    np.testing.assert_allclose(found, x.T @ y, rtol=1e-5, atol=1e-5)


TWICE = """
    def twice(z: Mut, x: Tensor, y: Tensor):
        rows, acc = ct.load_tile(x, (16, 32), (0, 0)), ct.constant(0, (16, 8), ct.f32)
        for k in ct.static_range(2):
            acc = ct.mma(rows, ct.load_tile(y, (32, 8), (k, 0)), acc)
            rows = rows + 1
        z.store(acc)
"""


def test_of_two_products_on_one_line_only_that_whose_operands_are_loaded_is_halved() -> None:
    function = written(dedent(TWICE), {"z": mut(16, 8), "x": tensor(2), "y": tensor(2)})
    one, other = products(function)
    assert key_of(one) == key_of(other)
    made = with_half_steps(function, {key_of(one)})
    verify(made)
    assert [op.a.tile.shape for op in products(made)] == [(16, 16), (16, 16), (16, 32)]


def single(dtype: DTypeLike) -> TensorType:
    """A tensor whose elements are loaded one by one."""
    return replace(tensor(2, dtype), alignment=dtype.bits // 8)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("x", [single(bf16), tensor(2, f8e4m3fn), single(f8e4m3fn)], ids=str)
def test_large_tiles_of_what_passes_through_registers_do_not_spill(x: TensorType, arch: str) -> None:
    assert_clean(compiled(shipped(gemm, {"z": mut(128, 256, dtype=bf16), "x": x, "y": x}, BK=64), arch))


def test_what_fits_keeps_its_depth() -> None:
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": single(bf16), "y": single(bf16)}
    assert [op.a.tile.shape for op in products(lowered(shipped(gemm, types, BK=64), AMPERE))] == [(128, 64)]
