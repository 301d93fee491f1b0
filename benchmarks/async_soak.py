"""Many operations awaited from many tasks: looks for lost wake-ups, growing memory and a blocked event loop.

    python -m benchmarks.async_soak [--device cpu] [--tasks 1000] [--operations 100000] [--out FILE]

Each task has two buffers of its own and awaits fills, copies between them and, every fourth time, a copy to the host
whose bytes it checks. The operations are done in rounds. After each round the process's memory, the device's memory and
the number of Python objects are recorded: growth from round to round is a leak. The time limit detects lost wake-ups.
The exit status is 1 if a limit is broken: a wrong byte, a task that never woke, growth, or a 99.9th percentile of the
steps over 1 ms, not counting steps in which the system ran another thread.
"""

from __future__ import annotations

import argparse
import asyncio
import builtins
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import FOLDER, write
from benchmarks.steps import Steps, Timed, TimedLoop
from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    Pending,
    Storage,
    Use,
    completion_statistics,
    download,
    value,
    with_context,
    zip,
)

OUT = FOLDER / "runtime" / "async_soak.json"
NBYTES = 4096
ROUNDS = 5
LIMIT_S = 300.0
STEP_LIMIT_US = 1000.0
OBJECTS_PER_ROUND = 500
RESIDENT_PER_ROUND = 1 << 20


class Fill(DeviceOp[Storage]):
    """Fills a storage with `byte`."""

    has_effects = True

    def __init__(self, storage: Storage, byte: int) -> None:
        super().__init__()
        self._storage, self._byte = storage, byte
        self.lend(Use("storage", storage, write=True))

    def execute(self, context: ExecutionContext) -> Storage:
        self._storage.use(context.stream, write=True)
        context.stream.fill(self._storage.address, self._storage.nbytes, bytes([self._byte]))
        return self._storage


class Copy(DeviceOp[Storage]):
    """destination = source."""

    has_effects = True

    def __init__(self, destination: Storage, source: Storage) -> None:
        super().__init__()
        self._destination, self._source = destination, source
        self.lend(Use("destination", destination, write=True), Use("source", source, write=False))

    def execute(self, context: ExecutionContext) -> Storage:
        self._destination.use(context.stream, write=True)
        self._source.use(context.stream, write=False)
        context.stream.copy(self._destination.address, self._source.address, self._source.nbytes)
        return self._destination


class Read(DeviceOp[Any]):
    """Copies the bytes of a storage to the host."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self.lend(Use("storage", storage, write=False))

    def execute(self, context: ExecutionContext) -> Pending[Any]:
        result = np.empty(self._storage.nbytes, np.uint8)
        download(context, self._storage, result.ctypes.data, result.nbytes, keep=result)
        pending = Pending[Any]("the bytes", self.site)
        context.on_complete(lambda: pending.set(result))
        return pending


@dataclass
class Round:
    """Figures of a round, taken after it, when everything was idle."""

    seconds: float
    resident_bytes: int
    python_objects: int
    device_bytes: int
    in_flight: int


class Soak:
    """One run: its counts, its steps, its rounds.

    Attributes:
        awaited: operations whose result came.
        wrong: results that were wrong.
        steps: how long each step of the runtime held the loop.
        rounds: the figures of each round.
        lost: tasks that had not ended at the time limit.
    """

    def __init__(self, device: Device, tasks: int, operations: int, rounds: int = ROUNDS) -> None:
        self.device = device
        self.tasks, self.operations = tasks, operations
        self.awaited = self.wrong = self.lost = 0
        self.steps = Steps(capacity=4 * operations)
        self.rounds: list[Round] = []
        self._each = operations // (tasks * rounds)
        self._round_count = rounds
        if self._each < 1:
            raise ValueError(f"operations: {tasks} tasks in {rounds} rounds need at least {tasks * rounds}")

    async def _await(self, op: DeviceOp[Any]) -> Any:
        result = await Timed(op, self.steps)
        self.awaited += 1
        return result

    async def _task(self, number: int, storages: tuple[Storage, Storage]) -> None:
        here, there = storages
        for step in range(self._each):
            byte = (number + step) % 251
            kind = step % 4
            if kind == 0:
                await self._await(Fill(here, byte))
            elif kind == 1:
                await self._await(Copy(there, here))
            elif kind == 2:
                self.wrong += (await self._await(value(byte).map(lambda x: x + 1))) != byte + 1
            else:
                read = await self._await(Fill(there, byte).then(Read))
                self.wrong += not (read == byte).all()

    def run(self, limit_s: float = LIMIT_S) -> None:
        """Run all rounds on one event loop."""
        loop = TimedLoop(self.steps)

        async def main() -> None:
            allocate = [
                zip(*(with_context(lambda c: value(c.allocate(NBYTES))) for _ in range(2))).into_future()
                for _ in range(self.tasks)
            ]
            storages: list[Any] = list(await asyncio.gather(*allocate))
            for _ in range(self._round_count):
                await self._round(storages, limit_s)

        with self.device, asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    async def _round(self, storages: Sequence[tuple[Storage, Storage]], limit_s: float) -> None:
        begun = time.perf_counter()
        tasks = [asyncio.create_task(self._task(number, pair)) for number, pair in enumerate(storages)]
        _, pending = await asyncio.wait(tasks, timeout=limit_s)
        seconds = time.perf_counter() - begun
        self.lost += len(pending)
        for task in tasks:
            task.cancel() if task in pending else task.result()
        del tasks, pending
        gc.collect()
        self.device.collect()
        self.rounds.append(
            Round(
                round(seconds, 3),
                resident_bytes(),
                len(gc.get_objects()),
                self.device.memory_info().used,
                completion_statistics().reactor.in_flight,
            )
        )

    # -- judgement ----------------------------------------------------------------------------

    def growth(self) -> dict[str, float]:
        """The growth of each kind of memory in the round in which it grew least, without the first round."""
        later = self.rounds[1:] if len(self.rounds) > 2 else self.rounds
        return {
            kind: min(getattr(b, kind) - getattr(a, kind) for a, b in pairs(later))
            for kind in ("resident_bytes", "python_objects", "device_bytes")
        }

    def faults(self, *, timing: bool = True) -> list[str]:
        """The broken limits; without `timing` only those that do not depend on how busy the machine is."""
        growth, complaints = self.growth(), list[str]()
        expected = self._each * self.tasks * self._round_count
        if self.lost or self.awaited != expected:
            complaints.append(f"{self.lost} tasks never woke; {self.awaited} of {expected} operations were awaited")
        if self.wrong:
            complaints.append(f"{self.wrong} results were wrong")
        if growth["python_objects"] > OBJECTS_PER_ROUND:
            complaints.append(f"Python objects grow by {growth['python_objects']} in each round")
        if growth["resident_bytes"] > RESIDENT_PER_ROUND:
            complaints.append(f"the process grows by {growth['resident_bytes']} bytes in each round")
        if growth["device_bytes"] > 0:
            complaints.append(f"memory in use on the device grows by {growth['device_bytes']} bytes in each round")
        (slow,) = self.steps.quantiles_us(0.999, undisturbed=True)
        if timing and slow > STEP_LIMIT_US:
            complaints.append(f"the 99.9th percentile of the steps is {slow:.0f} us; {STEP_LIMIT_US:.0f} are allowed")
        return complaints

    def record(self) -> dict[str, Any]:
        """The figures, with the device, the host and the date."""
        undisturbed = self.steps.lengths(undisturbed=True)
        seconds = sum(each.seconds for each in self.rounds)
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "device": {"name": self.device.name, "arch": self.device.arch},
            "host": {"cores": os.cpu_count(), "python": platform.python_version()},
            "tasks": self.tasks,
            "operations_awaited": self.awaited,
            "wrong_results": self.wrong,
            "tasks_that_never_woke": self.lost,
            "operations_per_second": round(self.awaited / seconds),
            "steps": {
                "count": self.steps.count,
                "in_which_the_system_ran_something_else": self.steps.count - len(undisturbed),
                "others_over_1_ms": sum(each > 1_000_000 for each in undisturbed),
                "all_us": self._quantiles(undisturbed=False),
                "others_us": self._quantiles(undisturbed=True),
            },
            "least_growth_in_a_round": self.growth(),
            "rounds": [vars(each) for each in self.rounds],
            "faults": self.faults(),
        }

    def _quantiles(self, *, undisturbed: bool) -> dict[str, float]:
        names = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "longest": 1.0}
        return dict(builtins.zip(names, self.steps.quantiles_us(*names.values(), undisturbed=undisturbed), strict=True))


def pairs(rounds: Sequence[Round]) -> list[tuple[Round, Round]]:
    """Each round with the next."""
    return [(rounds[number], rounds[number + 1]) for number in range(len(rounds) - 1)]


def resident_bytes() -> int:
    """The process's resident memory; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and write the record; the exit status says whether a limit was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<number>")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    soak = Soak(Device.parse(options.device), options.tasks, options.operations)
    soak.run()
    record = soak.record()
    write(options.out, record)
    print(json.dumps({key: record[key] for key in record if key != "rounds"}, indent=1))
    print(f"written to {options.out}")
    for fault in record["faults"]:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if record["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
