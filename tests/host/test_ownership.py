"""Arguments are lent and tensors are held: every conflicting use is refused, and everything comes back."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, DriverError, OwnershipError, SingleStream, value
from cuda_async.collective import Communicator
from cuda_async.testing import SimDriver
from cutile import api, f32
from cutile.errors import ArgumentError
from tests.host.work import Overwrite

Tensor = api.Tensor

pytestmark = pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")


@pytest.fixture
def x(device: Device) -> Tensor:
    return api.arange(32, f32).reshape((4, 8)).sync()


@pytest.fixture
def y(device: Device) -> Tensor:
    return api.zeros((4, 8), f32).sync()


def values(tensor: Tensor) -> list[float]:
    return tensor.to_host_vec().sync().tolist()


# -- owned partitions -------------------------------------------------------------------------


def test_you_get_back_what_you_put_in(x: Tensor, y: Tensor) -> None:
    part = y.partition((2, 2))
    got_part, got_x = Overwrite(part, x).sync()
    assert got_part is part
    assert got_x is x
    assert got_part.unpartition() is y
    assert values(y) == list(range(32))


def test_a_partition_is_launched_any_number_of_times(x: Tensor, y: Tensor) -> None:
    part = y.partition((2, 2))
    for _ in range(3):
        Overwrite(part, x).sync()
    assert values(part.unpartition()) == list(range(32))


USES: list[Callable[[Any], Any]] = [
    lambda t: t.dup(),
    lambda t: t.to_numpy(),
    lambda t: t.to_host_vec(),
    lambda t: t.reshape(-1),
    lambda t: t.view(32),
    lambda t: t.slice((0, 1)),
    lambda t: t[0],
    lambda t: t.T,
    lambda t: t.partition((2, 2)),
    lambda t: t.mut,
    lambda t: t.shared(),
    lambda t: t.__kernel_input__(),
    lambda t: api.fill(t, 0),
    lambda t: api.dup(t),
]


@pytest.mark.parametrize("use", USES)
def test_a_partitioned_tensor_is_not_used(x: Tensor, use: Any) -> None:
    part = x.partition((2, 2))
    with pytest.raises(OwnershipError) as caught:
        use(x)
    message = str(caught.value)
    assert re.search(r"held by the partition made at .*test_ownership\.py:\d+\. Call unpartition\(\)", message)
    assert "tensor.mut.partition(...)" in message
    assert part.unpartition() is x
    use(x)


def test_metadata_of_a_held_tensor_can_be_read(x: Tensor) -> None:
    part = x.partition((2, 2))
    assert (x.shape, x.num_bytes, x.is_contiguous()) == ((4, 8), 128, True)
    part.unpartition()


def test_a_partition_is_given_up_once(x: Tensor) -> None:
    part = x.partition((2, 2))
    part.unpartition()
    for use in (part.unpartition, part.__kernel_output__):
        with pytest.raises(OwnershipError, match=r"given up by unpartition\(\) at .*test_ownership\.py:\d+"):
            use()


def test_dropping_the_partition_gives_the_tensor_back(x: Tensor, y: Tensor) -> None:
    Overwrite(y.partition((2, 2)), x).sync()  # the result is not kept
    gc.collect()
    assert values(y) == list(range(32))


def test_an_op_that_is_not_built_gives_everything_back(x: Tensor, y: Tensor) -> None:
    with pytest.raises(OwnershipError):
        Overwrite(y.partition((2, 2)), y)
    assert values(Overwrite(y.partition((2, 2)), x).first().unpartition().sync()) == list(range(32))


def test_an_op_that_is_discarded_or_dropped_gives_everything_back(x: Tensor, y: Tensor) -> None:
    part = y.partition((2, 2))
    op = Overwrite(part, x)
    op.discard()
    assert values(y) == [0] * 32  # usable, and so is the partition,
    Overwrite(part, x)  # dropped at once
    gc.collect()
    api.fill(x, 1).sync()
    Overwrite(part, x).sync()
    with pytest.raises(OwnershipError, match="held by the partition"):
        y.dup()  # which holds the tensor again since that launch
    assert values(part.unpartition()) == [1] * 32


def test_a_partition_that_was_given_back_yields_to_another(x: Tensor, y: Tensor) -> None:
    old = y.partition((2, 2))
    Overwrite(old, x).discard()
    new = y.partition((4, 4))
    with pytest.raises(OwnershipError, match=r"held by the partition made at .*test_ownership\.py"):
        Overwrite(old, x)
    assert Overwrite(new, x).first().unpartition().sync() is y


def test_a_tensor_can_be_reclaimed(x: Tensor) -> None:
    part = x.partition((2, 2))
    x.reclaim()
    assert values(x) == list(range(32))
    with pytest.raises(OwnershipError, match="given up"):
        part.__kernel_output__()
    handle = x.shared()
    x.reclaim()
    with pytest.raises(OwnershipError, match="was dropped at"):
        handle.dup()
    x.reclaim()  # nothing holds it: nothing happens


def test_nothing_is_reclaimed_from_an_op(x: Tensor, y: Tensor) -> None:
    op = Overwrite(y.partition((2, 2)), x)
    with pytest.raises(OwnershipError, match="writes the same memory as its argument 'part'"):
        y.reclaim()
    op.discard()
    y.reclaim()


def test_a_partition_is_not_given_up_while_an_op_has_it(x: Tensor, y: Tensor) -> None:
    part = y.partition((2, 2))
    op = Overwrite(part, x)
    with pytest.raises(OwnershipError, match="has not finished"):
        part.unpartition()
    assert op.map(lambda done: done[0].unpartition()).sync() is y  # but inside its run it is


# -- borrowed partitions ----------------------------------------------------------------------


def test_a_borrowed_tensor_is_usable_between_launches(x: Tensor, y: Tensor) -> None:
    part = y.mut.partition((2, 2))
    assert values(y) == [0] * 32
    assert Overwrite(part, x).sync()[0] is part
    assert values(y) == list(range(32))
    assert part.tensor is y


def test_a_borrowed_tensor_is_lent_while_an_op_has_it(x: Tensor, y: Tensor) -> None:
    op = Overwrite(y.mut.partition((2, 2)), x)
    line = op.site[1]
    with pytest.raises(OwnershipError, match=rf"argument 'tensor' would be read, .*test_ownership\.py:{line} writes"):
        y.to_numpy()
    with pytest.raises(OwnershipError, match=rf"'source' would be read, .*test_ownership\.py:{line} writes .*'part'"):
        Overwrite(api.zeros((4, 8)).sync().partition((2, 2)), y)
    with pytest.raises(OwnershipError, match=r"'tensor' would be written, .* reads the same memory .*'source'"):
        api.fill(x, 1)
    assert values(x) == list(range(32))  # reads share
    op.discard()
    assert values(y) == [0] * 32


def test_a_borrowed_partition_has_nothing_to_give_back(y: Tensor) -> None:
    with pytest.raises(OwnershipError, match=r"only borrows its tensor \(mut\.partition\); use the tensor itself"):
        y.mut.partition((2, 2)).unpartition()


def test_the_same_memory_is_not_read_and_written_by_one_op(y: Tensor) -> None:
    with pytest.raises(OwnershipError, match="the same operation writes the same memory"):
        Overwrite(y.mut.partition((2, 2)), y)
    with pytest.raises(OwnershipError, match="the same operation writes the same memory"):
        Overwrite(y[:2].mut.partition((2, 2)), y[1:3])
    Overwrite(y[:2].mut.partition((2, 2)), y[2:]).sync()


# -- views ------------------------------------------------------------------------------------


def test_a_view_is_written_only_on_purpose(x: Tensor, y: Tensor) -> None:
    row = y[1]
    with pytest.raises(OwnershipError, match=r"partition: a view is read-only .* say view\.mut"):
        row.partition((2,))
    with pytest.raises(OwnershipError, match="write: a view is read-only"):
        api.fill(row, 1)
    with pytest.raises(OwnershipError, match="a view owns no memory"):
        row.shared()
    Overwrite(row.mut.partition((2,)), x[3]).sync()
    np.testing.assert_array_equal(y.to_numpy().sync()[:3], [[0] * 8, list(range(24, 32)), [0] * 8])


def test_a_live_view_shows_what_is_written(x: Tensor, y: Tensor) -> None:
    view = y[0]
    Overwrite(y.partition((2, 2)), x).sync()
    assert values(view) == list(range(8))


def test_parts_that_do_not_overlap_are_independent(x: Tensor, y: Tensor) -> None:
    top = Overwrite(y[:2].mut.partition((2, 2)), x[:2])
    bottom = Overwrite(y[2:].mut.partition((2, 2)), x[2:])
    with pytest.raises(OwnershipError):
        Overwrite(y[1:3].mut.partition((2, 2)), x[1:3])
    bottom.sync()
    top.sync()
    assert values(y) == list(range(32))


# -- shared -----------------------------------------------------------------------------------


def test_owners_are_counted(x: Tensor) -> None:
    first = x.shared()
    second = first.clone()
    third = second.shared()
    assert first.owners == 3
    third.drop()
    third.drop()
    assert first.owners == 2
    with second:
        assert second.shape == (4, 8)
    assert first.owners == 1
    alias = first  # a Python reference is no owner
    assert alias.unwrap_arc() is x
    assert values(x) == list(range(32))


def test_a_collected_handle_owns_nothing(x: Tensor) -> None:
    first = x.shared()
    second = first.clone()
    del second
    gc.collect()
    assert first.owners == 1
    del first
    gc.collect()
    assert values(x) == list(range(32))


def test_shared_handles_are_read_by_many(x: Tensor, y: Tensor) -> None:
    handle = x.shared()
    other = handle.clone()
    a, b = handle.to_numpy(), other[0].to_numpy()
    assert a.sync().shape == (4, 8)
    assert b.sync().tolist() == list(range(8))
    assert Overwrite(y.partition((2, 2)), handle).sync()[1] is handle
    assert values(handle.reshape(-1)) == list(range(32))


def test_a_shared_tensor_is_not_used_itself(x: Tensor) -> None:
    handle = x.shared()
    with pytest.raises(OwnershipError, match=r"held by the shared handle made at .*test_ownership\.py:\d+"):
        x.dup()
    handle.drop()
    assert values(x) == list(range(32))


@pytest.mark.parametrize("take", ["unwrap_arc", "try_partition", "partition"])
def test_only_a_single_owner_takes_the_tensor(x: Tensor, take: str) -> None:
    handle = x.shared()
    other = handle.reshape((8, 4))
    arguments = () if take == "unwrap_arc" else ((2, 2),)
    with pytest.raises(
        OwnershipError, match=r"has 2 owners; the others are the handles made at .*test_ownership\.py:\d+"
    ):
        getattr(handle, take)(*arguments)
    other.drop()
    taken = getattr(handle, take)(*arguments)
    assert (taken if take == "unwrap_arc" else taken.unpartition()) is x
    with pytest.raises(OwnershipError, match="was dropped at"):
        handle.dup()


def test_a_bad_shape_leaves_the_owner_its_tensor(x: Tensor) -> None:
    handle = x.shared()
    with pytest.raises(ArgumentError):
        handle.try_partition((0,))
    assert handle.owners == 1


def test_a_reshaped_owner_keeps_its_shape(x: Tensor) -> None:
    other = x.shared().reshape((8, 4))
    gc.collect()
    assert other.try_partition((4, 4)).grid() == (2, 1, 1)


def test_a_shared_tensor_is_not_written(x: Tensor) -> None:
    handle = x.shared()
    for write in (lambda: handle.mut, lambda: api.fill(handle, 1), lambda: api.memcpy(handle, handle)):
        with pytest.raises(OwnershipError, match="a shared tensor is read-only"):
            write()


HANDLE_USES: list[Callable[[Any], Any]] = [
    lambda h: h.clone(),
    lambda h: h[0],
    lambda h: h.owners,
    lambda h: h.unwrap_arc(),
]


@pytest.mark.parametrize("use", HANDLE_USES)
def test_a_dropped_handle_is_not_used(x: Tensor, use: Any) -> None:
    handle = x.shared()
    handle.drop()
    with pytest.raises(OwnershipError, match=r"made at .*test_ownership\.py:\d+ was dropped at .*test_ownership\.py"):
        use(handle)


# -- in flight --------------------------------------------------------------------------------


def test_in_flight_the_arguments_are_lent(sim: SimDriver, sim_device: Device) -> None:
    x, y = api.ones((64,)).sync(), api.zeros((64,)).sync()
    future = Overwrite(y.mut.partition((8,)), x).schedule(SingleStream(sim_device))
    sim.automatic = False
    future.start()  # enqueued; nothing runs, whoever looks
    with pytest.raises(OwnershipError, match="has not finished"):
        y.dup()
    sim.automatic = True
    assert values(x) == [1] * 64
    future.sync()
    assert values(y) == [1] * 64


def test_a_failure_gives_the_arguments_back_and_spoils_the_output(sim: SimDriver, sim_device: Device) -> None:
    stream = sim_device.new_stream()
    x, y = api.ones((64,)).sync_on(stream), api.zeros((64,)).sync_on(stream)
    sim.fail("run:copy")
    with pytest.raises(DriverError):
        Overwrite(y.mut.partition((8,)), x).sync_on(stream)
    assert x.to_host_vec().sync_on(stream).tolist() == [1] * 64
    with pytest.raises(DriverError, match="injected fault"):
        y.to_host_vec().sync_on(stream)


def test_awaited_and_concurrent(x: Tensor, y: Tensor) -> None:
    async def main() -> None:
        first = Overwrite(y[:2].mut.partition((2, 2)), x[:2]).into_future()
        second = Overwrite(y[2:].mut.partition((2, 2)), x[2:]).into_future()
        await asyncio.gather(first, second)
        assert (await y.to_host_vec()).tolist() == list(range(32))

    asyncio.run(main())


def test_a_whole_step_in_one_run(x: Tensor, y: Tensor) -> None:
    step = (
        value(None)
        .then(lambda _: Overwrite(y.partition((2, 2)), x))
        .map(lambda done: done[0].unpartition())
        .then(lambda tensor: api.fill(tensor[0].mut, -1).map(lambda _: tensor))
        .then(lambda tensor: tensor.dup())
        .to_host_vec()
    )
    assert step.sync().tolist() == [-1] * 8 + list(range(8, 32))
    assert values(y)[:9] == [-1] * 8 + [8]


def ranks_of_one(call: Callable[[Communicator, Any], Any]) -> Callable[[Any], Any]:
    def write(out: Any) -> Any:
        with Communicator.of([Device.host()]) as ranks:
            return call(ranks, out).sync()

    return write


@ct.entry
def overwrite_shared(y: ct.SharedMut):
    y.partition((4,)).store(ct.constant(7.0, (4,), f32), ct.get_tile_block_id()[0])


# All functions that write their operand.
WRITERS: dict[str, Callable[[Any], Any]] = {
    "fill": lambda out: api.fill(out, 7.0).sync(),
    "memcpy": lambda out: api.memcpy(out, api.full(7.0, (8,)).sync()).sync(),
    "a kernel's SharedMut": lambda out: overwrite_shared(out, grid=2).sync(),
    "all_reduce": ranks_of_one(lambda ranks, out: ranks.all_reduce([out])),
    "reduce": ranks_of_one(lambda ranks, out: ranks.reduce([out])),
    "all_gather": ranks_of_one(lambda ranks, out: ranks.all_gather([api.full(7.0, (8,)).sync()], [out])),
    "reduce_scatter": ranks_of_one(lambda ranks, out: ranks.reduce_scatter([api.full(7.0, (8,)).sync()], [out])),
    "all_to_all": ranks_of_one(lambda ranks, out: ranks.all_to_all([api.full(7.0, (8,)).sync()], [out])),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_read_only_is_not_written(writer: str) -> None:
    """Collectives wrote views and shared tensors."""
    with Device.host():
        tensor, zeros = api.zeros((16,)).sync(), [0.0] * 16
        with pytest.raises(OwnershipError, match=r"write: a view is read-only .*say view\.mut"):
            WRITERS[writer](tensor[8:])
        with tensor.shared() as owner, pytest.raises(OwnershipError, match="write: a shared tensor is read-only"):
            WRITERS[writer](owner)
        lent = np.zeros(8, np.float32)
        lent.flags.writeable = False
        with pytest.raises(OwnershipError, match="belongs to another library, which lent it to be read"):
            WRITERS[writer](api.from_dlpack(lent))
        part = tensor.partition((8,))
        with pytest.raises(OwnershipError, match="held by the partition"):
            WRITERS[writer](tensor)
        part.unpartition()
        assert tensor.numpy().tolist() == zeros
        WRITERS[writer](tensor[8:].mut)  # the remedy
        seven = 0.0 if "reduce" in writer and "scatter" not in writer else 7.0  # reductions of one rank change nothing
        assert tensor.numpy().tolist() == [*zeros[:8], *[seven] * 8]


def test_a_message_is_received_in_a_part_of_a_tensor() -> None:
    async def program(ranks: Communicator, part: Any) -> None:
        await asyncio.gather(ranks[0].send(api.full(7.0, (4,)).sync(), to=1), ranks[1].recv(part, source=0))

    with Device.host(), Communicator.of([Device.host()] * 2) as ranks:
        tensor = api.zeros((8,)).sync()
        with pytest.raises(OwnershipError, match="write: a view is read-only"):
            ranks[1].recv(tensor[4:], source=0)
        with pytest.raises(OwnershipError, match="write: a view is read-only"):
            ranks[1].broadcast(tensor[4:], root=0)
        asyncio.run(program(ranks, tensor[4:].mut))
        assert tensor.numpy().tolist() == [0.0] * 4 + [7.0] * 4
