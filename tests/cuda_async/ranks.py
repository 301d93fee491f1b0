"""Ranks of every engine, for tests: of the CPU, of simulated devices, joined ones, and those of GPUs by a stand-in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np

from cuda_async import Device, DeviceOp, SingleStream
from cuda_async.collective import Buffer, Communicator, Network
from cuda_async.collective.communicator import _Numbers  # pyright: ignore[reportPrivateUsage]
from cuda_async.collective.nccl import Nccl
from cuda_async.collective.nccl_engine import NcclEngine
from cuda_async.testing import CheckedDriver, Ledger, SimDriver
from tests.cuda_async.fake_nccl import FakeNccl

WORLD = 3
Array = np.ndarray[Any, np.dtype[Any]]


class Ranks:
    """The ranks of one engine, each with a device of its own or a share of the CPU."""

    def __init__(self, ranks: Sequence[Communicator], together: Communicator | None = None) -> None:
        self.ranks = list(ranks)
        self.together = together
        self.devices = [rank.devices[0] for rank in ranks]

    def run(self, *ops: DeviceOp[Any]) -> list[Any]:
        """Run one operation for each rank at once, on new streams; what each yields, or raises."""

        async def main() -> list[Any]:
            waits = [op.schedule(SingleStream(device)) for op, device in zip(ops, self.devices, strict=True)]
            return await asyncio.gather(*waits, return_exceptions=True)

        return asyncio.run(main())

    def put(self, arrays: Sequence[Array]) -> list[Buffer]:
        return [
            Buffer.put(array).sync_on(device.new_stream()) for array, device in zip(arrays, self.devices, strict=True)
        ]

    def get(self, buffers: Sequence[Buffer]) -> list[Array]:
        return [buffer.get().sync_on(device.new_stream()) for buffer, device in zip(buffers, self.devices, strict=True)]


def outcome(function: Callable[[], object]) -> Exception | None:
    """The error that a function raises."""
    try:
        function()
    except Exception as error:
        return error
    return None


def on_host(limit_s: float | None = 20.0, ledger: Ledger | None = None) -> Ranks:
    device = Device.host() if ledger is None else Device.from_driver(CheckedDriver(Device.host().driver, ledger))
    together = Communicator.of([device] * WORLD, limit_s=limit_s)
    return Ranks([together[rank] for rank in range(WORLD)], together)


def on_sim(
    limit_s: float | None = 20.0, ledger: Ledger | None = None, seed: int = 0, network: Network | None = None
) -> Ranks:
    first = SimDriver(seed)
    drivers = [first, *(SimDriver(ordinal=rank, beside=first) for rank in range(1, WORLD))]
    devices = [Device.from_driver(driver if ledger is None else CheckedDriver(driver, ledger)) for driver in drivers]
    together = Communicator.of(devices, limit_s=limit_s, network=network)
    return Ranks([together[rank] for rank in range(WORLD)], together)


def joined(limit_s: float | None = 20.0, name: str | None = None) -> Ranks:
    name = name or Communicator.unique_id()
    ranks: dict[int, Communicator] = {}

    def join(rank: int) -> None:
        ranks[rank] = Communicator.join(rank, WORLD, name, limit_s=limit_s)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Ranks([ranks[rank] for rank in range(WORLD)])


def across(limit_s: float | None = 20.0) -> Ranks:
    """Ranks as those of several machines: no folder is seen by all, so data pass through sockets."""
    with mock.patch("cuda_async.collective.hub.new_folder", return_value="/a/folder/of/another/machine"):
        return joined(limit_s, Communicator.unique_id("127.0.0.1"))


def on_gpus(limit_s: float | None = 20.0, fake: FakeNccl | None = None) -> Ranks:
    """Ranks as those of GPUs in a process each, with what stands for NCCL."""
    nccl, name = Nccl(fake or FakeNccl(), handle=lambda stream: stream), Communicator.unique_id()

    def join(rank: int) -> Communicator:
        device = Device.host()
        engine = NcclEngine.join(rank, WORLD, name, device, limit_s, nccl)
        return Communicator(engine, (rank,), (device,), _Numbers())

    with ThreadPoolExecutor(WORLD) as pool:
        return Ranks(list(pool.map(join, range(WORLD))))


ENGINES: dict[str, Callable[..., Ranks]] = {
    "host": on_host,
    "sim": on_sim,
    "joined": joined,
    "across": across,
    "gpus": on_gpus,
}
