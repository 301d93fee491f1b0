# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Collectives on GPUs beside torch.distributed's, both with NCCL. Needs two GPUs, torch and nccl4py.

    python -m benchmarks.collectives [--output docs/benchmarks/runtime/collectives.json]
    python -m benchmarks.collectives --cpu      # two ranks of the CPU, small, beside gloo: shows that it runs

There is a process for each GPU. Ours and torch's take turns in each of them, on tensors of their own; a turn is some
calls without a pause, then a wait for the GPU. As in nccl-tests a turn repeats one call. Ours is bound to its operand
and its stream; torch's is made anew, because torch has no other way. Three more are measured: NCCL's own call from
Python, with nothing around it; a chain of our calls made anew; and a graph of that chain. The graph has a communicator
of its own, because NCCL does more for each call of a communicator once a graph has recorded one. Bus bandwidth is
counted as in nccl-tests: 2 (n - 1) / n times the bytes over the time. The longest of the ranks' times counts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import FOLDER, machine, write
from cuda_async import Device, DeviceOp, device_count
from cuda_async.collective import Buffer, Communicator
from cuda_async.collective.nccl import element_type
from cuda_async.collective.nccl_engine import NcclEngine

OUT = FOLDER / "runtime" / "collectives.json"
SIZES = (8, 1 << 20, 1 << 24, 1 << 27, 1 << 30)
PAIRS = 20
NCCL_SUM = 0
"""ncclSum, of ncclRedOp_t."""


def on_gpu(rank: Communicator) -> bool:
    """Whether the rank is on a GPU; else it is on the CPU, as torch is."""
    return rank.devices[0].kind == "cuda"


def calls_of(nbytes: int) -> int:
    """Calls of one turn, which then takes some milliseconds."""
    return max(4, min(100, (1 << 28) // nbytes))


def chain(rank: Communicator, x: Buffer, calls: int) -> DeviceOp[Buffer]:
    """`calls` sums, one after the other, as one operation."""
    op = rank.all_reduce(x)
    for _ in range(calls - 1):
        op = op.then(rank.all_reduce)
    return op


def timed(turn: Callable[[], object]) -> float:
    """Seconds of a turn, which waits for the GPU at its end."""
    begin = time.perf_counter()
    turn()
    return time.perf_counter() - begin


def measured(torch: Any, distributed: Any, rank: Communicator, other: Communicator, nbytes: int) -> dict[str, Any]:
    """One size: checked, then timed in turns. The graph uses the communicator `other`."""
    number, world = rank.rank, rank.world
    stream = rank.devices[0].new_stream()
    values = np.random.default_rng(number).standard_normal(nbytes // 4, np.float32)
    ours, theirs = Buffer.put(values).sync_on(stream), torch.from_numpy(values.copy())
    if on_gpu(rank):
        theirs = theirs.cuda(number)
    rank.all_reduce(ours).sync_on(stream)
    distributed.all_reduce(theirs)
    wait_for_torch: Callable[[], object] = torch.cuda.synchronize if on_gpu(rank) else lambda: None
    wait_for_torch()
    right = bool((ours.get().sync_on(stream) == theirs.cpu().numpy()).all())
    # Repeated sums grow beyond f32, so zeros are used from here on. NCCL's time does not depend on the values.
    ours, theirs, calls = Buffer.put(np.zeros_like(values)).sync_on(stream), theirs.zero_(), calls_of(nbytes)
    recorded = Buffer.put(np.zeros_like(values)).sync_on(stream)
    bound = rank.all_reduce(ours).bind(stream)
    graph = chain(other, recorded, calls).graph_on(stream)

    def turn_of_torch() -> None:
        for _ in range(calls):
            distributed.all_reduce(theirs)
        wait_for_torch()

    def bound_turn() -> None:
        for _ in range(calls):
            bound()
        stream.synchronize()

    engine = rank._engine  # pyright: ignore[reportPrivateUsage]
    alone = Buffer.put(np.zeros_like(values)).sync_on(stream)

    def turn_of_nccl() -> None:
        assert isinstance(engine, NcclEngine)
        bindings, (comm,) = engine._nccl._bindings, engine._comms.values()  # pyright: ignore[reportPrivateUsage]
        code, _ = element_type(alone.dtype, reduces=True)
        for _ in range(calls):
            bindings.all_reduce(alone.address, alone.address, alone.elements, code, NCCL_SUM, comm, stream.cu_stream())
        torch.cuda.synchronize()

    turns: dict[str, Callable[[], object]] = {
        "torch": turn_of_torch,
        "ours": bound_turn,
        "ours, made anew": lambda: chain(rank, ours, calls).sync_on(stream),
        "ours, a graph": lambda: graph.launch().sync_on(stream),
    }
    if on_gpu(rank):
        turns["NCCL alone"] = turn_of_nccl
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(PAIRS + 2):
        for name, turn in turns.items():
            seconds[name].append(timed(turn) / calls)
    graph.close()
    medians = {name: slowest(torch, distributed, statistics.median(each[2:])) for name, each in seconds.items()}
    return {
        "bytes": nbytes,
        "same bits": right,
        "calls": calls,
        "us": {name: second * 1e6 for name, second in medians.items()},
        "bus GB/s": {name: 2 * (world - 1) / world * nbytes / second / 1e9 for name, second in medians.items()},
        "of torch": medians["torch"] / medians["ours"],
    }


def rank_main(number: int, out: Path, cpu: bool) -> None:
    """One rank's program."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    if not cpu:
        torch.cuda.set_device(number)
    distributed.init_process_group("gloo" if cpu else "nccl", rank=number, world_size=int(os.environ["WORLD_SIZE"]))
    device = Device.host() if cpu else Device(number)
    world = int(os.environ["WORLD_SIZE"])
    rank, other = (
        Communicator.join(number, world, name, device=device) for name in os.environ["UNIQUE_IDS"].split(",")
    )
    rows: list[dict[str, Any]] = []
    for nbytes in SIZES[:2] if cpu else SIZES:
        row = measured(torch, distributed, rank, other, nbytes)
        rows.append(row)
        if number:
            continue
        figures = ", ".join(f"{name} {us:.1f} us {row['bus GB/s'][name]:.1f} GB/s" for name, us in row["us"].items())
        print(f"{nbytes} bytes: {figures}; {row['of torch']:.3f} of torch; same bits: {row['same bits']}", flush=True)
        write(out, {"command": "python -m benchmarks.collectives", **machine(device), "pairs": PAIRS, "rows": rows})
    rank.close()
    other.close()
    distributed.destroy_process_group()


def slowest(torch: Any, distributed: Any, seconds: float) -> float:
    """The longest of the ranks' times."""
    where = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    times = torch.tensor([seconds], device=where, dtype=torch.float64)
    distributed.all_reduce(times, op=distributed.ReduceOp.MAX)
    return float(times[0])


def main() -> int:
    """Start a process for each GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=__doc__)
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--cpu", action="store_true", help="two ranks of the CPU, small")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(int(os.environ["RANK"]), options.output, options.cpu)
        return 0
    world = 2 if options.cpu else device_count()
    if world < 2:
        print("two GPUs are needed; --cpu runs the same on the CPU", file=sys.stderr)
        return 2
    shared = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "UNIQUE_IDS": ",".join(Communicator.unique_id() for _ in range(2)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29533",
    }
    command = [sys.executable, "-m", "benchmarks.collectives", "--output", str(options.output)]
    command += ["--cpu"] * options.cpu
    processes = [subprocess.Popen(command, env=shared | {"RANK": str(i)}) for i in range(world)]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
