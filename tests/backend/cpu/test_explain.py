"""The plan in words: it lists the kernel's own work, and says what a launch will do."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.backend.cpu import explain
from cutile.backend.interface import Target
from cutile.dtypes import DTypeLike, f32, i32
from cutile.ir.types import Type
from tests.backend.cpu.programs import TARGET, lowered, source
from tests.support.programs import GEMM, mut, scalar, tensor


def rows(text: str, types: dict[str, Type], heading: str, target: Target = TARGET, **generics: Any) -> list[str]:
    """The texts of a plan's rows with a heading."""
    facts = source(text, types, **generics).facts
    return [row for name, row in explain.explain(facts, target) if name == heading]


def fused(value: str, dtype: DTypeLike = f32, count: int = 64) -> list[str]:
    text = f"def k(y: Mut, a: f32, x: Tensor):\n    t = ct.load_tile_like(x, y)\n    y.store({value})\n"
    types: dict[str, Type] = {"y": mut(count, dtype=dtype), "a": scalar(f32), "x": tensor(1, dtype)}
    return rows(text, types, "fused")


@pytest.mark.parametrize("divisor", ["4.0", "98.0", "a", "ct.reduce_max(t, 0)", "t"])
def test_a_quotient_is_work_whatever_it_is_lowered_to(divisor: str) -> None:
    assert fused(f"t / {divisor}")[-1].endswith("-> div -> y")


def test_reductions_and_work_on_floats_are_listed() -> None:
    assert fused("t * ct.exp(t)") == ["line 3: x -> exp, mul -> y"]
    assert "reduce_sum" in " ".join(fused("t - ct.reduce_sum(t, 0)"))
    assert fused("t * 3 + t", i32) == ["line 3: x -> y"]  # indices are integers, too


@pytest.mark.parametrize(("count", "size"), [(16, "64 bytes"), (255, "1020 bytes"), (256, "1 KiB"), (4096, "16 KiB")])
def test_scratch_memory_has_its_size(count: int, size: str) -> None:
    text = "def k(y: Mut, x: Tensor):\n    t = ct.exp(ct.load_tile_like(x, y))\n    y.store(t / ct.reduce_max(t, 0))\n"
    assert rows(text, {"y": mut(count), "x": tensor(1)}, "scratch") == [f"{size} a thread: t"]


@pytest.mark.parametrize(
    ("units", "threads"), [(16, "16 threads take ranges of tile blocks"), (0, "threads take ranges of tile blocks")]
)
def test_the_number_of_threads_may_be_unknown(units: int, threads: str) -> None:
    text = "def k(y: Mut):\n    y.store(2 * y.load())\n"
    assert rows(text, {"y": mut(64)}, "threads", Target("cpu", "a-machine", units)) == [f"{threads} as they get free"]


@pytest.mark.parametrize(("cache", "is_promised"), [(0, False), (1 << 20, True)])
def test_streaming_is_promised_where_launches_choose_it(
    cache: int, is_promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "last_cache_bytes", lambda: cache)
    text = "def k(y: Mut, x: Tensor):\n    y.store(2 * ct.load_tile_like(x, y))\n"
    assert bool(rows(text, {"y": mut(64), "x": tensor(1)}, "stores")) == is_promised


def test_refused_plans_are_told_from_others_by_no_word() -> None:
    """Each line in the facts is shown as what it is, whatever it says."""
    types: dict[str, Type] = {"z": mut(128, 256), "x": tensor(2), "y": tensor(2)}
    for text, plans, refused in ((GEMM, 1, 0), (GEMM.replace("acc = ct.mma", "acc = 2 * ct.mma"), 0, 1)):
        facts = lowered(text, types, BK=64).facts
        assert (len(facts["plans"]), len(facts["refused_plans"])) == (plans, refused), facts
        shown = rows(text, types, "why not better", BK=64)
        assert shown == (list(facts["refused_plans"]) or ["no better plan was refused"])
