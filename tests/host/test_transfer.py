"""Copies between host and device, and on the device, against NumPy: dtypes, strides, lifetimes, faults."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuda_async import Device, DeviceOp, DriverError, NotReadyError, OwnershipError, ReentrancyError, value, zip
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, f16, f32, f64, i32
from cutile.dtypes import DTYPES, DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError

Array = np.ndarray[Any, np.dtype[Any]]
untyped: Any = api


def round_trip(array: Any) -> Array:
    return api.copy_host_to_device(array).to_numpy().sync()


def random(shape: tuple[int, ...], dtype: DTypeLike = f32) -> Array:
    return (np.random.default_rng(7).standard_normal(shape) * 50).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.usefixtures("device")
def test_every_dtype_goes_there_and_back(dtype: DTypeLike) -> None:
    with np.errstate(invalid="ignore"):
        array = random((3, 4), dtype)
    tensor = api.copy_host_to_device(array).sync()
    assert (tensor.dtype, tensor.shape) == (dtype, (3, 4))
    back = tensor.to_numpy().sync()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


_from_bytes: Any = np.frombuffer
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "every other": lambda a: a[::2, 1::3],
    "backwards": lambda a: a[::-1, ::-1],
    "repeated": lambda a: np.broadcast_to(a[:1], (5, *a.shape[1:])),
    "fortran": np.asfortranarray,
    "no axes": lambda a: a[0, 0],
    "big-endian": lambda a: a.astype(">f4"),
    "read-only": lambda a: _from_bytes(a.tobytes(), np.float32).reshape(a.shape),
    "unaligned": lambda a: _from_bytes(b"x" + a.tobytes(), np.float32, offset=1).reshape(a.shape),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("device")
def test_any_numpy_array_goes_in(layout: str) -> None:
    array = LAYOUTS[layout](random((7, 11)))
    back = round_trip(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == np.float32


@given(hnp.arrays(np.int32, hnp.array_shapes(max_dims=3, max_side=6)), st.data())
def test_any_part_of_an_array_goes_in_and_out(array: Array, data: st.DataObject) -> None:
    key = data.draw(hnp.basic_indices(array.shape))
    part = array[key]
    if np.size(part) == 0:
        return
    with Device.host():
        np.testing.assert_array_equal(round_trip(part), part)
        np.testing.assert_array_equal(api.from_numpy(array).sync()[key].to_numpy().sync(), part)


@pytest.mark.usefixtures("host")
def test_lists_and_numbers_go_in() -> None:
    assert api.from_numpy([[1, 2], [3, 4]], f16).to_numpy().sync().tolist() == [[1, 2], [3, 4]]
    assert api.from_numpy(2.5).sync().dtype is f64
    assert api.from_numpy(np.float32(2.5)).sync().dtype is f32
    assert api.copy_host_vec_to_device([1.0, 2.0], f32).to_host_vec().sync().tolist() == [1, 2]


def test_data_may_be_converted_on_the_way(host: Device) -> None:
    array = random((5,))
    back = api.copy_host_to_device(array, "bf16").to_numpy().sync()
    np.testing.assert_array_equal(back, array.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: api.copy_host_to_device(["a"]), ArgumentTypeError, "np.frombuffer(text.encode(), np.uint8)"),
        (lambda: api.copy_host_to_device([1j]), ArgumentTypeError, "complex128') names no element type; a complex"),
        (lambda: api.zeros((3,), "complex64"), ArgumentTypeError, "array.real and array.imag"),
        (lambda: api.from_numpy(np.zeros(3, "V2")), ArgumentTypeError, "array.view(ml_dtypes.bfloat16)"),
        (lambda: api.copy_host_vec_to_device([[1]]), ArgumentError, "expected one axis, got shape (1, 1)"),
        (lambda: api.copy_host_to_device([1], "f33"), ArgumentTypeError, "copy_host_to_device: 'f33' names no element"),
        (lambda: untyped.dup(np.ones(3)), ArgumentTypeError, "dup: tensor: expected a tensor, got ndarray"),
        (lambda: untyped.dup(value(3)), ArgumentTypeError, "the op value, which has not run"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused(build: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        build()


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3fn", "bool"])
def test_files_of_numpy_keep_a_tensor(dtype: str, tmp_path: Path) -> None:
    """NumPy writes its own types with their names, and others as bytes."""
    tensor = api.convert(api.arange(5).sync(), dtype).sync()
    np.save(tmp_path / "x.npy", tensor.numpy())
    back = np.load(tmp_path / "x.npy").view(tensor.dtype.numpy)
    assert (api.from_numpy(back).sync().numpy() == tensor.numpy()).all()


@pytest.mark.usefixtures("host")
def test_a_tensor_is_no_host_array() -> None:
    tensor = api.zeros((3,)).sync()
    with pytest.raises(ArgumentTypeError, match=r"on a device already; dup\(\) copies it"):
        api.from_numpy(tensor)
    with pytest.raises(ArgumentTypeError, match=r"Partition; unpartition\(\) it first"):
        untyped.memcpy(tensor.partition((1,)), tensor)


# -- out of views -----------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: a.T,
    "part": lambda a: a[1:4, 2:7],
    "backwards": lambda a: a[::-2, ::-1],
    "column": lambda a: a[:, 3],
    "element": lambda a: a[2, 3],
    "new axis": lambda a: a[:, None, 1:3],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.usefixtures("device")
def test_views_come_out_in_row_major_order(name: str) -> None:
    array = random((5, 8))
    tensor = api.from_numpy(array).sync()
    view, expected = VIEWS[name](tensor), VIEWS[name](array)
    np.testing.assert_array_equal(view.to_numpy().sync(), expected)
    np.testing.assert_array_equal(view.to_host_vec().sync(), expected.reshape(-1))
    np.testing.assert_array_equal(api.copy_device_to_host_vec(view).sync(), expected.reshape(-1))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.usefixtures("device")
def test_a_copy_of_a_view_is_contiguous(name: str) -> None:
    array = random((5, 8))
    copy = VIEWS[name](api.from_numpy(array).sync()).dup().sync()
    assert copy.is_contiguous()
    np.testing.assert_array_equal(copy.to_numpy().sync(), VIEWS[name](array))


@pytest.mark.usefixtures("device")
def test_a_copy_is_another_tensor() -> None:
    tensor = api.ones((3, 3)).sync()
    copy = api.dup(tensor).sync()
    api.fill(tensor, 5).sync()
    assert copy.to_host_vec().sync().tolist() == [1] * 9


def test_a_large_array_goes_there_and_back(device: Device) -> None:
    array = np.random.default_rng(1).integers(0, 1 << 30, 900_000, np.int32)
    tensor = api.from_numpy(array).sync()
    np.testing.assert_array_equal(tensor.to_numpy().sync(), array)
    if device.kind != "sim":
        np.testing.assert_array_equal(tensor.reshape((900, 1000)).T.dup().to_numpy().sync(), array.reshape(900, 1000).T)


# -- memcpy -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_memcpy_copies_between_shapes_of_one_size() -> None:
    dst, src = api.zeros((4, 6), i32).sync(), api.arange(24, i32).sync()
    assert api.memcpy(dst, src).sync() is None
    np.testing.assert_array_equal(dst.to_numpy().sync(), np.arange(24).reshape(4, 6))


@pytest.mark.usefixtures("device")
def test_memcpy_through_views() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    src = api.from_numpy(array).sync()
    dst = api.zeros((6, 4), i32).sync()
    api.memcpy(dst, src.T).sync()
    np.testing.assert_array_equal(dst.to_numpy().sync(), array.T)
    api.memcpy(dst[1:3, ::2].mut, api.full(-1, (4,), i32).sync()).sync()
    expected = array.T.copy()
    expected[1:3, ::2] = -1
    np.testing.assert_array_equal(dst.to_numpy().sync(), expected)
    api.memcpy(dst.reshape((4, 6)), dst[::-1].dup().sync()[::-1]).sync()
    np.testing.assert_array_equal(dst.to_numpy().sync(), expected)


@pytest.mark.usefixtures("host")
def test_memcpy_refuses_what_does_not_match_when_it_is_built() -> None:
    dst, src = api.zeros((4, 6), i32).sync(), api.arange(25, i32).sync()
    with pytest.raises(ArgumentError, match=r"dst has 24 elements \(shape \(4, 6\)\), src has 25 \(shape \(25,\)\)"):
        api.memcpy(dst, src)
    with pytest.raises(ArgumentTypeError, match="dst is i32, src is f32"):
        api.memcpy(dst, api.zeros((4, 6)).sync())
    with pytest.raises(OwnershipError, match="argument 'src' would be read, but the same operation writes"):
        api.memcpy(dst, dst)
    with pytest.raises(OwnershipError, match="view is read-only"):
        api.memcpy(dst[0], src[:6])
    with pytest.raises(ArgumentError, match=r"neither dst .* nor src .* is contiguous"):
        api.memcpy(dst.T.mut, api.zeros((8, 3), i32).sync().T)
    assert dst.to_host_vec().sync().tolist() == [0] * 24  # nothing was lent for good


@pytest.mark.usefixtures("host")
def test_halves_of_a_tensor_may_be_copied_onto_one_another() -> None:
    tensor = api.arange(8, i32).sync()
    api.memcpy(tensor[:4].mut, tensor[4:]).sync()
    assert tensor.to_host_vec().sync().tolist() == [4, 5, 6, 7] * 2


# -- when values can be read, and who holds what ----------------------------------------------


READS: list[Callable[[Any], Any]] = [lambda a: a[0], np.asarray, len, list, bool, lambda a: a.sum()]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("read", READS)
def test_values_are_not_ready_inside_closures(read: Any) -> None:
    tensor = api.ones((4,)).sync()
    with pytest.raises(NotReadyError, match=r"test_transfer\.py"):
        tensor.to_numpy().map(read).sync()
    np.testing.assert_array_equal(tensor.to_numpy().map(lambda array: (array, 2)).sync()[0], np.ones(4))


@pytest.mark.usefixtures("device")
def test_copying_inside_a_closure_is_refused() -> None:
    tensor = api.ones((4,)).sync()
    with pytest.raises(ReentrancyError):
        value(1).map(lambda _: tensor.to_numpy().sync()).sync()
    assert value(1).then(lambda _: tensor.to_numpy()).sync().tolist() == [1] * 4


@pytest.mark.usefixtures("device")
def test_several_results_come_at_once() -> None:
    a, b = api.ones((2,)).sync(), api.arange(3, i32).sync()
    first, second = zip(a.to_numpy(), b.to_host_vec()).sync()
    assert (first.tolist(), second.tolist()) == ([1, 1], [0, 1, 2])


def test_the_array_is_held_until_the_copy_is_done(sim: SimDriver, sim_device: Device) -> None:
    class Tracked(np.ndarray[Any, Any]):
        """An array that can be watched."""

    array = np.arange(1000, dtype=np.float32).view(Tracked)
    op: DeviceOp[Any] = api.from_numpy(array)
    array[:] = 7  # before the op runs: it was not copied
    del array
    gc.collect()
    assert op.to_numpy().sync().tolist() == [7] * 1000
    del op
    wait_all_idle(sim_device)
    assert sim.memory_info().used == sim.pinned_bytes == 0


def test_memory_outlives_its_tensor_until_the_copy_is_done(device: Device) -> None:
    tensor = api.arange(5000, i32).sync()
    gone = weakref.ref(tensor)
    future = tensor.to_numpy().into_future()
    future.start()
    del tensor
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(future.sync(), np.arange(5000))


@pytest.mark.parametrize("fault", ["copy", "run:copy"])
def test_a_copy_that_fails_spoils_what_it_was_to_write_only(sim: SimDriver, sim_device: Device, fault: str) -> None:
    stream = sim_device.new_stream()
    source, target = api.ones((64,)).sync_on(stream), api.zeros((64,)).sync_on(stream)
    sim.fail(fault)
    with pytest.raises(DriverError, match="injected fault"):
        api.memcpy(target, source).sync_on(stream)
    np.testing.assert_array_equal(source.to_numpy().sync_on(stream), np.ones(64))
    assert api.fill(source, 2).sync_on(stream) is source  # it is lent no more
    if fault == "run:copy":
        with pytest.raises(DriverError, match="injected fault"):
            target.to_numpy().sync_on(stream)


def test_a_refused_copy_leaves_nothing_behind(sim: SimDriver, sim_device: Device) -> None:
    source, target = api.ones((64,)).sync(), api.zeros((64,)).sync()
    sim.fail("copy")
    with pytest.raises(DriverError):
        api.memcpy(target, source).sync()
    del source, target
    wait_all_idle(sim_device)
    assert sim.memory_info().used == sim.pinned_bytes == 0


@pytest.mark.parametrize("array", [np.array([1 + 2j]), ["1", "2"], [b"1"], np.array(["2020-01-01"], "M8[D]")])
def test_elements_that_are_no_real_numbers(array: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="from_numpy: expected real numbers, got"):
        api.from_numpy(array, "f32")


def test_floats_become_integers_as_in_a_kernel() -> None:
    array = np.array([np.nan, 1e30, -1e30, -2.7], ">f8")
    assert api.from_numpy(array, "i32").to_numpy().sync().tolist() == [0, 2**31 - 1, -(2**31), -2]
    assert api.from_numpy(array, "u8").to_numpy().sync().tolist() == [0, 255, 0, 0]
