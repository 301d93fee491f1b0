"""The host's work for a launch does not grow with what else is alive: counted in calls of functions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from cuda_async import CudaGraph, Device, value
from cuda_async import zip as zip_ops
from cutile import KernelOp, Tensor, api, f32
from kernels.saxpy import saxpy

EXTENT = 64
FEW, MANY = 10, 200
"""Of what else is alive. With MANY of which each costs a call, a launch would have about twice its calls."""


def own() -> Tensor:
    return api.zeros((EXTENT,), f32).sync()


def imported() -> Tensor:
    return api.from_dlpack(np.zeros(EXTENT, np.float32))


def launch(y: Tensor, x: Tensor) -> KernelOp:
    return saxpy(y.mut.partition((EXTENT,)), 2.0, x)


def graph(launches: int, make: Callable[[], Tensor]) -> tuple[Any, ...]:
    tensors = [(make(), make()) for _ in range(launches)]
    with CudaGraph.scope(Device.host().new_stream()) as scope:
        for y, x in tensors:
            scope.record(launch(y, x))
    return scope.graph, tensors


def calls(function: Callable[[], object]) -> int:
    """How many functions a call of `function` calls, the least of three: a collection may come amid one."""
    counts: list[int] = []
    for _ in range(3):
        count = 0

        def counting(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counting)
        try:
            function()
        finally:
            sys.setprofile(None)
        counts.append(count)
    return min(counts)


ALIVE: dict[str, Callable[[int], Any]] = {
    "tensors": lambda n: [own() for _ in range(n)],
    "imported tensors": lambda n: [imported() for _ in range(n)],
    "operations": lambda n: [launch(own(), own()) for _ in range(n)],
    "operations on imported tensors": lambda n: [launch(imported(), imported()) for _ in range(n)],
    "a graph of many launches": lambda n: graph(n, own),
    "a graph of many launches on imported tensors": lambda n: graph(n, imported),
    "graphs": lambda n: [graph(1, imported) for _ in range(n)],
    "streams": lambda n: [Device.host().new_stream() for _ in range(n)],
}


@pytest.mark.parametrize("make", [own, imported])
@pytest.mark.parametrize("kind", ALIVE)
@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")
def test_a_launch_costs_what_it_costs_alone(kind: str, make: Callable[[], Tensor]) -> None:
    y, x = make(), make()
    launch(y, x).sync()
    alone = calls(lambda: launch(y, x).sync())
    kept = ALIVE[kind](MANY)
    beside = calls(lambda: launch(y, x).sync())
    del kept
    assert beside <= alone + 10


@pytest.mark.parametrize("make", [own, imported])
def test_a_bound_launch_beside_a_graph_of_its_operand_compares_nothing(make: Callable[[], Tensor]) -> None:
    """A graph holds its operands as long as it lives; work that holds nothing itself is ordered with it by streams."""
    stream = Device.host().new_stream()
    y, x, z = make(), make(), make()
    bound = launch(y, x).bind(stream)
    alone = calls(bound)
    with CudaGraph.scope(stream) as scope:
        scope.record(launch(z, x))
    held = scope.graph
    beside = calls(bound)
    stream.synchronize()
    assert not held.closed
    assert beside <= alone + 8


def gathered(n: int) -> None:
    async def work() -> None:
        await asyncio.gather(*[launch(own(), own()) for _ in range(n)])

    asyncio.run(work())


def mapped(n: int) -> None:
    op = value(1)
    for _ in range(n):
        op = op.map(lambda each: each + 1)
    assert op.sync() == n + 1


def continued(n: int) -> None:
    op = value(1)
    for _ in range(n):
        op = op.then(lambda each: value(each + 1))
    assert op.sync() == n + 1


COMPOSED: dict[str, Callable[[int], object]] = {
    "map": mapped,
    "then": continued,
    "zip": lambda n: zip_ops(*[value(each) for each in range(n)]).sync(),
    "a graph": lambda n: graph(n, own),
    "a graph on imported tensors": lambda n: graph(n, imported),
    "gather": gathered,
}


@pytest.mark.parametrize("kind", COMPOSED)
def test_each_of_many_costs_what_each_of_few_costs(kind: str) -> None:
    compose = COMPOSED[kind]
    compose(FEW)
    few, many = calls(lambda: compose(FEW)) / FEW, calls(lambda: compose(MANY)) / MANY
    assert many <= 1.1 * few
