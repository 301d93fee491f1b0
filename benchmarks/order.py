# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types)
"""Sorts of rows, and their largest elements, beside torch.

    python -m benchmarks.order            all cases
    python -m benchmarks.order sort,4096  one: sort,COLUMNS[,WARPS] or top,K,PIECE[,DTYPE[,WARPS[,BLOCKS]]]

Needs torch and a GPU. Each result is compared with torch's before it is timed. Operands are larger than the caches.
CUDA events take the times of ours, torch's and the yardstick's (reading), in turns; figures are medians of the turns'
medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import cutile as ct
import cutile.torch as ctt
from kernels.order import largest, search_of, sorted_rows

CASES = (
    "sort,4096", "sort,4096,4", "sort,1000", "top,8,4096,bf16,8", "top,64,8192,bf16,8", "top,8,4096,f32,8",
    "top,64,4096,f32,8",
)  # fmt: skip
SORTED_ROWS, LONG_ROWS, COLUMNS = 16384, 4096, 128256
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RUNS, TURNS, WARM = 6, 3, 3


def milliseconds(function: Callable[[], object]) -> float:
    """The median of some runs."""
    for _ in range(WARM):
        function()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(RUNS)]
    for begin, end in events:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def in_turn(functions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median of the turns of each function."""
    turns = [{name: milliseconds(each) for name, each in functions.items()} for _ in range(TURNS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in functions}


def options(warps: str, blocks: str) -> dict[str, Any]:
    """The compile options of a case, as an argument of a launch."""
    names = {"num_worker_warps": warps, "occupancy": blocks}
    given: dict[str, Any] = {name: int(text) for name, text in names.items() if text}
    return {"options": ct.CompileOptions(**given)} if given else {}


def sort_case(columns: str, warps: str = "") -> str:
    """Rows of f32 in ascending order, with the places of their elements, stable."""
    n = int(columns)
    x = torch.randn(SORTED_ROWS, n, device="cuda")
    values = torch.full_like(x, 7.0)
    places = torch.full(x.shape, -1, device="cuda", dtype=torch.int32)
    more = options(warps, "")

    def ours() -> None:
        ctt.launch(sorted_rows, ctt.partition(values, (1, n)), ctt.partition(places, (1, n)), x, **more)

    ours()
    peer = torch.sort(x, dim=1, stable=True)
    assert torch.equal(values, peer.values)
    assert torch.equal(places.long(), peer.indices)
    copy = torch.empty_like(x)
    times = in_turn({"ours": ours, "torch": lambda: torch.sort(x, dim=1, stable=True), "copy": lambda: copy.copy_(x)})
    return f"{times['ours']:.3f} ms, torch {times['torch']:.3f} ms, a copy of the values {times['copy']:.3f} ms"


def top_case(k: str, piece: str, dtype: str = "bf16", warps: str = "", blocks: str = "") -> str:
    """The largest elements of long rows, with their places."""
    count = int(k)
    x = torch.randn(LONG_ROWS, COLUMNS, device="cuda").to(DTYPES[dtype])
    values = torch.full((LONG_ROWS, count), 7.0, device="cuda", dtype=x.dtype)
    places = torch.full(values.shape, -1, device="cuda", dtype=torch.int32)
    more, search = options(warps, blocks), search_of(COLUMNS, count, x.element_size() * 8, int(piece))

    def ours() -> None:
        outputs = (ctt.partition(values, (1, count)), ctt.partition(places, (1, count)))
        ctt.launch(largest, *outputs, x, **search, **more)

    ours()
    assert torch.equal(values, torch.topk(x, count, dim=1).values)
    assert torch.equal(x.gather(1, places.long()), values)
    same = values[:, 1:] == values[:, :-1]
    assert bool((places[:, 1:] > places[:, :-1])[same].all()), "equal elements are not in their order"
    reads = {"sum": lambda: torch.sum(x, dtype=torch.float32), "amax": lambda: torch.amax(x, dim=1)}
    times = in_turn({"ours": ours, "torch": lambda: torch.topk(x, count, dim=1), **reads})
    read = min(times["sum"], times["amax"])
    return f"{times['ours']:.3f} ms, torch {times['torch']:.3f} ms, reading it {read:.3f} ms"


def main() -> None:
    """Measure the cases that are named, or all."""
    torch.manual_seed(int(time.time()))
    for case in sys.argv[1:] or CASES:
        kind, *arguments = case.split(",")
        print(case, (sort_case if kind == "sort" else top_case)(*arguments), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
