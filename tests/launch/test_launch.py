"""Launches: arguments checked before anything runs, generics, grids, recompiles, what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OwnershipError
from cutile.entry import Kernel
from tests.support import programs
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, CPU_BACKENDS, Input, Output, launch

SAXPY = kernel(
    "def saxpy(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n",
)
GEMM = kernel(programs.GEMM)
DECLARED = kernel(
    """
def declared(z: "Mut[Tensor[E, BM, BN]]", x: "Tensor[E, Dyn, K]", *, E: DType, BM: Const, BN: Const, K: Const):
    z.store(ct.load_tile_like(x, z) * ct.constant(K, z.shape, z.dtype))
"""
)
stream = Device.host().new_stream()


def parts(shape: tuple[int, ...], tile: tuple[int, ...], dtype: Any = np.float32) -> Output:
    return Output(stream, np.zeros(shape, dtype), tile)


def read(*shape: int, dtype: Any = np.float32) -> Input:
    return Input(stream, np.ones(shape, dtype))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_an_op_gives_back_what_was_put_in(backend: str) -> None:
    y, x = parts((5, 7), (2, 4)), read(5, 7)
    with ct.use_backend(backend):
        out = SAXPY(y, 2.0, x).sync_on(stream)
    assert out.y is y
    assert out.a == 2.0
    assert out.x is x
    assert np.all(y.input.array == 2.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [(100, 77, 33, (32, 16, 16)), (1, 1, 1, (16, 16, 16)), (200, 170, 100, (96, 80, 48)), (64, 64, 64, (64, 64, 64))],
)
def test_matrix_products_of_any_size(
    backend: str, dtype: str, m: int, n: int, k: int, tile: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(0)
    element = ct.bf16.numpy if dtype == "bfloat16" else np.dtype(dtype)
    x, y = (rng.standard_normal(shape).astype(element) for shape in ((m, k), (k, n)))
    z = np.full((m, n), np.nan, element)
    launch(GEMM, (z, tile[:2]), x, y, backend=backend, BK=tile[2])
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    error = np.linalg.norm(z.astype(np.float64) - wanted) / np.linalg.norm(wanted)
    assert error < (1e-2 if dtype == "bfloat16" else 1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_strided_operands(backend: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 60)).astype(np.float32)[::2, ::3]
    y = rng.standard_normal((30, 20)).astype(np.float32).T
    z = np.full((20, 30), np.nan, np.float32)
    launch(GEMM, (z, (16, 16)), x, y, backend=backend, BK=16)
    np.testing.assert_allclose(z, x @ y, rtol=1e-5, atol=1e-5)
    out = np.full((10, 12), np.nan, np.float32)[::2, ::-1]
    launch(SAXPY, (out, (4, 4)), 0.0, np.broadcast_to(np.float32(1.0), out.shape), backend=backend)
    assert np.all(np.isnan(out))  # NaN + 0 * 1: the strided output was read and written in place


def test_generics_come_from_arguments_from_a_list_or_by_name() -> None:
    z, x = parts((8, 8), (4, 4)), read(8, 3)
    assert "constant() {value = 3.0" in DECLARED.inspect(z, x, stage="ir")
    DECLARED(z, x).generics(["f32", 4, 4, 3]).discard()
    DECLARED(z, x, BM=4).discard()
    with pytest.raises(ct.GenericsError, match=r"'BM' is 2 by the generics given, but 4 by axis 0 of argument 'z'"):
        DECLARED(z, x, BM=2)
    with pytest.raises(ct.GenericsError, match=r"takes 4 values, in the order \(E, BM, BN, K\); got 2"):
        DECLARED(z, x).generics([1, 2])
    with pytest.raises(ct.GenericsError, match="'E' is f16 by the generics given, but f32 by the dtype"):
        DECLARED(z, x).generics(["f16", 4, 4, 3])
    with pytest.raises(ct.GenericsError, match=r"generic 'BK' must be a constant .* got object"):
        GEMM(parts((8, 8), (4, 4)), read(8, 8), read(8, 8), BK=object())
    with pytest.raises(ct.GenericsError, match="gemm has no generic 'BQ'; its generics are BK"):
        GEMM(parts((8, 8), (4, 4)), read(8, 8), read(8, 8), BQ=2)
    for text in ("--4", "3"):  # a text is no number, in a list as by name
        with pytest.raises(ct.GenericsError, match=f"'K' is '{text}' by the generics given"):
            DECLARED(z, x).generics(["f32", 4, 4, text])
    for values in (4, "4"):
        with pytest.raises(ct.GenericsError, match=r"takes a list of values, in the order \(BK\); got"):
            GEMM(parts((8, 8), (4, 4)), read(8, 8), read(8, 8)).generics(values)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ct.GenericsError, match=r"'BK' was set to 4 before, and \.generics says 8"):
        GEMM(parts((8, 8), (4, 4)), read(8, 8), read(8, 8), BK=4).generics([8])
    GEMM(parts((8, 8), (4, 4)), read(8, 8), read(8, 8), BK=4).generics([4]).discard()


def test_an_architecture_that_nothing_compiles_for_is_refused() -> None:
    for arch in ("h100", "cuda", "host"):
        with pytest.raises(ct.UnsupportedTargetError, match=f"nothing compiles for '{arch}'; expected cpu, reference"):
            SAXPY.inspect(parts((8,), (4,)), 2.0, read(8), arch=arch)
    with pytest.raises(ct.UnsupportedTargetError, match="sm_75 is too old"):
        SAXPY.inspect(parts((8,), (4,)), 2.0, read(8), arch="sm_75")
    assert SAXPY.inspect(parts((8,), (4,)), 2.0, read(8), arch="reference").startswith("func @saxpy")


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "missing": (lambda: SAXPY(parts((8,), (4,)), 2.0), ct.ArgumentError, r"missing: x"),
    "too many": (lambda: SAXPY(1, 2, 3, 4), ct.ArgumentError, r"takes 3 arguments \(y, a, x\), got 4"),
    "twice": (lambda: SAXPY(parts((8,), (4,)), 2.0, read(8), y=1), ct.ArgumentError, "'y' was given twice"),
    "tensor for a Mut": (lambda: SAXPY(read(8), 2.0, read(8)), TypeError, r"'y' must be a partition.*y\.partition"),
    "partition for a Tensor": (
        lambda: SAXPY(parts((8,), (4,)), 2.0, parts((8,), (4,))), TypeError, "'x' must be a tensor.*unpartition",
    ),
    "list": (lambda: SAXPY(parts((8,), (4,)), 2.0, [1.0]), TypeError, "'x' must be a tensor, got list"),
    "rank": (lambda: SAXPY(parts((8, 8), (4,)), 2.0, read(8)), ValueError, "must have 2 extents"),
    "string": (lambda: SAXPY(parts((8,), (4,)), "2", read(8)), TypeError, "'a' must be a scalar of f32, got str"),
    "dtype": (
        lambda: DECLARED(parts((8, 8), (4, 4)), read(8, 3, dtype=np.float16)), ct.GenericsError, "'E' is f32.*f16",
    ),
    "empty grid": (lambda: SAXPY(parts((8,), (4,)), 2.0, read(8)).grid((0, 1, 1)), ValueError, "empty"),
    "another grid": (
        lambda: SAXPY(parts((8,), (4,)), 2.0, read(8)).grid((3, 1, 1)), ct.LaunchError,
        "does not match the inferred.*ct.SharedMut",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_runs(name: str) -> None:
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make()


def test_one_storage_written_and_read_in_one_launch_is_refused() -> None:
    y = parts((8,), (4,))
    with pytest.raises(OwnershipError, match=r"'x' would be read.*as argument 'y'"):
        SAXPY(y, 2.0, y.input)
    SAXPY(y, 2.0, read(8)).sync_on(stream)  # nothing stayed lent


def test_a_lent_tensor_is_refused_until_the_op_has_run() -> None:
    y, x = parts((8,), (4,)), read(8)
    op = SAXPY(y, 2.0, x)
    with pytest.raises(OwnershipError, match=r"test_launch\.py:\d+"):
        SAXPY(y, 3.0, x)
    op.sync_on(stream)
    with pytest.raises(OwnershipError, match="already run"):
        op.sync_on(stream)
    SAXPY(y, 3.0, x).discard()
    SAXPY(y, 3.0, x).sync_on(stream)


def test_partitions_that_disagree_on_the_grid_are_refused() -> None:
    two = kernel("def two(a: Mut, b: Mut):\n    a.store(a.load())\n    b.store(b.load())\n")
    with pytest.raises(ct.LaunchError, match=r"'a' has \(2, 1, 1\) tiles, 'b' has \(3, 1, 1\)"):
        two(parts((8,), (4,)), parts((9,), (3,)))


def test_a_new_extent_does_not_recompile_a_new_layout_does() -> None:
    fresh = kernel("def fresh(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n")

    def run(*shape: int) -> int:
        fresh(parts(shape, (4, 4)), read(*shape)).sync_on(stream)
        return fresh.specializations

    with ct.use_backend("reference"):
        assert run(8, 8) == 1
        assert run(16, 12) == 1
        assert run(8, 9) == 2  # rows are no longer multiples of 16 bytes


def test_a_changed_captured_value_recompiles() -> None:
    function = define("SCALE = 2.0\n\ndef scaled(y: Mut):\n    y.store(y.load() * SCALE)\n")
    scaled = ct.entry(function)
    y = np.ones(8, np.float32)
    launch(scaled, (y, (8,)))
    assert np.all(y == 2.0)
    function.__globals__["SCALE"] = 10.0
    launch(scaled, (y, (8,)))
    assert np.all(y == 20.0)


def test_a_kernel_that_stores_nothing_is_refused() -> None:
    idle = kernel("def idle(y: Mut):\n    t = y.load()\n")
    with pytest.raises(ct.KernelTypeError, match="stores nothing"):
        idle(parts((8,), (4,))).sync_on(stream)


def test_each_stage_can_be_read() -> None:
    arguments = (parts((8,), (4,)), 2.0, read(8))
    assert SAXPY.inspect(*arguments, stage="ir").startswith("func @saxpy(%y: mut<f32[?]")
    for stage in ("passes", "lowered", "source", "log"):
        assert isinstance(SAXPY.inspect(*arguments, stage=stage), str)
    with pytest.raises(ValueError, match=r"no stage 'soup'; there are ir, passes.*log$"):
        SAXPY.inspect(*arguments, stage="soup")


def test_a_kernel_shows_its_signature() -> None:
    assert repr(GEMM) == "<kernel gemm(z, x, y; BK)>"
    assert isinstance(GEMM, Kernel)
