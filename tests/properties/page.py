"""The page on searches that were kept, from their figures: `python -m tests.properties.page` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "random"
HEAD = """# Random kernels

Random kernels, each computed by the reference and by the backends named, and compared on all memory that outputs lie
in: integers agree exactly, floats within what rounding may have grown to (`TOLERANCE` says how far; it stands in
`tests/properties/running.py`). What is drawn, and how a search is run again: [testing.md](../../testing.md). Each file
holds one search: the command, the commit, the versions, each failure, and for each backend the kernel that took longest
to compile. Compiling is from Python source to code that can be launched, without caches, with all processes at it;
`sm_90a` and the like are compiled for, and not run.

| file | machine | processes | seconds | seed | backend | kernels | failures | to compile: median | 90 % | longest |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def load(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The kept searches, by file."""
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def page(searches: dict[str, dict[str, Any]]) -> str:
    """The page's text."""
    rows: list[str] = []
    totals: dict[str, list[int]] = {}
    for name, search in searches.items():
        machine = f"{search['device'] or 'no GPU'}, {search['processors']} CPU cores"
        for backend, figures in search["backends"].items():
            spread = figures["compile_seconds"]
            times = " | ".join(
                f"{1000 * spread[key]:.0f} ms" if spread.get(key) else "–" for key in ("median", "p90", "longest")
            )
            counts = f"{figures['kernels']:,} | {figures['disagreements']}"
            search_of = f"{search['processes']} | {search['wall_seconds']:.0f} | {search['seed']}"
            rows.append(f"| [{name}]({name}) | {machine} | {search_of} | {backend} | {counts} | {times} |\n")
            total = totals.setdefault(backend, [0, 0])
            total[0] += figures["kernels"]
            total[1] += figures["disagreements"]
    summed = "; ".join(f"{backend}: {count:,} kernels, {wrong} failures" for backend, (count, wrong) in totals.items())
    notes = "".join(f"- {name}: {search['note']}\n" for name, search in searches.items() if "note" in search)
    return f"{HEAD}{''.join(rows)}\nAll together, beside the reference: {summed}.\n\n{notes}"


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(load()), encoding="utf-8")
