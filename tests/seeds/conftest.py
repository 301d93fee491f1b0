"""Devices for these tests: the CPU, and, marked, a GPU. Kernels are compiled for whichever it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_async import Device, Stream
from cuda_async.testing import wait_all_idle


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device() if request.param == "cuda" else Device.host()
    with device:
        yield device
    wait_all_idle(device)


@pytest.fixture
def stream(device: Device) -> Stream:
    return device.new_stream()
