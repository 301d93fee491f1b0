"""`python -m kernels bench`: products beside those of other libraries, in pairs; writes JSON and charts."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.first_launch import first_launches
from benchmarks.products import chart, page, terminal
from benchmarks.products.cases import Product, chosen
from benchmarks.products.operands import Operands, Verdict, draw, judge
from benchmarks.products.ours import NotThereError, OurArm, require
from benchmarks.products.peers import AbsentError, installed, peer, torch_tensor
from benchmarks.record import machine, sensors, write
from cuda_async import Device, Stream, default_device
from cutile import CutileError
from cutile.bench import MIN_PAIRS, Arm, Budget, alone, compare
from kernels.gemm_choice import Choice

START = "start"
"""The name of the case that is no product: the time of a process's first kernel, and of the next product."""

PAUSE_S = 0.1
"""Seconds between turns on the CPU: after a call, a BLAS's threads spin for a while on cores that the next needs."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m kernels bench", description=__doc__)
    parser.add_argument("--device", help="cpu, cuda or cuda:1; this machine's best one by default")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="these alone; patterns such as 'bf16-4096*'")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="these alone of those that are installed")
    parser.add_argument(
        "--tile", nargs=3, type=int, metavar="N", help="rows, columns and depth, in place of the choice"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="measured for each peer of a case (default 4)")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds of warming before (default 5)")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"turns of each (default {MIN_PAIRS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--png", type=Path, metavar="FILE", help="where the charts go; needs matplotlib")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write; return 1 when a result was wrong, 2 when the command line is."""
    options = parse(arguments)
    device = Device.parse(options.device) if options.device else default_device()
    patterns: list[str] | None = options.cases
    try:
        cases = chosen(None if patterns is None else [pattern for pattern in patterns if pattern != START], device.kind)
        if options.png is not None:
            chart.require()
    except (ValueError, chart.MissingError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join([*(f"{case.name:16} {case}" for case in cases), f"{START:16} first kernel of a process"]))
        return 0
    budget = Budget(options.warm, options.seconds, options.pairs, 0.0 if device.kind == "cuda" else PAUSE_S)
    tile = Choice(*options.tile) if options.tile else None
    rows: list[dict[str, Any]] = []
    print(terminal.headline(device.name, device.arch))
    with device:
        names = [name for name in installed(device) if options.peers is None or name in options.peers]
        for case in cases:
            rows.append(measured(case, device, names, budget, tile))
            print("\n".join(terminal.lines(rows[-1])), flush=True)
    started = None
    if patterns is None or START in patterns:
        started = {
            state: asdict(launch)
            for state, launch in first_launches("cpu" if device.kind == "host" else "cuda", "gemm").items()
        }
        print("\n".join(terminal.start_lines(started)))
    record = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(["python -m kernels bench", *(sys.argv[2:] if arguments is None else arguments)]),
        **machine(device),
        "inputs": "standard normal, drawn afresh; integers over their whole range; outputs poisoned",
        "budget": asdict(budget),
        "cases": rows,
        "start": started,
    }
    if options.png is not None:
        chart.draw(options.png, record)
    if options.json is not None:
        write(options.json, record)
        if options.json.resolve().parent == page.FOLDER:
            (page.FOLDER / "README.md").write_text(page.page(page.FOLDER), encoding="utf-8")
    return 1 if any(row.get("wrong") for row in rows) else 0


def measured(
    case: Product, device: Device, peers: Sequence[str], budget: Budget, tile: Choice | None = None
) -> dict[str, Any]:
    """One case beside its peers: timed, then checked. `tile` replaces the library's choice."""
    row: dict[str, Any] = {
        "name": case.name,
        "what": str(case),
        "operand": case.operand,
        "shape": [case.batch, case.m, case.n, case.k],
        "flops": case.flops,
        "nbytes": case.nbytes,
        "device_time_of_graph": case.graph,
    }
    stream, random = device.new_stream(), np.random.default_rng()
    try:
        require(case)
        sets = draw(case, device, stream, random)
        ours = OurArm(case, sets, device, stream, tile)
    except NotThereError as reason:
        return row | {"skipped": str(reason)}
    except CutileError as error:  # a fault of ours; the other cases are measured all the same
        return row | {"wrong": f"it does not run: {error}"}
    row["tile"] = [ours.choice.rows, ours.choice.columns, ours.choice.depth]
    row["sets"] = len(sets)
    beside: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    row["peers"], row["absent"] = beside, absent
    for name in peers:
        try:
            theirs: Arm = peer(name, case, sets, stream)
        except AbsentError as reason:
            absent[name] = str(reason)
            continue
        paired = compare(ours, theirs, budget)
        beside[name] = {
            "ours_s": paired.first_s / len(sets),
            "theirs_s": paired.second_s / len(sets),
            "ratio": asdict(paired.ratio),
            "rounds": list(paired.repeats),
        }
        row["sensors"] = sensors(device)
    if beside:
        row["seconds"] = next(iter(beside.values()))["ours_s"]
    else:
        spread, _ = alone(ours, budget)
        row["seconds"] = spread.median / len(sets)
        row["sensors"] = sensors(device)
    ours.close()
    verdicts = [verdict(case, each, device, stream, random) for each in sets]
    row["error"] = max(each.error for each in verdicts)
    row["wrong"] = next((each.wrong for each in verdicts if each.wrong), "")
    return row


def verdict(case: Product, operands: Operands, device: Device, stream: Stream, random: np.random.Generator) -> Verdict:
    """Compare timed results with float64: on the GPU if torch is installed and float64 is fast, else on the host."""
    if device.kind == "cuda" and "torch" in installed(device):
        x, y, z = torch_tensor(operands.x), torch_tensor(operands.stored), torch_tensor(operands.z)
        y = y if case.stored == "kn" else y.transpose(-1, -2)
    else:
        x, y, z = (tensor.to_numpy().sync_on(stream) for tensor in (operands.x, operands.y, operands.z))
    return judge(case, x, y, z, random)
