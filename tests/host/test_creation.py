"""Tensors made on the device hold what NumPy says, in every dtype, on every device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuda_async import Device, OutOfMemoryError
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, bool_, f16, f32, f64, i8, i32, i64, u8, u64
from cutile.dtypes import DTYPES, DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError

untyped: Any = api

EVERY = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


@EVERY
@pytest.mark.usefixtures("device")
def test_zeros_and_ones(dtype: DTypeLike) -> None:
    for made, value in ((api.zeros((3, 5), dtype), 0), (api.ones((3, 5), dtype), 1)):
        array = made.to_numpy().sync()
        assert array.dtype == dtype.numpy
        np.testing.assert_array_equal(array, np.full((3, 5), value, dtype.numpy))


@EVERY
@pytest.mark.usefixtures("device")
def test_full_fills_every_element(dtype: DTypeLike) -> None:
    value = {"bool": True, "uint": 201, "int": -77, "float": 1.1}[dtype.kind]
    for shape in ((1,), (7, 3), (1000, 100)):  # the last one is filled in several pieces, or by doubling
        array = api.full(value, shape, dtype).to_numpy().sync()
        np.testing.assert_array_equal(array, np.full(shape, value, dtype.numpy))


@EVERY
@pytest.mark.usefixtures("device")
def test_arange_counts(dtype: DTypeLike) -> None:
    length = 2 if dtype.kind == "bool" else 127
    array = api.arange(length, dtype).to_numpy().sync()
    np.testing.assert_array_equal(array, np.arange(length).astype(dtype.numpy))


@pytest.mark.usefixtures("device")
def test_a_long_arange_is_spread_over_workers() -> None:
    np.testing.assert_array_equal(api.arange(600_001, i32).to_numpy().sync(), np.arange(600_001, dtype=np.int32))


def test_a_new_tensor_is_where_its_op_ran(device: Device) -> None:
    tensor = api.empty((4, 8), "float16").sync()
    assert tensor.device is device
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.num_bytes) == ((4, 8), (8, 1), f16, 64)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0, np.float32(0.1), 3])
def test_full_takes_any_float(value: Any) -> None:
    for dtype in (f16, f64):
        array = api.full(value, (4,), dtype).to_numpy().sync()
        np.testing.assert_array_equal(array, np.full(4, value, dtype.numpy))
        assert np.signbit(array).all() == np.signbit(value)


@pytest.mark.usefixtures("host")
def test_a_tensor_may_have_no_axes() -> None:
    assert api.full(3, (), i64).to_numpy().sync() == 3
    assert api.full(3, (), i64).dup().to_host_vec().sync().tolist() == [3]


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: api.ones((-1,), f32), ArgumentError, "ones: shape: axis 0 of (-1,) is negative"),
        (lambda: untyped.empty("ab"), ArgumentTypeError, "empty: shape: expected an extent or a sequence"),
        (lambda: api.zeros((4,), "f33"), ArgumentTypeError, "zeros: dtype: 'f33' names no element type; did you mean"),
        (lambda: api.zeros((4,), complex), ArgumentTypeError, "zeros: dtype: "),
        (lambda: untyped.zeros(4, 8), ArgumentTypeError, "f4e2m1fnx2; a shape is one argument, such as (4, 8)"),
        (lambda: api.full((2, 2), 1, f32), ArgumentTypeError, "the value comes first: full(1, (2, 2))"),
        (lambda: api.full("x", (2,), f32), ArgumentTypeError, "full: value: expected a number, got 'x'"),
        (lambda: api.full(1.5, (2,), i32), ArgumentError, "1.5 is no value of i32, which has the integers from -2"),
        (lambda: api.full(300, (2,), u8), ArgumentError, "300 is no value of u8, which has the integers from 0 to 255"),
        (lambda: api.full(1 << 64, (2,), u64), ArgumentError, "full: value: 18446744073709551616 is no value of u64"),
        (lambda: api.full(-(1 << 70), (2,), i32), ArgumentError, "-1180591620717411303424 is no value of i32"),
        (lambda: api.full(10**400, (2,), f32), ArgumentError, "0 is out of the range of f32"),
        (lambda: api.full(-1, (2,), u8), ArgumentError, "-1 is no value of u8"),
        (lambda: api.full(float("nan"), (2,), i8), ArgumentError, "nan is no value of i8"),
        (lambda: api.full(2, (2,), bool_), ArgumentError, "2 is no value of bool, which has False and True"),
        (lambda: api.full(1e6, (2,), f16), ArgumentError, "1000000.0 is out of the range of f16"),
        (lambda: untyped.arange(2.5), ArgumentTypeError, "arange: shape: "),
        (lambda: untyped.arange((2, 3)), ArgumentError, "arange: length: expected one number, got (2, 3)"),
        (lambda: api.arange(129, i8), ArgumentError, "arange: the last element: 128 is no value of i8"),
        (lambda: api.eye(-1), ArgumentError, "eye: shape: axis 0 of (-1, -1) is negative"),
        (lambda: api.eye_rect(2, -1), ArgumentError, "eye_rect: shape: axis 1 of (2, -1) is negative"),
        (lambda: api.arange(70_000, f16), ArgumentError, "69999 is out of the range of f16"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_when_the_op_is_built(build: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        build()


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="a longdouble is a float64 here")
def test_a_longdouble_is_no_other_number() -> None:
    """Beyond 64 bits a float is neither an infinity nor a whole number."""
    far, fraction = np.longdouble("1e400"), np.longdouble(2) ** 62 + 0.5
    for value, dtype in ((far, f64), (-far, f32)):
        with pytest.raises(ArgumentError, match=f"is out of the range of {dtype.name}"):
            api.full(value, (2,), dtype)
    with pytest.raises(ArgumentError, match="is no value of i64"):
        api.full(fraction, (2,), i64)
    assert api.full(np.longdouble("inf"), (2,), f32).to_numpy().sync().tolist() == [np.inf] * 2
    assert api.full(np.longdouble(2) ** 62 + 1, (2,), i64).to_numpy().sync().tolist() == [2**62 + 1] * 2


def test_an_allocation_that_fails_leaves_nothing_behind(sim: SimDriver) -> None:
    device = Device.from_driver(sim)
    with device:
        for at in (1, 2):  # also behind a collection
            sim.fail("allocate", at=at)
        with pytest.raises(OutOfMemoryError):
            api.zeros((64,), f32).sync()
        assert api.zeros((64,), f32).to_host_vec().sync().tolist() == [0] * 64
    wait_all_idle(device)
    assert sim.memory_info().used == sim.pinned_bytes == 0


@pytest.mark.usefixtures("device")
def test_fill_gives_an_existing_tensor_one_value() -> None:
    for dtype, value in ((f32, 2.5), (f64, 0.1), (ml_dtypes.bfloat16, 3)):
        tensor = api.zeros((40, 50), dtype).sync()
        assert api.fill(tensor, value).sync() is tensor
        np.testing.assert_array_equal(tensor.to_numpy().sync(), np.full((40, 50), value, tensor.dtype.numpy))


def test_fill_of_part_of_a_tensor(device: Device) -> None:
    tensor = api.zeros((4, 5), f32).sync()
    part = tensor[1:3, ::2].mut
    assert api.fill(part, 7).sync() is part
    wanted = np.zeros((4, 5))
    wanted[1:3, ::2] = 7
    np.testing.assert_array_equal(tensor.to_numpy().sync(), wanted)


def test_whole_numbers_beyond_64_bits_are_floats() -> None:
    assert api.full(1 << 70, (2,), f32).sync().numpy().tolist() == [2.0**70] * 2


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: api.linspace(0, 1e6, 5, "f16"), "linspace: stop: 1000000.0 is out of the range of f16"),
        (lambda: api.linspace(-1.7e308, 1.7e308, 5, "f64"), "linspace: stop - start: "),
        (lambda: api.linspace(0, 10**400, 5), "linspace: stop: 10000000.* is more than a float can hold"),
        (lambda: api.randn(1e300, 1, (3,)), "randn: mean: 1e\\+300 is out of the range of f32"),
        (lambda: api.randn(0, 1e6, (3,), dtype="f16"), "randn: std: 1000000.0 is out of the range of f16"),
    ],
)
def test_numbers_out_of_range_make_no_infinities(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        build()


@pytest.mark.parametrize("value", ["0", b"0", np.complex64(1)])
def test_ends_are_real_numbers(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="linspace: start: expected a number"):
        api.linspace(value, 1, 5)


def test_a_record_is_no_value() -> None:
    with pytest.raises(ArgumentTypeError, match="full: value: expected a number"):
        api.full(np.zeros(1, [("a", "f4")])[0], (2,))
