"""Other looks at memory: reinterpreted, by raw address, without memory at all; and what an address is."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, NotReadyError, OwnershipError
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, f16, f32, f64, i32, u8, u32
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.unsafe import borrow_raw_parts, from_raw_parts


@pytest.fixture
def x(host: Device) -> api.Tensor:
    return api.arange(32, f32).reshape((4, 8)).sync()


def test_reinterpret_takes_the_bytes(x: api.Tensor) -> None:
    bits = x.reinterpret(u32, (32,))
    assert (bits.dtype, bits.shape, bits.storage) == (u32, (32,), x.storage)
    np.testing.assert_array_equal(bits.to_numpy().sync(), np.arange(32, dtype=np.float32).view(np.uint32))
    assert x.reinterpret("f16", (4, 16)).shape == (4, 16)
    assert x[1].reinterpret(f64, (2, 2)).base is not None
    api.fill(bits, 0x3F800000).sync()
    assert (x.to_numpy().sync() == 1).all()


def test_reinterpret_of_views_and_handles(x: api.Tensor) -> None:
    assert type(x[1:].reinterpret(u8, (96,))) is api.TensorView
    handle = x.shared()
    other = handle.reinterpret(i32, (32,))
    assert (type(other), other.owners) == (api.SharedTensor, 2)
    with pytest.raises(OwnershipError, match=r"reinterpret: the tensor .* is held by the shared handle"):
        x.reinterpret(i32, (32,))


WRONG: dict[str, tuple[Callable[[api.Tensor], object], type[Exception], str]] = {
    "size": (lambda x: x.reinterpret(f64, (32,)), ArgumentError, "f64 of shape (32,) takes 256 bytes, the tensor"),
    "strides": (lambda x: x.T.reinterpret(u32, (32,)), ArgumentError, "do not follow one another in memory; dup()"),
    "aligned": (
        lambda x: x[0, 1:3].reinterpret(f64, (1,)),
        ArgumentError,
        "which is no multiple of the 8 bytes of f64",
    ),
    "dtype": (lambda x: x.reinterpret("c8", (16,)), ArgumentTypeError, "reinterpret: dtype: 'c8'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_reinterpreted(x: api.Tensor, case: str) -> None:
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=re.escape(message)):
        make(x)


def test_an_address_knows_its_type(x: api.Tensor) -> None:
    pointer = x[1].device_pointer()
    assert isinstance(pointer, api.DevicePointer)
    assert (pointer, pointer.dtype) == (x.device_pointer() + 32, f32)
    assert type(pointer.cu_deviceptr()) is int
    assert repr(pointer) == f"DevicePointer({int(pointer):#x}, f32)"


def test_what_a_kernel_may_be_specialized_for(x: api.Tensor) -> None:
    assert x.spec().shape == (4, 8)
    assert x.spec().layout is api.zeros((16, 16)).sync().spec().layout
    assert x.spec().layout is not x.T.spec().layout


@ct.entry
def double(y: ct.Mut, x: ct.Tensor):
    """y = 2 * x."""
    y.store(2 * ct.load_tile_like(x, y))


def test_a_device_is_named_wherever_one_is_given(host: Device) -> None:
    array = np.arange(3.0)
    assert api.meta((3,), device="cpu").device is host
    assert borrow_raw_parts(array.ctypes.data, (3,), "f64", "cpu", owner=array).device is host
    assert api.from_dlpack(array, device="cpu").device is host


def test_a_tensor_without_memory_compiles_kernels(host: Device) -> None:
    y, x = api.meta((64, 64), f16), api.meta((64, 64), f16)
    assert (y.shape, y.dtype, y.num_bytes, y.spec().layout) == (
        (64, 64),
        f16,
        8192,
        api.empty((64, 64), f16).sync().spec().layout,
    )
    op = double(y.mut.partition((8, 8)), x)
    assert "double" in op.render("ir")
    with pytest.raises(NotReadyError, match=r"made by api.meta has no memory"):
        op.sync()
    for use in (lambda: x.to_numpy().sync(), lambda: x.dup().sync(), x.device_pointer, lambda: api.fill(x, 1).sync()):
        with pytest.raises(NotReadyError, match="has no memory"):
            use()


def test_an_operation_that_can_only_be_looked_at_may_be_dropped(host: Device, recwarn: pytest.WarningsRecorder) -> None:
    y = api.meta((64, 64), f16)
    assert "double" in double(y.mut.partition((8, 8)), api.meta((64, 64), f16)).render("ir")
    gc.collect()
    assert len(recwarn) == 0
    op = double(y.mut.partition((8, 8)), api.meta((64, 64), f16))  # and y is free again
    assert not op.warns()
    op.discard()


def test_what_waits_while_python_ends_is_silent(tmp_path: Path) -> None:
    """Its arguments are let go of when imports no longer work."""
    script = """if True:
        import sys
        import cutile as ct
        from cutile import api

        @ct.entry
        def add_one(y: ct.Mut):
            y.store(y.load() + 1)

        sys.modules["keeps it until the end"] = add_one(api.zeros((8,)).sync().mut.partition((4,)))
    """
    file = tmp_path / "ends.py"
    file.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_borrowed_memory_is_never_freed() -> None:
    sim = SimDriver(seed=2)
    device = Device.from_driver(sim)
    stream = device.new_stream()
    with device:
        owner = api.arange(12, i32).sync_on(stream)
        x = borrow_raw_parts(owner.device_pointer(), (3, 4), i32, device, owner=owner)
        part = borrow_raw_parts(owner.device_pointer() + 4, (3, 2), i32, device, (4, 2))
        np.testing.assert_array_equal(x.to_numpy().sync_on(stream), np.arange(12).reshape(3, 4))
        np.testing.assert_array_equal(part.to_numpy().sync_on(stream), np.arange(12).reshape(3, 4)[:, 1::2])
        used = sim.memory_info().used
        del x, part
        wait_all_idle(device)
        assert sim.memory_info().used == used
        assert owner.to_numpy().sync_on(stream)[11] == 11


def test_adopted_memory_is_freed_once() -> None:
    sim = SimDriver(seed=2)
    device = Device.from_driver(sim)
    stream = device.new_stream()
    address = stream.driver.allocate(64)
    with device:
        x = from_raw_parts(address, 64, (4, 4), f32, stream)
        api.fill(x, 3).sync_on(device.new_stream())
        assert (x.to_numpy().sync_on(stream) == 3).all()
        del x
        gc.collect()
        wait_all_idle(device)
    assert sim.memory_info().used == sim.pinned_bytes == 0


@pytest.mark.parametrize(("shape", "strides"), [((0, 100), (1, 1)), ((100, 0), None), ((1, 16), (-8, 1)), ((), None)])
def test_raw_parts_are_as_large_as_their_elements(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    """A tensor without elements has no bytes. The stride of an axis with one element leads nowhere."""
    stream = Device.host().new_stream()
    tensor = from_raw_parts(stream.driver.allocate(64), 64, shape, f32, stream, strides)
    assert tensor.to_numpy().sync().shape == shape


def test_raw_parts_that_make_no_sense(host: Device) -> None:
    stream = host.new_stream()
    with pytest.raises(ArgumentError, match=re.escape("shape (4, 5) and strides (5, 1) do not lie in 64 bytes")):
        from_raw_parts(4096, 64, (4, 5), f32, stream)
    with pytest.raises(ArgumentError, match=re.escape("1 strides for the 2 axes of shape (4, 5)")):
        borrow_raw_parts(4096, (4, 5), f32, host, (5,))
    with pytest.raises(ArgumentError, match="address: expected an address, got 0"):
        borrow_raw_parts(0, (4, 5), f32, host)
