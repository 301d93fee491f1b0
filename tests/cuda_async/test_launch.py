"""Raw kernels: loading code, packing parameters, launching as an operation, borrowed handles."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_async import ContextError, CudaGraph, Device, DriverError, LaunchError, OwnershipError, Stream, value
from cuda_async.core.module import (
    Function,
    Module,
    load_module_from_bytes,
    load_module_from_cuda_src,
    load_module_from_file,
    load_module_from_ptx_src,
)
from cuda_async.driver.cuda.nvrtc import compile_to_ptx
from cuda_async.driver.fake_code import FakeFunction
from cuda_async.errors import KernelCacheError
from cuda_async.launch import AsyncKernelLaunch, LaunchConfig
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import PTX, Affine, Read, allocate, words, words_at

ONE = LaunchConfig(1, 128)


class SingleTurn:
    """A policy that names one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def next_stream(self) -> Stream:
        return self._stream


def affine_body(grid: tuple[int, int, int], block: tuple[int, int, int], p: int, n: int, m: int, a: int) -> None:
    count = min(n, grid[0] * block[0])
    memory = words_at(p, count)
    memory[:] = memory * np.uint32(m) + np.uint32(a)


def affine_fake(**options: Any) -> FakeFunction:
    return FakeFunction(
        "affine", (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32), affine_body, **options
    )


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device that runs loaded code: a GPU, or the simulator with a fake of the same kernel."""
    if request.param == "cuda":
        device = Device()
    else:
        driver = SimDriver(seed=5)
        driver.define_module(PTX, affine_fake())
        device = Device.from_driver(driver)
    with device:
        yield device
    wait_all_idle(device)


def load_affine(device: Device) -> Function:
    return device.load_module_from_ptx_src(PTX).load_function("affine")


def affine_op(function: Function, storage: Any, factor: int, addend: int) -> AsyncKernelLaunch:
    op = AsyncKernelLaunch(function).push_output(storage).push_arg(storage.nbytes // 4)
    return op.push_arg(factor).push_arg(addend).set_launch_config(ONE)


COMMENTED = b"""
.file 1 "https://example.org/*/affine.cu"
// .visible .entry affine(.param .f32 p)
.visible .entry affine(
    .param .u64 .ptr .global .align 4 p,  // the words (in, and out), one by one
    .param .u32 n, /* how many,
        at most */ .param .align 4 .b8 pair[0x8],
    .param .texref table,
    .param .f32 a
)
{ ret; }
/* .entry affine() { } */
"""


def test_types_are_read_from_ptx_with_comments() -> None:
    """A comma or a bracket in a comment cut parameters off, and a type that was not known moved the others."""
    sizes = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float)
    driver, values = SimDriver(), list[Any]()

    def note(grid: tuple[int, int, int], block: tuple[int, int, int], *numbers: Any) -> None:
        values.extend(numbers)

    driver.define_module(COMMENTED + b"\0", FakeFunction("affine", sizes, note))
    with Device.from_driver(driver) as device:
        function = device.load_module_from_ptx_src(COMMENTED).load_function("affine")
        assert function.parameter_types == ("u64", "u32", "b8[0x8]", "texref", "f32")
        op = AsyncKernelLaunch(function).push_device_ptr(64).push_arg(2).push_arg(np.uint64(3)).push_arg(np.uint64(4))
        op.push_arg(5.0).set_launch_config(ONE).sync()
    assert values == [64, 2, 3, 4, 5.0]


def test_types_are_unknown_where_a_parameter_is_no_declaration() -> None:
    source = b".visible .entry affine(.param .u64 p, PARAMETER(n), .param .u32 m, .param .u32 a) { ret; }"
    driver = SimDriver()
    driver.define_module(source + b"\0", affine_fake())
    with Device.from_driver(driver) as device:
        assert device.load_module_from_ptx_src(source).load_function("affine").parameter_types is None


def test_a_raw_kernel_is_an_operation(gpu: Device) -> None:
    function, stream = load_affine(gpu), gpu.new_stream()
    assert function.parameter_types == ("u64", "u32", "u32", "u32")
    assert function.parameter_sizes in ((8, 4, 4, 4), None)
    storage = words(1, 2, 3).sync_on(stream)
    assert affine_op(function, storage, 10, 5).sync_on(stream) is None
    chain = affine_op(function, storage, 2, 0).then(lambda _: affine_op(function, storage, 1, 1))
    chain.then(lambda _: Affine(storage, 1, 1) if gpu.kind == "cuda" else value(None)).sync_on(stream)
    extra = 1 if gpu.kind == "cuda" else 0
    assert Read(storage).sync_on(stream).tolist() == [31 + extra, 51 + extra, 71 + extra]
    asyncio.run(_await(affine_op(function, storage, 0, 9)))
    assert Read(storage).sync_on(stream).tolist() == [9, 9, 9]


async def _await(op: AsyncKernelLaunch) -> None:
    await op


def test_typed_scalars_of_every_spelling(gpu: Device) -> None:
    function = load_affine(gpu)
    storage = words(7, count=4).sync()
    for factor, addend in ((np.uint32(2), ctypes.c_uint32(1)), (np.int32(1), -1), (True, 3)):
        op = AsyncKernelLaunch(function).push_device_ptr(storage.address).push_arg(4, np.uint32)
        op.push_arg(factor).push_arg(addend).set_launch_config(ONE).sync()
    assert Read(storage).sync().tolist() == [7 * 2 + 1 - 1 + 3] * 4


def test_storage_is_lent_until_the_launch_is_done(gpu: Device) -> None:
    function, storage = load_affine(gpu), words(1, 2).sync()
    op = affine_op(function, storage, 3, 0)
    with pytest.raises(OwnershipError, match=r"parameter 0.*test_launch\.py"):
        affine_op(function, storage, 1, 1)
    op.sync()
    affine_op(function, storage, 1, 1).sync()
    assert Read(storage).sync().tolist() == [4, 7]


def test_launches_alternate_between_streams(gpu: Device) -> None:
    function = load_affine(gpu)
    first, second = gpu.new_stream(), gpu.new_stream()
    storage = words(1, count=1 << 10).sync_on(first)
    for turn in range(6):
        op = affine_op(function, storage, 2, 1).set_launch_config(LaunchConfig(8, 128))
        future = op.schedule(SingleTurn((first, second)[turn % 2]))
        future.start()
        future.sync()
    assert Read(storage).sync().tolist() == [2**7 - 1] * (1 << 10)


def test_capture_replays_it_and_a_scope_refuses_it(gpu: Device) -> None:
    function, stream = load_affine(gpu), gpu.new_stream()
    storage = words(1, 1).sync_on(stream)
    graph = affine_op(function, storage, 2, 1).graph_on(stream)
    assert Read(storage).sync_on(stream).tolist() == [1, 1]
    for expected in (3, 7, 15):
        graph.launch().sync_on(stream)
        assert Read(storage).sync_on(stream).tolist() == [expected] * 2
    graph.close()
    refused = affine_op(function, storage, 2, 1)
    with pytest.raises(TypeError, match="no graph node"), CudaGraph.scope(stream) as scope:
        scope.record(refused)
    refused.discard()


def test_a_missing_configuration(gpu: Device) -> None:
    function, storage = load_affine(gpu), words(1).sync()
    op = AsyncKernelLaunch(function).push_output(storage).push_arg(1).push_arg(1).push_arg(1)
    with pytest.raises(LaunchError, match=r"Await called before launching the kernel.*set_launch_config"):
        op.sync()
    affine_op(function, storage, 2, 0).sync()  # what was lent is free again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5,), "parameter 1 is a u32, got the float 1.5"),
        ((np.float32(1),), "parameter 1 is a u32, got"),
        ((np.uint64(1),), "parameter 1 has 4 bytes, got 8"),
        ((1 << 32,), "which does not hold 4294967296"),
        (("4",), "expected a number"),
        ((np.zeros(2, np.uint32),), "expected a number"),
        ((1, 2, 3, 4), "takes 4 parameters, and another one was pushed"),
    ],
)
def test_arguments_that_do_not_fit(sim: SimDriver, arguments: tuple[Any, ...], message: str) -> None:
    sim.define_module(PTX, affine_fake())
    device = Device.from_driver(sim)
    function, storage = load_affine(device), words(1).sync_on(device.new_stream())
    op = AsyncKernelLaunch(function).push_output(storage)
    *fitting, last = arguments
    for each in fitting:
        op.push_arg(each)
    with pytest.raises(LaunchError, match=message):
        op.push_arg(last)
    op.discard()
    affine_op(function, storage, 1, 1).discard()  # nothing is lent any more


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (3.7, "int32"),
        (300, "uint8"),
        (np.int64(300), "uint8"),
        (-1, "uint32"),
        (float("nan"), "int32"),
        (2, "bool"),
        (1j, "float32"),
        (1e300, "float32"),
        (70_000, "float16"),
        (np.float64(1e300), "float32"),
        (ctypes.c_double(1e300), "float32"),
        (10**39, "float32"),
    ],
)
def test_a_dtype_that_does_not_hold_the_number(sim: SimDriver, number: Any, dtype: str) -> None:
    sim.define_module(b"cubin", affine_fake(reports_sizes=False))
    function = load_module_from_bytes(b"cubin", Device.from_driver(sim)).load_function("affine")
    with pytest.raises(LaunchError, match=f"parameter 0: {dtype} does not hold"):
        AsyncKernelLaunch(function).push_arg(number, dtype)
    AsyncKernelLaunch(function).push_arg(np.float32(3), "int32").push_arg(-0.0, "float32").discard()


@pytest.mark.parametrize("argument", [None, "7", b"7", np.str_("7")])
def test_a_dtype_makes_no_number_of_anything_else(sim: SimDriver, argument: Any) -> None:
    sim.define_module(b"cubin", affine_fake(reports_sizes=False))
    function = load_module_from_bytes(b"cubin", Device.from_driver(sim)).load_function("affine")
    with pytest.raises(LaunchError, match="parameter 0: expected a number"):
        AsyncKernelLaunch(function).push_arg(argument, "float32")


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 65_504, ctypes.c_float(1), 1e-300])
def test_a_float_of_16_bits_holds_infinities_and_rounds(sim: SimDriver, number: Any) -> None:
    sim.define_module(b"cubin", affine_fake(reports_sizes=False))
    function = load_module_from_bytes(b"cubin", Device.from_driver(sim)).load_function("affine")
    AsyncKernelLaunch(function).push_arg(number, "float16").discard()


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_an_address_has_64_bits(sim: SimDriver, address: int) -> None:
    sim.define_module(PTX, affine_fake())
    function = load_affine(Device.from_driver(sim))
    with pytest.raises(LaunchError, match="is no address"):
        AsyncKernelLaunch(function).push_device_ptr(address)


def test_a_cubin_tells_sizes_and_no_types(sim: SimDriver) -> None:
    sim.define_module(b"cubin", affine_fake())
    function = load_module_from_bytes(b"cubin", Device.from_driver(sim)).load_function("affine")
    assert function.parameter_types is None
    op = AsyncKernelLaunch(function).push_device_ptr(64)
    with pytest.raises(LaunchError, match=r"3 has no type.*numpy\.float32\(3\)"):
        op.push_arg(3)
    op = AsyncKernelLaunch(function).push_device_ptr(64).push_arg(np.uint32(3))
    with pytest.raises(LaunchError, match="has 4 bytes, got 2"):
        op.push_arg(np.float16(3))


def test_an_old_driver_tells_nothing_and_the_types_given_count(sim: SimDriver) -> None:
    sim.define_module(b"cubin", affine_fake(reports_sizes=False))
    device = Device.from_driver(sim)
    function = device.load_module_from_bytes(b"cubin").load_function("affine")
    storage = words(5).sync_on(device.new_stream())
    op = AsyncKernelLaunch(function).push_output(storage)
    for each in (1, 3, 1):
        op.push_arg(np.uint32(each))
    op.set_launch_config(ONE).sync_on(device.new_stream())
    assert Read(storage).sync_on(device.new_stream()).tolist() == [16]


def test_too_few_parameters(sim: SimDriver) -> None:
    sim.define_module(PTX, affine_fake())
    device = Device.from_driver(sim)
    op = AsyncKernelLaunch(load_affine(device)).push_device_ptr(64).set_launch_config(ONE)
    with pytest.raises(LaunchError, match="takes 4 parameters, got 1"):
        op.sync_on(device.new_stream())


def test_a_function_belongs_to_its_device(sim: SimDriver) -> None:
    sim.define_module(PTX, affine_fake())
    here, there = Device.from_driver(sim), Device.from_driver(SimDriver(seed=2))
    storage = words(1).sync_on(here.new_stream())
    with pytest.raises(ContextError, match="load the module there too"):
        affine_op(load_affine(here), storage, 1, 1).sync_on(there.new_stream())


def test_shared_memory_and_blocks_have_limits(sim: SimDriver) -> None:
    kernel = affine_fake(largest_block=256)
    sim.define_module(PTX, kernel)
    device = Device.from_driver(sim)
    stream, function = device.new_stream(), load_affine(device)
    storage = words(1).sync_on(stream)
    affine_op(function, storage, 1, 0).set_launch_config(LaunchConfig(1, 32, 100 << 10)).sync_on(stream)
    assert kernel.shared_used == 100 << 10
    with pytest.raises(LaunchError, match="512 threads"):
        affine_op(function, storage, 1, 0).set_launch_config(LaunchConfig(1, 512)).sync_on(stream)


@pytest.mark.parametrize("bad", [0, (1, 0, 1), (1, 1, 1, 1), "4", (1.5, 1, 1), ()])
def test_a_configuration_is_checked(bad: Any) -> None:
    with pytest.raises(LaunchError, match="grid_dim: expected one to three positive extents"):
        LaunchConfig(bad, 32)
    with pytest.raises(LaunchError, match="block_dim"):
        LaunchConfig(1, bad)
    with pytest.raises(LaunchError, match="shared_mem_bytes"):
        LaunchConfig(1, 1, -1)
    for nbytes in (1.5, float("nan"), None):
        with pytest.raises(LaunchError, match="shared_mem_bytes"):
            LaunchConfig(1, 1, nbytes)  # type: ignore[arg-type]
    assert LaunchConfig(1, 1, np.int32(8)).shared_mem_bytes == 8  # type: ignore[arg-type]


def test_modules_from_files(gpu: Device, tmp_path: Path) -> None:
    path = tmp_path / "kernels.ptx"
    path.write_bytes(PTX.rstrip(b"\0"))
    assert load_module_from_file(path).load_function("affine").parameter_types == ("u64", "u32", "u32", "u32")
    assert gpu.load_module_from_file(str(path)).device is gpu
    assert load_module_from_ptx_src(PTX.decode()).load_function("affine").name == "affine"


def test_what_cannot_be_loaded(gpu: Device) -> None:
    with pytest.raises(DriverError):
        gpu.load_module_from_bytes(b"\x7fELF nothing at all")
    with pytest.raises(DriverError):
        gpu.load_module_from_ptx_src(PTX).load_function("no_such_kernel")


def test_the_cpu_runs_no_loaded_code() -> None:
    for load in (load_module_from_ptx_src, load_module_from_cuda_src):
        with pytest.raises(LaunchError, match="runs no GPU code; use a CUDA device"):
            load("", Device.host())
    for borrow in (Module.borrow_raw, Function.borrow_raw):
        with pytest.raises(LaunchError, match="runs no GPU code"):
            borrow(Device.host(), 1)
    with pytest.raises(LaunchError, match="exist in this package only"):
        Stream.borrow_raw(Device.host(), 1)
    with pytest.raises(LaunchError, match="no handle"):
        Device.host().new_stream().cu_stream()


def test_borrowed_modules_and_functions(gpu: Device) -> None:
    class Owner:
        alive = True

        def __del__(self) -> None:
            Owner.alive = False

    module = gpu.load_module_from_ptx_src(PTX)
    owner = Owner()
    borrowed = Module.borrow_raw(gpu, module.cu_module(), owner=owner)
    function = borrowed.load_function("affine")
    del borrowed, owner
    gc.collect()
    assert Owner.alive
    again = Function.borrow_raw(gpu, function.cu_function(), name="affine", owner=module)
    storage = words(4).sync()
    for each in (function, again):
        op = AsyncKernelLaunch(each).push_output(storage)
        for number in (1, 2, 1):
            op.push_arg(np.uint32(number))
        op.set_launch_config(ONE).sync()
    assert Read(storage).sync().tolist() == [19]
    del function
    gc.collect()
    assert not Owner.alive


def test_borrowed_streams_are_never_given_back(gpu: Device) -> None:
    mine = gpu.new_stream()
    borrowed = Stream.borrow_raw(gpu, mine.cu_stream())
    storage = words(1, 2).sync_on(borrowed)
    Affine(storage, 2, 0).sync_on(borrowed)
    through_protocol = Stream.borrow_raw(gpu, mine)
    assert through_protocol.cu_stream() == mine.cu_stream() == mine.__cuda_stream__()[1]
    del borrowed, through_protocol
    gc.collect()
    gpu.collect()
    Affine(storage, 1, 1).sync_on(mine)
    assert Read(storage).sync_on(mine).tolist() == [3, 5]
    with pytest.raises(TypeError, match="expected a stream handle"):
        Stream.borrow_raw(gpu, "stream")


def test_a_device_in_a_borrowed_context() -> None:
    if Device.best().kind == "cuda":
        pytest.skip("needs a machine without a GPU: the borrowed context itself is tested with the mark gpu")
    with pytest.raises(ContextError, match="GPU 0 was asked for"):
        Device.borrow_raw(1, 0)


@pytest.mark.gpu
def test_a_borrowed_context_is_used_and_kept() -> None:
    from cuda_async.driver.cuda.device import CudaDriver

    mine = Device()
    driver = mine.driver
    assert isinstance(driver, CudaDriver)
    borrowed = Device.borrow_raw(int(driver.context.handle), 0, owner=driver)
    stream = borrowed.new_stream()
    storage = words(1, 2, 3).sync_on(stream)
    assert Affine(storage, 2, 1).then(Read).sync_on(stream).tolist() == [3, 5, 7]


def test_cuda_source_is_compiled_without_a_gpu() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    source = 'extern "C" __global__ void scale(float* y, float a, int n) { if (threadIdx.x < n) y[threadIdx.x] *= a; }'
    assert ".entry scale" in compile_to_ptx(source, "scale.cu", "sm_90a", ())
    with pytest.raises(KernelCacheError, match=r"broken\.cu does not compile for sm_90a.*\n.*broken\.cu\(1\): error"):
        compile_to_ptx("float f( {", "broken.cu", "sm_90a", ())


@pytest.mark.gpu
def test_cuda_source_runs(tmp_path: Path) -> None:
    device = Device()
    source = 'extern "C" __global__ void twice(unsigned* y, int n) { if (threadIdx.x < n) y[threadIdx.x] *= 2; }'
    path = tmp_path / "twice.cu"
    path.write_text(source)
    with device:
        for module in (load_module_from_cuda_src(source), load_module_from_file(path)):
            storage = words(1, 2, 3).sync()
            op = AsyncKernelLaunch(module.load_function("twice")).push_output(storage).push_arg(3)
            op.set_launch_config(ONE).sync()
            assert Read(storage).sync().tolist() == [2, 4, 6]


def test_a_launch_needs_a_function_and_a_configuration(sim: SimDriver) -> None:
    with pytest.raises(TypeError, match=r"function: expected a kernel of a loaded module, .* got str: 'saxpy'"):
        AsyncKernelLaunch("saxpy")  # type: ignore[arg-type]
    sim.define_module(PTX, affine_fake())
    function = load_affine(Device.from_driver(sim))
    with pytest.raises(TypeError, match=r"affine: set_launch_config: expected LaunchConfig.*, got tuple: \(1, 32\)"):
        AsyncKernelLaunch(function).set_launch_config((1, 32))  # type: ignore[arg-type]


def test_the_memory_pool_is_looked_at_and_set(device: Device) -> None:
    pool = device.default_mem_pool()
    pool.reset_used_high()
    before = pool.mem_stats()
    storage = allocate(1 << 20).sync()
    assert pool.mem_stats().used_current >= before.used_current + (1 << 20)
    del storage
    wait_all_idle(device)
    after = pool.mem_stats()
    assert after.used_current <= before.used_current
    assert after.used_high >= before.used_current + (1 << 20)
    assert after.reserved_high >= after.reserved_current
    pool.reset_used_high()
    assert pool.mem_stats().used_high == pool.mem_stats().used_current
    with pytest.raises(ValueError, match="number of bytes"):
        pool.set_release_threshold(-1)
    with pytest.raises(ValueError, match="keep_bytes: expected a number of bytes, got -1"):
        pool.trim(-1)
    with pytest.raises(TypeError, match="number of bytes, got nan"):
        pool.set_release_threshold(float("nan"))  # type: ignore[arg-type]


def test_freed_memory_is_kept_up_to_the_threshold(sim_device: Device) -> None:
    pool = sim_device.default_mem_pool()
    for threshold, reserved in ((0, 0), (1 << 30, 1 << 20)):
        pool.trim()
        pool.set_release_threshold(threshold)
        storage = allocate(1 << 20).sync()
        del storage
        wait_all_idle(sim_device)
        assert pool.mem_stats().reserved_current == reserved
    pool.reset_reserved_high()
    assert pool.mem_stats().reserved_high == 1 << 20
