"""`python -m benchmarks.loops`: its command line, what it says where it cannot run, and its kernels on small inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.loops import __main__ as loops
from benchmarks.loops import cases as loop_cases
from cutile import KernelOp, Tensor, api, f16


def random(*shape: int) -> tuple[Any, Tensor]:
    """Numbers as NumPy's in float64, and as a tensor of f16."""
    numbers = np.random.default_rng().standard_normal(shape).astype(np.float16)
    return numbers.astype(np.float64), api.from_numpy(numbers).sync()


def _nothing(name: str) -> None:
    """No module is installed."""


def result(op: KernelOp, z: Tensor) -> Any:
    op.sync()
    return z.to_numpy().sync().astype(np.float64)


def test_cases_are_chosen_by_pattern() -> None:
    assert [case.name for case in loops.parse(["--cases", "attention-64*"]).chosen] == [
        "attention-64",
        "attention-64-causal",
        "attention-64-1024-causal",
    ]
    assert loops.parse([]).chosen == list(loops.CASES)
    assert len({case.name for case in loops.CASES}) == len(loops.CASES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "gemv"], "no such case; there are attention-128, "),
        (["--pairs", "6"], "expected 20 or more"),
        (["--out", "x", "more"], "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        loops.main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "words"), [(0, "a GPU is needed"), (1, "torch is needed, and is not installed")])
def test_what_is_missing_is_told(
    gpus: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loops, "device_count", lambda: gpus)
    monkeypatch.setattr("importlib.util.find_spec", _nothing)
    assert loops.main([]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


def test_long_turns_are_of_the_cases_that_stand_for_others() -> None:
    assert [case.name for case in loops.CASES if loops.in_long_turns(case, None)] == [
        "attention-128",
        "attention-64",
        "swiglu",
    ]
    assert all(loops.in_long_turns(case, "*") for case in loops.CASES)


def test_two_loops_of_products_add_up() -> None:
    (x, dx), (w, dw), (u, du), (v, dv) = random(40, 70), random(70, 33), random(40, 20), random(20, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.lora(z.mut.partition((32, 32)), dx, dw, du, dv, BK=32), z)
    np.testing.assert_allclose(found, x @ w + u @ v, rtol=2e-3, atol=2e-2)


def test_taps_add_up() -> None:
    (x, dx), (w, dw) = random(40, 48), random(3, 48, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.taps(z.mut.partition((32, 32)), dx, dw, BK=32), z)
    np.testing.assert_allclose(found, (x @ w).sum(0), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("count", [3, 4])
def test_a_product_under_a_branch(count: int) -> None:
    (x, dx), (w, dw) = random(40, 48), random(48, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.branch(z.mut.partition((32, 32)), dx, dw, count, BK=32), z)
    np.testing.assert_allclose(found, x @ w if count > 3 else np.zeros((40, 33)), rtol=2e-3, atol=2e-2)
