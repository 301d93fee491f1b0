"""The kinds of device that tests of the runtime run on: the simulator, the CPU and, marked, GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_async import Device, device_count
from cuda_async.testing import SimDriver

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
EVERY = ("sim", "host", GPU)
SIMULATED = ("sim", GPU)
"""Of devices that have memory of their own."""


def of_kind(kind: str, seed: int = 1) -> Device:
    """A device of a kind; of simulated ones, that with this seed."""
    if kind == "cuda":
        return Device()
    return Device.host() if kind == "host" else Device.from_driver(SimDriver(seed=seed))


def two_of_kind(kind: str) -> Iterator[tuple[Device, Device]]:
    """Two of them, between which memory is copied; skips a test where there is one GPU."""
    if kind == "cuda":
        if device_count() < 2:
            pytest.skip(f"needs two GPUs, found {device_count()}")
        yield Device(0), Device(1)
        return
    first = SimDriver(seed=5)
    yield Device.from_driver(first), Device.from_driver(SimDriver(ordinal=1, beside=first))
