"""The host API page: every example of it, and every table's names. Graphs are in `test_002_graphs.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import (
    Device,
    DeviceOp,
    DriverError,
    LaunchError,
    NoDeviceError,
    OwnershipError,
    ReentrancyError,
    SchedulingError,
    SingleStream,
    Stream,
    StreamPoolRoundRobin,
    global_policy,
    shared,
    value,
    zip,
)
from cutile import api, f16, f32, i32, u32
from tests.seeds.kernels import add, gemm, increment, scale


def host(op: DeviceOp[Any], stream: Stream) -> list[Any]:
    return op.to_host_vec().sync_on(stream).tolist()


# -- tensor creation and views ----------------------------------------------------------------


def test_constructors(device: Device, stream: Stream) -> None:
    assert host(api.zeros((4,), f32), stream) == [0] * 4
    assert api.ones((16, 16), f32).to_numpy().sync_on(stream).sum() == 256
    assert host(api.full(7, (3,), i32), stream) == [7] * 3
    assert host(api.fill(api.zeros((2, 2), f32).sync_on(stream), 5), stream) == [5] * 4
    assert host(api.arange(5, i32), stream) == [0, 1, 2, 3, 4]
    assert host(api.linspace(0.0, 1.0, 5), stream) == [0, 0.25, 0.5, 0.75, 1]
    assert (api.eye(4).to_numpy().sync_on(stream) == np.eye(4)).all()
    assert (api.eye_rect(2, 3).to_numpy().sync_on(stream) == np.eye(2, 3)).all()
    source = api.arange(4, i32).sync_on(stream).shared()
    assert host(api.convert(source, f32), stream) == [0.0, 1.0, 2.0, 3.0]


def test_random_tensors(device: Device, stream: Stream) -> None:
    normal = api.randn(0.0, 1.0, (32, 64, 128), None).to_numpy().sync_on(stream)
    assert normal.shape == (32, 64, 128)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    uniform = [api.rand((1024,), 42).to_host_vec().sync_on(stream) for _ in range(2)]
    assert (uniform[0] == uniform[1]).all()
    assert 0 <= uniform[0].min() < uniform[0].max() <= 1
    unseeded = [api.rand((64,)).to_host_vec().sync_on(stream) for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).any()
    half = api.randn_f16(2.0, 0.5, (4097,), 3).sync_on(stream)
    assert half.dtype is f16
    assert abs(half.to_host_vec().sync_on(stream).astype(np.float32).mean() - 2) < 0.05


def test_shape_helpers(device: Device, stream: Stream) -> None:
    x = api.arange(32, f32).reshape((4, 8)).sync_on(stream)
    assert x.shape == (4, 8)
    z = api.zeros((32,), f32).partition((4,)).sync_on(stream)
    assert z.grid() == (8, 1, 1)
    weights = api.ones((4, 8), f32).sync_on(stream).shared()
    weights_2d = weights.reshape((8, 4))
    with pytest.raises(OwnershipError, match="2 owners"):
        weights_2d.try_partition((2, 4))
    weights.drop()
    partitioned = weights_2d.try_partition((2, 4))
    assert partitioned.grid() == (4, 1, 1)
    assert partitioned.unpartition().shape == (8, 4)


def test_metadata(device: Device, stream: Stream) -> None:
    x = api.arange(24, f32).reshape((4, 6)).sync_on(stream)
    assert (x.shape, x.strides, x.size, x.num_bytes, x.is_contiguous()) == ((4, 6), (6, 1), 24, 96, True)
    assert x.device_id() == device.ordinal
    assert x.device_pointer() % 4 == 0


def test_reinterpret(device: Device, stream: Stream) -> None:
    raw = api.arange(4, u32).sync_on(stream).shared()
    floats = raw.reinterpret(f32, (4,))
    assert floats.shape == (4,)
    assert (floats.to_host_vec().sync_on(stream).view(np.uint32) == np.arange(4)).all()


def test_views_and_slices(device: Device, stream: Stream) -> None:
    tensor = api.arange(1024, f32).sync_on(stream)
    matrix = tensor.view((32, 32))
    first_half = tensor.slice(range(512))
    row_slice = matrix.slice(range(1, 3))
    block = matrix.slice(range(1, 3), range(2, 6))
    inner = tensor.slice(range(100, 200)).slice(range(10, 20))
    numbers = np.arange(1024, dtype=np.float32)
    assert (read_op(first_half, stream) == numbers[:512]).all()
    assert (read_op(row_slice, stream) == numbers.reshape(32, 32)[1:3]).all()
    assert (read_op(block, stream) == numbers.reshape(32, 32)[1:3, 2:6]).all()
    assert (read_op(inner, stream) == numbers[110:120]).all()
    out = scale(api.zeros((512,), f32).partition((128,)), 2.0, tensor.slice(range(256, 768))).first().unpartition()
    assert (read_op(out, stream) == 2 * numbers[256:768]).all()


def read_op(op: Any, stream: Stream) -> Any:
    return op.to_numpy().sync_on(stream)


# -- transfers --------------------------------------------------------------------------------


def test_transfers(device: Device, stream: Stream) -> None:
    data = [1.0] * 1024
    tensor = api.copy_host_vec_to_device(data, f32).sync_on(stream)
    assert tensor.to_host_vec().sync_on(stream).tolist() == data
    assert api.copy_device_to_host_vec(tensor).sync_on(stream).tolist() == data
    copy = tensor.dup().sync_on(stream)
    api.fill(tensor, 2.0).sync_on(stream)
    assert copy.to_host_vec().sync_on(stream).tolist() == data
    assert host(api.dup(tensor), stream) == [2.0] * 1024
    api.memcpy(copy, tensor).sync_on(stream)
    assert copy.to_host_vec().sync_on(stream).tolist() == [2.0] * 1024


def test_a_kernel_chain_to_the_host(device: Device, stream: Stream) -> None:
    source = api.arange(1000, f32).sync_on(stream)
    vec = scale(api.zeros((1000,), f32).partition((128,)), 3.0, source).first().unpartition().to_host_vec()
    assert vec.sync_on(stream).tolist() == [3.0 * n for n in range(1000)]


# -- devices and streams ----------------------------------------------------------------------


def test_devices_and_streams(device: Device) -> None:
    stream = device.new_stream()
    assert stream.device is device
    assert device.name
    assert device.ordinal == 0
    assert value(1).sync_on(stream) == 1


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(NoDeviceError):
        Device(4096)


# -- launch configuration ---------------------------------------------------------------------


def test_compile_options_and_grid(device: Device, stream: Stream) -> None:
    options = ct.CompileOptions(max_divisibility=8)
    x, y = api.ones((16,), f32).sync_on(stream), api.ones((16,), f32).sync_on(stream)
    op = add(api.zeros((16,), f32).sync_on(stream).partition((2,)), x, y)
    assert host(op.compile_options(options).grid((8, 1, 1)).first().unpartition(), stream) == [2] * 16


def test_generics_as_a_list(device: Device, stream: Stream) -> None:
    x, y = api.ones((16, 128), f32).sync_on(stream), api.ones((128, 16), f32).sync_on(stream)
    z = api.zeros((16, 16), f32).sync_on(stream)
    out = gemm(z.partition((16, 16)), x, y).generics([8]).first().unpartition()
    assert (read_op(out, stream) == 128).all()


# -- combinators ------------------------------------------------------------------------------


def test_every_combinator(device: Device, stream: Stream) -> None:
    seen: list[int] = []
    pair = zip(value(1), value(2))
    assert pair.sync_on(stream) == (1, 2)
    left, right = zip(value(1), value(2)).unzip()
    assert (right.sync_on(stream), left.sync_on(stream)) == (2, 1)
    assert value(1).then(lambda x: value(x + 1)).map(lambda x: x * 10).inspect(seen.append).sync_on(stream) == 20
    assert seen == [20]
    assert zip(value("a"), value("b"), value("c")).first().sync_on(stream) == "a"
    assert zip(value("a"), value("b"), value("c")).last().sync_on(stream) == "c"
    boxed: list[DeviceOp[Any]] = [value(1).boxed(), api.zeros((2,), f32).boxed()]
    assert [type(op.sync_on(stream)).__name__ for op in boxed] == ["int", "Tensor"]


def test_shared_runs_once(device: Device) -> None:
    runs: list[int] = []
    x = api.ones((32,), f32).inspect(lambda _: runs.append(1)).shared()
    a = scale(api.zeros((32,), f32).partition((8,)), 2.0, x.clone()).sync()
    b = scale(api.zeros((32,), f32).partition((8,)), 3.0, x.clone()).sync()
    assert runs == [1]
    assert a.x is b.x
    w = api.ones((4,), f32).sync()
    assert shared(w).sync() is w


def test_unwrap_arc(device: Device) -> None:
    x = api.ones((1024,), f32).map(lambda tensor: tensor.shared()).sync()
    owned: Any = value(x).unwrap_arc().sync()
    assert owned.partition((128,)).grid() == (8, 1, 1)
    y = api.ones((4,), f32).sync().shared()
    other = y.clone()
    with pytest.raises(OwnershipError, match="2 owners"):
        value(y).unwrap_arc().sync()
    other.drop()


def test_execution_methods(device: Device, stream: Stream) -> None:
    assert value(1).sync() == value(1).sync_on(stream) == 1

    async def main() -> None:
        assert await value(2) == 2
        assert await value(3).into_future() == 3
        assert await value(4).schedule(global_policy(device)) == 4

    asyncio.run(main())
    for graph in (api.zeros((4,), f32).graph(), api.zeros((4,), f32).graph_on(stream)):
        graph.launch().sync()
        graph.close()


# -- ownership --------------------------------------------------------------------------------


def test_owned_input(device: Device, stream: Stream) -> None:
    out = scale(api.zeros((1024,), f32).partition((128,)), 1.0, api.ones((1024,), f32)).first().unpartition()
    assert host(out, stream) == [1.0] * 1024


def test_shared_input(device: Device, stream: Stream) -> None:
    x = api.ones((64,), f32).sync_on(stream).shared()
    for factor in (2.0, 3.0):
        out = scale(api.zeros((64,), f32).partition((8,)), factor, x.clone()).first().unpartition()
        assert host(out, stream) == [factor] * 64


def test_borrowed_input_may_be_spawned_too(device: Device) -> None:
    weights = api.ones((64,), f32).sync()

    async def main() -> None:
        op = scale(api.zeros((64,), f32).partition((8,)), 2.0, weights)
        out = await asyncio.create_task(op.into_future())  # the operation holds what it borrows
        assert out.x is weights

    asyncio.run(main())
    assert weights.to_host_vec().sync().tolist() == [1] * 64


def test_anything_becomes_an_operation(device: Device, stream: Stream) -> None:
    tensor = api.ones((8,), f32).sync_on(stream)
    inputs: list[Any] = [tensor, tensor.view((8,)), value(tensor), api.ones((8,), f32), tensor.dup()]
    for each in inputs:
        out = scale(api.zeros((8,), f32).partition((4,)), 2.0, each).first().unpartition()
        assert host(out, stream) == [2] * 8


# -- scheduling -------------------------------------------------------------------------------


def test_streams_in_turn(device: Device) -> None:
    policy = StreamPoolRoundRobin(device)
    first = [policy.next_stream() for _ in range(4)]
    assert len(set(first)) == 4
    assert policy.next_stream() is first[0]
    single = SingleStream(device)
    assert single.next_stream() is single.next_stream() is single.stream


def test_an_explicit_stream_keeps_call_order(device: Device, stream: Stream) -> None:
    y = api.zeros((16,), f32).sync_on(stream)
    for _ in range(3):
        increment(y.mut.partition((4,))).sync_on(stream)
    assert y.to_host_vec().sync_on(stream).tolist() == [3] * 16


def test_then_shares_the_stream_and_nested_execution_is_refused(device: Device, stream: Stream) -> None:
    def fill_kernel(buffer: Any) -> DeviceOp[Any]:
        return increment(buffer.partition((4,))).first().unpartition()

    result = api.zeros((16,), f32).then(fill_kernel).then(fill_kernel)
    assert host(result, stream) == [2] * 16
    with pytest.raises(ReentrancyError, match="then_unchecked"):
        value(1).then(lambda x: value(value(x).sync())).sync()
    with pytest.raises(ReentrancyError, match="then_unchecked"):
        value(1).then(lambda x: value(value(x).sync_on(stream))).sync()


def test_a_policy_of_ones_own(device: Device) -> None:
    class Refusing:
        def next_stream(self) -> Stream:
            raise LookupError("no stream is left")

    with pytest.raises(SchedulingError, match="no stream is left"):
        value(1).schedule(Refusing())


# -- errors -----------------------------------------------------------------------------------


def test_errors_are_matched_by_class(device: Device, stream: Stream) -> None:
    y = api.zeros((4, 4), f32).sync_on(stream)
    kind = "nothing failed"
    try:
        increment(y.partition((4,))).sync_on(stream)
    except ct.ArgumentError as error:
        kind = f"a refused argument: {error}"
    except (LaunchError, DriverError):
        kind = "the launch failed"
    assert kind.startswith("a refused argument")
    assert "must have 2 extents" in kind
