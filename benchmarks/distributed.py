"""Programs of two ranks on two GPUs, checked and timed: one command, one line for each claim.

    python -m benchmarks.distributed [--output docs/benchmarks/runtime/distributed.json]
    python -m benchmarks.distributed --cpu      # the same programs on the CPU, small: shows that they run
    python -m benchmarks.distributed --parts programs torch     # some of: programs, torch, tests, ray

It starts a process for each of two ranks. They run a layer split over both GPUs, steps with a sum of their results
inside, the backward pass through layers, a captured step that is replayed, and the training of a classifier. Then come
all-reduces beside torch.distributed (`benchmarks.collectives`), the tests of collectives on GPUs, and the same training
on Ray's workers, if Ray is installed. The exit status is 1 if a line misses its goal.

Sums that overlap with products take multiprocessors from them. So these programs are measured briefly with several
numbers of thread blocks for NCCL (`Communicator.max_ctas`), and the fastest is measured again. The last sum, beside
which no product runs, may take as many thread blocks as NCCL chooses.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.kernels.digits import load_images
from benchmarks.record import FOLDER, machine, write
from cuda_async import Device, DeviceOp, Stream, device_count, value
from cuda_async.collective import Communicator
from cutile import Tensor, api, bf16, f32
from kernels.gemm import matmul
from kernels.mlp import Trainer, first_weights
from kernels.parallel import GraphedSums, split_layer, streams, sum_gradients
from kernels.softmax import row_softmax

OUT = FOLDER / "runtime" / "distributed.json"
WORLD, TURNS, BRIEF_TURNS, STEPS = 2, 9, 3, 10
LOSS_STEPS, RATE = 20, 1.0

MAX_CTAS = (None, 4, 8, 16)
"""Thread blocks that a sum may take beside products, which leave as many multiprocessors free. None: NCCL's number."""

PIECES = (8, 16)
"""Numbers of pieces into which the rows of the layer are cut."""

PART_S = 200
"""Seconds after which a part of the benchmark is given up."""


@dataclass(frozen=True)
class Line:
    """One claim: the measured number, and the least or most that it has to be; None for a claim without a number."""

    name: str
    measured: float | str
    least: float | None = None
    most: float | None = None
    holds: bool = True

    @property
    def kept(self) -> bool:
        """Whether the goal was reached."""
        if isinstance(self.measured, str):
            return self.holds
        above = self.least is None or self.measured >= self.least
        return self.holds and above and (self.most is None or self.measured <= self.most)

    def __str__(self) -> str:
        number = self.measured if isinstance(self.measured, str) else f"{self.measured:.3f}"
        limits = (("at least", self.least), ("at most", self.most))
        goal = ", ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None) or "–"
        return f"| {self.name} | {goal} | {number} | {'yes' if self.kept else 'NO'} |"


class Rank:
    """One rank's measurements.

    Args:
        communicator: this rank.
        limited: the same rank of communicators of other `max_ctas`.
        runner: the runner of one event loop for all turns, because making a loop takes as long as some launches.
        cpu: whether to use small extents of f32, on the CPU.

    Attributes:
        overlap: the measurements of sums that overlap with products.
    """

    def __init__(
        self, communicator: Communicator, limited: Sequence[Communicator], runner: asyncio.Runner, cpu: bool
    ) -> None:
        self.communicator = communicator
        self.communicators = [communicator, *limited]
        self.runner = runner
        self.overlap: list[dict[str, Any]] = []
        self.device = communicator.devices[0]
        self.stream: Stream = self.device.new_stream()
        self.extent, self.dtype = (128, f32) if cpu else (16384, bf16)
        self.rng = np.random.default_rng(0)  # the same on all ranks

    def put(self, array: Any) -> Tensor:
        return api.from_numpy(np.ascontiguousarray(array)).sync_on(self.stream)

    def largest(self, seconds: float) -> float:
        """The longest of the ranks' times."""
        both = self.put(np.array([seconds]))
        return float(self.communicator.all_reduce(both, op="max").then(lambda x: x.to_numpy()).sync_on(self.stream)[0])

    def seconds(self, turn: Callable[[], object], *, alone: bool = False) -> float:
        """The time of a turn, which waits for the GPU: the slowest rank's, or with `alone` that of rank 0."""
        self.communicator.barrier().sync_on(self.stream)
        begin = time.perf_counter()
        if not alone or self.communicator.rank == 0:
            turn()
        return self.largest(time.perf_counter() - begin)

    def scaling(self, one: Callable[[], object], both: Callable[[], object], turns: int = TURNS) -> tuple[float, float]:
        """Medians of the times of rank 0 alone and of all ranks together, in turns."""
        pairs = [(self.seconds(one, alone=True), self.seconds(both)) for _ in range(turns + 2)][2:]
        return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)

    def fastest(self, name: str, turn: Callable[[], object], programs: Mapping[str, Callable[[], object]]) -> float:
        """The time of one rank alone, divided by that of the fastest of several programs of all ranks.

        Each program is measured briefly, and the fastest of them again. All ranks choose the same program, because all
        of them know the longest times.

        Args:
            name: the name of the program, for the record.
            turn: the turn of one rank alone.
            programs: turns of all ranks, by their settings.
        """
        brief: dict[str, float] = {}
        for settings, both in programs.items():
            alone, together = self.scaling(turn, both, BRIEF_TURNS)
            brief[settings] = alone / together
            times = {"ms of one": 1e3 * alone, "ms of both": 1e3 * together}
            self.overlap.append({"program": name, "settings": settings, **times, "ratio": alone / together})
            if self.communicator.rank == 0:
                print(f"{name}, {settings}: {self.overlap[-1]}", file=sys.stderr, flush=True)
        best = max(brief, key=lambda settings: brief[settings])
        alone, together = self.scaling(turn, programs[best])
        times = {"ms of one": 1e3 * alone, "ms of both": 1e3 * together}
        self.overlap.append({"program": name, "settings": best, "again": True, **times, "ratio": alone / together})
        return alone / together

    def layer(self) -> list[Line]:
        """`x @ up @ down` on one GPU, and split over all."""
        n, world, number = self.extent, self.communicator.world, self.communicator.rank
        x, up, down = (
            (self.rng.standard_normal((n, n), np.float32) / n**0.25).astype(self.dtype.numpy) for _ in range(3)
        )
        whole = [self.put(array) for array in (x, up, down)]
        mine = slice(number * n // world, (number + 1) * n // world)
        columns, rows = self.put(up[:, mine]), self.put(down[mine])
        cuts = {count: [whole[0][i * n // count : (i + 1) * n // count] for i in range(count)] for count in PIECES}

        def one() -> Tensor:
            return matmul(whole[0], whole[1]).then(lambda hidden: matmul(hidden, whole[2])).sync_on(self.stream)

        def both(rank: Communicator, count: int) -> list[Tensor]:
            return self.runner.run(split_layer(rank, cuts[count], columns, rows, last=self.communicator))

        count = PIECES[0]
        some = [i * n // count for i in range(count)]
        expected = x[some].astype(np.float64) @ up.astype(np.float64) @ down.astype(np.float64)

        def error_of(pieces: Sequence[Tensor]) -> float:
            """The largest error of the first row of each piece."""
            split = np.stack([piece.to_numpy().sync_on(self.stream)[0] for piece in pieces]).astype(np.float64)
            return float(np.abs(split - expected).max() / np.abs(expected).max())

        error = error_of(both(self.communicators[-1], count))
        programs: dict[str, Callable[[], object]] = {
            f"max_ctas {rank.max_ctas}, {count} pieces": partial(both, rank, count)
            for rank in self.communicators
            for count in PIECES
        }
        with ExitStack() as stack:
            for rank in self.communicators:
                for count in PIECES:
                    products = (
                        matmul(piece, columns).then(lambda hidden: matmul(hidden, rows)) for piece in cuts[count]
                    )
                    graphs = stack.enter_context(GraphedSums(rank, products, last=self.communicator))
                    programs[f"max_ctas {rank.max_ctas}, {count} pieces, graphs"] = partial(_replay, graphs)
                    if count == PIECES[0]:
                        _replay(graphs)
                        error = max(error, error_of(graphs.sums))
            ratio = self.fastest("layer", one, programs)
        return [
            Line("a layer split over two ranks, largest error", error, most=2e-2),
            Line(f"a layer of two products of {n} cubed, times one GPU", ratio, least=1.85),
        ]

    def steps(self) -> list[Line]:
        """Products and softmaxes; each result is summed over the ranks while the next product runs."""
        n = self.extent // 2
        x = self.put((self.rng.standard_normal((n, n), np.float32) / n**0.5).astype(self.dtype.numpy))
        last, scaling = self.repeated("steps", lambda: matmul(x, x).then(row_softmax))
        total = float(np.abs(last.astype(np.float32).sum(axis=1) - self.communicator.world).max())
        return [
            Line("steps with a sum inside: rows add up to the number of ranks, error", total, most=5e-2),
            Line("steps of a product and a softmax with a sum inside, scaling", scaling, least=1.9),
        ]

    def way_back(self) -> list[Line]:
        """The backward pass of data-parallel training: in each layer two products, and the sum of the gradient."""
        n = self.extent // 2
        error, weight, x = (
            (self.rng.standard_normal((n, n), np.float32) / n**0.25).astype(self.dtype.numpy) for _ in range(3)
        )
        tensors = [self.put(array) for array in (error, weight, x)]

        def layer() -> DeviceOp[Tensor]:
            return matmul(tensors[0], tensors[1]).then(lambda before: matmul(tensors[2], before))

        last, scaling = self.repeated("way back", layer)
        rows = slice(0, n, n // 8)
        expected = (x[rows].astype(np.float64) @ error.astype(np.float64)) @ weight.astype(np.float64)
        expected *= self.communicator.world
        largest = float(np.abs(last[rows].astype(np.float64) - expected).max() / np.abs(expected).max())
        return [
            Line("the way back through layers: gradients, largest error", largest, most=2e-2),
            Line("the way back through layers, with the sums of gradients inside, scaling", scaling, least=1.9),
        ]

    def repeated(self, name: str, step: Callable[[], DeviceOp[Tensor]]) -> tuple[Any, float]:
        """Repeated steps, each summed over the ranks while the next runs: the last sum, and the scaling."""
        on = {rank: streams(rank, 2) for rank in self.communicators}

        def one() -> None:
            op = step()
            for _ in range(STEPS - 1):
                op = op.then(lambda _: step())
            op.sync_on(self.stream)

        def both(rank: Communicator) -> list[Tensor]:
            steps = (step() for _ in range(STEPS))
            return list(self.runner.run(sum_gradients(rank, steps, value, on=on[rank], last=self.communicator)))

        both(self.communicators[-1])
        programs: dict[str, Callable[[], object]] = {
            f"max_ctas {rank.max_ctas}": partial(both, rank) for rank in self.communicators
        }
        with ExitStack() as stack:
            recorded: list[GraphedSums[Tensor]] = []
            for rank in self.communicators:
                steps = (step() for _ in range(STEPS))
                recorded.append(stack.enter_context(GraphedSums(rank, steps, last=self.communicator)))
                programs[f"max_ctas {rank.max_ctas}, graphs"] = partial(_replay, recorded[-1])
            _replay(recorded[-1])
            last = recorded[-1].sums[-1].to_numpy().sync_on(self.stream)
            ratio = self.fastest(name, one, programs)
        return last, self.communicator.world * ratio

    def replays(self) -> list[Line]:
        """A captured step with a collective, replayed."""
        n, rank = self.extent // 16, self.communicator
        x = self.put(np.full((n, n), 1 / n, np.float32).astype(self.dtype.numpy))
        z = self.put(np.zeros((n, n), np.float32).astype(self.dtype.numpy))

        def step() -> DeviceOp[Tensor]:
            return matmul(x, x, out=z).then(rank.all_reduce)

        step().sync_on(self.stream)
        eager = self.seconds(lambda: [step().sync_on(self.stream) for _ in range(STEPS)]) / STEPS
        with step().graph_on(self.stream) as graph:
            for _ in range(3):
                graph.launch().sync_on(self.stream)
            replayed = self.seconds(lambda: [graph.launch().sync_on(self.stream) for _ in range(STEPS)]) / STEPS
        result = z.to_numpy().sync_on(self.stream).astype(np.float32)
        error = float(np.abs(result * n - rank.world).max())
        return [
            Line("a captured step with an all-reduce, replayed: error", error, most=2e-2),
            Line("a replayed step, of the time of one that is built anew", replayed / eager, most=1.0),
        ]

    def training(self) -> list[Line]:
        """The classifier of digits, beside the same on one rank."""
        images, labels = load_images()
        weights, data = first_weights(64, 32, 10), (images / 16).astype(np.float32)
        loss = asyncio.run(Trainer(self.communicator, data, labels, weights).train(LOSS_STEPS, RATE))
        with Communicator.of([self.device]) as alone:
            one = asyncio.run(Trainer(alone, data, labels, weights).train(LOSS_STEPS, RATE))
        return [Line("training of digits: difference to one rank's loss, relative", abs(loss - one) / one, most=1e-3)]


def _replay(graphs: GraphedSums[Tensor]) -> None:
    graphs()
    graphs.wait()


def rank_main(out: Path, cpu: bool) -> None:
    """One rank's program; rank 0 writes its lines."""
    device = Device.host() if cpu else Device(int(os.environ["RANK"]))
    lines: list[Line] = []
    with device, ExitStack() as stack:
        number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        communicator, *limited = [
            stack.enter_context(Communicator.join(number, world, name, device=device, max_ctas=max_ctas))
            for name, max_ctas in zip(os.environ["UNIQUE_IDS"].split(","), MAX_CTAS, strict=True)
        ]
        rank = Rank(communicator, limited, stack.enter_context(asyncio.Runner()), cpu)
        for measure in (rank.training, rank.replays, rank.steps, rank.way_back, rank.layer):
            measured = measure()
            lines += measured
            if communicator.rank == 0:
                print(*measured, sep="\n", file=sys.stderr, flush=True)
                record = {"lines": [asdict(line) for line in lines], "overlap": rank.overlap}
                out.write_text(json.dumps(record), encoding="utf-8")
        communicator.barrier().sync_on(rank.stream)


def programs(cpu: bool) -> tuple[list[Line], list[dict[str, Any]]]:
    """The lines of both ranks' programs, and the measurements of sums that overlap with products."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "benchmarks.distributed", "--output", str(out), *(["--cpu"] if cpu else [])]
        names = ",".join(Communicator.unique_id() for _ in MAX_CTAS)
        shared = {**os.environ, "WORLD_SIZE": str(WORLD), "UNIQUE_IDS": names}
        processes = [subprocess.Popen(command, env=shared | {"RANK": str(i)}) for i in range(WORLD)]
        end = time.monotonic() + PART_S
        statuses = [status_of(process, end) for process in processes]
        record: dict[str, list[dict[str, Any]]] = {"lines": [], "overlap": []}
        if out.exists():
            record = json.loads(out.read_text("utf-8"))
    lines = [Line(**line) for line in record["lines"]]
    ended = Line("both ranks end well", f"exit statuses {statuses}", holds=not any(statuses))
    return [*lines, ended], record["overlap"]


def status_of(process: subprocess.Popen[bytes], end: float) -> int:
    """The exit status of a process, which is killed at `end`, in seconds of the monotonic clock."""
    try:
        return process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def tests(cpu: bool) -> Line:
    """The tests of collectives: on GPUs, or the suite of all engines."""
    file = "tests/cuda_async/test_collective.py" if cpu else "tests/cuda_async/test_collective_gpus.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", file]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PART_S)
    except subprocess.TimeoutExpired:
        return Line(f"the same results as NumPy: {file}", f"not done in {PART_S} s", holds=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    passed = done.returncode == 0 and (cpu or "skipped" not in lines[-1])
    return Line(f"the same results as NumPy: {file}", lines[-1], holds=passed)


def beside_torch(cpu: bool) -> list[Line]:
    """All-reduces beside torch.distributed's."""
    if importlib.util.find_spec("torch") is None:
        return [Line("all-reduces beside torch.distributed", "torch is not installed", holds=cpu)]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "collectives.json"
        command = [sys.executable, "-m", "benchmarks.collectives", "--output", str(out), *(["--cpu"] if cpu else [])]
        status = status_of(subprocess.Popen(command), time.monotonic() + PART_S)
        if not out.exists():
            return [Line("all-reduces beside torch.distributed", f"exit status {status}", holds=False)]
        rows: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))["rows"]
    same = all(row["same bits"] for row in rows)
    lines = [Line("all-reduces beside torch.distributed: the same bits", str(same), holds=same and not status)]
    for row in rows:
        if row["bytes"] >= 1 << 20:
            lines.append(Line(f"all-reduce of {row['bytes'] >> 20} MiB, of torch's rate", row["of torch"], least=0.95))
        else:
            late = row["us"]["ours"] - row["us"]["torch"]
            lines.append(Line(f"all-reduce of {row['bytes']} bytes, us beyond torch's", late, most=5.0))
    return lines


def on_ray(cpu: bool) -> Line:
    """The training of digits on Ray's workers."""
    name = "training of digits on two Ray workers: difference to one rank's loss, relative"
    if importlib.util.find_spec("ray") is None:
        return Line(name, "Ray is not installed", holds=cpu)
    from cutile.ray import Workers

    images, labels = load_images()
    data, weights = (images / 16).astype(np.float32), first_weights(64, 32, 10)
    with Workers(WORLD, gpus=not cpu) as workers:
        losses = workers.run(_trained, data, labels, weights)
    with Device.host() if cpu else Device(0) as device, Communicator.of([device]) as alone:
        one = _trained(alone, data, labels, weights)
    return Line(name, max(abs(loss - one) / one for loss in losses), most=1e-3)


def _trained(rank: Communicator, images: Any, labels: Any, weights: Any) -> float:
    return asyncio.run(Trainer(rank, images, labels, weights).train(LOSS_STEPS, RATE))


PARTS = ("programs", "torch", "tests", "ray")


def main() -> int:
    """Run all of it, print a line for each claim, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--cpu", action="store_true", help="small, on the CPU: to see that the programs run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run; all by default")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options.output, options.cpu)
        return 0
    if not options.cpu and device_count() < WORLD:
        print("two GPUs are needed; --cpu runs the same programs on the CPU", file=sys.stderr)
        return 2
    record: dict[str, Any] = {"command": "python -m benchmarks.distributed"}
    if not options.cpu:
        record |= machine(Device(0))
    lines: list[Line] = []
    for part in options.parts:
        if part == "programs":
            more, record["overlap"] = programs(options.cpu)
        elif part == "torch":
            more = beside_torch(options.cpu)
        else:
            more = [tests(options.cpu) if part == "tests" else on_ray(options.cpu)]
        lines += more
        if not options.cpu:  # as soon as it is there: a later part may hang
            write(options.output, {**record, "lines": [{**asdict(line), "kept": line.kept} for line in lines]})
    print("| claim | goal | measured | holds |", "| --- | --- | --- | --- |", *lines, sep="\n")
    if options.cpu:  # times of a CPU are no figures: what has to hold are the errors
        return int(not all(line.kept for line in lines if line.least is None and "time of" not in line.name))
    return int(not all(line.kept for line in lines))


if __name__ == "__main__":
    sys.exit(main())
