"""Devices for these tests: each test that takes `device` runs on the simulator, the CPU and, marked, a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_async import Device, Stream
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.faults import tried
from tests.support.kinds import EVERY, of_kind


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in tried.lines():
        terminalreporter.write_line(line)


@pytest.fixture(params=EVERY)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = of_kind(request.param, seed=1)
    with device:
        yield device
    wait_all_idle(device)


@pytest.fixture
def stream(device: Device) -> Stream:
    return device.new_stream()


@pytest.fixture
def sim() -> SimDriver:
    return SimDriver(seed=1)


@pytest.fixture
def sim_device(sim: SimDriver) -> Iterator[Device]:
    device = Device.from_driver(sim)
    with device:
        yield device
