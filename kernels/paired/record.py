"""What was found, as lines for a terminal and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = f"{'case':16} {'time':>9} {'TFLOP/s':>8}  {'peer':7} {'ratio':>6}  {'95 % interval':15} {'error':>8}"


def headline(name: str, arch: str) -> str:
    """The first lines. A ratio above 1 means faster than the peer."""
    return f"{name} ({arch}); a ratio above 1 is faster than the peer\n{COLUMNS}"


def lines(found: Mapping[str, Any]) -> list[str]:
    """A line for each peer of a case; one that says why, for a case that was left out."""
    if "skipped" in found:
        return [f"{found['name']:16} skipped: {found['skipped']}"]
    if "seconds" not in found:
        return [f"{found['name']:16} WRONG: {found['wrong']}"]
    rate = found["flops"] / found["seconds"] / 1e12
    first = f"{found['name']:16} {duration(found['seconds']):>9} {rate:8.{0 if rate >= 10 else 2}f}"
    made: list[str] = []
    for name, peer in found["peers"].items():
        ratio = peer["ratio"]
        spread = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
        made.append(f"{first}  {name:7} {ratio['median']:6.3f}  {spread:15} {found['error']:8.1e}")
        first = " " * len(first)
    if not made:
        made.append(f"{first}  {'–':7} {'–':>6}  {'–':15} {found['error']:8.1e}")
    made += [f"{'':16} without {name}: {reason}" for name, reason in found["absent"].items()]
    if found["wrong"]:
        made.append(f"{'':16} WRONG: {found['wrong']}")
    return made


def start_lines(started: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What a process takes to its first kernel, and to the product after it."""
    return [
        f"first kernel of a process, {state}: {each['first']:.2f} s, of which imports {each['imports']:.2f} s; "
        f"the product after it {each['second']:.3f} s"
        for state, each in started.items()
    ]


def duration(seconds: float) -> str:
    """A time with three digits and a fitting unit.

    Example:
        >>> duration(1.234e-5), duration(0.0123)
        ('12.3 us', '12.3 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def write(path: Path, made: Mapping[str, Any]) -> None:
    """Write the figures, and what is needed to judge them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
