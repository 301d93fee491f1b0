"""Interpreted launches over memory that the CPU does not reach: it is there before the kernel's function runs.

A simulated device is taken for one whose memory is out of reach, as a GPU's is, and what it moves arrives late.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutile as ct
from cuda_async import Device, ExecutionContext, LaunchError, Storage, download
from cuda_async.staging import CHUNK_BYTES
from cuda_async.testing import CheckedDriver, SimDriver
from cutile import api, i32
from cutile.launch import interpreted

ROOT = Path(__file__).parents[2]

counter = ct.Global(i32, 5)


@ct.entry
def add(y: ct.Mut, x: ct.Tensor) -> None:
    y.store(ct.load_tile_like(x, y) + 1)


@ct.entry
def count(y: ct.Mut) -> None:
    ticket, _ = counter.atomic_add(1)
    y.store(ct.broadcast(ticket, y.shape))


@ct.entry(unsafe=True)
def from_address(y: ct.Mut, x: ct.Ptr[ct.i32]) -> None:
    y.store(x.broadcast(y.shape).load())


@pytest.fixture(params=range(3))
def driver(request: pytest.FixtureRequest) -> Iterator[CheckedDriver]:
    driver = CheckedDriver(SimDriver(request.param))
    with Device.from_driver(driver):
        yield driver
    assert driver.races == []


def test_operands_are_there_when_the_kernel_runs(driver: CheckedDriver) -> None:
    y = api.zeros((8,), i32).sync()
    for _ in range(3):
        y = add(y.partition((4,)), api.arange(8, i32).sync()).interpret().first().unpartition().sync()
        assert y.to_numpy().sync().tolist() == list(range(1, 9))
        x, y = y, api.zeros((8,), i32).sync()
        y = add(y.partition((4,)), x).interpret().first().unpartition().sync()
        assert y.to_numpy().sync().tolist() == list(range(2, 10))


def test_what_a_launch_wrote_is_known_to_the_next(driver: CheckedDriver) -> None:
    x, y = api.zeros((8,), i32).sync(), api.empty((8,), i32).sync()
    add(y.mut.partition_prefix((4,)), x).grid(1).interpret().sync()
    assert (y[:4].dup().sync().numpy() == 1).all()
    with pytest.raises(ct.UninitialisedReadError, match=r"'x' is read at \(4,\), which nothing has written"):
        add(x.mut.partition((4,)), y).interpret().sync()


def test_copies_that_come_at_the_end_of_the_run_are_found_out(
    driver: CheckedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(
        context: ExecutionContext, storage: Storage, destination: int, nbytes: int, *, offset: int, keep: object
    ) -> None:
        ctypes.memset(destination, 0xDD, nbytes)
        download(context, storage, destination, nbytes, offset=offset, keep=keep)

    monkeypatch.setattr(interpreted, "fetch", late)
    y = add(api.zeros((8,), i32).partition((4,)), api.arange(8, i32).sync()).interpret(check=False)
    assert y.first().unpartition().sync().to_numpy().sync().tolist() != list(range(1, 9))


def test_so_are_large_ones(driver: CheckedDriver) -> None:
    count = CHUNK_BYTES // 4 + 5
    x, y = api.arange(count, i32).sync(), api.zeros((count,), i32).sync()
    add(y.mut.partition((count,)), x).interpret(check=False).sync()
    result = y.to_numpy().sync()
    assert (int(result[0]), int(result[-1]), int(result.sum())) == (1, count, count * (count + 1) // 2)


def test_so_are_variables_of_the_device(driver: CheckedDriver) -> None:
    for first in (5, 7):
        y = count(api.zeros((2,), i32).partition((1,))).interpret().first().unpartition().sync()
        assert y.to_numpy().sync().tolist() == [first, first + 1]
    assert int(counter.read().sync()) == 9


def test_addresses_are_out_of_reach(driver: CheckedDriver) -> None:
    x = api.arange(8, i32).sync()
    with pytest.raises(LaunchError, match=r"does not reach what addresses of sim:0 lead to: .*Device\.host\(\)"):
        from_address(api.zeros((4,), i32).partition((4,)), x.device_pointer()).interpret().sync()
    assert x.to_numpy().sync().tolist() == list(range(8))


FRESH = """
from cuda_async import Device
from cutile import api, i32
from tests.interpreter.test_devices import add, count, counter
with Device(0):
    x = api.arange(8, i32).sync()
    y = add(api.zeros((8,), i32).partition((4,)), x).interpret().first().unpartition().sync()
    print(y.to_numpy().sync().tolist())
    y = count(api.zeros((2,), i32).partition((1,))).interpret().first().unpartition().sync()
    print(y.to_numpy().sync().tolist(), int(counter.read().sync()))
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_the_first_interpreted_launch_of_a_process_on_a_gpu() -> None:
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FRESH], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.stdout.splitlines() == ["[1, 2, 3, 4, 5, 6, 7, 8]", "[5, 6] 7"], done.stdout + done.stderr
