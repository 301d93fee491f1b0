"""`make bench`: measure the kernels beside NumPy, torch and a plain copy, and keep the figures.

Every figure is a median of interleaved runs on random inputs, after the result was checked. One JSON file for each kind
of device has the figures, with the machine, the versions and the number of runs.
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
from benchmarks.kernels.sizes import bench_sizes
from benchmarks.kernels.table import console, table
from benchmarks.kernels.timing import DeviceClock
from benchmarks.record import FOLDER, host, versions, write
from cuda_async import Device, default_device

LIBRARIES = ("numpy", "scipy", "numba", "llvmlite", "numba-cuda", "cuda-core", "cuda-bindings", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 when a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.bench", description="measure the kernels")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; this machine's best one by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, written nowhere unless --out says so")
    parser.add_argument("--only", nargs="*", metavar="KERNEL", help="these kernels only")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each who is timed (default 2)")
    parser.add_argument("--out", type=Path, help="the JSON file; docs/benchmarks/<device>.json by default")
    options = parser.parse_args(arguments)

    device = Device.parse(options.device) if options.device else default_device()
    terminal = console()
    rows = list(measured(device, options))
    terminal.print(table(f"{device.name} ({device.arch})", rows))
    launches = first_launches("cpu" if device.kind == "host" else f"cuda:{device.ordinal}")
    for state, seconds in launches.items():
        terminal.print(
            f"first kernel of a process, {state}: {seconds.first:.3f} s, of which imports {seconds.imports:.3f} s; "
            f"the next one {seconds.second:.3f} s"
        )
    out: Path | None = options.out or (None if options.quick else FOLDER / f"{slug(device.name)}.json")
    if out is not None:
        write(out, record(device, rows, launches))
        terminal.print(f"written to {out}")
        if out.parent == FOLDER:
            (FOLDER / "README.md").write_text(page(FOLDER), encoding="utf-8")
    failures = [row.wrong for row in rows if row.wrong]
    for failure in failures:
        terminal.print(f"WRONG: {failure}", style="bold red")
    return 1 if failures else 0


def measured(device: Device, options: argparse.Namespace) -> Sequence[Row]:
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
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
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
