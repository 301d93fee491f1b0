"""The page of the kept figures, generated from the JSON files beside it."""

import json
from pathlib import Path
from typing import Any

HEAD = """\
# Benchmarks

The speed of the library's kernels beside NumPy, torch and a copy. `make bench` writes this page from the JSON files in
this folder, which also hold the number of runs, the fastest run, the machine and every version. Each figure is the
median of interleaved runs on random inputs; the results are compared with float64 first. A ratio above 1 means faster
than the peer. NumPy and torch use preallocated outputs and their own threads; `copy` is a plain copy that reads and
writes as many bytes. NumPy runs on the CPU of the same machine. [testing.md](../testing.md) says how time is taken.

Other pages have matrix products of 16 and 8 bits on GPUs, in pairs with cuBLAS ([products/](products/README.md)); loops
of several products, such as attention ([loops/](loops/README.md)); kernels that move bytes
([memory/](memory/README.md)); sorts and the largest elements ([order/](order/README.md)); histograms
([histogram/](histogram/README.md)); rows on the CPU ([cpu/](cpu/README.md)); the cost of launches, calls and
collectives ([runtime/](runtime/README.md)); compile times ([compile/](compile/README.md)); and searches with random
kernels ([random/](random/README.md)).
"""
PEERS = ("numpy", "torch", "copy")


def page(folder: Path) -> str:
    """Return the page for the JSON files in `folder`, in the order of their names."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return "\n".join([HEAD, *(section(record) for record in records)])


def section(record: dict[str, Any]) -> str:
    """Return one device's figures."""
    device, host, versions = record["device"], record["host"], record["versions"]
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"## {device['name']} ({device['arch']})",
        "",
        f"{record['date']}, {host['cores']} CPU cores, Python {host['python']}, {libraries}.",
        "",
        "| kernel | size | error | time | rate | to NumPy | to torch | to a copy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(row(each) for each in record["rows"]),
        "",
    ]
    for state, seconds in record["first_launch_s"].items():
        lines.append(
            f"- First kernel of a process, {state}: {seconds['first']:.2f} s, of which imports "
            f"{seconds['imports']:.2f} s; the next, a different one: {seconds['second']:.3f} s."
        )
    return "\n".join([*lines, ""])


def row(figures: dict[str, Any]) -> str:
    """Return one line of a table."""
    timings = figures["timings"]
    ours = timings["cutile"]["median"]
    ratios = [f"{timings[peer]['median'] / ours:.2f}" if peer in timings else "–" for peer in PEERS]
    cells = (figures["kernel"], figures["size"], f"{figures['error']:.1e}", f"{ours:.3g} ms")
    return "| " + " | ".join([*cells, f"{figures['rate']:,.0f} {figures['unit']}", *ratios]) + " |"
