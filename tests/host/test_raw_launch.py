"""Tensors and partitions as parameters of raw kernels, and the interop example: a wrapper that hides the pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuda_async import AsyncKernelLaunch, Device, DeviceOp, Function, LaunchConfig, LaunchError, OwnershipError
from cuda_async.driver.fake_code import FakeFunction
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import Tensor, api, f32

SOURCE = """
extern "C" __global__ void scaled_sum(unsigned n, float scale, const float* x, const float* y, float* z) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = scale * (x[i] + y[i]);
}
extern "C" __global__ void extents(int* seen, float* z, int z0, int z1, int zs0, int zs1, int t0, int t1, int ts0,
                                   int ts1, const float* x, int x0, int xs0) {
    int all[] = {z0, z1, zs0, zs1, t0, t1, ts0, ts1, x0, xs0};
    for (int i = 0; i < 10; i++) seen[i] = all[i];
    z[0] = x[0];
}
"""


def floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def scaled_sum(grid: Any, block: Any, n: int, scale: float, x: int, y: int, z: int) -> None:
    floats(z, n)[:] = scale * (floats(x, n) + floats(y, n))


def extents(grid: Any, block: Any, seen: int, z: int, *rest: int) -> None:
    *numbers, x, x0, xs0 = rest
    np.ctypeslib.as_array((ctypes.c_int32 * 10).from_address(seen))[:] = [*numbers, x0, xs0]
    floats(z, 1)[0] = floats(x, 1)[0]


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A GPU, or the simulator with fakes of the same kernels."""
    if request.param == "cuda":
        device = Device()
    else:
        driver = SimDriver(seed=6)
        pointer, word, number = ctypes.c_uint64, ctypes.c_int32, ctypes.c_float
        driver.define_module(
            b"fakes",
            FakeFunction("scaled_sum", (ctypes.c_uint32, number, pointer, pointer, pointer), scaled_sum),
            FakeFunction("extents", (pointer, pointer, *[word] * 8, pointer, word, word), extents),
        )
        device = Device.from_driver(driver)
    with device:
        yield device
    wait_all_idle(device)


def load(device: Device, name: str) -> Function:
    if device.kind == "cuda":
        return device.load_module_from_cuda_src(SOURCE).load_function(name)
    return device.load_module_from_bytes(b"fakes").load_function(name)


def scaled_sum_op(function: Function, scale: float, x: Tensor, y: Tensor) -> DeviceOp[Tensor]:
    """scale * (x + y): what a library around a raw kernel offers."""

    def launch(out: Tensor) -> DeviceOp[Tensor]:
        op = AsyncKernelLaunch(function).push_arg(np.uint32(x.size)).push_arg(np.float32(scale))
        op.push_input(x).push_input(y).push_output(out)
        op.set_launch_config(LaunchConfig(grid_dim=((x.size + 255) // 256, 1, 1), block_dim=(256, 1, 1)))
        return op.map(lambda _: out)

    return api.empty(x.shape, f32).then(launch)


def test_a_wrapper_hides_the_pointers(gpu: Device) -> None:
    function = load(gpu, "scaled_sum")
    x, y = api.arange(1000, f32).sync(), api.ones((1000,), f32).sync()
    out = scaled_sum_op(function, 3.0, x, y).sync()
    assert out.to_host_vec().sync().tolist() == [3.0 * (n + 1) for n in range(1000)]


def test_the_documents_example(gpu: Device) -> None:
    function, num_elements = load(gpu, "scaled_sum"), 1024
    input, output = api.arange(num_elements, f32).sync(), api.zeros((num_elements,), f32).sync()
    launcher = AsyncKernelLaunch(function)
    launcher.push_arg(np.uint32(num_elements))
    launcher.push_arg(2.0, f32)
    input_ptr, output_ptr = int(input.device_pointer()), int(output.device_pointer())
    launcher.push_device_ptr(input_ptr).push_device_ptr(input_ptr).push_device_ptr(output_ptr)
    launcher.set_launch_config(
        LaunchConfig(grid_dim=((num_elements + 255) // 256, 1, 1), block_dim=(256, 1, 1), shared_mem_bytes=0)
    )
    launcher.sync()
    assert output.to_host_vec().sync().tolist() == [4.0 * n for n in range(num_elements)]


def test_a_partition_and_a_tensor_are_pushed_with_their_extents(gpu: Device) -> None:
    function = load(gpu, "extents")
    seen, z, x = api.zeros((10,), "i32").sync(), api.zeros((6, 8), f32).sync(), api.full(5, (7,), f32).sync()
    part = z.partition((2, 4))
    op = AsyncKernelLaunch(function).push_output(seen).push_arg(part).push_arg_arc(x)
    op.set_launch_config(LaunchConfig(1, 1)).sync()
    assert seen.to_host_vec().sync().tolist() == [6, 8, 8, 1, 2, 4, 8, 1, 7, 1]
    assert part.unpartition() is z
    assert z.to_numpy().sync()[0, 0] == 5


def test_tensors_are_lent_and_given_back(gpu: Device) -> None:
    function = load(gpu, "extents")
    seen, z = api.zeros((10,), "i32").sync(), api.zeros((6, 8), f32).sync()
    op = AsyncKernelLaunch(function).push_output(seen).push_arg(z.partition((2, 4)))
    with pytest.raises(OwnershipError, match=r"held by the partition.*test_raw_launch\.py"):
        op.push_arg_arc(z)
    op.discard()
    assert z.to_numpy().sync().shape == (6, 8)  # what was pushed is usable again
    with pytest.raises(LaunchError, match="expected a tensor, got str"):
        AsyncKernelLaunch(function).push_input("z")
