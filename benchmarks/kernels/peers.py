"""The peers of the kernels: the same computations by NumPy, and by torch if it is installed.

Each is written for speed: with preallocated outputs and the library's own threads. No other file of this folder touches
torch, which has no types here.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from benchmarks.kernels.timing import TimedCall, wall_clock
from cuda_async import Device
from cutile.bench import FLUSH_BYTES
from kernels.example import Array, Problem
from kernels.saxpy import FACTOR


def numpy_run(name: str, problem: Problem) -> TimedCall | None:
    """Return a run of the kernel `name` by NumPy on the problem's arrays, or None if NumPy has no fast form."""
    dtype = problem.inputs[0].dtype
    if name not in _NUMPY or dtype not in (np.float32, np.float64):
        return None
    return wall_clock(_NUMPY[name](problem))


def _saxpy(problem: Problem) -> Callable[[], object]:
    (y,), (x,) = problem.outputs, problem.inputs
    product, factor = np.empty_like(x), x.dtype.type(FACTOR)

    def run() -> None:
        np.multiply(x, factor, out=product)
        np.add(product, y, out=y)

    return run


def _vector_add(problem: Problem) -> Callable[[], object]:
    (z,), (x, y) = problem.outputs, problem.inputs
    return lambda: np.add(x, y, out=z)


def _gemm(problem: Problem) -> Callable[[], object]:
    (z,), (x, y) = problem.outputs, problem.inputs
    return lambda: np.matmul(x, y, out=z)


def _softmax(problem: Problem) -> Callable[[], object]:
    (y,), (x,) = problem.outputs, problem.inputs
    column = np.empty((x.shape[0], 1), x.dtype)

    def run() -> None:
        np.max(x, axis=1, keepdims=True, out=column)
        np.subtract(x, column, out=y)
        np.exp(y, out=y)
        np.sum(y, axis=1, keepdims=True, out=column)
        np.divide(y, column, out=y)

    return run


def _row_min(problem: Problem) -> Callable[[], object]:
    (lowest, _), (x,) = problem.outputs, problem.inputs
    column = np.empty(x.shape[0], np.intp)

    def run() -> None:
        np.argmin(x, axis=1, out=column)
        np.min(x, axis=1, out=lowest)

    return run


_NUMPY: dict[str, Callable[[Problem], Callable[[], object]]] = {
    "saxpy": _saxpy,
    "vector_add": _vector_add,
    "gemm": _gemm,
    "softmax": _softmax,
    "row_min": _row_min,
}


@cache
def torch() -> Any:
    """Return the module torch, or None if it is not installed."""
    return importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def torch_run(name: str, problem: Problem, device: Device) -> TimedCall | None:
    """Return a run of the kernel `name` by torch on `device`, or None if torch or its CUDA part is missing."""
    if torch() is None or (device.kind == "cuda" and not torch().cuda.is_available()):
        return None
    call = _torch_call(name, problem, f"cuda:{device.ordinal}" if device.kind == "cuda" else "cpu")
    return _torch_events(call) if device.kind == "cuda" else wall_clock(call)


def _torch_call(name: str, problem: Problem, where: str) -> Callable[[], object]:
    outputs = [_to_torch(array, where) for array in problem.outputs]
    inputs = [_to_torch(array, where) for array in problem.inputs]
    out, x = outputs[0], inputs[0]
    last = inputs[-1]
    calls: dict[str, Callable[[], object]] = {
        "saxpy": lambda: torch().add(out, x, alpha=FACTOR, out=out),
        "vector_add": lambda: torch().add(x, last, out=out),
        "gemm": lambda: torch().matmul(x, last, out=out),  # float32 without tf32, which is torch's default
        "softmax": lambda: torch().softmax(x, 1),
        "row_min": lambda: torch().min(x, 1),
    }
    return calls[name]


def _to_torch(array: Array, where: str) -> Any:
    if array.dtype.name == "bfloat16":  # torch does not know ml_dtypes
        return torch().from_numpy(array.view(np.int16)).view(torch().bfloat16).to(where)
    return torch().from_numpy(array).to(where)


def _torch_events(call: Callable[[], object]) -> TimedCall:
    cuda = torch().cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    flush = torch().empty(FLUSH_BYTES // 4, dtype=torch().int32, device="cuda")

    def run() -> float:
        flush.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return run
