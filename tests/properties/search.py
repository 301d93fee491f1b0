"""Search for random kernels on which backends disagree: `python -m tests.properties.search --count 10000`.

Each batch of kernels has a seed of its own, so that a search repeats whatever the number of processes. A failure is
shrunk to a short kernel to paste, printed with the two results, and counted; the search goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from cutile.backend.interface import DEFAULT_OPTIONS
from cutile.command.arguments import read_facts
from cutile.command.compile import target_named
from tests.properties.kernels import RandomKernel, kernels
from tests.properties.test_backends_agree import check, run
from tests.support.kernels import kernel

BATCH = 50


@dataclass
class Found:
    """What a batch of kernels showed.

    Attributes:
        count: kernels compared.
        failures: a short kernel and what was wrong with it, for each.
        seconds: what the first run of each kernel took, compilation included.
    """

    count: int = 0
    failures: list[str] = field(default_factory=list[str])
    seconds: list[float] = field(default_factory=list[float])


def search(backend: str, number: int, count: int) -> Found:
    """Compare `count` kernels of the batch `number` on `backend` with the reference."""
    found = Found()

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(case=kernels())
    def compare(case: RandomKernel) -> None:
        try:
            if backend.startswith("sm_"):
                start = time.perf_counter()
                compile_only(case, backend)
                seconds = time.perf_counter() - start
            else:
                wanted = run(case, "reference")
                start = time.perf_counter()
                got = run(case, backend)
                seconds = time.perf_counter() - start
                check(case, wanted, got)
        except Exception as error:
            raise _Disagreement(case, error) from error
        if not found.failures:
            found.count += 1
            found.seconds.append(seconds)

    try:
        compare()
    except _Disagreement as error:  # the shortest that shrinking found
        found.count += 1
        found.failures.append(str(error))
    except BaseExceptionGroup as group:
        found.count += len(group.exceptions)
        found.failures.extend(str(error) for error in group.exceptions)
    return found


def compile_only(case: RandomKernel, arch: str) -> None:
    """Compile for a GPU, which need not be there.

    Raises:
        CompilationError: the toolchain refuses what was generated.
    """
    given = dict.fromkeys(("x", "z"), f"{case.dtype.name}[64,64]")
    made = kernel(case.text).cache
    facts = read_facts(made.signature, {"out": f"{case.dtype.name}[64,64]/({case.tile[0]},{case.tile[1]})", **given})
    made.plan(facts, {}, DEFAULT_OPTIONS).render(target_named(arch), "log")


class _Disagreement(Exception):
    def __init__(self, case: RandomKernel, error: Exception) -> None:
        super().__init__(f"{case}\n{type(error).__name__}: {error}")


def batches(backend: str, first: int, count: int) -> Iterator[tuple[str, int, int]]:
    """The arguments of `search` that cover `count` kernels."""
    for number in range(-(-count // BATCH)):
        yield backend, first + number, min(BATCH, count - number * BATCH)


def main(arguments: list[str] | None = None) -> int:
    """Search, print what was found, and write it as JSON where asked; 1 where backends disagree."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.search", description=__doc__)
    parser.add_argument("--backend", action="append", help="cpu, cuda, interpret; sm_90a only compiles")
    parser.add_argument("--count", type=int, default=1000, help="kernels for each backend")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no batch after this many seconds")
    parser.add_argument("--output", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    report: dict[str, Any] = {"seed": options.seed, "batch": BATCH, "backends": {}}
    for backend in options.backend or ["cpu"]:
        total = _search_all(options, backend, start)
        report["backends"][backend] = _figures(total)
        print(f"{backend}: {total.count} kernels, {len(total.failures)} disagreements", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any(each["failures"] for each in report["backends"].values()) else 0


def _search_all(options: argparse.Namespace, backend: str, start: float) -> Found:
    total = Found()
    # Not forked: a fork of a process that has used a GPU may not use it.
    pool = ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"))
    with ExitStack() as stack:
        stack.callback(pool.shutdown, cancel_futures=True)
        pending = [pool.submit(search, *each) for each in batches(backend, options.seed, options.count)]
        for done in as_completed(pending):
            if done.cancelled():
                continue
            found = done.result()
            total.count += found.count
            total.seconds += found.seconds
            for failure in found.failures:
                total.failures.append(failure)
                print(f"--- {backend} disagrees\n{failure}", flush=True)
            if time.monotonic() - start > options.limit:
                for each in pending:
                    each.cancel()
    return total


def _figures(total: Found) -> dict[str, Any]:
    made = asdict(total)
    seconds = made.pop("seconds")
    made["median_seconds_to_compile_and_run"] = round(statistics.median(seconds), 4) if seconds else None
    return made


if __name__ == "__main__":
    sys.exit(main())
