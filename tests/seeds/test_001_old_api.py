"""The README of cuda-async at its first release, with its names: apply, arc, unwrap, and_then, zip of tuples."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, FutureState, OwnershipError, SingleStream, Stream, global_policy
from cuda_async.compat import DeviceOperation, device_operation, unwrap_partition, zip
from cutile import api, f32
from cutile.host import compat
from tests.seeds.kernels import gemm, relu, saxpy_scalar_first


def zipped(size: int = 32) -> DeviceOperation[Any]:
    """(a, x, y), as the document's examples begin."""
    x = api.ones((size,), f32)
    y = api.ones((size,), f32)
    return zip((2.0, x.arc(), y.partition((8,))))


def test_apply_a_kernel_to_zipped_arguments(device: Device) -> None:
    async def main() -> None:
        a, x, y = await zipped().apply(saxpy_scalar_first)
        assert a == 2.0
        assert (await y.unwrap().to_host_vec()).tolist() == [3] * 32
        assert x.owners == 1

    asyncio.run(main())


def test_unzip_and_await_one_element_only(device: Device) -> None:
    async def main() -> None:
        _, _, y = zipped().apply(saxpy_scalar_first).unzip(3)
        tensor: Any = await y.unpartition()
        assert (await tensor.to_host_vec()).tolist() == [3] * 32

    asyncio.run(main())


def test_a_result_shared_by_several_operations(device: Device) -> None:
    async def main() -> None:
        _, _, y = zipped().apply(saxpy_scalar_first).unzip(3)
        arc: Any = await y.unpartition().arc()
        handles = [arc, arc.clone(), arc.clone()]
        outs = await asyncio.gather(
            *(saxpy_scalar_first(2.0, each, api.zeros((32,), f32).partition((8,))).into_future() for each in handles)
        )
        for out in outs:
            assert (await out.y.unwrap().to_host_vec()).tolist() == [6] * 32
        with pytest.raises(OwnershipError, match="3 owners"):
            arc.unwrap()
        for each in handles[1:]:
            each.drop()
        assert isinstance(arc.unwrap(), api.Tensor)

    asyncio.run(main())


def test_what_can_be_made_of_what(device: Device, stream: Stream) -> None:
    tensor = api.arange(16, f32).sync_on(stream)
    assert tensor.partition((4,)).unwrap() is tensor
    arc = tensor.partition((4,)).arc()
    assert arc.unwrap() is tensor
    assert tensor.unwrap() is tensor
    arc = tensor.arc()
    assert arc.partition((4,)).unwrap() is tensor  # one owner: it may be partitioned
    lazily = api.ones((16,), f32).partition((4,)).unwrap().arc().unwrap()
    assert lazily.to_host_vec().sync_on(stream).tolist() == [1] * 16
    assert unwrap_partition(api.ones((4,), f32).partition((2,))).sync_on(stream).shape == (4,)
    assert compat.copy(tensor).to_host_vec().sync_on(stream).tolist() == list(range(16))
    assert tensor.copy().to_host_vec().sync_on(stream).tolist() == list(range(16))


def test_schedule_on_a_device_defers_execution_until_awaited(device: Device) -> None:
    ran: list[int] = []

    async def main() -> None:
        z = zipped().inspect(lambda _: ran.append(1)).apply(saxpy_scalar_first)
        future = z.schedule(global_policy(device))
        assert future.state is FutureState.IDLE
        assert ran == []
        out = await future
        assert ran == [1]
        assert (await out[2].unwrap().to_host_vec()).tolist() == [3] * 32

    asyncio.run(main())


def test_one_future_instead_of_three_gives_the_same(device: Device) -> None:
    async def step_by_step() -> list[float]:
        x = (await api.ones((32,), f32)).arc()
        y = await api.ones((32,), f32)
        out = await saxpy_scalar_first(2.0, x, y.partition((8,)))
        return (await out.y.unwrap().to_host_vec()).tolist()

    async def at_once() -> list[float]:
        y = zipped().apply(saxpy_scalar_first).unzip(3)[2]
        return (await y.unwrap().to_host_vec()).tolist()

    assert asyncio.run(step_by_step()) == asyncio.run(at_once()) == [3] * 32


def test_a_composition_stays_on_one_stream(device: Device) -> None:
    seen: list[Stream] = []

    def note(context: Any, result: Any) -> DeviceOperation[Any]:
        seen.append(context.stream)
        return device_operation(result)

    policy = SingleStream(device)
    op = zipped().and_then_with_context(note).apply(saxpy_scalar_first).and_then_with_context(note)
    op.schedule(policy).sync()
    assert seen == [policy.stream, policy.stream]


def test_join_several_operations(device: Device) -> None:
    async def main() -> list[list[float]]:
        futures = [zipped().apply(saxpy_scalar_first).into_future() for _ in range(3)]
        outs = await asyncio.gather(*futures)
        return [(await out[2].unwrap().to_host_vec()).tolist() for out in outs]

    assert asyncio.run(main()) == [[3] * 32] * 3


def test_a_matrix_in_sub_matrices(device: Device) -> None:
    async def main() -> None:
        x = api.ones((256,), f32).reshape((16, 16)).arc()
        y = api.ones((256,), f32).reshape((16, 16)).partition((4, 4))
        out = await zip((3.0, x, y)).apply(saxpy_scalar_first)
        assert out.y.grid() == (4, 4, 1)
        assert (await out.y.unwrap().to_numpy() == np.full((16, 16), 4)).all()

    asyncio.run(main())


def test_a_data_parallel_mlp(device: Device) -> None:
    dim, block = 16, 4
    policies = [SingleStream(device), SingleStream(device)]

    async def main() -> None:
        weights = (await api.ones((dim * dim,), f32).reshape((dim, dim))).arc()

        def forward(w: Any) -> DeviceOperation[Any]:
            data = api.ones((dim * dim,), f32).reshape((dim, dim))
            hidden = gemm(api.zeros((dim, dim), f32).partition((block, block)), data, w).first().unpartition()
            out = hidden.and_then(
                lambda h: gemm(api.zeros((dim, dim), f32).partition((block, block)), h, w).first().unpartition()
            )
            return out.partition((block, block)).and_then(relu).first().unpartition()

        tasks = [asyncio.create_task(forward(weights).schedule(policy)) for policy in policies for _ in range(2)]
        for out in await asyncio.gather(*tasks):
            assert (await out.to_numpy() == dim * dim).all()

    asyncio.run(main())


def test_random_tensors_of_that_time(device: Device, stream: Stream) -> None:
    first, again = (compat.rand_f32((64,), 7).to_host_vec().sync_on(stream) for _ in range(2))
    assert (first == again).all()
    assert compat.rand_f64((4,), 1).sync_on(stream).dtype.name == "f64"
    assert compat.randn_f32(0.0, 1.0, (4,), 1).sync_on(stream).dtype.name == "f32"
    assert compat.randn_f64(0.0, 1.0, (4,), 1).sync_on(stream).dtype.name == "f64"
