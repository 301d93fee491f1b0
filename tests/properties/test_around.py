"""A few random kernels around a product, on the CPU and on a GPU; many of them by command (see `around.py`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.ir.verify import verify
from tests.backend.cuda.programs import lowered, written
from tests.properties.around import Around, kernels, main, may_be_too_large
from tests.properties.products import searched


def lowers(case: Around) -> None:
    """For warps that load and warps that multiply, if they can: and these neither wait for ever nor overwrite, and find
    each tile where they take it to be."""
    with may_be_too_large():
        options = case.options
        function = lowered(
            written(case.text, case.types),
            num_cta_in_cga=options.num_cta_in_cga,
            num_pieces=options.num_pieces,
            num_worker_warps=options.num_worker_warps,
        )
        verify(function)
        check_function(function)
        check_layouts(function)


def test_whatever_stands_around_a_product_lowers() -> None:
    assert searched(kernels(), lowers, 100, seed=1) == 100


@pytest.mark.slow
def test_kernels_around_a_product_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "6", "--most", "2", "--seed", "1"]) == 0
    assert capsys.readouterr().out == "6 kernels are right\n"


@pytest.mark.gpu
def test_kernels_around_a_product_are_right_on_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.properties.around", "--device", "cuda", "--count", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout == "30 kernels are right\n", done.stdout + done.stderr
