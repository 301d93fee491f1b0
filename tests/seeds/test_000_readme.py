"""The README of cuda-async: operations, input modes, combinators, scheduling, graphs. One test for each example."""

from __future__ import annotations

import asyncio

import pytest

from cuda_async import Device, OwnershipError, SingleStream, Stream, global_policy, value, zip
from cutile import api, f32
from tests.seeds.kernels import add, increment, saxpy, scale


def test_nothing_executes_until_it_is_run(device: Device, stream: Stream) -> None:
    ran: list[str] = []
    op = api.zeros((16,), f32).inspect(lambda _: ran.append("zeros"))
    assert ran == []
    assert op.sync_on(stream).shape == (16,)
    assert ran == ["zeros"]
    assert api.ones((4,), f32).to_host_vec().sync().tolist() == [1, 1, 1, 1]

    async def main() -> list[float]:
        return (await api.arange(3, f32).to_host_vec()).tolist()

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_read_parameter_gives_back_what_was_put_in(device: Device, stream: Stream) -> None:
    tensor, arc = api.ones((32,), f32).sync_on(stream), api.ones((32,), f32).sync_on(stream).shared()
    for given in (tensor, arc, tensor.view((32,))):
        out = scale(api.zeros((32,), f32).partition((8,)), 2.0, given).sync_on(stream)
        assert out.x is given
        assert out.a == 2.0
        assert out.y.unpartition().to_host_vec().sync_on(stream).tolist() == [2] * 32


def test_any_form_may_be_spawned(device: Device) -> None:
    async def main() -> None:
        tensor = await api.ones((32,), f32)
        arc = (await api.ones((32,), f32)).shared()
        one = asyncio.create_task(add(api.zeros((32,), f32).partition((8,)), tensor, arc).into_future())
        two = asyncio.create_task(add(api.zeros((32,), f32).partition((8,)), arc, tensor).into_future())
        for out in await asyncio.gather(one, two):
            assert (await out.z.unpartition().to_host_vec()).tolist() == [2] * 32

    asyncio.run(main())


def test_a_written_parameter_is_owned_or_borrowed(device: Device, stream: Stream) -> None:
    y = api.zeros((32,), f32).sync_on(stream)
    part = y.partition((8,))
    out = increment(part).sync_on(stream)
    assert out.y is part
    assert part.unpartition() is y
    borrowed = y.mut.partition((8,))
    assert increment(borrowed).sync_on(stream).y is borrowed
    assert y.to_host_vec().sync_on(stream).tolist() == [2] * 32  # no unpartition needed


def test_combinators(device: Device, stream: Stream) -> None:
    result = (
        api.zeros((8,), f32)
        .then(lambda buffer: increment(buffer.partition((4,))).first().unpartition())
        .then(lambda buffer: increment(buffer.partition((4,))).first().unpartition())
        .sync_on(stream)
    )
    assert result.to_host_vec().sync_on(stream).tolist() == [2] * 8
    a, b = zip(api.ones((4,), f32), api.arange(4, f32)).sync_on(stream)
    assert (a.shape, b.shape) == ((4,), (4,))
    assert value(21).map(lambda x: 2 * x).sync_on(stream) == 42
    shared = api.ones((8,), f32).shared()
    left = scale(api.zeros((8,), f32).partition((4,)), 2.0, shared.clone()).first().unpartition().to_host_vec()
    right = scale(api.zeros((8,), f32).partition((4,)), 3.0, shared).first().unpartition().to_host_vec()
    assert [each.tolist() for each in zip(left, right).sync_on(stream)] == [[2] * 8, [3] * 8]


def test_scheduling(device: Device, stream: Stream) -> None:
    async def main() -> None:
        x = api.ones((16,), f32)
        future = scale(api.zeros((16,), f32).partition((8,)), 5.0, x).schedule(global_policy(device))
        out = await future
        assert (await out.y.unpartition().to_host_vec()).tolist() == [5] * 16
        pinned = api.ones((4,), f32).schedule(SingleStream(device))
        assert (await pinned).shape == (4,)

    asyncio.run(main())
    streams = [value(0).schedule(global_policy(device)).stream for _ in range(5)]
    assert len(set(streams)) == 4
    assert streams[0] is streams[4]


@pytest.mark.gpu
def test_on_another_device() -> None:
    from cuda_async import device_count

    if device_count() < 2:
        pytest.skip("needs two GPUs")
    future = api.ones((4,), f32).schedule(global_policy(1))
    assert future.sync().device_id() == 1


def test_a_graph_is_captured_once_and_replayed(device: Device, stream: Stream) -> None:
    tokens = [api.full(float(n), (16,), f32).sync_on(stream) for n in range(4)]
    input_buffer = api.zeros((16,), f32).sync_on(stream)
    output = api.zeros((16,), f32).sync_on(stream)
    graph = scale(output.partition((8,)), 10.0, input_buffer).graph_on(stream)
    captured = graph.take_output()
    assert captured is not None
    assert graph.take_output() is None
    for number, token in enumerate(tokens):
        graph.update(api.memcpy(input_buffer, token))
        graph.launch().sync_on(stream)
        assert captured.y.unpartition().to_host_vec().sync_on(stream).tolist() == [10 * number] * 16
        captured = captured._replace(y=output.partition((8,)))
    graph.close()


def test_launchers_take_tensors_handles_partitions_scalars_and_operations(device: Device, stream: Stream) -> None:
    lazy = saxpy(api.zeros((32,), f32).partition((8,)), value(2.0), api.ones((32,), f32))
    assert lazy.first().unpartition().to_host_vec().sync_on(stream).tolist() == [2] * 32
    y = api.ones((32,), f32).sync_on(stream)
    eager = saxpy(y.mut.partition((8,)), 3, api.ones((32,), f32).sync_on(stream).shared())
    eager.sync_on(stream)
    assert y.to_host_vec().sync_on(stream).tolist() == [4] * 32


def test_a_borrowed_tensor_is_free_again_when_the_operation_is(device: Device, stream: Stream) -> None:
    x = api.ones((8,), f32).sync_on(stream)
    op = scale(api.zeros((8,), f32).partition((4,)), 2.0, x)
    with pytest.raises(OwnershipError, match=r"test_000_readme\.py"):
        api.fill(x, 3.0)
    op.sync_on(stream)
    api.fill(x, 3.0).sync_on(stream)
