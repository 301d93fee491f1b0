"""`make bench`: measure the kernels beside NumPy, torch and a plain copy, and keep the figures.

Figures of kernels are medians of interleaved runs on random inputs, after the result was checked. Those of the first
launches of a process are of single runs. One JSON file for each device, by its name, has the figures, with the machine,
the versions and the number of runs.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.first_launch import Launches, first_launches
from benchmarks.kernels.measure import Row, measure
from benchmarks.kernels.page import page
from benchmarks.kernels.sizes import EXAMPLES, bench_sizes
from benchmarks.kernels.table import console, table
from benchmarks.kernels.timing import DeviceClock
from benchmarks.record import FOLDER, host, versions, write
from cuda_async import Device, default_device

LIBRARIES = ("numpy", "scipy", "numba", "llvmlite", "numba-cuda", "cuda-core", "cuda-bindings", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 when a result was wrong, and then write nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.bench", description="measure the kernels")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; this machine's best one by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, written nowhere unless --out says so")
    parser.add_argument(
        "--only", nargs="*", metavar="KERNEL", help="these kernels only; kept nowhere unless --out says so"
    )
    parser.add_argument(
        "--budget", type=float, default=2.0, help="seconds for each library of a row (2; none with --quick)"
    )
    parser.add_argument("--out", type=Path, help="the JSON file; by default docs/benchmarks/<device>.json")
    options = parser.parse_args(arguments)

    names = {example.name for example in EXAMPLES}
    unknown = sorted(set(options.only or ()) - names)
    if unknown:
        parser.error(f"--only: no kernel is called {', '.join(unknown)}; expected some of {', '.join(sorted(names))}")

    device = Device.parse(options.device) if options.device else default_device()
    terminal = console()
    rows = measure_rows(device, options)
    terminal.print(table(f"{device.name} ({device.arch})", rows))
    failures = [row.wrong for row in rows if row.wrong]
    for failure in failures:
        terminal.print(f"WRONG: {failure}", style="bold red")
    if failures:
        return 1
    launches = first_launches("cpu" if device.kind == "host" else f"cuda:{device.ordinal}")
    for state, seconds in launches.items():
        terminal.print(
            f"first kernel of a process, {state}: {seconds.first:.3f} s, of which imports {seconds.imports:.3f} s; "
            f"the next one {seconds.second:.3f} s"
        )
    is_partial = options.quick or options.only is not None  # it must not replace the record of all kernels
    out: Path | None = options.out or (None if is_partial else FOLDER / f"{slug(device.name)}.json")
    if out is not None:
        write(out, record(device, rows, launches))
        terminal.print(f"written to {out}")
        if out.resolve().parent == FOLDER:
            (FOLDER / "README.md").write_text(page(FOLDER), encoding="utf-8")
    return 0


def measure_rows(device: Device, options: argparse.Namespace) -> list[Row]:
    """Measure every kernel that was asked for."""
    with device:
        clock = DeviceClock(device)
        return [
            measure(example, case, clock, budget_s=options.budget, quick=options.quick, copy=True)
            for example, case in bench_sizes(device, quick=options.quick)
            if not options.only or example.name in options.only
        ]


def record(device: Device, rows: Sequence[Row], launches: dict[str, Launches]) -> dict[str, Any]:
    """The figures, with the machine, the versions and the number of runs."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),  # UTC: the machines are in several zones
        "device": {"name": device.name, "arch": device.arch, "kind": device.kind},
        "host": host(),
        "versions": versions(LIBRARIES),
        "rows": [asdict(row) for row in rows],
        "first_launch_s": {state: asdict(seconds) for state, seconds in launches.items()},
    }


def slug(name: str) -> str:
    """Return a device's name as a file name.

    Example:
        >>> slug("NVIDIA H200")
        'nvidia_h200'
    """
    return "".join(char if char.isalnum() else "_" for char in name.lower()).strip("_")


if __name__ == "__main__":
    sys.exit(main())
