"""Estimates of the time of programs of several ranks on 2, 8 and 64 H200s, by simulated devices.

    python -m benchmarks.simulated [--worlds 2 8 64] [--output docs/benchmarks/runtime/simulated.json]

The programs are those of `kernels/parallel.py`, unchanged. The hardware is modelled in three ways:

- A product takes the time that was measured on one H200 (`docs/benchmarks/products/nvidia_h200.json`), interpolated
  between the cubes of 512 to 16384 by its number of operations.
- A collective takes the time of a ring (`H200`, below). Within a machine that is fitted to measurements between two
  H200s, between machines to published figures. NCCL's trees and NVLink's sums within the switch are left out.
- Each byte of memory stands for `SCALE` bytes.

The model leaves out a collective's share of the multiprocessors and of the memory's bandwidth, Python's time, and
clocks that fall when all GPUs are busy. So the figures are bounds for programs that overlap perfectly, not
measurements.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import FOLDER, write
from cuda_async import Device, DeviceOp, ExecutionContext, Storage
from cuda_async.collective import Buffer, Communicator, Network
from cuda_async.testing import SimDriver
from kernels.parallel import pipeline, split_layer, streams, sum_gradients

OUT = FOLDER / "runtime" / "simulated.json"
MEASURED = FOLDER / "products" / "nvidia_h200.json"
CUBES = tuple(f"bf16-{extent}" for extent in (512, 1024, 2048, 4096, 8192, 16384))
ITEM = 2  # bytes of a bfloat16
SCALE = 1 << 18

H200 = Network(
    # NCCL's own model of a step of its ring (src/graph/tuning.cc: ring, simple protocol): 3.4 us over NVLink, 14 us
    # over the network.
    latency_s=3.4e-6,
    between_s=14e-6,
    # A line through the times of all-reduces of 64 MiB and of 512 MiB between two H200s, 261 and 1724 us. These are
    # interpolated from `docs/benchmarks/runtime/collectives.json` ("ours, a graph"). The programs' sums are as large.
    start_s=52e-6,
    bytes_per_s=321e9,
    # Eight GPUs with a port of InfiniBand NDR each, 400 Gbit/s, over which NCCL reaches 46 to 48 GB/s
    # (https://github.com/NVIDIA/nccl-tests/issues/290).
    node=8,
    between_bytes_per_s=47e9,
)
WIDTH, PIECES, LAYERS = 16384, 8, 4
ROWS = WIDTH // PIECES


@cache
def measured() -> tuple[tuple[float, float], ...]:
    """Operations and seconds of products of bfloat16 on one H200, by increasing operations."""
    cases = {case["name"]: case for case in json.loads(MEASURED.read_text(encoding="utf-8"))["cases"]}
    return tuple((float(cases[name]["flops"]), float(cases[name]["seconds"])) for name in CUBES)


def product_seconds(rows: int, columns: int, depth: int) -> float:
    """The time of a product, interpolated in `measured` by its operations, on logarithmic axes."""
    flops = 2.0 * rows * columns * depth
    points = measured()
    xs, ys = (np.log([point[i] for point in points]) for i in range(2))
    return float(np.exp(np.interp(math.log(flops), xs, ys)))


@dataclass(frozen=True)
class Matrix:
    """A stand-in for a matrix of bfloat16; it has `SCALE` times fewer bytes, whose contents mean nothing."""

    rows: int
    columns: int
    buffer: Buffer

    def __collective__(self, write: bool) -> Buffer:
        return self.buffer


class Takes(DeviceOp[Matrix]):
    """An operation that yields a new matrix after `seconds` of virtual time."""

    has_effects = True

    def __init__(self, rows: int, columns: int, seconds: float) -> None:
        super().__init__()
        self._rows, self._columns, self._seconds = rows, columns, seconds

    def execute(self, context: ExecutionContext) -> Matrix:
        storage: Storage = context.allocate(max(1, self._rows * self._columns * ITEM // SCALE))
        storage.use(context.stream, write=True)
        nanoseconds = round(self._seconds * 1e9)
        if nanoseconds:
            context.stream.parallel_for(lambda start, stop: None, nanoseconds, nanoseconds)
        return Matrix(self._rows, self._columns, Buffer(storage, np.dtype(np.uint8)))


def multiply(x: Matrix, y: Matrix) -> DeviceOp[Matrix]:
    """A stand-in for `matmul`, with only its time and the shape of its result."""
    return Takes(x.rows, y.columns, product_seconds(x.rows, y.columns, x.columns))


def run(world: int, program: Callable[[Communicator, bool], Awaitable[None]], overlap: bool) -> float:
    """Virtual seconds of a program on `world` devices."""
    first = SimDriver(seconds=_seconds)
    drivers = [first, *(SimDriver(ordinal=i, beside=first, seconds=_seconds) for i in range(1, world))]
    network = replace(H200, bytes_per_s=H200.bytes_per_s / SCALE, between_bytes_per_s=H200.between_bytes_per_s / SCALE)
    devices = [Device.from_driver(driver) for driver in drivers]

    async def main() -> None:
        with Communicator.of(devices, network=network, limit_s=None) as ranks:
            await asyncio.gather(*(program(ranks[i], overlap) for i in range(world)))

    asyncio.run(main())
    return max(driver.time for driver in drivers)


def _seconds(kind: str, size: int) -> float:
    return size * 1e-9 if kind == "launch" else 0.0


def matrix(rank: Communicator, rows: int, columns: int) -> Matrix:
    """A matrix that exists before the program starts."""
    return Takes(rows, columns, 0.0).sync_on(rank.devices[0].new_stream())


def product() -> float:
    """Seconds of the product that pipelines and training consist of: 2048 x 16384 x 16384."""
    return product_seconds(ROWS, WIDTH, WIDTH)


async def layer(rank: Communicator, overlap: bool) -> None:
    """`x @ up @ down`, all of 16384 x 16384, in 8 pieces; the weights are split over the ranks."""
    part = WIDTH // rank.world
    rows = [matrix(rank, ROWS, WIDTH) for _ in range(PIECES)]
    up, down = matrix(rank, WIDTH, part), matrix(rank, part, WIDTH)
    await split_layer(rank, rows, up, down, multiply=multiply, overlap=overlap)


async def stages(rank: Communicator, overlap: bool) -> None:
    """A pipeline with a product on each rank, and 4 pieces for every rank."""
    rows = [matrix(rank, ROWS, WIDTH) for _ in range(4 * rank.world)]
    await pipeline(rank, rows, matrix(rank, WIDTH, WIDTH), multiply=multiply, overlap=overlap)


async def training(rank: Communicator, overlap: bool) -> None:
    """The backward pass through 4 layers of 16384 x 16384, 2048 examples a rank: two products each, then a sum."""
    gradients = [Takes(WIDTH, WIDTH, 2 * product()) for _ in range(LAYERS)]
    on = streams(rank, 2, overlap=overlap)
    await sum_gradients(rank, gradients, lambda sums: Takes(1, 1, 0.0), on=on)


@dataclass(frozen=True)
class Program:
    """A program, and a function of the number of ranks: the seconds of a rank's products alone."""

    name: str
    run: Callable[[Communicator, bool], Awaitable[None]]
    products: Callable[[int], float]


PROGRAMS = (
    Program("a layer in parts", layer, lambda world: 2 * PIECES * product() / world),
    Program("a pipeline", stages, lambda world: 4 * world * product()),
    Program("training", training, lambda world: 2 * LAYERS * product()),
)


def rows_of(world: int) -> list[dict[str, Any]]:
    """Each program on `world` ranks: milliseconds, and the part of them that the products alone would take."""
    rows: list[dict[str, Any]] = []
    for program in PROGRAMS:
        ours, apart = (run(world, program.run, overlap) for overlap in (True, False))
        rows.append(
            {
                "program": program.name,
                "ranks": world,
                "ms": round(ours * 1e3, 2),
                "ms, one stream": round(apart * 1e3, 2),
                "of linear": round(program.products(world) / ours, 3),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| program | ranks | ms | ms on one stream | of linear |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {' | '.join(f'{value:g}' if not isinstance(value, str) else value for value in row.values())} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Run all programs, print the table, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--output", type=Path, default=OUT)
    options = parser.parse_args()
    rows = [row for world in options.worlds for row in rows_of(world)]
    print(table(rows))
    write(options.output, {"command": "python -m benchmarks.simulated", "network": str(H200), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
