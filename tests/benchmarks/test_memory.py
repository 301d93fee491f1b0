"""`python -m benchmarks.memory`: its command line, and its kernels on small inputs, beside what is right."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.memory import __main__ as memory
from benchmarks.memory import cases, rows, sizes
from benchmarks.memory.case import Array, Case
from cutile import KernelOp, Tensor, api, f32

SMALL = (
    rows.softmax(96, 4, f32, height=2),
    rows.softmax_backward(50, 3, f32),
    rows.softmax(60, 3, f32, tile=64),
    rows.layer_norm(60, 3, f32),
    rows.rms_norm(50, 3, f32, tile=64),
    rows.rms_norm(60, 3, f32),
    rows.cross_entropy(70, 4, f32, piece=32),
    rows.cross_entropy_backward(70, 4, f32, piece=32),
    rows.layer_norm_backward(64, 11, f32, blocks=3, at_once=2),
    rows.rms_norm_backward(64, 10, f32, blocks=4, at_once=1),
    rows.add_rms_norm(128, 3, f32),
    rows.add_rms_norm(128, 3, f32, scales="row"),
    rows.add_rms_norm(256, 3, f32, scales="128"),
    rows.silu_times(60, 3, f32),
    cases.cumsum(100, 3),
    cases.cumsum(100, 2, long=32),
    cases.total(1 << 15, 4),
    cases.column_sums(48, 256, f32, groups=2, width=64),
    cases.gemv(8, 2048, f32),
    cases.gemv(9, 100, f32, height=1),
    cases.array_cumsum(1 << 9),
    cases.compaction(1 << 9, 64),
    cases.transpose(100, f32),
    cases.permute(2, 70, 40, f32),
    cases.cast(1 << 13),
    cases.copy(7, 1025, f32),
    cases.strided(8, 1024, 1500, f32),
    cases.concatenate(4, 64, f32),
    cases.rotary(3, 2, 16, f32),
    cases.dropout(1 << 12, f32, 1024),
    cases.gather("gather", 50, 16, 24, f32, height=8, goal=0.5),
    cases.scatter_add(64, 8, 96, 4),
)


def drawn(array: Array, rng: np.random.Generator) -> Any:
    if array.below:
        return rng.integers(0, array.below, array.shape).astype(np.int32)
    if array.drawn == "positive":
        return rng.uniform(1, 2, array.shape).astype(np.float32)
    wide = rng.standard_normal((*array.shape[:-1], array.stride or array.shape[-1]))
    return wide.astype(np.float32)[..., : array.shape[-1]]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_a_kernel_computes_what_is_right(case: Case) -> None:
    rng = np.random.default_rng()
    ins = [drawn(each, rng) for each in case.ins]
    tensors: list[Tensor] = [api.from_numpy(each).sync() for each in ins]
    outs = [
        api.full(0 if case.adds or each.dtype.kind == "uint" else -1, each.shape, each.dtype).sync()
        for each in (*case.outs, *case.scratch)
    ]
    for op in case.ops(outs, tensors):
        (op.interpret() if isinstance(op, KernelOp) else op).sync()
    exact = case.exact(np, *(each.astype(np.float64 if each.dtype.kind == "f" else np.int64) for each in ins))
    every = cast("tuple[Any, ...]", exact if isinstance(exact, tuple) else (exact,))
    assert len(every) == len(case.outs)
    for out, right, allowed in zip(outs, every, case.errors, strict=False):
        result = out.to_numpy().sync().astype(np.float64).reshape(right.shape)
        assert np.linalg.norm(result - right) <= max(allowed, 4e-3) * np.linalg.norm(right)


WIDE = (
    rows.softmax(16384, 2),
    rows.softmax(262144, 2),
    rows.softmax_backward(65536, 2),
    rows.layer_norm(8192, 2),
    rows.layer_norm(65536, 2),
    rows.layer_norm(65536, 2, sums=True),
    rows.rms_norm(65536, 2),
    rows.cross_entropy_backward(128256, 2),
    rows.layer_norm_backward(8192, 2, blocks=1),
    rows.rms_norm_backward(8192, 2, blocks=1),
    rows.add_rms_norm(8192, 2, scales="128"),
)
"""As wide as those that are timed, of few rows. Those whose threads hold the most."""


@pytest.mark.slow
@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
def test_no_kernel_spills_on_hopper(case: Case) -> None:
    ins = [api.zeros(array.shape, array.dtype).sync() for array in case.ins]
    outs = [api.zeros(array.shape, array.dtype).sync() for array in (*case.outs, *case.scratch)]
    for op in case.ops(outs, ins):
        assert isinstance(op, KernelOp)
        plan = op.explain("sm_90a")
        op.discard()
        assert "no spills" in plan


def test_every_case_has_a_name_and_bytes() -> None:
    assert len({case.name for case in cases.CASES}) == len(cases.CASES)
    assert all(case.nbytes > 0 for case in cases.CASES)


def test_quick_measures_beside_the_copy_alone() -> None:
    quick = memory.parse(["--quick", "--cases", "softmax backward*,cast*"])
    assert (quick.others, quick.pairs) == ([], 7)
    assert [case.name for case in quick.chosen] == ["softmax backward 65536", "cast f32 to bf16"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "gemm"], "no such case; there are softmax 1024, "),
        (["--pairs", "6"], "expected 20 or more"),
        (["--peers", "numpy"], "expected torch, torch.compile, got numpy"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        memory.main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_the_picture_is_drawn_of_the_kept_figures() -> None:
    record = json.loads(sizes.FIGURES.read_text(encoding="utf-8"))
    assert sizes.PICTURE.read_text(encoding="utf-8") == sizes.draw(record)
    assert list(record["curves"]) == list(sizes.MAKERS)


def test_no_rate_is_above_the_roof() -> None:
    """Neither of those that are kept: a time that were too short would show here."""
    record = json.loads(sizes.FIGURES.read_text(encoding="utf-8"))
    peak, shortest = sizes.roof(record)
    points = [point for curve in record["curves"].values() for point in curve]
    assert len(points) == len(sizes.MAKERS) * len(sizes.SIZES)
    assert all(each["bytes"] / each["seconds"] <= min(peak * 1e9, each["bytes"] / shortest) for each in points)
    assert sizes.down(sizes.HIGH) == sizes.TOP
    assert sizes.across(sizes.SIZES[-1]) == sizes.WIDTH - sizes.RIGHT
