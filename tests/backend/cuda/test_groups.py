"""Three warp groups that share a tile, and two that have tiles of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics.llvm import ir
from cutile.backend.cuda.intrinsics.pipeline import order_arrive
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Barriers, Pipeline, Roles, SetMaxRegisters
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.smem_layout import WARPGROUP
from cutile.dtypes import bf16, f16
from cutile.errors import IRError
from cutile.ir import For, Op
from cutile.ir.types import Type
from cutile.ir.verify import verify
from tests.backend.cuda.emulated import Emulated, Vector
from tests.backend.cuda.programs import compiled, gemm_program, instructions, lowered, written
from tests.backend.cuda.test_specialise import GEMM, refusal, types
from tests.backend.cuda.test_storing import FUSED, fused_types
from tests.support.programs import mut, tensor


def test_three_groups_share_192_rows(tmp_path: Path) -> None:
    function = gemm_program(bf16, (192, 160), 64)
    lowering = lowered(function)
    verify(lowering)
    assert check_function(lowering) > 10
    assert (lowering.facts["threads"], lowering.facts["computing"]) == (512, 384)
    assert [op.count for op in lowering.walk() if isinstance(op, SetMaxRegisters)] == [32, 160]
    for each in (function, gemm_program(bf16, (192, 192), 64), written(FUSED, fused_to((192, 160)))):
        built = compiled(each)
        assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
        found = instructions(built, tmp_path)
        assert all(any(name.startswith(start) for name in found) for start in ("HGMMA", "UTMALDG", "UTMASTG"))


def test_what_three_groups_cannot_do_is_refused_with_the_numbers() -> None:
    assert refusal(gemm_program(bf16, (192, 208), 64)) == (
        "a thread of three warp groups would hold 104 sums, and has registers for 100"
    )
    assert "96 sums, and has registers for 80 beside what follows" in refusal(written(FUSED, fused_to((192, 192))))
    text = FUSED.replace("    z.store(", "    acc = acc - ct.reduce_max(acc, 1).reshape((z.shape[0], 1))\n    z.store(")
    assert refusal(written(text, fused_to((192, 128)))) == "warp groups would have to work together on reduce_max"


def test_groups_reduce_nothing_together_ahead_of_their_products() -> None:
    """Of a row of 1024 elements, a fourth group would hold a part; and a group alone would wait for the other one."""
    text = GEMM.replace("    acc = ", "    most = ct.reduce_max(ct.load_tile(r, (LENGTH,), (0,)), 0)\n    acc = ", 1)
    text = text.replace("z: Mut, ", "z: Mut, r: Tensor, ").replace("    z.store(", "    acc = acc * most\n    z.store(")
    cases: list[tuple[tuple[int, int], dict[str, Any]]] = [((192, 128), {}), ((128, 128), {"num_worker_warps": 4})]
    for tile, options in cases:
        for length in (64, 512, 1024):
            function = written(text.replace("LENGTH", str(length)), {**types(tile), "r": tensor(1)})
            lowering = lowered(function, **options)
            reasons = dict(lowering.facts["refused"])
            assert reasons["specialised warps"] == "warp groups would have to work together on reduce_max"
            check_layouts(lowering)


@pytest.mark.parametrize("tile", [(192, 128), (128, 128)], ids=str)
def test_the_model_sees_a_tile_that_groups_do_not_hold(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Kernel, loop: For) -> list[Op]:
        """In place of what stands ahead of the loop."""
        return []

    monkeypatch.setattr(Kernel, "ahead", nothing)
    text = GEMM.replace("    acc = ", "    most = ct.reduce_max(ct.load_tile(r, (LENGTH,), (0,)), 0)\n    acc = ", 1)
    text = text.replace("z: Mut, ", "z: Mut, r: Tensor, ").replace("    z.store(", "    acc = acc * most\n    z.store(")
    for length, why in ((1024, "in warps that do not compute it"), (512, "wait for one another")):
        function = written(text.replace("LENGTH", str(length)), {**types(tile), "r": tensor(1)})
        lowering = lowered(function, num_worker_warps=12 if tile[0] == 192 else 4)
        assert any(isinstance(op, Roles) for op in lowering.walk())
        if tile[0] == 192 and length == 512:  # each group holds all of it
            check_layouts(lowering)
        else:
            with pytest.raises(IRError, match=why):
                check_layouts(lowering)


def fused_to(tile: tuple[int, int]) -> dict[str, Type]:
    return {"z": mut(*tile, dtype=f16), **fused_types()}


def test_four_worker_warps_give_each_group_tile_blocks_of_its_own(tmp_path: Path) -> None:
    for tile, stages in (((128, 192), 4), ((128, 128), 6), ((128, 160), 5)):
        function = gemm_program(bf16, tile, 64)
        lowering = lowered(function, num_worker_warps=4)
        verify(lowering)
        (pipeline,) = (op for op in lowering.walk() if isinstance(op, Pipeline))
        assert (pipeline.stages, pipeline.arrivals, lowering.facts["threads"]) == (stages, 1, 384)
        built = compiled(function, num_worker_warps=4)
        assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
        found = instructions(built, tmp_path)
        assert all(any(name.startswith(start) for name in found) for start in ("HGMMA", "UTMALDG", "UTMASTG"))
    built = compiled(written(FUSED, fused_to((128, 112))), num_worker_warps=4)
    assert (built.facts["spills"], built.facts["remarks"]) == (0, ()), built.log


@pytest.mark.parametrize(
    ("reason", "text", "tile"),
    [
        ("a thread of a group alone would hold 208 sums, and has registers for 192", GEMM, (128, 208)),
        (
            "tile blocks of warp groups alone have as many turns each",
            GEMM.replace("range(n)", "range(i + 1)"),
            (128, 128),
        ),
        (
            "warp groups alone write by TMA",
            GEMM.replace("z.store(ct.convert_tile(acc, z.dtype))", "z.store(ct.convert_tile(acc, z.dtype) + z.load())"),
            (128, 128),
        ),
        (
            "warp groups would have to work together on reduce_max",
            GEMM.replace("    z.store(", "    acc = acc - ct.reduce_max(acc, 1).reshape((128, 1))\n    z.store("),
            (128, 96),
        ),
    ],
)
def test_why_groups_have_no_tile_blocks_of_their_own(reason: str, text: str, tile: tuple[int, int]) -> None:
    assert reason in refusal(written(text, types(tile, z=mut(*tile, dtype=bf16))), num_worker_warps=4)


class Arrivals(Emulated):
    """Notes which threads arrive, on which barrier."""

    def __init__(self) -> None:
        super().__init__(2 * WARPGROUP)
        self.noted: list[tuple[int, int]] = []

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if not isinstance(function, ir.InlineAsm):
            return super().call(function, operands, attrs)
        if function.asm.startswith("mbarrier.arrive"):
            (where,) = (self._of(each) for each in operands)
            self.noted += [(int(thread), int(where[thread])) for thread in np.flatnonzero(self._active)]
        else:
            assert function.asm.startswith("bar.warp.sync")
        return None


def test_each_warp_hands_over_to_the_other_group() -> None:
    """As many arrivals as a barrier is set up for: a warp that is late is waited for."""
    made = Arrivals()
    order_arrive(64).generate(made, [])
    assert made.noted == [(thread, 64 + 8 * (thread < WARPGROUP)) for thread in range(0, 2 * WARPGROUP, 32)]
    plan = lowered(gemm_program(bf16, (128, 192), 64), num_worker_warps=4)
    (turns,) = (op for op in plan.walk() if isinstance(op, Barriers))
    assert (turns.count, turns.arrivals) == (2, WARPGROUP // 32)
