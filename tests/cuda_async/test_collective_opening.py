"""Communicators of GPUs of which one rank fails on its way in: the other ranks end, and nothing is left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cuda_async import Device
from cuda_async.collective import Communicator, nccl_engine, processes
from cuda_async.collective.nccl import Nccl
from cuda_async.collective.nccl_engine import NcclEngine
from cuda_async.testing import SimDriver
from tests.cuda_async.fake_nccl import FakeNccl, NCCLError
from tests.cuda_async.ranks import WORLD, outcome

STAGES = {
    "the id": ("get_unique_id", 0),
    "the communicator": ("comm_init_rank", 1),
    "a byte": ("", 1),
    "the first call": ("all_reduce", 1),
}
"""By what a rank cannot make: the function of NCCL that fails, and the rank."""


class _Unconnected:
    """A driver that reaches no other GPU's memory."""

    def __init__(self, device: Device) -> None:
        pass

    def connect(self, other: object) -> None:
        pass


def fail_at(stage: str, fake: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a rank fail on its way into a communicator. Returns the rank."""
    function, rank = STAGES[stage]
    if function:
        fake.fails[function, rank] = NCCLError("on purpose")
        return rank
    devices: list[Device] = []

    def byte_on(device: Device) -> Any:
        devices.append(device)
        if len(devices) == rank + 1:
            raise MemoryError("on purpose")
        return make(device)

    make = nccl_engine._byte_on  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(nccl_engine, "_byte_on", byte_on)
    return rank


@pytest.mark.parametrize("stage", STAGES)
def test_no_rank_waits_for_one_that_cannot_join(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit. The rank that fails leaves neither a connection nor a communicator behind."""
    fake, name = FakeNccl(), Communicator.unique_id()
    fail_at(stage, fake, monkeypatch)
    abort, never = fake.comm_abort, threading.Event()

    def abort_slowly(comm: Any) -> None:
        never.wait(0.05)  # longer than a rank takes to see that another one has failed, and to close
        abort(comm)

    monkeypatch.setattr(fake, "comm_abort", abort_slowly)
    before = set(processes._engines)  # pyright: ignore[reportPrivateUsage]
    errors: dict[int, Exception] = {}

    def join(rank: int) -> None:
        try:
            NcclEngine.join(rank, WORLD, name, Device.host(), None, Nccl(fake, handle=lambda stream: stream))
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(errors) == list(range(WORLD))
    assert all("on purpose" in str(error) for error in errors.values())
    assert any("failed (" in str(error) for error in errors.values())
    assert all(engine._closed for engine in set(processes._engines) - before)  # pyright: ignore
    assert len(fake.aborted) == (0 if stage in ("the id", "the communicator") else WORLD)


@pytest.mark.parametrize("stage", ["the communicator", "a byte", "the first call"])
def test_gpus_of_one_process_of_which_one_fails(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's call for the others waits for that rank: its error is raised all the same."""
    fake = FakeNccl()
    rank = fail_at(stage, fake, monkeypatch)
    monkeypatch.setattr(nccl_engine, "_inner", _Unconnected)
    devices = [Device.from_driver(SimDriver(ordinal=i)) for i in range(WORLD)]
    errors: list[Exception | None] = []

    def make() -> None:
        nccl = Nccl(fake, handle=lambda stream: stream)
        errors.append(outcome(lambda: NcclEngine.of(devices, nccl, max_ctas=8)))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(20)
    (error,) = errors
    assert "on purpose" in str(error)
    assert rank == 1
    assert sorted(fake.aborted) == ([] if stage == "the communicator" else list(range(WORLD)))
