"""The README's chart, docs/benchmarks/speed.svg, and two pages of tables, from the kept figures.

    python -m benchmarks.front_page          # writes them; a test compares them with the figures

A ratio above 1 means faster than the peer. Bars begin at 1 and have a logarithmic length, to the right if faster and to
the left if slower: half as fast is as long as twice as fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.record import FOLDER

PRODUCTS = (
    # The case, its label, and the run: the one with long turns if it has the case. In long turns each kernel runs at a
    # clock of its own, and not at one that the peer's power decided.
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
LOOPS = (
    # The case, its label, its peer, and the peer's name. `loops` takes the longest turns of each case.
    ("attention-128", "attention d128", "cudnn", "cuDNN"),
    ("attention-128-causal", "attention d128, causal", "cudnn", "cuDNN"),
    ("attention-64", "attention d64", "cudnn", "cuDNN"),
    ("attention-64-causal", "attention d64, causal", "cudnn", "cuDNN"),
    ("swiglu", "SwiGLU", "torch", "torch"),
    ("lora", "LoRA", "cublas", "cuBLAS"),
    ("taps", "loop in a loop", "cublas", "cuBLAS"),
)
MEMORY = (
    # the case and its label; the peer is torch.compile
    ("softmax 4096", "softmax, rows of 4096"),
    ("softmax 65536", "softmax, rows of 65536"),
    ("layer_norm 4096", "layer_norm, 4096"),
    ("layer_norm by sums 65536", "layer_norm, 65536"),
    ("rms_norm 4096", "rms_norm, 4096"),
    ("layer_norm backward 8192", "layer_norm backward"),
    ("add + rms_norm 8192, fp8 by 128", "add + rms_norm to fp8"),
    ("cross_entropy 128256", "cross entropy, 128256"),
    ("cumsum i32 2**28", "cumsum of 2**28 i32"),
    ("sum f32 2**30", "sum of 2**30 f32"),
    ("transpose bf16 16384", "transpose bf16"),
    ("dropout, Philox 4x32-10", "dropout (Philox)"),
    ("gemv 128256 x 4096", "matrix times vector"),
)
SLOW = (
    # the folder, the case, its label, its peer and the peer's name
    ("memory", "softmax 262144", "softmax of 262144", "copy", "a copy"),
    ("memory", "layer_norm 65536", "layer_norm of 65536", "copy", "a copy"),
    ("memory", "rms_norm 4097", "rms_norm of 4097", "copy", "a copy"),
    ("memory", "cumsum f32 65536", "cumsum of 65536", "copy", "a copy"),
    ("loops", "attention-capped", "attention, capped", "ours without a cap", "ours without"),
    ("loops", "masked", "product under a mask", "our plain product", "our product"),
    ("loops", "parts", "split-K by hand", "cublas", "cuBLAS"),
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
    """One row of a panel: its label, its figure, and the peer if it differs from that of the panel."""

    label: str
    value: float
    peer: str = ""


@dataclass(frozen=True)
class Panel:
    """Bars under a title: ratios, drawn from 1 to both sides, or with `ratios=False` microseconds from 0."""

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


def loops(folder: Path = FOLDER) -> Panel:
    """Loops of several products beside cuDNN and cuBLAS."""
    runs = _newest(folder / "loops")
    bars: list[Bar] = []
    for case, label, peer, name in LOOPS:
        turns = runs[case][0]["peers"][peer]["turns_ms"]
        bars.append(Bar(label, turns[max(turns, key=int)]["ratio"]["median"], name))
    dates = _dates(*(runs[case][1] for case, *_ in LOOPS))
    return Panel("Loops of several products", f"NVIDIA H200, {dates}, bf16, beside peers", tuple(bars))


def _newest(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each case's newest row in a folder's runs on H200s, with its run."""
    runs = sorted((_read(path) for path in sorted(folder.glob("nvidia_h200*.json"))), key=lambda run: run["date"])
    return {row["name"]: (row, run) for run in runs for row in run["rows"]}


def memory(folder: Path = FOLDER) -> Panel:
    """Kernels that move bytes beside torch.compile."""
    record = _read(folder / "memory" / "nvidia_h200.json")
    peers_of = {row["name"]: row["peers"] for row in record["rows"]}
    bars = tuple(Bar(label, peers_of[case]["torch.compile"]["ratio"]["median"]) for case, label in MEMORY)
    return Panel("Kernels that move bytes beside torch.compile", f"NVIDIA H200, {record['date']}", bars)


def slow(folder: Path = FOLDER) -> Panel:
    """Slow cases, beside a peer that moves or computes as much."""
    figures_of_memory = _read(folder / "memory" / "nvidia_h200.json")
    records = {
        "memory": {row["name"]: (row, figures_of_memory) for row in figures_of_memory["rows"]},
        "loops": _newest(folder / "loops"),
    }
    bars: list[Bar] = []
    for name, case, label, peer, words in SLOW:
        figures = records[name][case][0]["peers"][peer]
        turn = figures["turns_ms"]["50"] if "turns_ms" in figures else figures
        bars.append(Bar(label, turn["ratio"]["median"], words))
    dates = _dates(*(records[name][case][1] for name, case, *_ in SLOW))
    return Panel("Where it stops", f"NVIDIA H200, {dates}, beside what moves or computes as much", tuple(bars))


def launches(folder: Path = FOLDER) -> Panel:
    """Host time of a launch."""
    costs = _read(folder / "runtime" / "launch_cost.json")["us per launch"]
    bars = tuple(Bar(label, costs[name]) for name, label in LAUNCHES)
    return Panel("Microseconds of the host for a launch", "saxpy on the host of an H200; less is better", bars, False)


def _dates(*records: dict[str, Any]) -> str:
    """The days of some runs: "2026-11-29", "2026-11-29 to 30", "2026-10-31 to 2026-11-02"."""
    first, last = min(record["date"] for record in records), max(record["date"] for record in records)
    month = len("2026-11-")
    return first if first == last else f"{first} to {last[month:] if first[:month] == last[:month] else last}"


def picture(folder: Path = FOLDER) -> str:
    """The chart as SVG text."""
    columns = (
        (products(folder), loops(folder), launches(folder)),
        (
            rows(folder, "nvidia_h200", "torch", "The library's f32 kernels beside torch", "NVIDIA H200"),
            rows(folder, "amd_epyc", "numpy", "The same kernels beside NumPy", "2 cores of an AMD EPYC"),
            memory(folder),
            slow(folder),
        ),
    )
    height = 34 + max(sum(panel.height for panel in column) for column in columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Speed beside cuBLAS, cuDNN, torch, NumPy, Triton; figures are in docs/benchmarks">',
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
    equal = left + LABEL + (round(-lowest * UNIT) + 8 if panel.ratios else 4)
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
        start, wide = (equal + length, -length) if length < 0 else (equal, length)
        yield f'<rect class="{kind}" x="{start:.1f}" y="{y + 2}" width="{max(wide, 1):.1f}" height="13" rx="2"/>'
        beside = equal + 6 if length < 0 else equal + length + 6
        words = figure + (f"  of {bar.peer}" if bar.peer else "")
        yield f'<text x="{beside:.1f}" y="{y + 12}">{escape(words)}</text>'
    yield f'<line class="one" x1="{equal}" y1="{top + HEAD - 3}" x2="{equal}" y2="{end + 2}"/>'


def memory_page(folder: Path = FOLDER / "memory") -> str:
    """The page of kernels that move bytes."""
    record = _read(folder / "nvidia_h200.json")
    lines = [
        "# All kernels that move bytes",
        "",
        "Each kernel beside a copy of as many bytes, or beside reading them if it writes little, and beside torch and",
        "torch.compile. A ratio above 1 means faster than the peer; ratios are medians of",
        f"{record['pairs']} pairs, with their 95 % interval. `python -m benchmarks.front_page` writes this page from",
        f"[`nvidia_h200.json`](nvidia_h200.json), and `{record['command']}`",
        "writes that file. The [README](README.md) says how it is measured.",
        "",
        f"{record['device']['name']}, {record['date']}, torch {record['versions']['torch']}.",
        "Elements are bf16 unless the row names another type.",
        "",
        "| kernel | us | GB/s | of a copy or of reading | torch | torch.compile | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["rows"]:
        peers = row["peers"]
        yardstick = next(iter(peers.values()))
        cells = [row["name"], f"{yardstick['ours_s'] * 1e6:.1f}", f"{yardstick['ours_gbytes']:.0f}"]
        cells.append(_interval(yardstick))
        cells += [_interval(peers[name]) if name in peers else "–" for name in ("torch", "torch.compile")]
        cells.append(f"{row['error']:.1e}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _interval(figures: dict[str, Any]) -> str:
    ratio = figures["ratio"]
    return f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def loops_page(folder: Path = FOLDER / "loops") -> str:
    """The page of loops of several products."""
    lines = [
        "# Loops of several products",
        "",
        "Attention, gradients, experts, quantised weights and other loops of products, beside cuDNN, cuBLAS and torch.",
        "`python -m benchmarks.front_page` writes this page from the JSON files in this folder, and",
        "`python -m benchmarks.loops --output docs/benchmarks/loops/nvidia_h200.json` writes these. Ours and the peer",
        "run in alternation in one process, on the same random inputs, with poisoned outputs; every element of both is",
        "compared with float64 before it is timed. Ratios are medians with their 95 % interval; above 1 means faster",
        "than the peer. Each section is of one GPU and one host. In turns of 50 ms the GPU is at its power limit.",
        "",
        "The peers:",
        "",
        "- `cudnn`: torch's attention with that backend; `flash 2`: FlashAttention-2 as torch has it.",
        "- `torch`: torch's kernel for the same computation; for SwiGLU torch's four kernels.",
        "- `cublas`: one plain product of as much arithmetic, on operands that were joined before.",
        "- `our plain product`: ours of as much arithmetic (for SwiGLU: of x by gate and up side by side); for",
        "  quantised weights the product with weights of 16 bits.",
        "- `our dense attention`: ours without a window or a list of blocks, with as many scores.",
        "- `torch.sum`: a sum that reads as many bytes.",
        "- `our sums as they come`: our gradients of attention with five products, which do not repeat to the bit.",
        "  Ours otherwise has seven products in a fixed order. TFLOP/s of all gradients count five products.",
    ]
    for path in sorted(folder.glob("*.json")):
        record = _read(path)
        versions, device = record["versions"], record["device"]
        lines += ["", f"## {device['name']}", ""]
        lines += [f"{record['date']}, torch {versions['torch']}, cuDNN {record['cudnn']}, {record['pairs']} pairs."]
        lines += ["", "| case | peer | turns | ours, TFLOP/s | peer's | ratio | error | peer's |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for row in record["rows"]:
            lines += _loop_lines(row)
    return "\n".join([*lines, ""])


def _loop_lines(row: dict[str, Any]) -> Iterator[str]:
    """A line for each peer of a case, and each length of turns."""
    for name, peer in row["peers"].items():
        for ms, turn in peer["turns_ms"].items():
            ratio = turn["ratio"]
            yield (
                f"| {row['what'].removesuffix(', bf16')} | {name} | {ms} ms | {turn['ours_tflops']:.0f} | "
                f"{turn['theirs_tflops']:.0f} | {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] | "
                f"{row['error']:.1e} | {peer['error']:.1e} |"
            )


def main() -> None:
    """Write the picture and the pages."""
    (FOLDER / "loops" / "README.md").write_text(loops_page(), encoding="utf-8")
    (FOLDER / "speed.svg").write_text(picture(), encoding="utf-8")
    (FOLDER / "memory" / "figures.md").write_text(memory_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
