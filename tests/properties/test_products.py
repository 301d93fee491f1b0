"""A few random products, on the CPU and on a GPU; many of them by command (see `products.py`)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cuda_async import Device
from cutile import f16
from tests.properties import products
from tests.properties.products import Layout, Random, main, search


@pytest.mark.slow
def test_random_products_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "6", "--most", "100", "--seed", "1"]) == 0
    assert capsys.readouterr().out == "6 products are right\n"


@pytest.mark.gpu
def test_random_products_are_right_on_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.properties.products", "--device", "cuda", "--count", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout == "20 products are right\n", done.stdout + done.stderr


def test_a_search_may_be_limited_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "50", "--limit", "0"]) == 0
    assert capsys.readouterr().out == "0 products are right\n"


def test_a_wrong_product_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spoiled(case: Random) -> None:
        seen.append(case.k)
        assert case.k < 30, f"wrong with k = {case.k}"

    monkeypatch.setattr(products, "check", spoiled)
    with pytest.raises(AssertionError, match="wrong with k = 30"):
        search(100, 600, seed=2)
    assert max(seen) > 30


def test_operands_lie_as_they_are_said_to() -> None:
    random = np.random.default_rng(1)
    values = random.standard_normal((5, 7)).astype(np.float16)
    with Device.host():
        for turned in (False, True):
            alignments: set[int] = set()
            for lies in ("whole", "wide", "odd", "apart", "backwards"):
                tensor = products.operand(values, Layout(turned, lies), random)
                assert np.array_equal(tensor.to_numpy().sync(), values)
                assert tensor.dtype is f16
                alignments.add(tensor.spec().layout.alignment)
            assert alignments == {2, 16}
