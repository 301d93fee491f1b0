# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Histograms on a GPU beside reading as many bytes, and beside CuPy's and torch's. Needs torch; CuPy where it is there.

    python -m benchmarks.histogram

2**28 bytes into 256 bins, uniform, all equal, and as Zipf's law has them; 2**26 i32 into 256 to 65536 bins. Each line
has the median of 10 by the device's events, behind 2 runs that warm up, and the share of the speed of reading: of
`torch.sum` of the same bytes. The operands do not fit in any cache. Counts are compared with torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import cutile as ct
import cutile.torch as ctt
from cutile import Const, SharedMut, Tensor

BYTES, WORDS = 2**28, 2**26
MULTIPROCESSORS, BLOCKS = 132, 4


@ct.entry
def histogram(counts: SharedMut, x: Tensor, *, TILE: Const = 8192) -> None:
    """counts[i] += how often i is in x."""
    part = x.partition((TILE,))
    for i in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        ct.atomic_add(counts, part.load(i), 1, mask=part.inside(i))


def microseconds(run: Callable[[], Any], times: int = 10) -> float:
    """The median time of a run on the device."""
    for _ in range(2):
        run()
    measured: list[float] = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        measured.append(1e3 * begin.elapsed_time(end))
    return sorted(measured)[times // 2]


def counted(x: torch.Tensor, bins: int) -> torch.Tensor:
    """The counts by torch, piece by piece: it makes integers of 64 bits of all elements."""
    pieces = x.split(2**24)
    return torch.stack([piece.long().bincount(minlength=bins) for piece in pieces]).sum(0)


def peers(x: torch.Tensor, bins: int) -> dict[str, float]:
    """The times of CuPy's functions; none where it is not installed."""
    try:
        import cupy
    except ImportError:
        return {}
    array = cupy.asarray(x)
    edges = cupy.arange(bins + 1)
    return {
        "cupy.bincount": microseconds(lambda: cupy.bincount(array, minlength=bins), 3),
        "cupy.histogram": microseconds(lambda: cupy.histogram(array, bins=edges), 3),
    }


def measure(name: str, x: torch.Tensor, bins: int, tile: int) -> None:
    """Print a line. Raises AssertionError where counts are wrong."""
    counts = torch.zeros(bins, dtype=torch.int32, device="cuda")

    def run() -> None:
        ctt.launch(histogram, counts, x, grid=(MULTIPROCESSORS * BLOCKS, 1, 1), TILE=tile)

    run()
    assert bool((counts.long() == counted(x, bins)).all()), f"{name}: the counts are wrong"
    reading, ours = microseconds(lambda: torch.sum(x.view(torch.int64))), microseconds(run)
    others = ", ".join(f"{peer} {time:.0f}" for peer, time in peers(x, bins).items())
    print(f"{name:24} {ours:7.0f} us   {reading / ours:5.2f} of reading ({reading:.0f} us)   {others}", flush=True)


def main() -> None:
    """Print all lines."""
    generator = torch.Generator("cuda").manual_seed(1)
    weights = 1 / torch.arange(1, 257, device="cuda", dtype=torch.float64)
    shares = (weights.cumsum(0) / weights.sum()).float()
    drawn = torch.rand(BYTES, device="cuda", generator=generator)
    data = {
        "uniform": torch.randint(0, 256, (BYTES,), dtype=torch.uint8, device="cuda", generator=generator),
        "all equal": torch.full((BYTES,), 7, dtype=torch.uint8, device="cuda"),
        "Zipf": torch.searchsorted(shares, drawn).clamp(max=255).to(torch.uint8),
    }
    for name, x in data.items():
        measure(f"u8, 256 bins, {name}", x, 256, 8192)
    for bins in (256, 1024, 4096, 65536):
        x = torch.randint(0, bins, (WORDS,), dtype=torch.int32, device="cuda", generator=generator)
        measure(f"i32, {bins} bins", x, bins, 2048)


if __name__ == "__main__":
    main()
