"""The page of the kept comparisons, generated from the JSON files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.products.terminal import start_lines
from benchmarks.record import FOLDER as ALL_FOLDERS
from benchmarks.record import duration

FOLDER = ALL_FOLDERS / "products"

HEAD = """\
# Products beside their peers

Matrix products beside the same products of other libraries. `python -m kernels bench --json` writes this page from the
JSON files in this folder, which also hold clocks, power, versions and the number of computations in a turn. Ours and
the peer's product run in alternation, in turns of equal length. The ratio is the median over pairs of turns, with its
95 % interval by order statistics; above 1 means faster than the peer. The timed results were compared with float64 in
the same run. [testing.md](../../testing.md) says how.
"""


def page(folder: Path) -> str:
    """The page for the JSON files in `folder`, in the order of their names."""
    records = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    return "\n".join([HEAD, *(line for path, made in records for line in section(path, made))])


def section(path: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """One run."""
    device, host = record["device"], record["host"]
    budget = record["budget"]
    yield f"## {device['name']} ({device['arch']})"
    yield ""
    yield f"{record['date']}, `{record['command']}`:"
    yield f"{budget['pairs']} pairs after {budget['warm_s']:g} s of warming. Inputs: {record['inputs']}."
    yield f"{host['cores']} CPU cores, Python {host['python']},"
    yield ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + "."
    yield ""
    if path.with_suffix(".png").exists():
        yield f"![rate by intensity and by size]({path.with_suffix('.png').name})"
        yield ""
    yield "| product | tile | time | TFLOP/s | peer | ratio | 95 % interval | error |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for case in record["cases"]:
        yield from rows(case)
    yield ""
    yield from (f"- {line[0].upper()}{line[1:]}." for line in start_lines(record["start"] or {}))
    yield from (f"- {note}" for note in record.get("notes", ()))  # remarks by the person who kept the run


def rows(case: Mapping[str, Any]) -> Iterator[str]:
    """A line for each peer of a case."""
    what = case["what"] + (", a graph of 20" if case["device_time_of_graph"] else "")
    if "seconds" not in case:
        yield f"| {what} | – | – | – | – | – | – | {case.get('skipped') or case['wrong']} |"
        return
    rate = case["flops"] / case["seconds"] / 1e12
    tile = " x ".join(map(str, case["tile"]))
    ours = f"| {what} | {tile} | {duration(case['seconds'])} | {rate:.3g} |"
    judged = f"WRONG: {case['wrong']}" if case["wrong"] else f"{case['error']:.1e}"
    if not case["peers"]:
        yield f"{ours} – | – | – | {judged} |"
    for name, peer in case["peers"].items():
        ratio = peer["ratio"]
        yield f"{ours} {name} | {ratio['median']:.3f} | {ratio['low']:.3f} to {ratio['high']:.3f} | {judged} |"
        ours = "| | | | |"
