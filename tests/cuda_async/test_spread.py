"""`spread`: branches at the same time, joined where one fails too; what it leaves behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from cuda_async import ContextError, Device, DeviceOp, ExecutionContext, Stream, spread, value, with_context
from cuda_async.foreign import ForeignStorage
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Read, allocate, words


class Keeps(DeviceOp[None]):
    """Enqueues a call, and keeps an object that the call needs until the run has completed."""

    def __init__(self, item: object, calls: list[bool]) -> None:
        super().__init__()
        self._item, self._calls = item, calls

    def execute(self, context: ExecutionContext) -> None:
        context.keep(self._item)
        kept, calls = weakref.ref(self._item), self._calls
        self._item = None
        context.stream.call(lambda: calls.append(kept() is not None))


class Item:
    """An object to keep."""


def fail(_: object) -> DeviceOp[None]:
    raise ValueError("this part")


@pytest.mark.parametrize("seed", range(20))
def test_a_failed_part_does_not_end_the_run_before_the_others(seed: int) -> None:
    device = Device.from_driver(SimDriver(seed))
    calls: list[bool] = []
    with pytest.raises(ValueError, match="this part"):
        spread([Keeps(Item(), calls), value(2).then(fail)], [device] * 2).sync_on(device.new_stream())
    gc.collect()
    wait_all_idle(device)
    assert calls == [True]


def test_branches_are_not_kept(device: Device) -> None:
    storage, stream = words(1, count=64).sync(), device.new_stream()
    branches: list[weakref.ref[Stream]] = []

    def note(context: ExecutionContext) -> DeviceOp[None]:
        branches.append(weakref.ref(context.stream))
        return value(None)

    for _ in range(50):
        ops = [Read(storage).then(lambda _: with_context(note)) for _ in range(2)]
        spread(ops, [device] * 2).sync_on(stream)
        fresh = list(spread([allocate(64), allocate(64)], [device] * 2).sync_on(stream))
        while fresh:
            Read(fresh.pop()).sync_on(stream)
    wait_all_idle(device)
    gc.collect()
    assert sum(branch() is not None for branch in branches) < 30


def test_a_lender_waits_for_the_branches(sim_device: Device, sim: SimDriver) -> None:
    lender = sim_device.new_stream()
    storage = ForeignStorage(sim_device, object(), lambda: lender.driver.raw)

    class Touch(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            storage.use(context.stream, write=False)
            context.stream.call(lambda: None)
            sim.log.clear()

    spread([Touch()], [sim_device]).sync_on(sim_device.new_stream())
    assert [line for line in sim.log if line.startswith("wait") and line.endswith(lender_name(sim, lender))]


def lender_name(sim: SimDriver, stream: Stream) -> str:
    """The stream's name in the driver's log."""
    log = list(sim.log)
    stream.call(lambda: None)
    (line,) = sim.log[len(log) :]
    return f"on {line.split()[-1]}"


def test_the_stream_is_of_the_devices_kind(sim_device: Device) -> None:
    with pytest.raises(ContextError, match="spread: operations for cpu were run on sim:0"):
        spread([value(1)], [Device.host()]).sync_on(sim_device.new_stream())
