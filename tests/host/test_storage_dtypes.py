"""Element types that are stored, converted and multiplied, but not computed with: on the host, and in kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuda_async import Device
from cutile import api
from cutile.conversion import convert
from cutile.dtypes import (
    STORAGE_DTYPES,
    DTypeLike,
    as_dtype,
    f4e2m1fn,
    f4e2m1fnx2,
    f8e4m3fn,
    f8e5m2,
    f8e8m0fnu,
    f32,
    tf32,
    u8,
)
from cutile.errors import ArgumentError, ArgumentTypeError, KernelTypeError
from cutile.launch.target import use_backend
from tests.support.kernels import kernel
from tests.support.memory import CPU_BACKENDS

STORED = pytest.mark.parametrize("dtype", STORAGE_DTYPES, ids=str)
NUMBERS = pytest.mark.parametrize("dtype", [each for each in STORAGE_DTYPES if each is not f4e2m1fnx2], ids=str)
VALUES = np.array([0.5, 1.0, 1.1, 6.4, 300, 1e9, -2.0, -0.0, np.inf, np.nan, 1e-9], np.float32)


def _bits(array: Any) -> list[int]:
    return np.ascontiguousarray(array).view(np.uint8).tolist()


@NUMBERS
@pytest.mark.usefixtures("device")
def test_values_from_the_host_are_rounded_and_saturate(dtype: DTypeLike) -> None:
    tensor = api.from_numpy(VALUES, dtype).sync()
    assert tensor.dtype is dtype
    assert _bits(tensor.to_numpy().sync()) == _bits(convert(VALUES, f32, dtype))


@STORED
@pytest.mark.usefixtures("device")
def test_every_byte_comes_back(dtype: DTypeLike) -> None:
    array = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    tensor = api.from_numpy(array).sync()
    tensor = tensor if tensor.dtype is dtype else tensor.reinterpret(dtype, array.shape)
    assert _bits(tensor.dup().sync().to_numpy().sync()) == list(range(256))


@NUMBERS
@pytest.mark.usefixtures("host")
def test_creation_takes_them(dtype: DTypeLike) -> None:
    assert api.ones((5,), dtype).to_numpy().sync().astype(np.float32).tolist() == [1.0] * 5
    assert api.full(1.5, (3,), dtype).to_numpy().sync().astype(np.float32)[0] == (2.0 if dtype is f8e8m0fnu else 1.5)
    assert api.linspace(1, 4, 2, dtype).to_numpy().sync().astype(np.float32).tolist() == [1, 4]
    assert api.randn(0, 1, (100,), 3, dtype).sync().dtype is dtype
    assert _bits(api.convert(api.from_numpy(VALUES).sync(), dtype).to_numpy().sync()) == _bits(
        convert(VALUES, f32, dtype)
    )


TAKES = kernel("def takes(y: Mut, a: f4e2m1fnx2):\n    y.store(ct.broadcast(a, y.shape))\n", f4e2m1fnx2=f4e2m1fnx2)


def test_pairs_of_zeros_are_zero() -> None:
    """Everywhere else one number is no pair; a byte of a launch's is made one."""
    text = "def pair(y: Mut, z: Mut, a: u8):\n    z.store(ct.constant(0, (4,), y.dtype))\n"
    text += "    y.store(ct.broadcast(ct.bitcast(a, y.dtype), y.shape))\n"
    y, z = (api.zeros((4,), f4e2m1fnx2).partition((4,)) for _ in range(2))
    done = kernel(text)(y, z, 0x52).sync()
    assert done.y.unpartition().to_numpy().sync().tolist() == [0x52] * 4
    assert done.z.unpartition().to_numpy().sync().tolist() == [0] * 4


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (
            lambda: api.full(1000, (2,), f8e4m3fn),
            ArgumentError,
            "no value of f8e4m3fn, which has numbers up to 448",
        ),
        (
            lambda: api.zeros((2,), f8e8m0fnu),
            ArgumentError,
            "which has the powers of two from 2",
        ),
        (
            lambda: api.full(float("nan"), (2,), f4e2m1fn),
            ArgumentError,
            "which has numbers up to 6 and no NaN",
        ),
        (lambda: api.eye(3, f8e8m0fnu), ArgumentTypeError, "eye: dtype: f8e8m0fnu has no zero"),
        (
            lambda: api.ones((3,), f4e2m1fnx2),
            ArgumentError,
            "ones: value: f4e2m1fnx2 holds pairs, and one number is none",
        ),
        (lambda: api.fill(api.zeros((3,), f4e2m1fnx2).sync(), 1), ArgumentError, "holds pairs.*np.full"),
        (
            lambda: TAKES(api.zeros((4,), f4e2m1fnx2).partition((4,)), 2.5),
            ArgumentTypeError,
            "declare a u8, and write ct",
        ),
        (lambda: api.arange(3, f4e2m1fnx2), ArgumentTypeError, "f4e2m1fnx2 holds pairs"),
        (lambda: api.from_numpy([1.0], f4e2m1fnx2), ArgumentTypeError, "expected an array of uint8"),
        (lambda: api.rand((2,), dtype=f8e5m2), ArgumentTypeError, "expected f32 or f64, got f8e5m2"),
        (lambda: api.zeros((2,), "i4"), ArgumentTypeError, "no integers of 4 bits"),
        (lambda: api.from_numpy(np.zeros(2, ml_dtypes.int4)), ArgumentTypeError, "take them apart with shifts"),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("spec", [None, "i4,(", np, type("Named", (), {"dtype": "nothing"})])
def test_what_numpy_would_take_for_something_else_is_refused(spec: object) -> None:
    with pytest.raises(TypeError, match="names no element type"):
        as_dtype(spec)


def test_names() -> None:
    assert as_dtype("float8_e4m3fn") is as_dtype("f8e4m3fn") is as_dtype(ml_dtypes.float8_e4m3fn) is f8e4m3fn
    assert as_dtype("float32") is f32  # never tf32
    assert as_dtype("uint8") is u8  # never pairs
    assert as_dtype("tf32") is tf32


@pytest.mark.parametrize("dtype", [f8e4m3fn, f8e5m2, f8e8m0fnu, f4e2m1fnx2], ids=str)
@pytest.mark.usefixtures("host")
def test_dlpack_round_trip(dtype: DTypeLike) -> None:
    tensor = api.from_numpy(np.arange(8, dtype=np.uint8)).sync().reinterpret(dtype, (8,))
    other = api.from_dlpack(tensor)
    assert other.dtype is dtype
    assert _bits(other.to_numpy().sync()) == list(range(8))


@pytest.mark.parametrize("dtype", [tf32, f4e2m1fn], ids=str)
@pytest.mark.usefixtures("host")
def test_dlpack_has_no_code_for_some(dtype: DTypeLike) -> None:
    with pytest.raises(BufferError, match=f"no code for {dtype}"):
        api.ones((8,), dtype).sync().__dlpack__()


COPY = """
def copy(y: Mut, x: Tensor, flag: i32):
    t = ct.load_tile_like(x, y)
    if flag > 0:
        t = ct.select(ct.iota((32,)) < 16, t, {one}).reshape((4, 8)).reshape((32,))
    y.store(t)
"""


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@STORED
def test_kernels_move_them(dtype: DTypeLike, backend: str) -> None:
    bits = np.random.default_rng(1).integers(0, 256, 200, np.uint8)
    with Device.host(), use_backend(backend):
        count = 200 // (dtype.bits // 8)
        source = api.from_numpy(bits).sync().reinterpret(dtype, (count,))
        pairs = dtype is f4e2m1fnx2
        target = api.full(0 if pairs else 1, (count,), dtype).sync()
        one = _bits(target[:1].to_numpy().sync())
        fill = "ct.constant(1, (64,), ct.f4e2m1fn).pack()" if pairs else "ct.constant(1, (32,), x.dtype)"
        done = kernel(COPY.format(one=fill))(target.partition((32,)), source, 1).sync()
        got = done.y.unpartition().to_numpy().sync().view(np.uint8).reshape(count, -1)
    wanted = bits.reshape(count, -1).copy()
    wanted[np.arange(count) % 32 >= 16] = 0x22 if pairs else one  # 1.0 twice
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "expression", ["x + x", "-x", "x < x", "ct.exp(x)", "ct.max_tile(x, x)", "ct.reduce_sum(x, 0)"]
)
def test_computing_with_them_is_refused_with_the_remedy(expression: str) -> None:
    text = f"def wrong(y: Mut, z: Tensor):\n    x = ct.load_tile_like(z, y)\n    t = {expression}\n    y.store(x)\n"
    with pytest.raises(KernelTypeError, match=r"ct.convert_tile\(x, ct.f32\)"), Device.host():
        kernel(text)(api.ones((4,), f8e4m3fn).sync().partition((4,)), api.ones((4,), f8e4m3fn).sync()).sync()
