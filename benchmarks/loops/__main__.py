# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Loops of several products beside cuDNN and cuBLAS, as torch calls them. Needs a GPU and torch.

    python -m benchmarks.loops [--output docs/benchmarks/loops/nvidia_h200.json] [--pairs 20] [--cases 'atten*' lora]

Each kernel and its peer run in alternation in one process, on the same random inputs. Each is timed by events around
launches without a pause. Before that each computes once into an output of NaN, and every element is compared with
float64. A GPU at its power limit slows down within tens of milliseconds, by the power that a kernel draws. So some
representative cases are timed in turns of 50 ms and again in turns of 200 ms (`--long` selects these cases).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.loops import attention, backward, cases, eight, experts, latent, ordinary, scaled, shapes
from benchmarks.loops.cases import Loop, OurArm, TorchArm
from benchmarks.record import machine, missing, sensors, write
from cuda_async import Device
from cutile import CutileError
from cutile.bench import MIN_PAIRS, Arm, Budget, compare

MODULES = (cases, attention, backward, ordinary, scaled, shapes, experts, eight, latent)
CASES = tuple(case for module in MODULES for case in module.CASES)
SHORT_MS, LONG_MS, WARM_S = 50, 200, 0.3
WORST = 10 / 3
"""The error that the worst row may have, relative to the error that is allowed for all rows together."""


def judge(arm: OurArm | TorchArm, allowed: float) -> tuple[float, str]:
    """Compute once; return the relative error of all elements, and the fault, "" if there is none."""
    arm.run(1)
    squares, norms = (arm.out.double() - arm.exact).square_().sum(-1), arm.exact.square().sum(-1)
    # Some rows are nearly zero, such as the gradient of a row that sees a single key. Their error is relative to a
    # tenth of the mean norm.
    floor = norms.clamp_min(1e-2 * float(norms.mean()))
    error, worst = math.sqrt(float(squares.sum() / norms.sum())), math.sqrt(float((squares / floor).max()))
    if not error <= allowed:
        return error, f"{arm.name}: error {error:.2e}, {allowed:.1e} allowed"
    if not worst <= WORST * allowed:
        return error, f"{arm.name}: error {worst:.2e} in the worst row, {WORST * allowed:.1e} allowed"
    return error, ""


def measured(case: Loop, torch: Any, pairs: int, long: bool) -> dict[str, Any]:
    """One case beside its peers: checked, then timed."""
    record: dict[str, Any] = {"name": case.name, "what": case.what, "flops": case.flops, "wrong": "", "peers": {}}
    try:
        ours, peers = case.arms(torch)
    except CutileError as error:  # the other cases are measured all the same
        return record | {"wrong": f"it does not run: {error}"}
    record["error"], record["wrong"] = judge(ours, case.allowed)
    for peer in peers:
        error, wrong = judge(peer, case.allowed)
        record["wrong"] = record["wrong"] or wrong
        if record["wrong"]:
            break
        turns = {str(ms): beside(ours, peer, case.flops, ms, pairs) for ms in (SHORT_MS, LONG_MS)[: 1 + long]}
        record["peers"][peer.name] = {"error": error, "turns_ms": turns, "sensors": sensors(Device(0))}
    return record


def beside(ours: Arm, peer: Arm, flops: int, turn_ms: int, pairs: int) -> dict[str, Any]:
    """Both in turns of `turn_ms`."""
    paired = compare(ours, peer, Budget(WARM_S, 2 * pairs * turn_ms / 1e3, pairs))
    return {
        "ours_s": paired.first_s,
        "theirs_s": paired.second_s,
        "ours_tflops": flops / paired.first_s / 1e12,
        "theirs_tflops": flops / paired.second_s / 1e12,
        "ratio": asdict(paired.ratio),
        "repeats": list(paired.repeats),
    }


def lines(record: dict[str, Any]) -> Iterator[str]:
    """A line for each peer and length of turns; a ratio above 1 is faster than the peer."""
    for peer, found in record["peers"].items():
        for ms, turn in found["turns_ms"].items():
            ratio = turn["ratio"]
            yield (
                f"{record['name']:26} {ms:>4} ms {turn['ours_tflops']:6.0f} {peer:>18} {turn['theirs_tflops']:6.0f} "
                f"TFLOP/s  {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]  error {record['error']:.1e}"
            )
    if record["wrong"]:
        yield f"{record['name']:26} WRONG: {record['wrong']}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: it is wrong, with code 2.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loops", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the figures go, as JSON")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"turns of each (default {MIN_PAIRS})")
    parser.add_argument(
        "--cases", nargs="+", default=["*"], metavar="PATTERN", help="these alone, such as 'attention-64*' swiglu"
    )
    parser.add_argument(
        "--long", metavar="PATTERN", help="these in long turns too; by default attention-128, attention-64, swiglu"
    )
    options = parser.parse_args(arguments)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs {options.pairs}: expected {MIN_PAIRS} or more; fewer give no interval to go by")
    for pattern in options.cases:
        if not any(fnmatch(case.name, pattern) for case in CASES):
            parser.error(f"--cases {pattern}: no such case; there are {', '.join(case.name for case in CASES)}")
    options.chosen = [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in options.cases)]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write; return 1 when a result was wrong, 2 when nothing can run."""
    options = parse(arguments)
    if reason := missing():
        print(f"benchmarks.loops: {reason}", file=sys.stderr)
        return 2
    torch: Any = importlib.import_module("torch")
    torch.seed()
    rows: list[dict[str, Any]] = []
    with Device(0) as device:
        record = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": f"python -m benchmarks.loops --pairs {options.pairs} --cases {shlex.join(options.cases)}",
            **machine(device),
            "cudnn": torch.backends.cudnn.version(),
            "cuda_of_torch": torch.version.cuda,
            "inputs": "standard normal, drawn afresh; outputs poisoned; every element judged before it is timed",
            "pairs": options.pairs,
            "rows": rows,
        }
        print(f"{device.name} ({device.arch}); a ratio above 1 is faster than the peer")
        for case in options.chosen:
            rows.append(measured(case, torch, options.pairs, in_long_turns(case, options.long)))
            print("\n".join(lines(rows[-1])), flush=True)
            if options.output is not None:  # after each case, so that an interrupted run is not lost
                write(options.output, record)
    return 1 if any(row["wrong"] for row in rows) else 0


def in_long_turns(case: Loop, pattern: str | None) -> bool:
    """Whether a case is timed in long turns too."""
    return case.long if pattern is None else fnmatch(case.name, pattern)


if __name__ == "__main__":
    sys.exit(main())
