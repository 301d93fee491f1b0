"""Random chains of small kernels that a graph records: each reads what others of the chain wrote, to the last bit.

On a GPU such kernels begin before the one ahead has ended (`cutile/backend/cuda/early_start.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import CudaGraph, Device, DeviceOp
from cuda_async.graph import Scope
from cutile import Mut, Tensor, api, i32

EXTENT = 97
"""Rows and columns of each matrix: rows share cache lines, and tiles reach past the edges."""
MATRICES, LENGTH, REPLAYS = 4, 60, 5
TILES = ((1, 128), (4, 32), (16, 16), (128, 1))

Numbers = np.ndarray[Any, np.dtype[np.int32]]


@ct.entry
def fill(y: Mut, value: i32):
    """All elements are a value."""
    y.store(ct.broadcast(value, y.shape))


@ct.entry
def add(y: Mut, x: Tensor):
    """Change elements where they lie."""
    y.store(y.load() + ct.load_tile_like(x, y))


@ct.entry
def turned(y: Mut, x: Tensor):
    """The transposed matrix: tiles of other thread blocks."""
    i, j, _ = ct.get_tile_block_id()
    BM, BN = y.shape
    y.store(ct.permute(ct.load_tile(x, (BN, BM), (j, i)), (1, 0)))


@ct.entry
def less_its_sum(y: Mut, x: Tensor):
    """Each row, less the sum of the next row."""
    row = ct.get_tile_block_id()[0]
    below = ct.load_tile(x, y.shape, ((row + 1) % x.shape[0], 0))
    y.store(ct.load_tile_like(x, y) - ct.reduce_sum(below, 1)[:, None])


@ct.entry
def scaled(y: Mut, x: Tensor, numbers: Tensor):
    """Each row times a number: a load of one element beside tiles."""
    row = ct.get_tile_block_id()[0]
    y.store(ct.load_tile_like(x, y) * ct.load_tile(numbers, (1,), (row,))[:, None])


@ct.entry
def chosen(y: Mut, x: Tensor, rows: Tensor):
    """Rows by a list in memory."""
    row = ct.load_tile(rows, (1,), (ct.get_tile_block_id()[0],)).reshape(())
    y.store(ct.load_tile(x, y.shape, (row, 0)))


@ct.entry
def summed(y: Mut, x: Tensor):
    """Running sums of a row, by a loop."""
    total = ct.constant(0, y.shape, i32)
    for _ in range(3):
        total = total + ct.load_tile_like(x, y)
    y.store(total)


@dataclass(frozen=True)
class Step:
    """A kernel's launch, and what it means: writes matrix `y` from matrix `x`."""

    launch: Callable[[list[Any], list[Any]], DeviceOp[Any]]
    meaning: Callable[[list[Numbers], list[Numbers]], None]


def step(random: np.random.Generator) -> Step:
    """Draw a step. Lists are of the matrices, and of a number and a row for each row."""
    y, x = (int(place) for place in random.choice(MATRICES, 2, replace=False))
    tile = TILES[int(random.integers(len(TILES)))]
    row, value = (1, 128), int(random.integers(-9, 9))

    def assigned(function: Callable[[Numbers, list[Numbers]], Any]) -> Callable[[list[Numbers], list[Numbers]], None]:
        def meaning(matrices: list[Numbers], lists: list[Numbers]) -> None:
            matrices[y][...] = function(matrices[x], lists)

        return meaning

    def increased(matrices: list[Numbers], lists: list[Numbers]) -> None:
        matrices[y] += matrices[x]

    steps = [
        Step(lambda m, _: fill(m[y].mut.partition(tile), value), assigned(lambda a, _: value)),
        Step(lambda m, _: add(m[y].mut.partition(tile), m[x]), increased),
        Step(lambda m, _: turned(m[y].mut.partition(tile), m[x]), assigned(lambda a, _: a.T)),
        Step(
            lambda m, _: less_its_sum(m[y].mut.partition(row), m[x]),
            assigned(lambda a, _: a - np.roll(a.sum(1, dtype=np.int32), -1)[:, None]),
        ),
        Step(
            lambda m, lists: scaled(m[y].mut.partition(row), m[x], lists[0]),
            assigned(lambda a, lists: a * lists[0][:, None]),
        ),
        Step(lambda m, lists: chosen(m[y].mut.partition(row), m[x], lists[1]), assigned(lambda a, lists: a[lists[1]])),
        Step(lambda m, _: summed(m[y].mut.partition(tile), m[x]), assigned(lambda a, _: a * np.int32(3))),
    ]
    return steps[int(random.integers(len(steps)))]


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_of_a_graph_is_right(seed: int) -> None:
    check(seed, Device.host())


@pytest.mark.gpu
def test_many_chains_of_graphs_are_right() -> None:
    for seed in range(2, 30):
        check(seed, Device(0))


def check(seed: int, device: Device) -> None:
    """Record a chain, replay it, and compare all matrices with NumPy's."""
    random = np.random.default_rng(seed)
    matrices = list(random.integers(-(2**31), 2**31, (MATRICES, EXTENT, EXTENT)).astype(np.int32))
    lists = [random.integers(-3, 4, EXTENT).astype(np.int32), random.permutation(EXTENT).astype(np.int32)]
    steps = [step(random) for _ in range(LENGTH)]
    with device:
        stream = device.new_stream()
        ours, numbers = ([api.from_numpy(array).sync_on(stream) for array in arrays] for arrays in (matrices, lists))

        def record(scope: Scope) -> None:
            for one in steps:
                scope.record(one.launch(ours, numbers))

        with CudaGraph.scope(stream, record) as graph:
            for _ in range(REPLAYS):
                graph.launch().sync_on(stream)
        results = [matrix.to_numpy().sync_on(stream) for matrix in ours]
    for _ in range(REPLAYS):
        for one in steps:
            one.meaning(matrices, lists)
    np.testing.assert_array_equal(results, matrices)
