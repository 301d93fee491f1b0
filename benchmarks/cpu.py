"""Kernels on the CPU beside the same loops written by hand for Numba, in turns.

    python -m benchmarks.cpu [NAME ...]

Each line has the median time of ours, of Numba's, and the median of the ratios of paired turns: above 1, ours is
faster. With it comes the ratio of the processors' time, of all threads together, which also tells the truth on a
machine that others use as well. Numba's loops are `njit(parallel=True)` over rows, on NumPy's memory.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import cutile as ct
from cutile import Mut, Tensor, api, f32, i8

ROWS, COLUMNS = 8192, 4096
Array = np.ndarray[Any, Any]
Case = Callable[[], tuple[Callable[[], Any], Callable[[], Any], Callable[[], Array], Callable[[], Array]]]


@ct.entry
def scale_kernel(y: Mut, x: Tensor, a: f32) -> None:
    """Int8 to f32, scaled, rounded, saturated to int8."""
    t = ct.load_tile_like(x, y).astype(f32) * a
    t = ct.max_tile(ct.min_tile(t, 127.0), -128.0)
    y.store(ct.convert_tile(t, i8))


@numba.njit(parallel=True)
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


@numba.njit(parallel=True)
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


@numba.njit(parallel=True)
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


@numba.njit(parallel=True)
def edge_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        for c in range(y.shape[1]):
            y[r, c] = x[r, c] * np.float32(2.0) + np.float32(1.0)


@ct.entry
def softmax_kernel(y: Mut, x: Tensor) -> None:
    """Softmax of rows."""
    t = ct.load_tile_like(x, y)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store(e / ct.reduce_sum(e, 1)[:, None])


@numba.njit(parallel=True)
def softmax_loop(y: Array, x: Array) -> None:
    for r in numba.prange(y.shape[0]):
        most = np.float32(-np.inf)
        for c in range(y.shape[1]):
            most = max(most, x[r, c])
        total = np.float32(0)
        for c in range(y.shape[1]):
            e = np.exp(x[r, c] - most)
            y[r, c] = e
            total += e
        for c in range(y.shape[1]):
            y[r, c] /= total


@ct.entry
def norm_kernel(y: Mut, x: Tensor) -> None:
    """Layer norm of rows."""
    t = ct.load_tile_like(x, y)
    n = 1.0 / y.shape[1]
    c = t - (ct.reduce_sum(t, 1) * n)[:, None]
    y.store(c * ct.rsqrt(ct.reduce_sum(c * c, 1) * n + 1e-5)[:, None])


@numba.njit(parallel=True, fastmath={"reassoc", "nsz"})
def norm_loop(y: Array, x: Array) -> None:
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
        scale = np.float32(1) / np.sqrt(total * n + np.float32(1e-5))
        for c in range(y.shape[1]):
            y[r, c] = (x[r, c] - mean) * scale


def _case(kernel: Any, loop: Any, tile: tuple[int, ...], dtype: Any, shape: tuple[int, int], *more: Any) -> Any:
    rng = np.random.default_rng(0)
    turned = kernel is transpose_kernel
    source = shape[::-1] if turned else shape
    data = (
        rng.integers(-100, 100, source).astype(np.int8) if dtype is i8 else rng.normal(size=source).astype(np.float32)
    )
    x, y = api.from_numpy(data).sync(), api.zeros(shape, dtype).sync()
    out = np.zeros(shape, data.dtype)

    def ours() -> None:
        kernel(y.mut.partition(tile), x, *more).sync()

    def theirs() -> None:
        loop(out, data, *more)

    return ours, theirs, lambda: y.numpy(), lambda: out


CASES: dict[str, Callable[[], Any]] = {
    "int8 scaled": lambda: _case(scale_kernel, scale_loop, (16, COLUMNS), i8, (ROWS, COLUMNS), 1.7),
    "row scans": lambda: _case(scan_kernel, scan_loop, (1, COLUMNS), f32, (ROWS, COLUMNS)),
    "transpose": lambda: _case(transpose_kernel, transpose_loop, (64, 64), f32, (ROWS, COLUMNS)),
    "tile past the edge": lambda: _case(edge_kernel, edge_loop, (1, 65536), f32, (ROWS, 1000)),
    "softmax": lambda: _case(softmax_kernel, softmax_loop, (1, COLUMNS), f32, (ROWS, COLUMNS)),
    "layer norm": lambda: _case(norm_kernel, norm_loop, (1, COLUMNS), f32, (ROWS, COLUMNS)),
}


def measure(name: str, turns: int = 9) -> None:
    """Print a case's line."""
    ours, theirs, mine, expected = CASES[name]()
    ours()
    theirs()
    np.testing.assert_allclose(mine().astype(np.float64), expected().astype(np.float64), rtol=1e-3, atol=2e-3)
    wall: list[tuple[float, float]] = []
    busy: list[tuple[float, float]] = []
    for turn in range(turns):
        pair, processors = [0.0, 0.0], [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            start, started = time.perf_counter(), time.process_time()
            (ours, theirs)[which]()
            pair[which], processors[which] = time.perf_counter() - start, time.process_time() - started
        wall.append((pair[0], pair[1]))
        busy.append((processors[0], processors[1]))
    ratios = [statistics.median(b / a for a, b in times) for times in (wall, busy)]
    medians = [1e3 * statistics.median(each) for each in zip(*wall, strict=True)]
    print(
        f"{name:20} ours {medians[0]:7.2f} ms   Numba {medians[1]:7.2f} ms   {ratios[0]:5.2f}   "
        f"processors' time {ratios[1]:5.2f}",
        flush=True,
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        measure(chosen)
