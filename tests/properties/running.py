"""A random kernel on one backend, and the judgement of what came out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_async import Device
from cutile.launch.target import INTERPRET, target_of
from tests.properties.generator import RandomKernel
from tests.properties.guarded import GUARDED, guard_pages
from tests.support.devices import on

Array = np.ndarray[Any, Any]
TOLERANCE = {"f64": 1e-11, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}
"""By dtype, relative to the largest value of an output. All other dtypes agree exactly."""


@dataclass(frozen=True)
class Ran:
    """What came of a launch.

    Attributes:
        arrays: what the whole array of each output holds afterwards, by the parameter's name.
        compile_seconds: from the kernel's source to something launchable.
    """

    arrays: dict[str, Array]
    compile_seconds: float


def run(case: RandomKernel, backend: str) -> Ran:
    """Launch a kernel once. `guarded` is the CPU, with every array between inaccessible pages."""
    if backend == GUARDED:
        with guard_pages(case.seed):
            return run(case, "cpu")
    with on(backend), np.errstate(all="ignore"):
        kernel = case.kernel()
        op, written = case.launch(kernel)
        if backend == INTERPRET:
            op.interpret(check=False)  # accesses outside of a tensor are meant
        op.sync()
        arrays = {name: tensor.to_numpy().sync() for name, tensor in written.items()}
        if backend == INTERPRET:
            return Ran(arrays, 0.0)
        target = target_of(Device(0), None) if backend == "cuda" else target_of(Device.host(), backend)
        seconds = sum(sum(plan.compiled(target).seconds.values()) for plan in kernel.cache.plans.values())
        return Ran(arrays, seconds)


def compile_only(case: RandomKernel, arch: str) -> float:
    """Compile for a GPU, which need not be there; the seconds it took.

    Raises:
        CompilationError: the toolchain refuses what was generated.
    """
    with on("reference"):
        op, _ = case.launch(case.kernel())
        start = time.perf_counter()
        try:
            op.render("log", arch)
        finally:
            op.discard()
        return time.perf_counter() - start


def check(case: RandomKernel, reference: dict[str, Array], got: dict[str, Array]) -> None:
    """Compare two results: integers exactly, floats within what rounding may have grown to.

    Raises:
        AssertionError: they differ; says in which output.
    """
    for argument in case.arguments:
        if argument.name not in reference:
            continue
        name, dtype = argument.name, argument.dtype
        expected, result = reference[name], got[name]
        tolerance = TOLERANCE.get(dtype.name)
        if tolerance is None or case.exact:
            np.testing.assert_array_equal(result, expected, f"of {name}")
            continue
        if case.dtype.kind == "float":  # a result is no more exact than what it was made of
            tolerance = max(tolerance, TOLERANCE[case.dtype.name])
        expected, result = expected.astype(np.float64), result.astype(np.float64)
        scale = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0))
        np.testing.assert_allclose(result, expected, tolerance, tolerance * scale, err_msg=f"of {name}")
