"""Control flow of any nest, against Python, which runs the same text."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import cutile as ct
from tests.properties.generator.control import function
from tests.support.kernels import kernel
from tests.support.memory import launch

KERNEL = "def k(y: Mut, x: Tensor, n: {}, *, N: Const = 3):\n    y.store(y.load() + f({}, N))\n"
BACKENDS_OF_SEEDS = [*((seed, "reference") for seed in range(16)), (3, "cpu"), (8, "interpret")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "backend"),
    [*BACKENDS_OF_SEEDS, *(pytest.param(seed, "cuda", marks=pytest.mark.gpu) for seed in range(16))],
)
def test_random_control_flow(seed: int, backend: str) -> None:
    """Of a parameter, which has a dtype, and of an extent, which is a plain number: beside f32 the result is one.

    A variable cannot be an i32 on one path and a plain number past 32 bits on another, so the parameter is an i64.
    """
    text = function(seed)
    names: dict[str, Any] = {}
    exec(text, names)
    of_parameter, of_extent = (kernel(text + KERNEL.format("i64", each)) for each in ("n", "x.shape[0]"))
    for n in (0, 1, 4, 6):
        expected = names["f"](n, 3)
        whole, single = np.ones(2, np.int64), np.ones(2, np.float32)
        x = np.zeros(n, np.float32)
        launch(of_parameter, (whole, (2,)), x, n, backend=backend)
        launch(of_extent, (single, (2,)), x, n, backend=backend)
        assert whole.tolist() == [1 + expected] * 2, text
        assert single.tolist() == [np.float32(1) + np.float32(expected)] * 2, text


def test_of_an_i32_most_programs_compile_and_are_right() -> None:
    compiled = 0
    for seed in range(16):
        text, names, whole = function(seed), dict[str, Any](), np.ones(2, np.int32)
        exec(text, names)
        with contextlib.suppress(ct.KernelTypeError):
            launch(kernel(text + KERNEL.format("i32", "n")), (whole, (2,)), np.zeros(4, np.float32), 4)
            compiled += 1
            assert whole.tolist() == [1 + names["f"](4, 3)] * 2, text
    assert compiled >= 12


def test_programs_differ_and_leave_loops_in_every_way() -> None:
    texts = [function(seed) for seed in range(16)]
    assert len(set(texts)) == len(texts)
    for part in ("break", "continue", "return t - u", "else:", "while", "for"):
        assert any(part in text for text in texts), part
