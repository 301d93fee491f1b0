"""The host side's own kernels, which a GPU needs, on every device that compiles kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, OwnershipError
from cuda_async.testing import wait_all_idle
from cutile import api, bf16, f32, i64, u8
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError
from cutile.host import creation
from cutile.host.kernels import convert_to_new, count_onto, gather_onto, gather_to_new, scan_op


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device.host() if request.param == "host" else Device()
    with device:
        yield device
    wait_all_idle(device)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("dtype", [f32, bf16, i64], ids=lambda dtype: dtype.name)
def test_count_gives_elements_their_positions(dtype: DTypeLike) -> None:
    tensor = api.zeros((2500,), dtype).sync()
    assert count_onto(tensor.__kernel_input__()).sync() is None
    np.testing.assert_array_equal(tensor.to_numpy().sync(), np.arange(2500).astype(dtype.numpy))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("shape", [(3000,), (70, 100), (3, 50, 70)], ids=len)
def test_gather_copies_whatever_the_strides(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(2).integers(0, 200, shape).astype(np.uint8)
    source = api.from_numpy(array).sync().T
    copy = gather_to_new(source.__kernel_input__(), api.Tensor).sync()
    assert (copy.dtype, copy.is_contiguous()) == (u8, True)
    np.testing.assert_array_equal(copy.to_numpy().sync(), array.T)
    back = api.zeros(shape, u8).sync()
    gather_onto(back.T.__kernel_input__(), copy.__kernel_input__()).sync()
    np.testing.assert_array_equal(back.to_numpy().sync(), array)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("shape", [(), (1,), (0,), (70, 0), (4, 5, 6, 7), (2500,)], ids=str)
def test_convert_keeps_the_shape(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)
    source = api.from_numpy(array).sync()
    found = convert_to_new(source.__kernel_input__(), i64).sync()
    assert (found.dtype, found.shape, found.is_contiguous()) == (i64, shape, True)
    np.testing.assert_array_equal(found.to_numpy().sync(), array)
    part = source[1:] if shape == (2500,) else source  # begins off 16 bytes
    found = convert_to_new(part.__kernel_input__(), i64).sync()
    np.testing.assert_array_equal(found.to_numpy().sync(), part.to_numpy().sync())


@pytest.mark.usefixtures("place")
def test_new_tensors_need_no_run() -> None:
    """These calls cost as much as launches do: the second one is enqueued without a run."""
    source = api.ones((64, 48), f32).sync()
    calls: dict[str, Callable[[], DeviceOp[api.Tensor]]] = {
        "convert": lambda: convert_to_new(source.__kernel_input__(), i64),
        "convert, strided": lambda: convert_to_new(source.T.__kernel_input__(), i64),
        "dup": lambda: gather_to_new(source.T.__kernel_input__(), api.Tensor),
        "cumsum": lambda: scan_op(source.reshape(-1), operator.add, 0, f32, "cumsum"),
    }
    for name, call in calls.items():
        call().sync()
        op = call()
        assert (op.label(), op.fast_path(waited=True) is not None) == (name.partition(",")[0], True)
        op.discard()


@pytest.mark.usefixtures("place")
def test_gather_refuses_what_it_cannot_do() -> None:
    source = api.zeros((2, 3, 4, 5)).sync()
    with pytest.raises(ArgumentError, match=r"shape \(5, 4, 3, 2\) and strides .* writes at most 3 axes"):
        gather_to_new(source.T.__kernel_input__(), api.Tensor)
    flat = source.reshape(-1)
    with pytest.raises(OwnershipError, match="the same operation"):
        gather_onto(flat.__kernel_input__(), flat[::-1].__kernel_input__())


@pytest.mark.usefixtures("place")
def test_strided_elements_are_lent_to_their_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU. They were lent when the fill ran, which told only then of too many axes."""

    def runs_no_host_code(device: Device) -> bool:
        return False

    monkeypatch.setattr(creation, "runs_host_code", runs_no_host_code)
    tensor = api.ones((70, 300), u8).sync()
    part = tensor[:, ::3].mut
    op = api.fill(part, 5)
    assert (op.label(), Path(op.site[0]).name) == ("fill", "test_kernels.py")
    with pytest.raises(OwnershipError, match="and has not finished"):
        api.fill(tensor[:2, ::3].mut, 6)
    assert op.sync() is part
    expected = np.ones((70, 300), np.uint8)
    expected[:, ::3] = 5
    np.testing.assert_array_equal(tensor.to_numpy().sync(), expected)
    with pytest.raises(ArgumentError, match="writes at most 3 axes"):
        api.fill(api.ones((2, 3, 4, 10)).sync()[..., ::3].mut, 6)


@pytest.mark.gpu
def test_long_counts_and_strided_fills_on_a_gpu() -> None:
    with Device():
        length = (1 << 20) + 77
        np.testing.assert_array_equal(api.arange(length).to_numpy().sync(), np.arange(length, dtype=np.float32))
        tensor = api.ones((100, 300)).sync()
        api.fill(tensor[:, ::3].mut, 5).sync()
        wanted = np.ones((100, 300))
        wanted[:, ::3] = 5
        np.testing.assert_array_equal(tensor.to_numpy().sync(), wanted)
