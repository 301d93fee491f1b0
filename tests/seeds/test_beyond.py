"""Features of the upstream system that no document names: tensors without memory, layout facts, raw addresses."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cuda_async import Device, NotReadyError, Stream
from cuda_async.testing import wait_all_idle
from cutile import api, f32, u8, u32
from cutile.host import unsafe
from tests.seeds.kernels import add


def test_a_tensor_without_memory_compiles_what_one_with_memory_runs(device: Device, stream: Stream) -> None:
    before = add.specializations
    x = api.meta((48,), f32)
    add(api.meta((48,), f32).partition((16,)), x, x).bind(stream)
    compiled = add.specializations
    assert compiled >= before
    y = api.ones((48,), f32).sync_on(stream)
    out = add(api.zeros((48,), f32).sync_on(stream).partition((16,)), y, y).first().unpartition()
    assert out.to_host_vec().sync_on(stream).tolist() == [2] * 48
    assert add.specializations == compiled
    with pytest.raises(NotReadyError, match=r"api\.meta has no memory"):
        x.to_host_vec().sync_on(stream)


def test_layout_facts(device: Device, stream: Stream) -> None:
    x = api.zeros((4, 8), f32).sync_on(stream)
    assert x.spec() == api.ones((4, 8), f32).sync_on(stream).spec()
    assert x.spec() != x.T.spec()
    assert x.spec() != x.slice(range(4), range(1, 8)).spec()


def test_a_pointer_knows_its_type(device: Device, stream: Stream) -> None:
    x = api.arange(8, f32).sync_on(stream)
    pointer = x.device_pointer()
    assert isinstance(pointer, api.DevicePointer)
    assert pointer.dtype is f32
    assert pointer.cu_deviceptr() == int(pointer)
    assert int(x.slice(range(2, 8)).device_pointer()) == int(pointer) + 8


def test_reinterpreting_what_does_not_fit_is_refused(device: Device, stream: Stream) -> None:
    raw = api.arange(16, u8).sync_on(stream)
    assert raw.reinterpret(u32, (4,)).shape == (4,)
    for view, dtype, shape in ((raw, u32, (3,)), (raw.slice(range(1, 5)), u32, (1,)), (raw[::2], u8, (8,))):
        with pytest.raises(ValueError, match="reinterpret"):
            view.reinterpret(dtype, shape)


def test_borrowed_memory_is_not_freed() -> None:
    device = Device.host()
    memory = (ctypes.c_float * 4)(1, 2, 3, 4)
    with device:
        tensor = unsafe.borrow_raw_parts(ctypes.addressof(memory), (2, 2), f32, device)
        api.fill(tensor, 7).sync()
        del tensor
    wait_all_idle(device)
    assert np.ctypeslib.as_array(memory).tolist() == [7] * 4


def test_a_device_is_waited_for(device: Device) -> None:
    futures = [api.full(float(n), (1024,), f32).into_future() for n in range(6)]
    for future in futures:
        future.start()
    device.synchronize()
    assert [future.sync().shape for future in futures] == [(1024,)] * 6
