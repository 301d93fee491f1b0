"""NumPy arrays as operands: read in place on the CPU, copied by the launch elsewhere; results read in one call."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, NotReadyError
from cutile import ArgumentTypeError, LaunchError, Mut, api, f32


@ct.entry
def shift(y: Mut, a: f32, x: ct.Tensor):
    """y = x + a."""
    y.store(ct.load_tile_like(x, y) + a)


@pytest.fixture(params=["cpu", "simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest, sim_device: Device) -> Device:
    """Kernels of the simulated device run on the reference backend: memory there is its own, as a GPU's."""
    return sim_device if request.param == "simulated" else Device.parse(request.param)


def test_an_array_is_read_by_a_kernel_on_any_device(where: Device) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    with where, ct.use_backend("reference") if where.kind != "cuda" else where:
        for operand in (array, array[::-1, ::2], array[:1].repeat(3, axis=0)[:, ::-1], np.asfortranarray(array)):
            part = api.empty(operand.shape, f32).sync().partition((2, 4))
            out = shift(part, 1.0, operand).sync()
            assert out.x is operand
            np.testing.assert_array_equal(out.y.numpy(), operand + 1)
        # The output is yet to be made, so that nothing tells the device before the launch runs.
        late = shift(api.empty((4, 6), f32).partition((4, 6)), 1.0, x=array).sync()
        assert late.x is array
        np.testing.assert_array_equal(late.y.unpartition().numpy(), array + 1)


def test_on_the_cpu_nothing_is_copied(host: Device) -> None:
    array = np.zeros((8,), np.float32)
    y = api.zeros((8,), f32).sync()
    with shift(y.mut.partition((8,)), 1.0, array).graph() as graph:
        for value in (3.0, 5.0):
            array[:] = value  # what a copy would not see
            graph.launch().sync()
            assert (y.numpy() == value + 1).all()
    array.flags.writeable = False
    shift(y.mut.partition((8,)), 2.0, array).sync()
    assert (y.numpy() == 7).all()


def test_awaited_and_in_then(host: Device) -> None:
    array = np.ones((8,), np.float32)

    async def main() -> Any:
        return await shift(api.empty((8,), f32).partition((8,)), 1.0, array).first().unpartition()

    assert (asyncio.run(main()).numpy() == 2).all()
    chained = api.zeros((8,), f32).then(lambda y: shift(y.partition((4,)), 2.0, array)).first().unpartition()
    assert (chained.sync().numpy() == 3).all()


def test_what_cannot_be_written_or_read_is_refused(sim_device: Device) -> None:
    array: Any = np.zeros((4, 8), np.float32)
    with Device("cpu"), pytest.raises(ArgumentTypeError, match=r"api.partition\(y, \(64, 64\)\), which shares"):
        shift(array, 1.0, array)
    words = (
        r"array of the host, which a kernel on .* cannot write; .*api.from_numpy\(y\).sync\(\).partition\(\(64, 64\)\)"
    )
    with sim_device, pytest.raises(ArgumentTypeError, match=words):
        shift(array, 1.0, array)
    y = api.zeros((4,), f32).sync_on(Device.host().new_stream())
    for wrong in (np.zeros((4,), ">f4"), np.zeros((4,), "U1"), np.ma.masked_array(np.zeros(4, np.float32))):
        with pytest.raises(ArgumentTypeError, match="shift: argument 'x': "):
            shift(y.mut.partition((4,)), 1.0, wrong)
    assert (y.numpy() == 0).all()  # nothing holds it


def test_values_are_read_in_one_call(host: Device) -> None:
    x = api.arange(6, f32).reshape((2, 3)).sync()
    part = shift(x.dup().sync().partition((1, 3)), 1.0, x).sync().y
    assert part.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]  # while it stands in the tensor's place
    assert x[:, 1].numpy().tolist() == [1, 4]
    assert x.mut.partition((1, 1)).numpy().shape == (2, 3)
    with x.shared() as handle:
        assert handle.numpy().sum() == 15
    readers: list[Any] = [lambda copy: copy.numpy(), lambda copy: copy.partition((1, 3)).numpy()]  # pyright: ignore
    for read in readers:
        for step in (x.dup().map, x.dup().then, x.dup().inspect):
            with pytest.raises(NotReadyError, match=r"at submission.*Read them after sync\(\) or await"):
                step(read).sync()


def test_a_bound_launch_takes_tensors(sim_device: Device) -> None:
    y = api.zeros((4,), f32).sync()
    with pytest.raises(LaunchError, match="to bind it, pass tensors"):
        shift(y.mut.partition((4,)), 1.0, np.ones(4, np.float32)).bind(sim_device.new_stream())
