"""Two charts of a run: the rate over the operations per byte (a roofline), and the rate over the size."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMEDY = "charts need matplotlib; install it with: pip install -e '.[viz]' (or leave out --png)"

CEILINGS = {"sm_90a": (989e12, 4.8e12)}
"""Dense 16-bit operations per second, and bytes per second from memory, by the data sheet."""


class MissingError(Exception):
    """matplotlib is not installed."""


def require() -> None:
    """Check ahead of the measurements that the charts can be drawn.

    Raises:
        MissingError: matplotlib is not installed; says how to install it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingError(REMEDY)


def points(record: Mapping[str, Any]) -> dict[str, list[tuple[float, float, str]]]:
    """Operations per byte, operations per second and the name of each case, by library."""
    points_of: dict[str, list[tuple[float, float, str]]] = {}
    for case in record["cases"]:
        if "seconds" not in case:
            continue
        intensity = case["flops"] / case["nbytes"]
        points_of.setdefault("cutile", []).append((intensity, case["flops"] / case["seconds"], case["name"]))
        for name, peer in case["peers"].items():
            points_of.setdefault(name, []).append((intensity, case["flops"] / peer["theirs_s"], case["name"]))
    return points_of


def by_size(record: Mapping[str, Any]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Extents of square products and their operations per second, by library and the operands' type."""
    rates_of: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for case in record["cases"]:
        batch, m, n, k = case["shape"]
        if "seconds" not in case or batch or not m == n == k or "nk" in case["name"]:
            continue
        rates = {"cutile": case["flops"] / case["seconds"]}
        rates |= {name: case["flops"] / peer["theirs_s"] for name, peer in case["peers"].items()}
        for name, rate in rates.items():
            rates_of.setdefault((name, case["operand"]), []).append((m, rate))
    return {who: sorted(each) for who, each in rates_of.items()}


def draw(path: Path, record: Mapping[str, Any]) -> None:
    """Write the charts.

    Raises:
        MissingError: matplotlib is not installed.
    """
    require()
    importlib.import_module("matplotlib").use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (roofline, sizes) = pyplot.subplots(1, 2, figsize=(13, 5))
    for who, found in points(record).items():
        roofline.scatter([each[0] for each in found], [each[1] / 1e12 for each in found], s=18, label=who)
    ceiling = CEILINGS.get(record["device"]["arch"])
    if ceiling is not None:
        peak, memory = ceiling
        at = sorted([1.0, peak / memory, 2.0**13])
        roofline.plot(
            at, [min(peak, memory * each) / 1e12 for each in at], color="grey", linewidth=1, label="data sheet"
        )
    roofline.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s", title="roofline")
    for (who, operand), each in by_size(record).items():
        sizes.plot([size for size, _ in each], [rate / 1e12 for _, rate in each], marker="o", label=f"{who} {operand}")
    sizes.set(xscale="log", xlabel="m = n = k", ylabel="TFLOP/s", title="square products", ylim=(0, None))
    shown = sorted({size for each in by_size(record).values() for size, _ in each})
    sizes.set_xticks(shown, [str(size) for size in shown])
    sizes.minorticks_off()
    for axes in (roofline, sizes):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"{record['device']['name']}, {record['date']}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
