"""Every kernel, every case, on every backend, beside float64; and what a wrong result does."""

from typing import Any

import numpy as np
import pytest

from cuda_async import Device
from cutile import use_backend
from kernels import (
    attention,
    attention_backward,
    convolution,
    decode,
    experts,
    gemm,
    norm_backward,
    norm_fused,
    order,
    packed,
    prepacked,
    quantised,
    row_min,
    saxpy,
    softmax,
    swiglu,
    vector_add,
)
from kernels.example import Case, Example, relative_error

MODULES: tuple[Any, ...] = (
    *(saxpy, vector_add, gemm, softmax, row_min, order, attention, attention_backward, swiglu),
    *(experts, convolution, quantised, prepacked, decode, packed, norm_backward, norm_fused),
)
ROWS = [(module.EXAMPLE, case) for module in MODULES for case in module.CASES]


NAMES = [f"{example.name} {case}" for example, case in ROWS]


ON_CPU = {"attention": 1, "attention_backward": 1, "decode": 1, "order": 1, "packed": 1}
"""Of kernels that take 2 to 8 seconds to compile: how many cases are compiled for the CPU. The others differ from
these in dtypes and tile extents alone, and run by the reference and on GPUs."""


def compiled_for_the_cpu(example: Example, case: Case) -> bool:
    return example.cases.index(case) < ON_CPU.get(example.name, len(example.cases))


@pytest.mark.parametrize(
    ("example", "case", "backend"),
    [
        pytest.param(example, case, backend, id=f"{example.name} {case}-{backend}")
        for example, case in ROWS
        for backend in ("cpu", "reference")
        if backend == "reference" or compiled_for_the_cpu(example, case)
    ],
)
def test_a_kernel_agrees_with_float64(example: Example, case: Case, backend: str) -> None:
    with Device.host(), use_backend(backend):
        example.check(case)


@pytest.mark.gpu
@pytest.mark.parametrize(("example", "case"), ROWS, ids=NAMES)
def test_a_kernel_agrees_with_float64_on_a_gpu(example: Example, case: Case) -> None:
    with Device(0):
        example.check(case)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.EXAMPLE.name)
def test_main_is_the_example_s(module: Any) -> None:
    assert module.main == module.EXAMPLE.main


@pytest.mark.parametrize("module", [saxpy, softmax], ids=lambda module: module.EXAMPLE.name)
def test_main_prints_a_line_for_each_case(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them: each main is one method of another example."""
    module.main(["--device", "cpu"])
    assert len(capsys.readouterr().out.splitlines()) == len(module.CASES)


def test_a_wrong_element_is_an_error() -> None:
    problem = softmax.EXAMPLE.problem(Case((4, 8)), np.random.default_rng(0))
    expected = softmax.reference(problem)
    spoiled = expected[0].copy()
    spoiled[2, 3] += 0.01
    with pytest.raises(AssertionError, match=r"softmax 4x8 f32: wrong result, error 0\.0"):
        softmax.EXAMPLE.judge(Case((4, 8)), (spoiled,), expected)


def test_an_element_that_was_not_written_is_an_error() -> None:
    problem = softmax.EXAMPLE.problem(Case((4, 8)), np.random.default_rng(0))
    expected = softmax.reference(problem)
    missed = expected[0].copy()
    missed[3, 7] = problem.outputs[0][3, 7]  # the poison
    with pytest.raises(AssertionError, match="error nan"):
        softmax.EXAMPLE.judge(Case((4, 8)), (missed,), expected)


def test_the_error_is_relative_to_the_largest_element() -> None:
    assert relative_error(np.array([1.0, -9.0]), np.array([1.0, -10.0])) == pytest.approx(0.1)


def test_a_wrong_shape_is_an_error() -> None:
    with pytest.raises(AssertionError, match="wrong shape"):
        relative_error(np.zeros(3), np.zeros((3, 1)))


def test_tiles_of_row_minima_fit_a_threads_registers() -> None:
    class Gpu:
        kind = "cuda"

    gpu: Any = Gpu()
    assert row_min.tile_for(4096, gpu) == (1, 4096)
    assert row_min.tile_for(100, gpu) == (8, 128)
    for columns in (1, 128, 129, 1000, 4096, 100_000):
        for rows in (None, 1, 8, 16, 64):
            tall, wide = row_min.tile_for(columns, gpu, rows)
            assert tall * wide <= 8192
            assert rows is None or tall == rows
            assert wide >= 128
