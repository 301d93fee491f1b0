"""Matrix products of every type that has one, on every backend, against NumPy in float64 or in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_async import Device
from cutile import api
from cutile.conversion import convert, exact
from cutile.dtypes import (
    DTypeLike,
    bf16,
    f4e2m1fn,
    f8e4m3fn,
    f8e5m2,
    f8e8m0fnu,
    f16,
    f32,
    f64,
    i8,
    i32,
    tf32,
    u8,
)
from cutile.errors import KernelTypeError
from tests.ops.test_conversion import on, tensor
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, cases_on_backends

Array = Any
PAIRS = (
    (f16, f16, f32), (f16, f16, f16), (bf16, bf16, f32), (tf32, tf32, f32), (f32, f32, f32), (f64, f64, f64),
    (i8, i8, i32), (u8, u8, i32), (i8, u8, i32), (u8, i8, i32),
    (f8e4m3fn, f8e4m3fn, f32), (f8e5m2, f8e5m2, f32), (f8e4m3fn, f8e5m2, f32), (f8e5m2, f8e4m3fn, f16),
)  # fmt: skip
TOLERANCE = {"f16": 1e-3, "f32": 2e-6, "f64": 1e-14, "i32": 0.0}
"""Relative to the sum of the products' magnitudes."""
FP8_TOLERANCE = 2e-3
"""Tensor cores of some GPUs keep 13 bits of such a sum."""


def draw(dtype: DTypeLike, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.format is None:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, int(info.max) + 1, shape).astype(dtype.numpy)
    return convert(rng.standard_normal(shape), f64, dtype)


def put(array: Array, dtype: DTypeLike) -> api.Tensor:
    return tensor(array.reshape(-1), dtype).reshape(array.shape)


def assert_close(got: Array, a: Array, b: Array, acc: Array, bound: float) -> None:
    if not bound:
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32) + acc)
        return
    scale = np.abs(a) @ np.abs(b) + np.abs(acc)
    error = np.abs(got.astype(np.float64) - (a @ b + acc)) / np.maximum(scale, 1e-30)
    assert error.max() <= bound, f"{error.max()} of the products' magnitudes, {bound} allowed"


def bound_of(a: DTypeLike, acc: DTypeLike, backend: str) -> float:
    fp8 = a in (f8e4m3fn, f8e5m2) and backend == "cuda"
    return max(TOLERANCE[acc.name], FP8_TOLERANCE if fp8 else 0.0)


def values(array: Array, dtype: DTypeLike) -> Array:
    return exact(array, dtype) if dtype.format is not None else array


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("a", "b", "acc"), PAIRS, ids=lambda each: each.name)
def test_one_product(a: DTypeLike, b: DTypeLike, acc: DTypeLike, backend: str) -> None:
    """Tiles whose extents are no powers of two, and a depth that is no whole number of steps."""
    x, y, z = draw(a, (48, 40), 1), draw(b, (40, 56), 2), draw(acc, (48, 56), 3)
    text = (
        "def product(z: Mut, x: Tensor, y: Tensor):\n"
        "    a, b = ct.load_tile(x, (48, 40), (0, 0)), ct.load_tile(y, (40, 56), (0, 0))\n"
        "    z.store(ct.mma(a, b, z.load()))\n"
    )
    with on(backend):
        out = put(z, acc)
        done = kernel(text)(out.partition((48, 56)), put(x, a), put(y, b)).sync()
        got = done.z.unpartition().to_numpy().sync()
    assert_close(got, values(x, a), values(y, b), values(z, acc), bound_of(a, acc, backend))


DEPTHS = (1, 3, 7, 13, 33)


@pytest.mark.parametrize(
    ("a", "b", "acc", "backend"), cases_on_backends(list(PAIRS), lambda a, b, acc: a in (f64, i8) and b is a)
)
def test_products_of_any_extents(a: DTypeLike, b: DTypeLike, acc: DTypeLike, backend: str) -> None:
    """Tiles of odd extents, down to one element."""
    factors = [(draw(a, (2 * k - 1, k), k), draw(b, (k, 5), k + 1), draw(acc, (2 * k - 1, 5), k + 2)) for k in DEPTHS]
    lines = ["def product(" + ", ".join(f"z{k}: Mut, x{k}: Tensor, y{k}: Tensor" for k in DEPTHS) + "):"]
    for k in DEPTHS:
        left, right = f"x{k}.load_tile(({2 * k - 1}, {k}), (0, 0))", f"y{k}.load_tile(({k}, 5), (0, 0))"
        lines.append(f"    z{k}.store(ct.mma({left}, {right}, z{k}.load()))")
    with on(backend):
        arguments: list[Any] = []
        for x, y, z in factors:
            arguments += [put(z, acc).partition(z.shape), put(x, a), put(y, b)]
        done = kernel("\n".join(lines) + "\n")(*arguments).sync()
        results = [getattr(done, f"z{k}").unpartition().to_numpy().sync() for k in DEPTHS]
    for got, (x, y, z) in zip(results, factors, strict=True):
        assert_close(got, values(x, a), values(y, b), values(z, acc), bound_of(a, acc, backend))


MATMULS = [
    ((40, 24), (24, 33)),
    ((24,), (24, 33)),
    ((40, 24), (24,)),
    ((24,), (24,)),
    ((5, 6, 24), (24, 9)),
    ((2, 1, 6, 24), (5, 24, 9)),
    ((24,), (5, 24, 9)),
    ((2, 5, 6, 24), (24,)),
]
"""The shapes of two factors, as NumPy multiplies them."""
ROUNDED = {"f16": 2e-3, "bf16": 1e-2, **TOLERANCE}


@pytest.mark.parametrize(
    ("dtype", "backend"),
    # On the CPU those whose shapes differ; products of the other types are those of `test_one_product`.
    cases_on_backends(
        [(dtype,) for dtype in (f32, f16, bf16, f64, i8, u8, tf32, f8e4m3fn)], lambda dtype: dtype in (f32, f16, i8)
    ),
)
def test_matmul(dtype: DTypeLike, backend: str) -> None:
    """Matrices, vectors and batches that broadcast; f32 in every shape, other types in some."""
    shapes = MATMULS if dtype is f32 else MATMULS[:1] if dtype in (bf16, u8, tf32) else MATMULS[2:6:3]
    factors = [(draw(dtype, a, 1), draw(dtype, b, 2)) for a, b in shapes]
    exact_factors = [(values(a, dtype), values(b, dtype)) for a, b in factors]
    wide = np.int32 if dtype in (i8, u8) else np.float64
    expected = [np.asarray(a.astype(wide) @ b.astype(wide)) for a, b in exact_factors]
    result = dtype if dtype.computes and dtype.format is not None else i32 if dtype in (i8, u8) else f32
    lines = ["def k(" + ", ".join(f"z{i}: Mut, a{i}: Tensor, b{i}: Tensor" for i in range(len(shapes))) + "):"]
    for i, ((a, b), matrix) in enumerate(zip(shapes, expected, strict=True)):
        lines.append(f"    a, b = a{i}.load_tile({a}, {(0,) * len(a)}), b{i}.load_tile({b}, {(0,) * len(b)})")
        product = "ct.matmul(a, b)" if i % 2 == 0 else "a @ b"
        lines.append(f"    z{i}.store(({product}).reshape({matrix.shape or (1,)}))")
    with on(backend):
        arguments: list[Any] = []
        for (a, b), matrix in zip(factors, expected, strict=True):
            shape = matrix.shape or (1,)
            arguments += [api.full(7, shape, result).partition(shape), put(a, dtype), put(b, dtype)]
        done = kernel("\n".join(lines) + "\n")(*arguments).sync()
        found = [getattr(done, f"z{i}").unpartition().to_numpy().sync() for i in range(len(shapes))]
    for got, matrix, (a, b) in zip(found, expected, exact_factors, strict=True):
        scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        bound = max(ROUNDED[result.name], FP8_TOLERANCE if dtype is f8e4m3fn and backend == "cuda" else 0)
        error = np.abs(got.astype(np.float64).reshape(matrix.shape) - matrix)
        assert (error <= bound * scale).all(), f"{a.shape} @ {b.shape}: {(error / scale).max()}, {bound} allowed"


LOOP = """
def gemm(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    px, py = x.partition((64, BK)), y.partition((BK, 64))
    acc = ct.constant(0, (64, 64), ct.ACC)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(acc)
"""


ORIENTED = [
    (a, b, acc, turned)
    for a, b, acc in PAIRS
    if acc is not f16
    for turned in (("nn", "nt", "tn", "tt") if a in (f16, tf32, f32, f64) else ("nn", "nt"))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "acc", "turned", "backend"),
    # On the CPU every type with the right operand transposed, and two of them in every orientation.
    cases_on_backends(ORIENTED, lambda a, b, acc, turned: turned == "nt" or a in (f16, f32)),
)
def test_a_loop_of_products_in_every_orientation(
    a: DTypeLike, b: DTypeLike, acc: DTypeLike, turned: str, backend: str
) -> None:
    """Operands as they lie and transposed views of them; rows, columns and depth end within a tile."""
    m, n, k = 112, 80, 272
    x, y = draw(a, (m, k), 1), draw(b, (k, n), 2)
    text = LOOP.replace("BK", "32").replace("ACC", acc.name)
    with on(backend):
        left = put(x, a) if turned[0] == "n" else put(np.ascontiguousarray(x.T), a).transpose()
        right = put(y, b) if turned[1] == "n" else put(np.ascontiguousarray(y.T), b).transpose()
        out = api.full(7, (m, n), acc).sync()
        got = kernel(text)(out.partition((64, 64)), left, right).sync().z.unpartition().to_numpy().sync()
    zero = np.zeros((m, n), acc.numpy)
    assert_close(got, values(x, a), values(y, b), zero, bound_of(a, acc, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("b", [f8e4m3fn, f8e5m2], ids=lambda each: each.name)
def test_fast_sums(b: DTypeLike, backend: str) -> None:
    x, y = draw(f8e4m3fn, (112, 272), 1), draw(b, (272, 80), 2)
    text = LOOP.replace("BK", "32").replace("ACC", "f32").replace(", acc)", ", acc, use_fast_acc=True)")
    with on(backend):
        right = put(np.ascontiguousarray(y.T), b).transpose()
        out = api.full(7, (112, 80), f32).sync()
        got = kernel(text)(out.partition((64, 64)), put(x, f8e4m3fn), right).sync().z.unpartition().to_numpy().sync()
    assert_close(got, values(x, f8e4m3fn), values(y, b), np.zeros((112, 80)), bound_of(b, f32, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("a", "b", "acc"), [(f16, f16, f32), (f32, f32, f32), (i8, u8, i32), (f64, f64, f64)], ids=lambda each: each.name
)
def test_a_batch_of_products(a: DTypeLike, b: DTypeLike, acc: DTypeLike, backend: str) -> None:
    x, y, z = draw(a, (3, 24, 16), 1), draw(b, (3, 16, 40), 2), draw(acc, (3, 24, 40), 3)
    text = (
        "def products(z: Mut, x: Tensor, y: Tensor):\n"
        "    a, b = ct.load_tile(x, (3, 24, 16), (0, 0, 0)), ct.load_tile(y, (3, 16, 40), (0, 0, 0))\n"
        "    z.store(ct.mma(a, b, z.load()))\n"
    )
    with on(backend):
        done = kernel(text)(put(z, acc).partition((3, 24, 40)), put(x, a), put(y, b)).sync()
        got = done.z.unpartition().to_numpy().sync()
    assert_close(got, values(x, a), values(y, b), values(z, acc), bound_of(a, acc, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tf32_rounds_what_a_kernel_converts(backend: str) -> None:
    x, y = draw(f32, (64, 64), 1), draw(f32, (64, 64), 2)
    text = LOOP.replace("BK", "32").replace("ACC", "f32")
    text = text.replace("px.load((i, k))", "px.load((i, k)).astype(ct.tf32)")
    text = text.replace("py.load((k, j))", "py.load((k, j)).astype(ct.tf32)")
    with on(backend):
        out = api.full(7, (64, 64), f32).sync()
        got = kernel(text)(out.partition((64, 64)), put(x, f32), put(y, f32)).sync().z.unpartition().to_numpy().sync()
    rounded = [exact(convert(each, f32, tf32), tf32) for each in (x, y)]
    assert_close(got, rounded[0], rounded[1], np.zeros((64, 64)), TOLERANCE["f32"])
    assert np.abs(got - x.astype(np.float64) @ y).max() > 1e-4  # not the product of the numbers as they were


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("signs", ["SIGNED, UNSIGNED", "UNSIGNED, SIGNED", "UNSIGNED, UNSIGNED"])
def test_mmai_reads_bits_as_it_is_told(signs: str, backend: str) -> None:
    x, y = draw(i8, (16, 32), 1), draw(u8, (32, 16), 2)
    left, right = (f"ct.signedness.{each}" for each in signs.split(", "))
    text = (
        "def product(z: Mut, x: Tensor, y: Tensor):\n"
        "    a, b = ct.load_tile(x, (16, 32), (0, 0)), ct.load_tile(y, (32, 16), (0, 0))\n"
        f"    z.store(ct.mmai(a, b, z.load(), {left}, {right}))\n"
    )
    with on(backend):
        out = api.zeros((16, 16), i32).sync().partition((16, 16))
        got = kernel(text)(out, put(x, i8), put(y, u8)).sync().z.unpartition().to_numpy().sync()
    read = [np.uint8 if "UNSIGNED" in sign else np.int8 for sign in (left, right)]
    np.testing.assert_array_equal(got, x.view(read[0]).astype(np.int32) @ y.view(read[1]).astype(np.int32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "scale", "block"),
    [
        (f4e2m1fn, f8e4m3fn, 16),
        (f4e2m1fn, f8e8m0fnu, 32),
        (f8e4m3fn, f8e8m0fnu, 32),
        (f8e4m3fn, f8e4m3fn, 16),
        (f8e5m2, f8e8m0fnu, 32),
    ],
)
def test_a_scaled_product(dtype: DTypeLike, scale: DTypeLike, block: int, backend: str) -> None:
    x, y, z = draw(dtype, (16, 64), 1), draw(dtype, (64, 24), 2), draw(f32, (16, 24), 3)
    s, t = (convert(np.abs(draw(f64, shape, 4)) + 0.1, f64, scale) for shape in ((16, 64 // block), (64 // block, 24)))
    text = (
        "def product(z: Mut, x: Tensor, y: Tensor, s: Tensor, t: Tensor):\n"
        "    a, b = ct.load_tile(x, (16, 64), (0, 0)), ct.load_tile(y, (64, 24), (0, 0))\n"
        f"    p = ct.load_tile(s, (16, {64 // block}), (0, 0))\n"
        f"    q = ct.load_tile(t, ({64 // block}, 24), (0, 0))\n"
        "    z.store(ct.mmaf_scaled(a, b, z.load(), p, q))\n"
    )
    with on(backend):
        out = put(z, f32).partition((16, 24))
        done = kernel(text)(out, put(x, dtype), put(y, dtype), put(s, scale), put(t, scale)).sync()
        got = done.z.unpartition().to_numpy().sync()
    left = exact(x, dtype) * np.repeat(exact(s, scale), block, axis=1)
    right = exact(y, dtype) * np.repeat(exact(t, scale), block, axis=0)
    assert_close(got, left, right, z, TOLERANCE["f32"])


def test_the_block_scaled_ones_of_the_upstream() -> None:
    """K = 128 ones, scales of one: 128."""
    text = (
        "def product(z: Mut):\n"
        "    one = ct.constant(1.0, (16, 128), ct.f4e2m1fn)\n"
        "    p, q = ct.constant(1.0, (16, 8), ct.f8e4m3fn), ct.constant(1.0, (8, 16), ct.f8e4m3fn)\n"
        "    z.store(ct.mmaf_scaled(one, one.reshape((128, 16)), z.load(), p, q))\n"
    )
    with Device.host():
        got = kernel(text)(api.zeros((16, 16), f32).sync().partition((16, 16))).sync().z.unpartition()
        assert (got.to_numpy().sync() == 128).all()


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("ct.mma(t, t.astype(ct.f16), z)", "a and b must have one dtype, got f32 and f16"),
        ("ct.mma(t.astype(ct.i32), t.astype(ct.i32), z)", "i32 has no matrix product; there are those of f16"),
        ("ct.mma(t.astype(ct.bf16), t.astype(ct.bf16), z.astype(ct.f16))", "bf16 accumulates in f32, got f16"),
        ("ct.mma(t.reshape((1, 4, 4)), t, z)", "must have two axes, or three"),
        ("ct.mmai(t, t, z)", "mmai: expected tiles of i8 or u8, got f32<4x4>"),
        ("ct.mmaf(t.astype(ct.i8), t.astype(ct.i8), z.astype(ct.i32))", "mmaf: expected tiles of floats"),
        ("ct.mmaf_scaled(t, t, z, t, t)", "a and b are matrices of f4e2m1fn, f8e4m3fn, f8e5m2"),
    ],
)
def test_what_does_not_fit_is_refused(expression: str, words: str) -> None:
    text = f"def wrong(y: Mut):\n    t = y.load()\n    z = t\n    s = {expression}\n    y.store(t)\n"
    with pytest.raises(KernelTypeError) as caught, Device.host():
        kernel(text)(api.ones((4, 4), f32).sync().partition((4, 4))).sync()
    assert words in str(caught.value)
