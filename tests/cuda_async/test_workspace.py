"""Workspaces: zeros at first, one for all launches of a stream, one of its own for a graph."""

from __future__ import annotations

import gc

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, ExecutionContext, OutOfMemoryError, Storage, Stream, Use
from cuda_async.graph import Scope
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Read, launch_affine, words


class Exchange(DeviceOp[int]):
    """Copies the workspace out, and adds `addend` to it. Yields the workspace's address."""

    has_effects = True
    graph_node = True

    def __init__(self, out: Storage, addend: int) -> None:
        super().__init__()
        self._out, self._addend = out, addend
        self.lend(Use("out", out, write=True))

    def execute(self, context: ExecutionContext) -> int:
        stream, out = context.stream, self._out
        out.use(stream, write=True)
        workspace = stream.workspace(out.nbytes)
        stream.copy(out.address, workspace.address, out.nbytes)
        launch_affine(stream, workspace.address, out.nbytes // 4, 1, self._addend)
        return workspace.address


def exchange(out: Storage, addend: int, stream: Stream) -> int:
    """Run an `Exchange`, and return the word that it copied out (all are equal)."""
    Exchange(out, addend).sync_on(stream)
    (number,) = set(Read(out).sync_on(stream).tolist())
    return number


def test_launches_of_a_stream_share_one_that_begins_as_zeros(device: Device, stream: Stream) -> None:
    out = words(9, count=40).sync()
    assert [exchange(out, addend, stream) for addend in (5, 6, 0, 0)] == [0, 5, 11, 11]
    assert exchange(out, 0, device.new_stream()) == 0  # another stream, another workspace


def test_a_larger_one_takes_its_place_and_begins_as_zeros(stream: Stream) -> None:
    small, large = words(9, count=16).sync(), words(9, count=4096).sync()
    held = stream.workspace(64)
    assert exchange(small, 3, stream) == 0
    assert stream.workspace(16) is held
    assert exchange(large, 4, stream) == 0
    assert exchange(small, 0, stream) == 4
    grown = stream.workspace(64)
    assert grown is not held
    assert grown.address != held.address  # whoever holds the old one goes on using it


def test_it_is_freed_when_nobody_holds_it(sim: SimDriver, sim_device: Device) -> None:
    stream = sim_device.new_stream()
    used = sim_device.memory_info().used
    held = stream.workspace(1000)
    assert sim_device.memory_info().used >= used + 1000
    del stream
    gc.collect()
    wait_all_idle(sim_device)
    assert sim_device.memory_info().used >= used + 1000
    del held
    gc.collect()
    sim_device.collect()
    wait_all_idle(sim_device)
    sim.run_until_idle()
    assert sim_device.memory_info().used == used


def test_a_graph_has_its_own(device: Device, stream: Stream) -> None:
    out = words(9, count=64).sync_on(stream)
    assert exchange(out, 100, stream) == 0
    with CudaGraph.capture(stream, Exchange(out, 7)) as graph:
        for turn in range(3):
            graph.launch().sync_on((stream, device.new_stream(), stream)[turn])
            assert set(Read(out).sync().tolist()) == {7 * turn}
    assert exchange(out, 0, stream) == 100


def test_a_scope_may_use_one_though_it_may_not_allocate(stream: Stream) -> None:
    out = words(9, count=64).sync_on(stream)
    addresses: list[int] = []

    def record(scope: Scope) -> None:
        addresses.append(scope.record(Exchange(out, 1)))
        addresses.append(scope.record(Exchange(out, 1)))

    with CudaGraph.scope(stream, record) as graph:
        for turn in range(2):
            graph.launch().sync_on(stream)
            assert set(Read(out).sync_on(stream).tolist()) == {2 * turn + 1}
    assert len(set(addresses)) == 1
    assert stream.workspace(256).address not in addresses


def test_one_that_does_not_fit_fails_the_launch_alone(sim: SimDriver, sim_device: Device) -> None:
    stream = sim_device.new_stream()
    out = words(9, count=64).sync_on(stream)
    sim.fail("allocate")
    with pytest.raises(OutOfMemoryError):
        Exchange(out, 1).sync_on(stream)
    assert exchange(out, 1, stream) == 0
