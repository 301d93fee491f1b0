"""The picture of the README, docs/benchmarks/speed.svg, and a page, drawn from the kept figures and from nothing else.

    python -m benchmarks.front_page          # writes both; a test compares them with the figures

A ratio above 1 means faster than the peer. Bars grow from 1 to both sides by the logarithm, so that half as fast is as
long as twice as fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
OTHER = FOLDER / "other_kernels"

PRODUCTS = (
    # the case, its label, and the run: long turns where that case was run with them, which decide less by the clock
    ("bf16-512", "512 cubed bf16", "nvidia_h200"),
    ("bf16-2048", "2048 cubed bf16", "nvidia_h200"),
    ("bf16-4096", "4096 cubed bf16", "nvidia_h200_long_turns"),
    ("bf16-8192", "8192 cubed bf16", "nvidia_h200_long_turns"),
    ("bf16-16384", "16384 cubed bf16", "nvidia_h200_long_turns"),
    ("bf16-m16", "16 x 8192 x 8192 bf16", "nvidia_h200"),
    ("bf16-odd", "777 x 1000 x 333 bf16", "nvidia_h200"),
    ("fp8-8192-nk", "8192 cubed fp8", "nvidia_h200_long_turns"),
    ("int8-8192-nk", "8192 cubed int8", "nvidia_h200_long_turns"),
    ("tf32-8192", "8192 cubed tf32", "nvidia_h200_long_turns"),
    ("f32-8192", "8192 cubed f32", "nvidia_h200"),
)
SLOW = (
    ("attention bf16, d128", "128 heads x 4096", "attention d128"),
    ("attention bf16, d64", "128 heads x 4096", "attention d64"),
    ("SwiGLU: two products in one loop", "4096", "SwiGLU"),
    ("weights of int8, a scale per 64 of K", "4096", "int8 weights"),
    ("mixture of 8 experts, rows by a list", "4096", "mixture of experts"),
    ("histogram of u8, 256 bins", "2^28", "histogram"),
    ("layer_norm", "rows of 65536", "layer_norm, long rows"),
    ("layer_norm", "rows of 4096", "layer_norm, short rows"),
)
LAUNCHES = (
    ("raw cuLaunchKernel, prepared parameters", "raw driver call"),
    ("cutile: bound relaunch", "cutile, bound"),
    ("CuPy RawKernel", "CuPy RawKernel"),
    ("torch add_", "torch add_"),
    ("cutile: kernel(...) built and executed", "cutile, all of it"),
    ("Triton", "Triton"),
)

WIDTH, COLUMN, ROW, HEAD, LABEL = 880, 425, 19, 46, 148
"""Pixels: the picture, a column of panels, a row, a panel's title, the room for labels."""

UNIT = 42.0
"""Pixels for each factor of two."""

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px } .note { font-size: 11px; fill: #59636e }
.fast { fill: #1a7f64 } .slow { fill: #c4622d } .time { fill: #8c959f } .ours { fill: #1a7f64 }
.one { stroke: #59636e; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .fast, .ours { fill: #3fb68b } .slow { fill: #e08a55 }
  .time { fill: #6e7681 } .one { stroke: #9198a1 }
}
"""


@dataclass(frozen=True)
class Bar:
    """One row of a panel: its label, its figure, and where the figure's peer differs from the panel's, the peer."""

    label: str
    value: float
    peer: str = ""


@dataclass(frozen=True)
class Panel:
    """Bars under a title; `ratios` grow from 1 to both sides, else they are microseconds from 0."""

    title: str
    note: str
    bars: tuple[Bar, ...]
    ratios: bool = True

    @property
    def height(self) -> int:
        """Pixels."""
        return HEAD + ROW * len(self.bars) + 16


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def products(folder: Path = FOLDER) -> Panel:
    """Matrix products on a GPU beside cuBLAS."""
    runs = {run: _read(folder / "products" / f"{run}.json") for run in {run for _, _, run in PRODUCTS}}
    bars: list[Bar] = []
    for case, label, run in PRODUCTS:
        (found,) = (each for each in runs[run]["cases"] if each["name"] == case)
        bars.append(Bar(label, found["peers"]["torch"]["ratio"]["median"]))
    return Panel("Matrix products beside cuBLAS", f"NVIDIA H200, {_dates(*runs.values())}", tuple(bars))


def rows(folder: Path, device: str, peer: str, title: str, where: str) -> Panel:
    """The library's kernels on a device beside a peer."""
    record = _read(folder / f"{device}.json")
    newest: dict[str, Bar] = {}
    for row in record["rows"]:
        timings = row["timings"]
        newest[row["kernel"]] = Bar(row["kernel"], timings[peer]["median"] / timings["cutile"]["median"])
    return Panel(title, f"{where}, {record['date']}", tuple(newest.values()))


def slow(folder: Path = FOLDER) -> Panel:
    """What is slow, beside the best peer."""
    record = _read(folder / "other_kernels" / "nvidia_h200.json")
    known = {(row["kernel"], row["size"]): row for row in record["rows"]}
    bars = tuple(Bar(label, known[name, size]["ratio"], known[name, size]["peer"]) for name, size, label in SLOW)
    return Panel("Where it stops, beside the best peer", f"NVIDIA H200, {record['date']}, untuned", bars)


def launches(folder: Path = FOLDER) -> Panel:
    """What a launch costs the host."""
    costs = _read(folder / "runtime" / "launch_cost.json")["us per launch"]
    bars = tuple(Bar(label, costs[name]) for name, label in LAUNCHES)
    return Panel("Microseconds of the host for a launch", "saxpy on the host of an H200; less is better", bars, False)


def _dates(*records: dict[str, Any]) -> str:
    return ", ".join(sorted({record["date"] for record in records}))


def picture(folder: Path = FOLDER) -> str:
    """The SVG."""
    columns = (
        (products(folder), launches(folder)),
        (
            rows(folder, "nvidia_h200", "torch", "The library's f32 kernels beside torch", "NVIDIA H200"),
            rows(folder, "amd_epyc", "numpy", "The same kernels beside NumPy", "2 cores of an AMD EPYC"),
            slow(folder),
        ),
    )
    height = 34 + max(sum(panel.height for panel in column) for column in columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Speed beside cuBLAS, torch, NumPy and Triton; the figures are in docs/benchmarks">',
        f"<style>{STYLE}</style>",
        '<text class="note" x="8" y="18">Bars of ratios: right of the line is faster than the peer, left is slower; '
        "lengths are logarithmic.</text>",
    ]
    for number, column in enumerate(columns):
        top = 34
        for panel in column:
            parts.extend(_panel(panel, 8 + number * (COLUMN + 14), top))
            top += panel.height
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: int, top: int) -> Iterator[str]:
    yield f'<text class="title" x="{left}" y="{top + 14}">{escape(panel.title)}</text>'
    yield f'<text class="note" x="{left}" y="{top + 30}">{escape(panel.note)}</text>'
    lowest = min([0.0, *(math.log2(bar.value) for bar in panel.bars)]) if panel.ratios else 0.0
    one = left + LABEL + (round(-lowest * UNIT) + 8 if panel.ratios else 4)
    end = top + HEAD + ROW * len(panel.bars)
    for row, bar in enumerate(panel.bars):
        y = top + HEAD + ROW * row
        yield f'<text x="{left}" y="{y + 12}">{escape(bar.label)}</text>'
        if panel.ratios:
            length = math.log2(bar.value) * UNIT
            figure, kind = f"{bar.value:.2f}", "fast" if bar.value >= 1 else "slow"
        else:
            length = bar.value * 15
            figure, kind = f"{bar.value:.1f}", "ours" if bar.label.startswith("cutile") else "time"
        start, wide = (one + length, -length) if length < 0 else (one, length)
        yield f'<rect class="{kind}" x="{start:.1f}" y="{y + 2}" width="{max(wide, 1):.1f}" height="13" rx="2"/>'
        beside = one + 6 if length < 0 else one + length + 6
        words = figure + (f"  of {bar.peer}" if bar.peer else "")
        yield f'<text x="{beside:.1f}" y="{y + 12}">{escape(words)}</text>'
    yield f'<line class="one" x1="{one}" y1="{top + HEAD - 3}" x2="{one}" y2="{end + 2}"/>'


def page(folder: Path = OTHER) -> str:
    """The page of the kernels that are not in the library."""
    lines = [
        "# Kernels beside the library's",
        "",
        "Written by `python -m benchmarks.front_page` from the JSON files in this folder. A ratio above 1 means faster",
        "than the peer. Where no library has the kernel, `our gemm` is the peer: the plain product of 4096 cubed in",
        "bf16, in the same run.",
    ]
    for path in sorted(folder.glob("*.json")):
        record = _read(path)
        lines += ["", f"## {record['device']}", "", f"{record['date']}. {record['what']}", ""]
        lines += ["| kernel | size | ours | peer | peer's | ratio |", "| --- | --- | --- | --- | --- | --- |"]
        for row in record["rows"]:
            cells = (row["kernel"], row["size"], row["ours"], row["peer"], row["peer_rate"], f"{row['ratio']:.3g}")
            lines.append(f"| {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the picture and the page."""
    (FOLDER / "speed.svg").write_text(picture(), encoding="utf-8")
    (OTHER / "README.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
