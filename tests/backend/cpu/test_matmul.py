"""Products in every form that lowering knows: BLAS on the tensors' own memory, panels, step by step, integers."""

from __future__ import annotations

import mmap
import sys
from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cutile.backend.cpu.load import Blas, blas
from cutile.backend.cpu.stage import INDEX, Gemm
from cutile.dtypes import f16, f32, f64, i8
from cutile.errors import KernelTypeError
from cutile.ir.core import Value
from cutile.ir.types import TensorType
from tests.support.kernels import kernel
from tests.support.memory import launch
from tests.support.programs import GEMM

Array = np.ndarray[Any, Any]


def matrix(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def check(z: Array, x: Array, y: Array, tolerance: float) -> None:
    expected = x.astype(np.float64) @ y.astype(np.float64)
    scale = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)) + 1
    assert float(np.max(np.abs(z.astype(np.float64) - expected) / scale)) <= tolerance


@pytest.mark.parametrize(
    ("dtype", "acc", "tolerance"),
    [
        (np.float32, "f32", 1e-6),
        (np.float64, "f64", 1e-15),
        (np.float16, "f32", 1e-3),
        (ml_dtypes.bfloat16, "f32", 5e-3),
        (np.float16, "f16", 2e-2),
    ],
)
@pytest.mark.parametrize(
    ("sizes", "tile"), [((100, 77, 33), (96, 80)), ((1, 1, 1), (16, 16)), ((64, 64, 64), (32, 64))]
)
def test_floats(dtype: Any, acc: str, tolerance: float, sizes: tuple[int, int, int], tile: tuple[int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(1)
    x, y, z = matrix(rng, m, k, dtype=dtype), matrix(rng, k, n, dtype=dtype), np.full((m, n), 7, dtype)
    launch(kernel(dedent(GEMM.replace(", f32)", f", ct.{acc})"))), (z, tile), x, y, backend="cpu", BK=16)
    check(z, x, y, tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers_wrap_in_i32(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x, y, z = matrix(rng, 45, 70, dtype=dtype), matrix(rng, 70, 37, dtype=dtype), np.zeros((45, 37), np.int32)
    launch(kernel(dedent(GEMM.replace(", f32)", ", ct.i32)"))), (z, (16, 32)), x, y, backend="cpu", BK=16)
    np.testing.assert_array_equal(z, x.astype(np.int32) @ y.astype(np.int32))


def layouts(x: Array) -> dict[str, Array]:
    """One matrix in several layouts."""
    wide = np.zeros((x.shape[0] * 2, x.shape[1] * 3), x.dtype)
    wide[::2, ::3] = x
    padded = np.zeros((x.shape[0], x.shape[1] + 5), x.dtype)
    padded[:, : x.shape[1]] = x
    return {
        "rows": x,
        "columns": np.asfortranarray(x),
        "strided": wide[::2, ::3],
        "padded": padded[:, : x.shape[1]],
        "reversed": np.ascontiguousarray(x[::-1])[::-1],
    }


@pytest.mark.parametrize(
    ("of_x", "of_y"),
    [
        ("columns", "rows"), ("rows", "columns"), ("columns", "columns"), ("strided", "rows"),
        ("rows", "strided"), ("padded", "padded"), ("reversed", "rows"), ("rows", "reversed"),
    ],
)  # fmt: skip
def test_layouts(of_x: str, of_y: str) -> None:
    rng = np.random.default_rng(3)
    x, y, z = matrix(rng, 50, 40), matrix(rng, 40, 60), np.zeros((50, 60), np.float32)
    launch(kernel(dedent(GEMM)), (z, (32, 32)), layouts(x)[of_x], layouts(y)[of_y], backend="cpu", BK=16)
    check(z, x, y, 1e-6)


def test_a_repeated_row_is_no_operand_for_blas() -> None:
    rng = np.random.default_rng(4)
    x = np.broadcast_to(matrix(rng, 1, 40), (50, 40))
    y, z = matrix(rng, 40, 60), np.zeros((50, 60), np.float32)
    launch(kernel(dedent(GEMM)), (z, (32, 32)), x, y, backend="cpu", BK=16)
    check(z, x, y, 1e-6)


@pytest.mark.parametrize(("of_x", "of_y"), [(40, 25), (25, 40), (17, 17)])
def test_depths_that_differ_meet_zeros(of_x: int, of_y: int) -> None:
    rng = np.random.default_rng(5)
    x, y, z = matrix(rng, 20, of_x), matrix(rng, of_y, 30), np.zeros((20, 30), np.float32)
    results: list[Array] = []
    unchecked = GEMM.replace("part_x.load((i, k))", "ct.load_tile(x, (BM, BK), (i, k))")
    unchecked = unchecked.replace("part_y.load((k, j))", "ct.load_tile(y, (BK, BN), (k, j))")
    for backend in ("reference", "cpu"):
        launch(kernel(dedent(unchecked)), (z, (32, 32)), x, y, backend=backend, BK=16)
        results.append(z.copy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_a_depth_that_begins_before_the_tensors_meets_zeros() -> None:
    around = np.full((96, 32), 1e6, np.float32)
    x, y = around[32:64], around.copy()[32:64]
    x[:], y[:] = 1, 2
    z = np.zeros((32, 32), np.float32)
    early = GEMM.replace("range(ct.num_tiles(part_x, 1))", "range(-1, ct.num_tiles(part_x, 1))")
    early = early.replace("part_x.load((i, k))", "ct.load_tile(x, (BM, BK), (i, k))")
    early = early.replace("part_y.load((k, j))", "ct.load_tile(y, (BK, BN), (k, j))")
    launch(kernel(dedent(early)), (z, (32, 32)), x, y, backend="cpu", BK=16)
    np.testing.assert_array_equal(z, 64)


def test_zeros_past_one_depth_meet_what_is_not_finite() -> None:
    x, y, z = np.ones((4, 16), np.float32), np.ones((20, 4), np.float32), np.zeros((4, 4), np.float32)
    y[18] = np.inf  # x is padded to 32 columns: 0 * inf
    launch(kernel(dedent(GEMM)), (z, (4, 4)), x, y, backend="cpu", BK=32)
    assert np.all(np.isnan(z))


KERNELS = {
    "a start that is not zero": """
        def k(z: Mut, x: Tensor, y: Tensor, first: ct.i32):
            i, j, _ = ct.get_tile_block_id()
            px, py = x.partition((16, 16)), y.partition((16, 16))
            acc = z.load()
            for k in range(first, 3):
                acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
            z.store(acc)
    """,
    "two products in a loop": """
        def k(z: Mut, x: Tensor, y: Tensor, first: ct.i32):
            i, j, _ = ct.get_tile_block_id()
            px, py = x.partition((16, 16)), y.partition((16, 16))
            a, b = ct.constant(0, (16, 16), f32), ct.constant(1, (16, 16), f32)
            for k in range(first, ct.num_tiles(px, 1)):
                a = ct.mma(px.load((i, k)), py.load((k, j)), a)
                b = ct.mma(ct.exp(px.load((i, k)) * 0.1), py.load((k, j)), b) * 0.5
            z.store(a - b)
    """,
    "an accumulator that is used again": """
        def k(z: Mut, x: Tensor, y: Tensor, first: ct.i32):
            i, j, _ = ct.get_tile_block_id()
            acc = ct.constant(0.25, (16, 16), f32)
            total = acc
            for k in range(first, 3):
                product = ct.mma(x.partition((16, 16)).load((i, k)), y.partition((16, 16)).load((k, j)), acc)
                total = total + acc * 0.5
                acc = product
            z.store(acc + total)
    """,
    "a product under a condition": """
        def k(z: Mut, x: Tensor, y: Tensor, first: ct.i32):
            i, j, _ = ct.get_tile_block_id()
            acc = z.load()
            old = acc
            for k in range(3):
                if k > first:
                    acc = ct.mma(x.partition((16, 16)).load((i, k)), y.partition((16, 16)).load((k, j)), acc)
                old = old + acc
            z.store(acc + old)
    """,
    "chained products": """
        def k(z: Mut, x: Tensor, y: Tensor, first: ct.i32):
            i, j, _ = ct.get_tile_block_id()
            a, b = x.partition((16, 16)).load((i, first)), y.partition((16, 16)).load((first, j))
            s = ct.mma(a, ct.transpose(b), ct.constant(0, (16, 16), f32))
            p = ct.exp(s - ct.reduce_max(s, 1).reshape((16, 1)))
            z.store(ct.mma(p, b, ct.constant(0, (16, 16), f32)) / ct.reduce_sum(p, 1).reshape((16, 1)))
    """,
}


@pytest.mark.parametrize("name", KERNELS)
def test_products_among_other_things(name: str) -> None:
    rng = np.random.default_rng(6)
    x, y, start = matrix(rng, 40, 45), matrix(rng, 45, 37), matrix(rng, 40, 37)
    compiled = kernel(dedent(KERNELS[name]))
    results: list[Array] = []
    for backend in ("reference", "cpu"):
        z = start.copy()
        launch(compiled, (z, (16, 16)), x, y, 1, backend=backend)
        results.append(z)
    np.testing.assert_allclose(results[1], results[0], rtol=2e-4, atol=2e-4)


class FakeLibrary:
    """A BLAS that only remembers how many threads it may use."""

    def __init__(self) -> None:
        self.threads = 6
        self.set_to: list[int] = []

    def get(self) -> int:
        return self.threads

    def set(self, count: int) -> None:
        self.threads = count
        self.set_to.append(count)


def test_blas_is_held_to_one_thread_and_let_go() -> None:
    library = FakeLibrary()
    guarded = Blas({}, library.get, library.set)
    with guarded.one_thread():
        with guarded.one_thread():
            assert library.threads == 1
        assert library.threads == 1
    assert library.threads == 6
    assert library.set_to == [1, 6]


def test_blas_is_let_go_after_an_error() -> None:
    library = FakeLibrary()
    guarded = Blas({}, library.get, library.set)
    with pytest.raises(RuntimeError, match="in the kernel"), guarded.one_thread():
        raise RuntimeError("in the kernel")
    assert library.threads == 6


def test_both_ways_to_the_library_find_the_same() -> None:
    from cutile.backend.cpu.load import FUNCTIONS, through_scipy

    capsules = through_scipy()
    assert capsules.addresses.keys() == blas().addresses.keys() == set(FUNCTIONS)
    assert all(capsules.addresses.values())
    with capsules.one_thread():
        pass


MIXED = """
    def gemm(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 16):
        BM, BN = z.shape
        part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
        i, j, _ = ct.get_tile_block_id()
        acc = ct.constant(0, (BM, BN), z.dtype)
        for k in range(ct.num_tiles(part_x, 1)):
            acc = ct.mma(part_x.load((i, k)).astype(z.dtype), part_y.load((k, j)).astype(z.dtype), acc)
        z.store(acc)
"""


@pytest.mark.parametrize(
    ("left", "right", "wide"),
    [
        ("f4", "i1", "f4"), ("f4", "u1", "f4"), ("i2", "f4", "f4"), ("f4", "f2", "f4"), ("f8", "i1", "f8"),
        ("f8", "f4", "f8"), ("f4", "f8", "f8"), ("f4", "f4", "f8"), ("i1", "u1", "f4"),
        ("f4", ml_dtypes.float8_e4m3fn, "f4"),
    ],
)  # fmt: skip
def test_operands_that_are_stored_as_other_dtypes(left: Any, right: Any, wide: Any) -> None:
    rng = np.random.default_rng(6)
    x, y = (rng.integers(0, 5, (70, 70)).astype(stored) for stored in (left, right))
    z = np.full((70, 70), np.nan, wide)
    launch(kernel(dedent(MIXED)), (z, (32, 32)), x, y, backend="cpu")
    np.testing.assert_array_equal(z, x.astype(wide) @ y.astype(wide))


def test_memory_of_two_types_does_not_reach_the_blas() -> None:
    def memory(dtype: Any) -> Value:
        return Value(TensorType(dtype, (64,), (1,), 16))

    n = Value(INDEX)
    for a, b, c in ((f32, i8, f32), (f32, f64, f64), (f16, f16, f16), (f32, f32, f64)):
        with pytest.raises(KernelTypeError, match=r"cpu\.gemm: memory of"):
            Gemm(*(n, n, n), memory(a), *(n, n), memory(b), *(n, n), memory(c), *(n, n), False, False, 1.0).infer()


def test_a_step_that_the_blas_has_no_integer_for_goes_another_way() -> None:
    """Two rows 2**32 + 16 elements apart, in memory that is never touched between them: in 32 bits that is 16."""
    step = 2**32 + 16
    untouched: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # named since 3.13
    memory = mmap.mmap(-1, 4 * (step + 16), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | untouched)
    x = np.lib.stride_tricks.as_strided(np.frombuffer(memory, np.float32), (2, 16), (4 * step, 4))
    y, z = np.eye(16, dtype=np.float32), np.zeros((2, 16), np.float32)
    x[0], x[1] = 1, 2
    launch(kernel(dedent(GEMM)), (z, (2, 16)), x, y, backend="cpu", BK=16)
    np.testing.assert_array_equal(z, x)
