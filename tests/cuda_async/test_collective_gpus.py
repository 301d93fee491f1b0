"""Collectives on two GPUs, with NCCL: one process, and a process for each. Some also on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuda_async import Device, device_count, zip
from cuda_async.collective import Buffer, CollectiveError, Communicator
from tests.cuda_async.work import Affine

ROOT = Path(__file__).parents[2]

ONE_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("nccl") is None, reason="needs nccl4py"),
)
TWO_GPUS = (*ONE_GPU, pytest.mark.skipif(device_count() < 2, reason="needs two GPUs"))
two_gpus = pytest.mark.parametrize("cpu", [pytest.param("", marks=TWO_GPUS, id="gpus")])
either = pytest.mark.parametrize("cpu", [pytest.param("", marks=TWO_GPUS, id="gpus"), pytest.param("1", id="cpu")])
"""Also on the CPU, where the program shows that it is right before it has two GPUs."""

Array = np.ndarray[Any, np.dtype[Any]]


def put(arrays: list[Array]) -> list[Buffer]:
    return [Buffer.put(array).sync_on(Device(i).new_stream()) for i, array in enumerate(arrays)]


def get(buffers: list[Buffer]) -> list[Array]:
    return [buffer.get().sync_on(Device(i).new_stream()) for i, buffer in enumerate(buffers)]


def apart(program: str, *arguments: object) -> None:
    """Run a function of this file in a process of its own: a collective that hangs fails, and is over."""
    call = f"from {__name__} import *; {program}(*{arguments!r})"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("joins", [pytest.param(joins, marks=ONE_GPU) for joins in (False, True)])
def test_one_gpu_is_a_world_of_its_own(joins: bool) -> None:
    apart("world_of_one", joins)


def world_of_one(joins: bool) -> None:
    """All that one GPU can show of NCCL: it is found, its calls are ordered, recorded and ended."""
    device = Device(0)
    stream = device.new_stream()
    numbers = np.arange(1000, dtype=np.float32)
    one = Communicator.join(0, 1, Communicator.unique_id(), device=device) if joins else Communicator.of([device])
    with one as rank:
        (x,) = put([numbers])
        into, part, there = (put([np.zeros(1000, np.float32)])[0] for _ in range(3))
        graph = rank.all_reduce(x, op="avg").graph_on(stream)
        graph.launch().sync_on(stream)
        graph.close()
        zip(rank.reduce(x).then(rank.broadcast), rank.barrier()).sync_on(stream)
        zip(rank.all_gather(x, into), rank.reduce_scatter(x, part), rank.all_to_all(x, there)).sync_on(stream)
        for buffer in (x, into, part, there):
            np.testing.assert_array_equal(buffer.get().sync_on(device.new_stream()), numbers)
        Affine(x.storage, 2, 1).sync_on(device.new_stream())
        rank.all_reduce(x).sync_on(device.new_stream())
        bound = rank.all_reduce(x).bind(stream)
        for _ in range(200):
            bound()
        stream.synchronize()
    with pytest.raises(CollectiveError, match="closed"):
        rank.barrier().sync_on(stream)


DTYPES = ("float32", "float16", "bfloat16", "int8", "uint64", "int16")


@pytest.mark.parametrize("count", [pytest.param(count, marks=TWO_GPUS) for count in (1, 7, 1 << 20)])
def test_every_collective_is_what_numpy_says(count: int) -> None:
    apart("every_collective", count)


def every_collective(count: int) -> None:
    with Communicator.of([Device(0), Device(1)]) as ranks:
        for name in DTYPES:
            collectives_of(ranks, count, np.dtype(getattr(ml_dtypes, name, name)))


def collectives_of(ranks: Communicator, count: int, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(count)
    parts = [rng.integers(0, 5, 2 * count).astype(dtype) for _ in range(2)]
    whole = (parts[0].astype(np.float64) + parts[1].astype(np.float64)).astype(dtype)
    stream = Device(0).new_stream()
    if dtype != np.int16:  # which NCCL moves, and does not add up
        x, y, part = put(parts), put(parts), put([np.zeros(count, dtype)] * 2)
        zip(ranks.all_reduce(x), ranks.reduce(y, root=1), ranks.reduce_scatter(put(parts), part)).sync_on(stream)
        for got in get(x):
            np.testing.assert_array_equal(got, whole)
        np.testing.assert_array_equal(get(y)[1], whole)
        np.testing.assert_array_equal(np.concatenate(get(part)), whole)
    x, into, there = put(parts), put([np.zeros(4 * count, dtype)] * 2), put([np.zeros(2 * count, dtype)] * 2)
    zip(ranks.all_gather(x, into), ranks.all_to_all(x, there), ranks.barrier()).sync_on(stream)
    for got in get(into):
        np.testing.assert_array_equal(got, np.concatenate(parts))
    for i, got in enumerate(get(there)):
        np.testing.assert_array_equal(got, np.concatenate([p.reshape(2, -1)[i] for p in parts]))
    ranks.broadcast(x, root=1).sync_on(stream)
    for got in get(x):
        np.testing.assert_array_equal(got, parts[1])


@pytest.mark.parametrize("max_ctas", [pytest.param(max_ctas, marks=TWO_GPUS) for max_ctas in (None, 2)])
def test_calls_among_kernels_on_both_gpus(max_ctas: int | None) -> None:
    apart("among_kernels", max_ctas)


def among_kernels(max_ctas: int | None) -> None:
    """Bound ones, from a stream of either GPU, with and without a limit of thread blocks."""
    with Communicator.of([Device(0), Device(1)], max_ctas=max_ctas) as ranks:
        for number in range(2):
            x = put([np.full(1 << 20, i + 1, np.uint32) for i in range(2)])
            stream = Device(number).new_stream()
            bound = ranks.all_reduce(x).bind(stream)
            for _ in range(10):
                bound()
            stream.synchronize()
            for i, buffer in enumerate(x):
                Affine(buffer.storage, 2, 1).sync_on(Device(i).new_stream())
            ranks.all_reduce(x).sync_on(stream)
            for got in get(x):
                np.testing.assert_array_equal(got, np.full(1 << 20, 2 * (2 * 3 * 2**9 + 1)))


PROGRAM = """
import os, sys, time
import numpy as np
from cuda_async import Device
from cuda_async.collective import Buffer, CollectiveError, Communicator

number = int(os.environ["RANK"])
device = Device.host() if os.environ.get("CPU") else Device(number)
rank = Communicator.join(device=device, limit_s=float(os.environ.get("LIMIT", 30)),
                         max_ctas=int(os.environ["CTAS"]) if "CTAS" in os.environ else None)
stream = device.new_stream()
for count in (5, 1 << 20):
    x = Buffer.put(np.arange(count, dtype=np.float32) * (number + 1)).sync_on(stream)
    rank.all_reduce(x).sync_on(stream)
    assert (x.get().sync_on(stream) == np.arange(count, dtype=np.float32) * 3).all()
if number == 0:
    rank.send(x, to=1).sync_on(stream)
else:
    rank.recv(x, source=0).sync_on(stream)
graph = rank.all_reduce(x).graph_on(stream)
graph.launch().sync_on(stream)
graph.close()
assert (x.get().sync_on(stream) == np.arange(count, dtype=np.float32) * 6).all()
what = os.environ.get("WHAT")
if what == "dies" and number == 1:
    os._exit(9)
if what == "late" and number == 1:
    time.sleep(14)
begin = time.monotonic()
try:
    if what == "differs":
        rank.all_reduce(x, op="sum" if number else "max").sync_on(stream)
    else:
        rank.all_reduce(x).sync_on(stream)
    print("passed")
except CollectiveError as error:
    print(f"{time.monotonic() - begin:.1f} s: {error}")
sys.stdout.flush()
os._exit(0)   # a GPU whose collective was given up is not asked again
"""


def run(**environment: str) -> tuple[list[str], float]:
    """What each rank printed, and the seconds that both took."""
    name = Communicator.unique_id()
    begin = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "RANK": str(i), "WORLD_SIZE": "2", "CUDA_ASYNC_UNIQUE_ID": name, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        texts = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return texts, time.monotonic() - begin


@two_gpus
def test_processes_add_up(cpu: str) -> None:
    texts, _ = run(CPU=cpu, CTAS="4")
    assert texts == ["passed\n"] * 2


@either
def test_a_process_that_dies_ends_the_others_call_with_an_error(cpu: str) -> None:
    texts, seconds = run(WHAT="dies", CPU=cpu)
    assert "rank 1 is gone (its process ended)" in texts[0]
    assert seconds < (15 if cpu else 40), "the others are told at once, not when their limit is over"


@two_gpus
def test_a_rank_that_is_late_is_named(cpu: str) -> None:
    texts, _ = run(WHAT="late", LIMIT="6", CPU=cpu)
    assert "waited 6 s: rank 1 has not come" in texts[0]


@either
def test_ranks_that_call_different_things_are_named(cpu: str) -> None:
    texts, _ = run(WHAT="differs", CPU=cpu)
    for text in texts:
        assert "called different things" in text
        assert "all_reduce(float32[1048576], max)" in text
