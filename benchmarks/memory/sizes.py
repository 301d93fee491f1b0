# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""The rate of some kernels over the bytes that they move, and the picture of it.

    python -m benchmarks.memory.sizes measure      # on a GPU: docs/benchmarks/memory/nvidia_h200_sizes.json
    python -m benchmarks.memory.sizes draw         # docs/benchmarks/memory/sizes.svg, of the kept figures

Launches of a graph go over up to 32 sets of operands. So from 4 MB on no cache has them, and below that the GPU's
second cache has.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.memory import cases, rows
from benchmarks.memory.case import Case
from benchmarks.record import FOLDER, machine, missing, write
from cutile import bf16, f32

FIGURES = FOLDER / "memory" / "nvidia_h200_sizes.json"
PICTURE = FOLDER / "memory" / "sizes.svg"

SIZES = tuple(1 << power for power in (16, 19, 22, 25, 28, 30))
"""Bytes, read and written."""
SETS = 32
"""The most sets of operands of a graph's launches; together they have 128 MB or more if a set has 4."""
TURN_S = 2e-3
TURNS = 7

MAKERS: dict[str, Callable[[int], Case]] = {
    "copy bf16": lambda size: cases.copy(size // 4 // 1024, 1024, bf16),
    "softmax, rows of 4096 bf16": lambda size: rows.softmax(4096, size // 4 // 4096, bf16),
    "rms_norm, rows of 4096 bf16": lambda size: rows.rms_norm(4096, size // 4 // 4096, bf16),
    "sum f32": lambda size: cases.total(size // 4, min(1056, size // 4 // 8192)),
    "transpose f32": lambda size: cases.transpose(round(math.sqrt(size / 8) / 32) * 32, f32),
}
"""A kernel of about as many bytes."""


# -- figures --------------------------------------------------------------------------------------


def measure() -> int:
    """Check, time and write; return 1 when a result was wrong, 2 when nothing can run."""
    if reason := missing():
        print(f"benchmarks.memory.sizes: {reason}", file=sys.stderr)
        return 2
    from benchmarks.memory.__main__ import Problem, compile_ahead
    from cuda_async import Device

    torch: Any = importlib.import_module("torch")
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in MAKERS}
    wrong = 0
    with Device(0) as device:
        every = [(name, make(size)) for size in SIZES for name, make in MAKERS.items()]
        compile_ahead([case for _, case in every], device)
        for name, case in every:
            problem = Problem(torch, case, device, min(SETS, -(-(1 << 28) // case.nbytes)))
            error, reason = problem.check()
            if reason:
                print(f"{name}, {case.nbytes} bytes: WRONG: {reason}", flush=True)
                wrong = 1
                continue
            arm = problem.ours()
            repeats = max(1, round(TURN_S / arm.run(2)) // len(problem.ins))
            seconds = statistics.median(arm.run(repeats) / repeats for _ in range(TURNS))
            arm.close()
            curves[name].append({"bytes": case.nbytes, "seconds": seconds, "error": error})
            print(f"{name:28} {case.nbytes:11} bytes {case.nbytes / seconds / 1e9:7.0f} GB/s", flush=True)
        record = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": "python -m benchmarks.memory.sizes measure",
            **machine(device),
            "turns": TURNS,
            "curves": curves,
        }
    write(FIGURES, record)
    return wrong


# -- the picture ----------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 776, 400, 64, 40, 206, 48
"""Pixels: the chart, and the margins around the curves."""
LOW, HIGH = 10.0, 8000.0
"""GB/s, at the lower and the upper edge."""
PEAK = {"sm_90a": 4800.0}
"""GB/s of the memory, by the data sheet of an H200."""
COLOURS = ("#1a7f64", "#c4622d", "#3566b8", "#8b5ab0", "#a8812a")

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px } .note { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 } .roof { stroke: #59636e; stroke-width: 1.5; stroke-dasharray: 5 3 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .grid { stroke: #3d444d } .roof { stroke: #9198a1 }
}
"""


def across(nbytes: float) -> float:
    """The horizontal position of a number of bytes, in pixels."""
    first, last = math.log(SIZES[0]), math.log(SIZES[-1])
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(nbytes) - first) / (last - first)


def down(rate: float) -> float:
    """The vertical position of a rate in GB/s, in pixels."""
    part = math.log(max(LOW, min(HIGH, rate)) / LOW) / math.log(HIGH / LOW)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def roof(record: Mapping[str, Any]) -> tuple[float, float]:
    """The bounds of all rates: the memory's GB/s, and the seconds of the shortest launch."""
    shortest = min(point["seconds"] for curve in record["curves"].values() for point in curve)
    return PEAK[record["device"]["arch"]], shortest


def _label(nbytes: int) -> str:
    return f"{nbytes >> 30} GB" if nbytes >= 1 << 30 else f"{nbytes >> 20} MB" if nbytes >> 20 else f"{nbytes >> 10} KB"


def draw(record: Mapping[str, Any]) -> str:
    """The picture as SVG."""
    peak, shortest = roof(record)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="20">{record["device"]["name"]}: bytes, and the rate of moving them</text>',
    ]
    for rate in (10, 30, 100, 300, 1000, 3000):
        y = down(rate)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="note" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate}</text>')
    parts.append(f'<text class="note" x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">GB/s</text>')
    for size in SIZES:
        x = across(size)
        parts.append(
            f'<text class="note" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_label(size)}</text>'
        )
    knee = peak * 1e9 * shortest
    corners = [(SIZES[0], SIZES[0] / shortest / 1e9), (knee, peak), (SIZES[-1], peak)]
    points = " ".join(f"{across(nbytes):.1f},{down(rate):.1f}" for nbytes, rate in corners)
    parts.append(f'<polyline class="roof" fill="none" points="{points}"/>')
    parts.append(
        f'<text class="note" x="{LEFT}" y="{HEIGHT - 10}">dashed: {peak:.0f} GB/s of the memory by its data sheet, '
        f"and launches of {shortest * 1e6:.1f} us</text>"
    )
    for number, (name, curve) in enumerate(record["curves"].items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{across(p['bytes']):.1f},{down(p['bytes'] / p['seconds'] / 1e9):.1f}" for p in curve)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{line}"/>')
        y = TOP + 12 + 20 * number
        x = WIDTH - RIGHT + 14
        parts.append(f'<line class="line" stroke="{colour}" x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text class="note" x="{x + 22}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or draw."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["measure"]:
        return measure()
    if words == ["draw"]:
        PICTURE.write_text(draw(json.loads(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    print("benchmarks.memory.sizes: expected measure or draw", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
