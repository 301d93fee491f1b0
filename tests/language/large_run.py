"""Tensors of more elements, and more bytes, than 32 bits count: each way in which a kernel reaches memory.

    python -m tests.language.large_run            # on the first GPU, with 14 GiB of memory free

Values tell where they are, so that what was read or written somewhere else is seen. The tests run it small on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import cutile as ct
from cuda_async import Device
from cutile import Mut, Tensor, api, bf16, f32, i32, u8
from kernels.gemm import gemm

Array = np.ndarray[Any, Any]
GIB = 2**30


@ct.entry
def fill(y: Mut, by_row: i32, by_column: i32):
    """Small numbers: (row * by_row + column * by_column) % 7 - 3."""
    BM, BN = y.shape
    i, j, _ = ct.get_tile_block_id()
    rows = i * BM + ct.iota((BM,)).reshape((BM, 1))
    columns = j * BN + ct.iota((BN,)).reshape((1, BN))
    y.store(ct.convert_tile((rows * by_row + columns * by_column) % 7 - 3, y.dtype))


@ct.entry
def negated(y: Mut, x: Tensor):
    y.store(0 - ct.load_tile_like(x, y))


@ct.entry
def picked(y: Mut, x: Tensor, row: i32, column: i32):
    """Elements of a row from a column on, by address."""
    y.store(ct.gather(x, (row, column + ct.iota((y.shape[0],)))))


def pattern(rows: Any, columns: Any, by_row: int, by_column: int) -> Array:
    return (np.asarray(rows)[:, None] * by_row + np.asarray(columns)[None] * by_column) % 7 - 3


def filled(shape: tuple[int, int], dtype: Any, by_row: int, by_column: int) -> ct.Tensor:
    return fill(api.empty(shape, dtype).partition((1, 2048)), by_row, by_column).first().unpartition().sync()


def check_copies(width: int = GIB) -> None:
    """Five rows of bytes: of 1 GiB each, row 2 begins at element 2**31, row 4 at 2**32."""
    x = filled((5, width), u8, 3, 1)
    y = negated(api.empty((5, width), u8).partition((1, 4096)), x).first().unpartition().sync()
    for row in range(5):
        for start in (0, width // 2 - 500, width - 1024):
            expected = pattern([row], np.arange(start, start + 1024), 3, 1).astype(np.uint8)
            here = np.s_[row : row + 1, start : start + 1024]
            np.testing.assert_array_equal(x[here].to_numpy().sync(), expected)
            np.testing.assert_array_equal(y[here].to_numpy().sync(), -expected)
            some = picked(api.empty((1024,), u8).partition((1024,)), x, row, start).first().unpartition().sync()
            np.testing.assert_array_equal(some.to_numpy().sync(), expected[0])
    print("right: copies", flush=True)


def check_operand(m: int = 80000, k: int = 32768, n: int = 64) -> None:
    """A large operand of a product, on the left, and turned on the right; 65536 rows of 32768 are 2**31 elements."""
    x, y = filled((m, k), bf16, 5, 1), filled((k, n), bf16, 1, 3)
    wide = pattern(np.arange(k), np.arange(n), 1, 3).astype(np.float64)
    middle = min(65536, m // 2)
    rows = np.r_[0:3, middle - 2 : middle + 3, m - 3 : m]
    expected = pattern(rows, np.arange(k), 5, 1).astype(np.float64) @ wide
    for tile in ((128, 64), (32, 32)):
        result = gemm(api.empty((m, n), f32).partition(tile), x, y).first().unpartition().sync()
        np.testing.assert_array_equal(result.to_numpy().sync()[rows], expected)
        turned = gemm(api.empty((n, m), f32).partition((64, tile[1])), y.T, x.T).first().unpartition().sync()
        np.testing.assert_array_equal(turned.to_numpy().sync()[:, rows], expected.T)
    print("right: operand", flush=True)


def check_result(m: int = 70000, n: int = 40000, k: int = 64) -> None:
    """A large result, stored by TMA and by threads; 2**31 is within row 53687 of 40000."""
    x, y = filled((m, k), bf16, 5, 1), filled((k, n), bf16, 1, 3)
    middle = min(53687, m // 2)
    rows = np.r_[0:3, middle - 2 : middle + 3, m - 3 : m]
    expected = pattern(rows, np.arange(k), 5, 1).astype(np.float64) @ pattern(np.arange(k), np.arange(n), 1, 3)
    for tile in ((128, 256), (96, 80)):
        z = gemm(api.full(99, (m, n), bf16).partition(tile), x, y).first().unpartition().sync()
        for row, right in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(z[int(row)].to_numpy().sync(), right.astype(bf16.numpy))
    print("right: result", flush=True)


if __name__ == "__main__":
    with Device(0):
        check_copies()
        check_operand()
        check_result()
