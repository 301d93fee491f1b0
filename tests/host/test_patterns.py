"""linspace, eye, convert: NumPy is the judge, on every device."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, OwnershipError, value
from cutile import api, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.kernels import convert_to_new, half_open, ones_onto, ramp_onto


@pytest.mark.parametrize("n", [1, 2, 5, 1000])
@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_linspace(device: Device, n: int, dtype: Any) -> None:
    found = api.linspace(-3, 7.5, n, dtype).to_numpy().sync()
    np.testing.assert_array_equal(found, np.linspace(-3, 7.5, n).astype(dtype.numpy))


def test_linspace_includes_both_ends(device: Device) -> None:
    found = api.linspace(0.1, 0.7, 17, f64).to_numpy().sync()
    assert (found[0], found[-1]) == (0.1, 0.7)


@pytest.mark.gpu
def test_long_patterns_come_from_kernels() -> None:
    with Device(0):
        n = (1 << 20) + 77
        np.testing.assert_allclose(api.linspace(-3, 7, n).to_numpy().sync(), np.linspace(-3, 7, n, dtype=np.float32))
        assert api.linspace(0.1, 0.7, n, f64).to_numpy().sync()[-1] == 0.7
        for shape in ((1500, 1201), (1201, 1500)):
            np.testing.assert_array_equal(api.eye_rect(*shape).to_numpy().sync(), np.eye(*shape, dtype=np.float32))


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("dtype", [f32, bf16, i32, bool_])
def test_eye(device: Device, shape: tuple[int, int], dtype: Any) -> None:
    matrix = api.eye_rect(*shape, dtype).to_numpy().sync()
    np.testing.assert_array_equal(matrix, np.eye(*shape).astype(dtype.numpy))
    if shape[0] == shape[1]:
        np.testing.assert_array_equal(api.eye(shape[0], dtype).to_numpy().sync(), matrix)


NUMBERS = np.array([[0.0, 1.75, -1.75], [100.5, 3.0, -0.25]])
PAIRS = [(f64, f32), (f32, f16), (f32, bf16), (f32, i32), (i32, f64), (i64, i8), (i32, u8), (f32, bool_), (u8, f32)]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_convert(device: Device, source: Any, target: Any) -> None:
    array = NUMBERS.astype(source.numpy) if source.kind != "uint" else np.abs(NUMBERS).astype(source.numpy)
    x = api.copy_host_to_device(array).sync()
    found = api.convert(x, target).sync()
    assert (found.shape, found.dtype) == ((2, 3), target)
    np.testing.assert_array_equal(found.to_numpy().sync(), array.astype(target.numpy))
    part = api.convert(x.T[1:], target).to_numpy().sync()
    np.testing.assert_array_equal(part, array.T[1:].astype(target.numpy))


def test_convert_of_any_rank(device: Device) -> None:
    x = api.arange(120, i32).reshape((2, 3, 4, 5)).sync()
    np.testing.assert_array_equal(
        api.convert(x, f32).to_numpy().sync(), np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    )
    scalar = api.full(7, (), i32).sync()
    assert api.convert(scalar, f32).to_numpy().sync() == 7


def test_the_kernels_that_a_gpu_runs(host: Device) -> None:
    y = api.empty((5000,), f32).sync()
    view = y.__kernel_input__()
    ramp_onto(view, 0.5, 2**-14).sync()
    np.testing.assert_array_equal(y.to_numpy().sync(), 0.5 + 2**-14 * np.arange(5000))
    ones_onto(y[::7].__kernel_input__()).sync()
    assert (y.to_numpy().sync()[::7] == 1).all()
    half_open(view).sync()
    assert (y.to_numpy().sync()[::7] == 0).all()
    assert y.to_numpy().sync()[1] == 0.5 + 2**-14
    x = api.linspace(0, 9, 10).reshape((2, 5)).sync()
    for part in (x, x.T):
        found = convert_to_new(part.__kernel_input__(), i32).to_numpy().sync()
        np.testing.assert_array_equal(found, part.to_numpy().sync().astype(np.int32))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (lambda: api.linspace(0, 1, cast("Any", (2, 2))), ArgumentError, "expected one number"),
    "end": (lambda: api.linspace(0, float("inf"), 3), ArgumentError, "linspace: stop: expected a finite"),
    "text": (
        lambda: api.linspace(cast("Any", "a"), 1, 3),
        ArgumentTypeError,
        "linspace: start: expected a number, got 'a'",
    ),
    "integer": (lambda: api.linspace(0, 1, 3, i32), ArgumentTypeError, "floating-point type, got i32"),
    "array": (
        lambda: api.convert(cast("Any", np.ones(3)), f32),
        ArgumentTypeError,
        "src: expected a tensor, got ndarray",
    ),
    "op": (
        lambda: api.convert(cast("Any", value(1)), f32),
        ArgumentTypeError,
        r"then\(lambda x: api.convert\(x, dtype\)\)",
    ),
    "dtype": (
        lambda: api.convert(api.zeros((3,)).sync(), "complex64"),
        ArgumentTypeError,
        "convert: dtype: .*complex64",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(host: Device, case: str) -> None:
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()


def test_what_is_converted_is_lent(host: Device) -> None:
    x = api.zeros((3,)).sync()
    op: DeviceOp[api.Tensor] = api.convert(x, i32)
    with pytest.raises(OwnershipError, match="'src'"):
        api.fill(x, 1)
    op.sync()
    api.fill(x, 1).sync()
