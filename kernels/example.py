"""Shared by the kernels of this folder: cases, problems, and the comparison of results with float64.

It makes random inputs, runs the op, and computes how far the result is from the same computation in float64. It
measures no time: `benchmarks/kernels/timing.py` does that, and `benchmarks/kernels/peers.py` has NumPy's and torch's
versions.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_async import Device, DeviceOp, default_device
from cutile import DType, Tensor, api, bf16, f16, f32, f64

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
Tensors = tuple[Tensor, ...]

# The largest error allowed, relative to the largest element of the result: rounding of the result's dtype, and for
# f32 and f64 the rounding of sums of a few thousand terms.
TOLERANCE: dict[type[DType], float] = {f16: 1e-3, bf16: 8e-3, f32: 2e-5, f64: 1e-12}


@dataclass(frozen=True)
class Case:
    """One problem size.

    Attributes:
        shape: the extents that define the problem; their meaning depends on the kernel (see its `_problem`).
        dtype: the element type of the tensors.
        tile: the shape of the output's partition; None leaves it to the host function.
    """

    shape: tuple[int, ...]
    dtype: Any = f32
    tile: tuple[int, ...] | None = None

    def __str__(self) -> str:
        tile = "" if self.tile is None else " tile " + "x".join(map(str, self.tile))
        return f"{'x'.join(map(str, self.shape))} {self.dtype.name}{tile}"

    def random(self, rng: np.random.Generator, *shape: int) -> Array:
        """Return standard normal numbers of the case's dtype."""
        return rng.standard_normal(shape, dtype=np.float32).astype(self.dtype.numpy, copy=False)

    def poison(self, *shape: int) -> Array:
        """Return an output to be written: NaN everywhere, so that an element left out is seen."""
        return np.full(shape, np.nan, self.dtype.numpy)


@dataclass(frozen=True)
class Problem:
    """Host arrays: the inputs, and the outputs' first contents (poison, or the input of an in-place kernel)."""

    outputs: Arrays
    inputs: Arrays


@dataclass(frozen=True)
class Example:
    """A kernel with everything to run it, to check its results and to time it.

    Attributes:
        name: the kernel's name.
        problem: random arrays for a case.
        launch: the op that computes a case; yields the output tensors.
        reference: the same results by NumPy, in float64.
        nbytes: bytes read and written when each operand is touched once.
        flops: floating-point operations; 0 if memory bandwidth limits the kernel.
        cases: small and awkward sizes, which the tests run on every backend.
    """

    name: str
    problem: Callable[[Case, np.random.Generator], Problem]
    launch: Callable[[Case, Tensors, Tensors], DeviceOp[Tensors]]
    reference: Callable[[Problem], Arrays]
    nbytes: Callable[[Case], int]
    flops: Callable[[Case], int]
    cases: tuple[Case, ...]

    def run(self, case: Case, problem: Problem) -> Arrays:
        """Compute `problem` on the default device and return the results."""
        outputs, inputs = to_device(problem.outputs), to_device(problem.inputs)
        return to_host(self.launch(case, outputs, inputs).sync())

    def check(self, case: Case, seed: int = 0) -> float:
        """Run a case on random inputs; return the largest error, relative to the largest element.

        Raises:
            AssertionError: the error is larger than `TOLERANCE` of the dtype, or an element is NaN.
        """
        problem = self.problem(case, np.random.default_rng(seed))
        return self.judge(case, self.run(case, problem), self.reference(problem))

    def judge(self, case: Case, results: Arrays, references: Arrays) -> float:
        """Return the largest error of `results`; raise `AssertionError` when it is too large."""
        error = max(relative_error(result, wanted) for result, wanted in zip(results, references, strict=True))
        if not error <= TOLERANCE[case.dtype]:  # so that NaN fails
            raise AssertionError(
                f"{self.name} {case}: wrong result, error {error:.3g}, {TOLERANCE[case.dtype]:.3g} allowed"
            )
        return error

    def main(self, arguments: list[str] | None = None) -> None:
        """Check every case on the best device and print the errors."""
        parser = argparse.ArgumentParser(description=f"check the kernel {self.name}")
        parser.add_argument("--device", help="cpu, cuda or cuda:1; the best one by default")
        chosen = parser.parse_args(arguments).device
        device = Device.parse(chosen) if chosen else default_device()
        with device:
            for case in self.cases:
                print(f"{self.name:12} {device.name:24} {case!s:32} error {self.check(case):.2e}")


def product_flops(case: Case) -> int:
    """Multiplications and additions of a product of (m, k) by (k, n); a case's shape begins with m, n, k."""
    m, n, k, *_ = case.shape
    return 2 * m * n * k


def to_device(arrays: Arrays) -> Tensors:
    """Copy host arrays to the default device."""
    return tuple(api.from_numpy(array).sync() for array in arrays)


def to_host(tensors: Tensors) -> Arrays:
    """Copy tensors to host arrays of their shapes."""
    return tuple(tensor.to_numpy().sync() for tensor in tensors)


def relative_error(result: Array, expected: Array) -> float:
    """Return the largest difference over the largest magnitude; NaN where either holds one."""
    if result.shape != expected.shape:
        raise AssertionError(f"wrong shape: {result.shape}, expected {expected.shape}")
    error, scale = 0.0, np.finfo(np.float64).tiny
    actual, right = result.reshape(-1), expected.reshape(-1)
    for start in range(0, actual.size, AT_ONCE):  # in parts that fit a cache: some results have gigabytes
        part = right[start : start + AT_ONCE].astype(np.float64)
        difference = np.subtract(actual[start : start + AT_ONCE], part, dtype=np.float64)
        error = np.maximum(error, np.max(np.abs(difference, out=difference)))  # np.maximum returns NaN if either is NaN
        scale = np.maximum(scale, np.max(np.abs(part, out=part)))
    return float(error) / float(scale)


AT_ONCE = 1 << 16
"""Elements that are compared together."""
