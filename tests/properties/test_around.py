"""A few random kernels around a product, on the CPU and on a GPU; many of them by command (see `around.py`)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import FailUnless, Roles
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import bf16, f32, i32
from cutile.ir.core import Function, Value
from cutile.ir.verify import verify
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import lowered, written
from tests.properties.around import PLACES, Around, kernels, main, may_be_too_large
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


PRODUCT = Around(
    operands=bf16,
    stored=(bf16, bf16),
    out=bf16,
    tile=(128, 64, 64),
    ending="stored",
    counts=i32,
    bounds="range(n)",
    loaded=False,
    before="nothing",
    across=(False, False),
    tiles=(2, 1),
    cut=(0, 0),
    turns=3,
    cluster=1,
    pieces=None,
    warps=None,
    residual=bf16,
    seed=1,
)
FORMS = {
    "in a loop": PRODUCT,
    "in a loop, stored at once": replace(PRODUCT, out=f32),
    "in a loop, in halves": replace(PRODUCT, tile=(64, 128, 64)),
    "behind a store": replace(PRODUCT, before="stored"),
    "in a loop of known length": replace(PRODUCT, bounds="range(2)"),
    "once": replace(PRODUCT, looped=False),
    "once, with a tile of threads": replace(PRODUCT, looped=False, ending="residual"),
    "once, two results": replace(PRODUCT, looped=False, ending="two results"),
}
"""Products that specialised warps compute."""


def specialised(case: Around) -> Function:
    function = lowered(written(case.text, case.types))
    assert any(isinstance(op, Roles) for op in function.walk()), case.text
    return function


@pytest.mark.parametrize("form", FORMS)
def test_assertions_beside_any_number_of_stores_make_no_deadlock(form: str) -> None:
    for stores, asserts in product((1, 2, 3, 4), ((), ("first",), ("within",), ("between",), PLACES)):
        check_function(specialised(replace(FORMS[form], stores=stores, asserts=asserts)))


def results(case: Around, function: Function, turns: int, seed: int = -1) -> list[np.ndarray[Any, Any]]:
    """Both results: of the kernel as it is written, or of warps in the order that `seed` draws."""
    z, w, *operands = case.arrays()
    z[...], w[...] = 7, 7
    arguments, grid = [z, w, *operands, np.int32(turns)], (*case.tiles, 1)
    if seed >= 0:
        execute(function, arguments, grid, 1, seed, fails=case.most < case.tiles[0])
    else:
        for index in np.ndindex(*case.tiles):
            values: dict[Value, Any] = dict(zip(function.parameters, arguments, strict=True))
            run_block(function, values, (*index, 0), grid)
    return [z, w]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turns", [0, 3])
def test_assertions_that_hold_change_no_result(form: str, turns: int) -> None:
    case = replace(FORMS[form], stores=3, asserts=PLACES)
    expected = results(case, written(case.text, case.types), turns)
    for result, meant in zip(results(case, specialised(case), turns, seed=0), expected, strict=True):
        assert np.array_equal(result.astype(np.float32), meant.astype(np.float32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turns", [0, 3])
def test_a_failed_tile_block_stores_nothing_more(form: str, turns: int) -> None:
    """In any order of the warps, also where a loop has no iterations, and so no stage that consumers wait for."""
    for place, stores in (("first", 1), ("first", 3), ("behind", 3)):
        case = replace(FORMS[form], stores=stores, asserts=(place,), most=0)
        function = specialised(case)
        assert any(isinstance(op, FailUnless) for op in function.walk())
        for seed in range(4):
            z, w = results(case, function, turns, seed)
            assert (z == 7).all(), f"{place}, {stores} stores, seed {seed}"
            assert place != "first" or (w == 7).all(), f"ahead of the loop, seed {seed}"


@pytest.mark.slow
def test_kernels_around_a_product_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "6", "--most", "2", "--seed", "1"]) == 0
    assert capsys.readouterr().out == "6 kernels are right\n"


@pytest.mark.gpu
def test_kernels_around_a_product_are_right_on_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.properties.around", "--device", "cuda", "--count", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout == "30 kernels are right\n", done.stdout + done.stderr
