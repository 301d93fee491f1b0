"""Stage counters in the generated text: in every form of loops, each stage comes in its order."""

from __future__ import annotations

import pytest

from cutile.dtypes import bf16, i32
from cutile.ir.types import Type
from tests.backend.cuda.counted import turns
from tests.backend.cuda.programs import source, written
from tests.support.programs import mut, scalar, tensor

ONE_BEHIND = """
def one_behind(z: Mut, x: Tensor, y: Tensor, u: Tensor, v: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(n // 2, n):
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
        acc = ct.max_tile(acc, -2.0)
    acc = ct.mma(ct.load_tile(u, (BM, 64), (i, 0)), ct.load_tile(v, (64, BN), (0, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("n", [0, 1, 5])
def test_counters_run_on_behind_a_loop(n: int) -> None:
    operand = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), **dict.fromkeys("xyuv", operand), "n": scalar(i32)}
    text = source(written(ONE_BEHIND, types)).text
    seen = turns(text, "one_behind", (2, 3, 1), n=n)
    stages = 6 * (n - n // 2 + 1)  # of six tile blocks
    assert {what for what, _ in seen} == {"acquire", "wait", "release"}
    for (what, _), counters in seen.items():
        assert counters == list(range(stages)), f"{what}: {counters}\n{text}"
