"""The demo, `python -m kernels`: runs the main kernels on this machine's best device.

Each is compared with NumPy in float64 and timed beside NumPy (and torch, if it is installed); then handwritten digits
are classified with them. Exits with 1 when a result is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from benchmarks.kernels.digits import Outcome, classify
from benchmarks.kernels.measure import Row, measure
from benchmarks.kernels.sizes import demo_sizes
from benchmarks.kernels.timing import DeviceClock
from cuda_async import Device, NoDeviceError, default_device

REMEDY = "the demo needs {}; install them with: pip install -e '.[demo]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    options = parse(arguments)
    missing = [name for name, module in (("rich", "rich"), ("scikit-learn", "sklearn")) if not find_spec(module)]
    if missing:
        print(REMEDY.format(" and ".join(missing)), file=sys.stderr)
        return 1
    try:
        device = Device.parse(options.device) if options.device else default_device()
    except (NoDeviceError, ValueError) as error:
        print("\n".join([f"{error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 2
    rows, outcome = run(device, quick=options.quick)
    return report(device, rows, outcome)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m kernels", description="run, check and time every kernel")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; this machine's best one by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check, not a measurement")
    return parser.parse_args(arguments)


def run(device: Device, *, quick: bool) -> tuple[list[Row], Outcome]:
    """Run everything on `device`, with a progress bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    sizes = demo_sizes(device, quick=quick)
    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with device, Progress(*columns) as progress:
        task = progress.add_task("", total=len(sizes) + 1)
        clock = DeviceClock(device)
        for example, case in sizes:
            progress.update(task, description=f"{example.name} {case}")
            rows.append(measure(example, case, clock, quick=quick))
            progress.advance(task)
        progress.update(task, description="digits by nearest neighbours")
        outcome = classify()
        progress.update(task, description="done", advance=1)
    return rows, outcome


def report(device: Device, rows: Sequence[Row], outcome: Outcome) -> int:
    """Print the table and the digits' accuracy; return the exit status."""
    from benchmarks.kernels.table import console, table

    terminal = console()
    terminal.print(table(f"{device.name} ({device.arch})", rows))
    terminal.print(f"digits: {outcome.held_out} held-out images by nearest neighbours, {outcome.accuracy:.1%} right")
    failures = [row.wrong for row in rows if row.wrong] + ([outcome.wrong] if outcome.wrong else [])
    for failure in failures:
        terminal.print(f"WRONG: {failure}", style="bold red")
    return 1 if failures else 0
