"""Measurements as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.record import duration

COLUMNS = f"{'case':16} {'time':>9} {'TFLOP/s':>8}  {'peer':7} {'ratio':>6}  {'95 % interval':15} {'error':>8}"


def headline(name: str, arch: str) -> str:
    """The first lines. A ratio above 1 means faster than the peer."""
    return f"{name} ({arch}); a ratio above 1 is faster than the peer\n{COLUMNS}"


def lines(figures: Mapping[str, Any]) -> list[str]:
    """A line for each peer of a case; one that says why, for a case that was left out."""
    if "skipped" in figures:
        return [f"{figures['name']:16} skipped: {figures['skipped']}"]
    if "seconds" not in figures:
        return [f"{figures['name']:16} WRONG: {figures['wrong']}"]
    rate = figures["flops"] / figures["seconds"] / 1e12
    first = f"{figures['name']:16} {duration(figures['seconds']):>9} {rate:8.{0 if rate >= 10 else 2}f}"
    rows: list[str] = []
    for name, peer in figures["peers"].items():
        ratio = peer["ratio"]
        spread = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
        rows.append(f"{first}  {name:7} {ratio['median']:6.3f}  {spread:15} {figures['error']:8.1e}")
        first = " " * len(first)  # only the line of the first peer shows the case and its time
    if not rows:
        rows.append(f"{first}  {'–':7} {'–':>6}  {'–':15} {figures['error']:8.1e}")
    rows += [f"{'':16} without {name}: {reason}" for name, reason in figures["absent"].items()]
    if figures["wrong"]:
        rows.append(f"{'':16} WRONG: {figures['wrong']}")
    return rows


def start_lines(started: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The seconds of a process up to its first kernel, and for the product after it."""
    return [
        f"first kernel of a process, {state}: {each['first']:.2f} s, of which imports {each['imports']:.2f} s; "
        f"the product after it {each['second']:.3f} s"
        for state, each in started.items()
    ]
