"""Search for random kernels on which backends disagree: `python -m tests.properties.search --count 10000`.

    python -m tests.properties.search --backend cpu,cuda --count 10000 --processes 16 --output found.json
    python -m tests.properties.search --backend sm_90a --count 300          # compiles only: no GPU is needed
    python -m tests.properties.search --backend cuda --again kernel.txt     # one that was printed
    python -m tests.properties.search --draw loops --backend models,cpu     # several matrix products in loops
    python -m tests.properties.search --draw interleaved --backend models   # products in another order than their loads

Each batch of kernels has a seed of its own, so that a search repeats whatever the number of processes. Each kernel runs
on the reference, and on all backends of a list. A failure is shrunk to a short kernel to paste, printed with the two
results, and counted; the search goes on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_async import Device
from tests.properties.crew import PATIENCE, Crew, Found
from tests.properties.generator.kernel import read
from tests.properties.worker import DRAWN, SHRINKING, Batch, Disagreed, Disagreement, compare

BATCH = 25
PACKAGES = ("numba", "llvmlite", "numba-cuda", "numpy", "ml_dtypes", "hypothesis")
ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "CUDA_ASYNC_WORKERS": "2"}
"""For the processes, which share the machine's cores: threads of NumPy's products, and of the CPU's kernels."""


def batches(
    backends: tuple[str, ...], first: int, count: int, shrinking: float = SHRINKING, drawn: str = "any"
) -> Iterator[Batch]:
    """What covers `count` kernels."""
    for number in range(-(-count // BATCH)):
        yield Batch(first + number, min(BATCH, count - number * BATCH), backends, shrinking, drawn)


def main(arguments: list[str] | None = None) -> int:
    """Search, print what was found, and write it as JSON where asked; 1 where backends disagree."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.properties.search", description="Search for random kernels on which backends disagree."
    )
    parser.add_argument(
        "--backend",
        default="cpu",
        help="cpu, cuda, interpret, guarded (the CPU between guard pages), or several as in cpu,cuda; "
        "sm_90a only compiles, models only proves what sm_90a would be given",
    )
    parser.add_argument("--draw", default="any", choices=DRAWN, help="which kernels (default any)")
    parser.add_argument("--count", type=int, default=1000, help="kernels")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one kernel")
    parser.add_argument("--limit", type=float, default=float("inf"), help="end after this many seconds")
    parser.add_argument("--shrink", type=float, default=SHRINKING, help="seconds for making a failure small")
    parser.add_argument("--output", type=Path, help="write the figures there")
    parser.add_argument("--commit", help="of the code, to be kept with the figures")
    parser.add_argument("--again", type=Path, help="compare the one kernel that was printed into this file")
    options = parser.parse_args(arguments)
    backends = tuple(options.backend.split(","))
    if options.again is not None:
        return _again(options.again, backends)
    one_core()
    start = time.monotonic()
    crew = Crew(
        batches(backends, options.seed, options.count, options.shrink, options.draw), _show, patience=options.patience
    )
    results = crew.run(options.processes, options.limit)
    report = {
        "command": "python -m tests.properties.search " + " ".join(sys.argv[1:] if arguments is None else arguments),
        "commit": options.commit,
        "seed": options.seed,
        "batch": BATCH,
        "processes": options.processes,
        "wall_seconds": round(time.monotonic() - start, 1),
        **_machine(backends),
        **_figures(results, backends),
    }
    for backend in backends:
        wrong = sum(each.backend == backend for each in results.failures)
        print(f"{backend}: {results.count} kernels, {wrong} disagreements", flush=True)
    for what, counts in results.about.items():
        print(f"{what}: " + ", ".join(f"{value} {count}" for value, count in counts.most_common()))
    if others := [each for each in results.failures if each.backend not in backends]:
        print(f"elsewhere: {len(others)} failures")
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if results.failures else 0


def gone_through(backends: tuple[str, ...], seed: int, count: int, processes: int) -> Found:
    """As many kernels as asked for, in processes of one core each; failures are printed as they come.

    What a batch draws twice counts once: more batches make up for it.
    """
    one_core()
    total = Found()
    while total.count < count:
        before = total.count
        crew = Crew(batches(backends, seed, count - total.count), _show)
        crew.found = total
        crew.run(processes)
        seed += -(-count // BATCH)
        if total.count == before:
            break
    return total


def one_core() -> None:
    """Let the processes to come use one core each."""
    for name, most in ONE_CORE.items():
        os.environ.setdefault(name, most)


def _show(failure: Disagreed) -> None:
    print(f"--- {failure.backend} disagrees\n{failure.text}", flush=True)


def _again(file: Path, backends: tuple[str, ...]) -> int:
    try:
        compare(read(file.read_text(encoding="utf-8")), backends)
    except Disagreement as error:
        _show(Disagreed(error.backend, str(error)))
        return 1
    print("no disagreement")
    return 0


def _machine(backends: tuple[str, ...]) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = Device(0).name if "cuda" in backends else None
    return {"device": device, "processor": platform.machine(), "processors": os.cpu_count(), "versions": versions}


def _figures(results: Found, backends: tuple[str, ...]) -> dict[str, Any]:
    figures = {
        backend: {
            "kernels": len(results.seconds.get(backend, ())),
            "disagreements": sum(failure.backend == backend for failure in results.failures),
            "compile_seconds": _spread(results.seconds.get(backend, [])),
            "slowest_to_compile": results.slowest.get(backend),
        }
        for backend in backends
    }
    failures = [failure.text for failure in results.failures]
    about = {what: dict(counts.most_common()) for what, counts in results.about.items()}
    return {"kernels": results.count, "backends": figures, "about": about, "failures": failures}


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    middle, ninetieth = statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    named = zip(("median", "p90", "longest"), (middle, ninetieth, ordered[-1]), strict=True)
    return {name: round(value, 4) for name, value in itertools.chain(named)}


if __name__ == "__main__":
    sys.exit(main())
