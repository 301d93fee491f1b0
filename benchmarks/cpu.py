"""Kernels on the CPU beside the same loops written by hand for Numba, and beside torch, in turns.

    python -m benchmarks.cpu [--turns N] [--out FILE] [NAME ...]

Each line has the median time of ours and of each peer, and the median of the ratios of paired turns: above 1, ours is
faster. It also has the ratio of the CPU time of all threads together, which is valid on a shared machine as well.
Numba's loops are `njit(parallel=True)` over rows, on NumPy's memory, without `fastmath`: their sums are in order, one
element after another. torch is a peer if it is installed; it writes into an existing tensor if its function allows.
There are 8192 rows of 4096 elements. All arms read and write the same memory.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np

import cutile as ct
from cutile import Mut, Tensor, api, bf16, f32, i8, i32

ROWS, COLUMNS = 8192, 4096
TURNS = 9
POISON = 77
COMPARED = 16
"""One of so many rows is compared with f64, element by element."""
PAUSE_S = 0.02
"""Seconds between arms, so that the threads of the arm before sleep; OpenMP's threads spin for a while first."""
QUIET = {"KMP_BLOCKTIME": "1", "GOMP_SPINCOUNT": "1000"}
"""Environment variables that limit this spinning to a millisecond, in place of a fifth of a second."""
EPS = 1e-5
Array = np.ndarray[Any, Any]


@ct.entry
def scale_kernel(y: Mut, x: Tensor, a: f32) -> None:
    """Int8 to f32, scaled, rounded, saturated to int8."""
    t = ct.load_tile_like(x, y).astype(f32) * a
    t = ct.max_tile(ct.min_tile(t, 127.0), -128.0)
    y.store(ct.convert_tile(t, i8))


@numba.njit(parallel=True, cache=True)
def scale_loop(y: Array, x: Array, a: float) -> None:
    for r in numba.prange(y.shape[0]):
        for c in range(y.shape[1]):
            t = np.float32(x[r, c]) * np.float32(a)
            t = min(max(t, np.float32(-128.0)), np.float32(127.0))
            y[r, c] = np.int8(t)


@ct.entry
def scan_kernel(y: Mut, x: Tensor) -> None:
    """The running sums of each row, in one tile."""
    y.store(ct.scan_sum(ct.load_tile_like(x, y), 1))


@numba.njit(parallel=True, cache=True)
def scan_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        total = np.float32(0)
        for c in range(y.shape[1]):
            total += x[r, c]
            y[r, c] = total


@ct.entry
def transpose_kernel(y: Mut, x: Tensor) -> None:
    """The transpose."""
    i, j, _ = ct.get_tile_block_id()
    y.store(ct.permute(x.partition((y.shape[1], y.shape[0])).load((j, i)), (1, 0)))


@numba.njit(parallel=True, cache=True)
def transpose_loop(y: Array, x: Array) -> None:
    block = 32
    for i in numba.prange((y.shape[0] + block - 1) // block):
        for j in range((y.shape[1] + block - 1) // block):
            for r in range(i * block, min((i + 1) * block, y.shape[0])):
                for c in range(j * block, min((j + 1) * block, y.shape[1])):
                    y[r, c] = x[c, r]


@ct.entry
def edge_kernel(y: Mut, x: Tensor) -> None:
    """A row in a tile that is much wider than the row."""
    y.store(ct.load_tile_like(x, y) * 2.0 + 1.0)


@numba.njit(parallel=True, cache=True)
def edge_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        for c in range(y.shape[1]):
            y[r, c] = x[r, c] * np.float32(2.0) + np.float32(1.0)


@ct.entry
def softmax_kernel(y: Mut, x: Tensor) -> None:
    """Softmax of rows."""
    t = ct.load_tile_like(x, y).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))


@numba.njit(parallel=True, cache=True)
def softmax_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        top = np.float32(-np.inf)
        for c in range(y.shape[1]):
            top = max(top, x[r, c])
        total = np.float32(0)
        for c in range(y.shape[1]):
            e = np.exp(x[r, c] - top)
            y[r, c] = e
            total += e
        for c in range(y.shape[1]):
            y[r, c] /= total


@ct.entry
def entropy_kernel(loss: Mut, x: Tensor, labels: Tensor) -> None:
    """The cross entropy of each row with its label."""
    r, _, _ = ct.get_tile_block_id()
    t = ct.load_tile(x, (1, COLUMNS), (r, 0))
    top = ct.reduce_max(t, 1)
    total = ct.reduce_sum(ct.exp(t - top[:, None]), 1)
    label = ct.load_tile(labels, (1,), (r,)).reshape(())
    at_label = ct.load_tile(x, (1, 1), (r, label)).reshape((1,))
    loss.store(ct.log(total) + top - at_label)


@numba.njit(parallel=True, cache=True)
def entropy_loop(loss: Array, x: Array, labels: Array) -> None:
    for r in numba.prange(x.shape[0]):
        top = np.float32(-np.inf)
        for c in range(x.shape[1]):
            top = max(top, x[r, c])
        total = np.float32(0)
        for c in range(x.shape[1]):
            total += np.exp(x[r, c] - top)
        loss[r] = np.log(total) + top - x[r, labels[r]]


@ct.entry
def layer_norm_kernel(y: Mut, x: Tensor) -> None:
    """Layer norm of rows."""
    t = ct.load_tile_like(x, y).astype(f32)
    n = 1.0 / y.shape[1]
    c = t - (ct.reduce_sum(t, 1) * n)[:, None]
    y.store((c * ct.rsqrt(ct.reduce_sum(c * c, 1) * n + EPS)[:, None]).astype(y.dtype))


@numba.njit(parallel=True, cache=True)
def layer_norm_loop(y: Array, x: Array) -> None:
    n = np.float32(1 / x.shape[1])
    for r in numba.prange(y.shape[0]):
        total = np.float32(0)
        for c in range(y.shape[1]):
            total += x[r, c]
        mean = total * n
        total = np.float32(0)
        for c in range(y.shape[1]):
            d = x[r, c] - mean
            total += d * d
        scale = np.float32(1) / np.sqrt(total * n + np.float32(EPS))
        for c in range(y.shape[1]):
            y[r, c] = (x[r, c] - mean) * scale


@ct.entry
def rms_norm_kernel(y: Mut, x: Tensor) -> None:
    """RMS norm of rows."""
    t = ct.load_tile_like(x, y).astype(f32)
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) * (1.0 / y.shape[1]) + EPS)
    y.store((t * scale[:, None]).astype(y.dtype))


@numba.njit(parallel=True, cache=True)
def rms_norm_loop(y: Array, x: Array) -> None:
    n = np.float32(1 / x.shape[1])
    for r in numba.prange(y.shape[0]):
        total = np.float32(0)
        for c in range(y.shape[1]):
            total += x[r, c] * x[r, c]
        scale = np.float32(1) / np.sqrt(total * n + np.float32(EPS))
        for c in range(y.shape[1]):
            y[r, c] = x[r, c] * scale


@ct.entry
def largest_kernel(y: Mut, x: Tensor) -> None:
    """The largest element of each row; NaN if the row has one."""
    r, _, _ = ct.get_tile_block_id()
    y.store(ct.reduce_max(ct.load_tile(x, (1, COLUMNS), (r, 0)), 1, nan=True))


@numba.njit(parallel=True, cache=True)
def largest_loop(y: Array, x: Array) -> None:
    for r in numba.prange(x.shape[0]):
        top = x[r, 0]
        for c in range(1, x.shape[1]):
            top = x[r, c] if x[r, c] > top or x[r, c] != x[r, c] else top
        y[r] = top


@ct.entry
def place_kernel(y: Mut, x: Tensor) -> None:
    """The place of the largest element of each row."""
    r, _, _ = ct.get_tile_block_id()
    y.store(ct.argmax(ct.load_tile(x, (1, COLUMNS), (r, 0)), 1))


@numba.njit(parallel=True, cache=True)
def place_loop(y: Array, x: Array) -> None:
    for r in numba.prange(x.shape[0]):
        place = 0
        for c in range(1, x.shape[1]):
            if x[r, c] > x[r, place]:
                place = c
        y[r] = place


@ct.entry
def column_scan_kernel(y: Mut, x: Tensor) -> None:
    """The running sums of columns."""
    y.store(ct.scan_sum(ct.load_tile_like(x, y), 0))


@numba.njit(parallel=True, cache=True)
def column_scan_loop(y: Array, x: Array) -> None:
    width = 64
    for block in numba.prange((x.shape[1] + width - 1) // width):
        first, last = block * width, min((block + 1) * width, x.shape[1])
        for c in range(first, last):
            y[0, c] = x[0, c]
        for r in range(1, x.shape[0]):
            for c in range(first, last):
                y[r, c] = y[r - 1, c] + x[r, c]


@ct.entry
def sort_kernel(y: Mut, x: Tensor) -> None:
    """Sorted rows."""
    y.store(ct.sort(ct.load_tile_like(x, y), 1))


@numba.njit(parallel=True, cache=True)
def sort_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        y[r, :] = np.sort(x[r, :])


@ct.entry
def gather_kernel(y: Mut, x: Tensor, rows: Tensor) -> None:
    """Rows by a list."""
    r, _, _ = ct.get_tile_block_id()
    row = ct.load_tile(rows, (1,), (r,))
    y.store(ct.gather(x, (row[:, None], ct.iota(COLUMNS)[None, :])))


@numba.njit(parallel=True, cache=True)
def gather_loop(y: Array, x: Array, rows: Array) -> None:
    for r in numba.prange(y.shape[0]):
        row = rows[r]
        for c in range(y.shape[1]):
            y[r, c] = x[row, c]


def _torch_scale(torch: Any, y: Any, x: Any, a: float) -> None:
    y.copy_(torch.mul(x.to(torch.float32), a).clamp_(-128.0, 127.0))


def _torch_largest(torch: Any, y: Any, x: Any) -> None:
    torch.amax(x, 1, out=y)


def _torch_place(torch: Any, y: Any, x: Any) -> None:
    y.copy_(torch.argmax(x, 1))


def _torch_column_scan(torch: Any, y: Any, x: Any) -> None:
    torch.cumsum(x, 0, out=y)


def _torch_sort(torch: Any, y: Any, x: Any) -> None:
    y.copy_(torch.sort(x, 1)[0])


def _torch_gather(torch: Any, y: Any, x: Any, rows: Any) -> None:
    torch.index_select(x, 0, rows, out=y)


def _torch_entropy(torch: Any, loss: Any, x: Any, labels: Any) -> None:
    loss.copy_(torch.nn.functional.cross_entropy(x, labels.to(torch.int64), reduction="none"))


def _torch_layer_norm(torch: Any, y: Any, x: Any) -> None:
    stats = torch.empty((x.shape[0], 1), dtype=x.dtype), torch.empty((x.shape[0], 1), dtype=x.dtype)
    out = {"out0": y, "out1": stats[0], "out2": stats[1]}
    torch.ops.aten.native_layer_norm.out(x, [x.shape[1]], None, None, EPS, **out)


def _torch_rms_norm(torch: Any, y: Any, x: Any) -> None:
    square = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32).square_()
    torch.mul(x, square.mul_(1 / x.shape[1]).add_(EPS).rsqrt_().to(x.dtype), out=y)


@cache
def _random(dtype: Any, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(0)
    if dtype is i8:
        return rng.integers(-100, 100, shape, np.int8)
    return rng.standard_normal(shape, np.float32).astype(dtype.numpy)


@dataclass(frozen=True)
class Case:
    """A kernel and its peers.

    Attributes:
        kernel: our kernel.
        loop: the loop for Numba; None for element types that Numba lacks.
        torch: the same by torch: `f(torch, y, x, *more)`.
        tile: extents of a tile.
        dtype: the dtype of the input.
        shape: the shape of the output.
        more: further arguments; each library gets an array as its own type.
        result: the dtype of the output; None for that of the input.
    """

    kernel: Any
    loop: Any
    torch: Callable[..., object]
    tile: tuple[int, ...]
    dtype: Any = f32
    shape: tuple[int, ...] = (ROWS, COLUMNS)
    more: tuple[Any, ...] = ()
    result: Any = None

    def source(self) -> Array:
        """The input."""
        shape = (ROWS, COLUMNS) if len(self.shape) == 1 or self.kernel is transpose_kernel else self.shape
        return _random(self.dtype, shape)


_LABELS = np.random.default_rng(1).integers(0, COLUMNS, ROWS).astype(np.int32)
_ROW = (1, COLUMNS)


def _torch_softmax(torch: Any, y: Any, x: Any) -> None:
    torch.softmax(x, 1, out=y)


def _torch_transpose(torch: Any, y: Any, x: Any) -> None:
    y.copy_(x.t())


def _torch_scan(torch: Any, y: Any, x: Any) -> None:
    torch.cumsum(x, 1, out=y)


def _torch_edge(torch: Any, y: Any, x: Any) -> None:
    torch.add(1.0, x, alpha=2.0, out=y)


CASES: dict[str, Case] = {
    "rms_norm f32": Case(rms_norm_kernel, rms_norm_loop, _torch_rms_norm, _ROW),
    "rms_norm bf16": Case(rms_norm_kernel, None, _torch_rms_norm, _ROW, bf16),
    "layer_norm f32": Case(layer_norm_kernel, layer_norm_loop, _torch_layer_norm, _ROW),
    "layer_norm bf16": Case(layer_norm_kernel, None, _torch_layer_norm, _ROW, bf16),
    "softmax f32": Case(softmax_kernel, softmax_loop, _torch_softmax, _ROW),
    "softmax bf16": Case(softmax_kernel, None, _torch_softmax, _ROW, bf16),
    "cross entropy f32": Case(entropy_kernel, entropy_loop, _torch_entropy, (1,), f32, (ROWS,), (_LABELS,)),
    "transpose f32": Case(transpose_kernel, transpose_loop, _torch_transpose, (64, 64), f32, (COLUMNS, ROWS)),
    "transpose bf16": Case(transpose_kernel, None, _torch_transpose, (64, 64), bf16, (COLUMNS, ROWS)),
    "row scans f32": Case(scan_kernel, scan_loop, _torch_scan, _ROW),
    "int8 scaled": Case(scale_kernel, scale_loop, _torch_scale, (16, COLUMNS), i8, more=(1.7,)),
    "largest or NaN f32": Case(largest_kernel, largest_loop, _torch_largest, (1,), f32, (ROWS,)),
    "place of the largest f32": Case(place_kernel, place_loop, _torch_place, (1,), f32, (ROWS,), result=i32),
    "column scans f32": Case(column_scan_kernel, column_scan_loop, _torch_column_scan, (ROWS, 64)),
    "sorted rows f32": Case(sort_kernel, sort_loop, _torch_sort, _ROW),
    "gathered rows f32": Case(gather_kernel, gather_loop, _torch_gather, _ROW, more=(_LABELS,)),
    "tile past the edge": Case(
        edge_kernel,
        edge_loop,
        _torch_edge,
        (1, 65536),
        f32,
        (ROWS, 1000),
    ),
}


def _torch() -> Any:
    """torch, where it is installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _array(tensor: Tensor) -> Array:
    """A tensor's memory as an array of NumPy's, so that all arms read and write the same."""
    nbytes = tensor.size * tensor.dtype.bits // 8
    memory = (ctypes.c_char * nbytes).from_address(tensor.device_pointer())
    return np.frombuffer(memory, tensor.dtype.numpy).reshape(tensor.shape)


def _of_torch(torch: Any, array: Any) -> Any:
    if array.dtype == bf16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _tasks(case: Case) -> tuple[dict[str, Callable[[], object]], Array]:
    """The call of each library, and the output that all of them write."""
    torch = _torch()
    x, y = api.from_numpy(case.source()).sync(), api.zeros(case.shape, case.result or case.dtype).sync()
    more = tuple(api.from_numpy(each).sync() if isinstance(each, np.ndarray) else each for each in case.more)
    source, result = _array(x), _array(y)
    tasks: dict[str, Callable[[], object]] = {"ours": lambda: case.kernel(y.mut.partition(case.tile), x, *more).sync()}
    if case.loop is not None:
        tasks["Numba"] = lambda: case.loop(result, source, *case.more)
    if torch is not None:
        arguments: list[Any] = [source, *case.more]
        arguments = [_of_torch(torch, each) if isinstance(each, np.ndarray) else each for each in arguments]
        tasks["torch"] = lambda: case.torch(torch, _of_torch(torch, result), *arguments)
    return tasks, result


def measure(name: str, turns: int = TURNS) -> dict[str, float]:
    """Print a case's line; return its figures."""
    case = CASES[name]
    tasks, result = _tasks(case)
    tolerance = 2e-2 if case.dtype is bf16 else 2e-3
    expected: Array | None = None
    for task in tasks.values():
        result.fill(POISON)
        task()
        assert np.count_nonzero(result == POISON) < result.size // POISON, f"{name}: elements that nobody wrote"
        values = result[::COMPARED].astype(np.float64)
        expected = values if expected is None else expected
        np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)
    wall: dict[str, list[float]] = {each: [] for each in tasks}
    busy: dict[str, list[float]] = {each: [] for each in tasks}
    for turn in range(turns):
        for arm in list(tasks) if turn % 2 else reversed(list(tasks)):
            time.sleep(PAUSE_S)
            start, started = time.perf_counter(), time.process_time()
            tasks[arm]()
            wall[arm].append(time.perf_counter() - start)
            busy[arm].append(time.process_time() - started)
    figures = {f"{arm}_ms": 1e3 * statistics.median(times) for arm, times in wall.items()}
    words = [f"{arm} {figures[f'{arm}_ms']:7.2f} ms" for arm in tasks]
    for arm in tasks:
        if arm != "ours":
            pairs = zip(wall[arm], wall["ours"], strict=True)
            figures[f"of_{arm}"] = statistics.median(theirs / mine for theirs, mine in pairs)
            pairs = zip(busy[arm], busy["ours"], strict=True)
            figures[f"processors_of_{arm}"] = statistics.median(theirs / mine for theirs, mine in pairs)
            words.append(f"{arm}/ours {figures[f'of_{arm}']:5.2f} (processors {figures[f'processors_of_{arm}']:5.2f})")
    print(f"{name:20} {'   '.join(words)}", flush=True)
    return figures


def main() -> None:
    """Measure the cases that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.update(QUIET)  # before the libraries start their threads
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(f"{platform.processor() or platform.machine()}, {threads} cores", flush=True)
    torch = _torch()
    if torch is not None:
        torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.get_num_threads()))
    figures = {name: measure(name, options.turns) for name in options.names or CASES}
    if options.out:
        record = {"machine": platform.processor() or platform.machine(), "cores": threads, "figures": figures}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
