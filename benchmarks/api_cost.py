# pyright: basic, reportMissingImports=false
# (torch ships no types that this needs)
"""The time of the host's calls beside torch's: copies, fills, conversions, launches with new outputs. Needs a GPU.

    python -m benchmarks.api_cost [--out docs/benchmarks/runtime/api_cost.json]

Each figure is the median time from the call to its result on the device, waited for. Tensors have 4096 elements, so
that the host's time decides. Both take turns call by call, and each result is compared with torch's first.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cutile as ct
from benchmarks.record import FOLDER, missing, versions, write
from cuda_async import Device, Stream
from cutile import api, bf16, f32
from kernels.gemm import matmul
from kernels.saxpy import saxpy

EXTENT, SIDE, ROUNDS = 4096, 64, 300
OUT = FOLDER / "runtime" / "api_cost.json"
Call = Callable[[], Any]


def calls(stream: Stream) -> dict[str, tuple[Call, Call]]:
    """Each of our calls beside torch's; both return their result."""
    import torch

    array = np.random.default_rng(0).standard_normal(EXTENT).astype(np.float32)
    square = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype(np.float32)
    x = api.from_numpy(array).sync_on(stream)
    a = api.from_numpy(square).sync_on(stream)
    tx, ta = torch.from_numpy(array).cuda(), torch.from_numpy(square).cuda()
    host = torch.from_numpy(array)
    extent, tile = (EXTENT,), (512,)

    def waited(call: Call) -> Call:
        def run() -> Any:
            value = call()
            torch.cuda.synchronize()
            return value

        return run

    def on_zeros() -> Any:
        return saxpy(api.zeros(extent, f32).partition(tile), 2.0, x).first().unpartition().sync_on(stream)

    return {
        "from_numpy": (lambda: api.from_numpy(array).sync_on(stream), waited(lambda: host.cuda())),
        "to_numpy": (lambda: x.to_numpy().sync_on(stream), waited(lambda: tx.cpu().numpy())),
        "dup": (lambda: x.dup().sync_on(stream), waited(lambda: tx.clone())),
        "convert to bf16": (lambda: api.convert(x, bf16).sync_on(stream), waited(lambda: tx.bfloat16())),
        "zeros": (
            lambda: api.zeros(extent, f32).sync_on(stream),
            waited(lambda: torch.zeros(EXTENT, device="cuda")),
        ),
        "cumsum": (lambda: api.cumsum(x).sync_on(stream), waited(lambda: tx.cumsum(0))),
        "saxpy onto zeros": (on_zeros, waited(lambda: torch.zeros(EXTENT, device="cuda").add_(tx, alpha=2.0))),
        "matmul 64 x 64": (lambda: matmul(a, a).sync_on(stream), waited(lambda: ta @ ta)),
    }


def as_numpy(value: Any, stream: Stream) -> np.ndarray:
    """The result of either library, as an array of f32 on the host."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, ct.Tensor):
        wide = api.convert(value, f32).sync_on(stream)
        return np.asarray(wide.to_numpy().sync_on(stream))
    return value.float().cpu().numpy()


def measure(pairs: dict[str, tuple[Call, Call]], stream: Stream) -> dict[str, dict[str, float]]:
    """The median microseconds of each pair's two calls, in turns."""
    figures: dict[str, dict[str, float]] = {}
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_allclose(as_numpy(ours(), stream), as_numpy(theirs(), stream), rtol=1e-2, atol=1e-1)
        samples: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS):
            for call, times in zip((ours, theirs), samples, strict=True):
                start = time.perf_counter()
                value = call()
                times.append((time.perf_counter() - start) * 1e6)
                del value  # freed outside of what is timed, in both
            if turn == ROUNDS // 10:  # what comes before is warming up
                for times in samples:
                    times.clear()
        mine, peer = (round(statistics.median(times), 1) for times in samples)
        figures[name] = {"us": mine, "torch": peer}
    return figures


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="the host's calls beside torch's")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if lack := missing():
        print(lack, file=sys.stderr)
        return 1
    device = Device(0)
    stream = device.new_stream()
    with device:
        record: dict[str, Any] = {"us from call to result": measure(calls(stream), stream)}
    record["device"] = device.name
    record["command"] = "python -m benchmarks.api_cost"
    record["versions"] = {"python": platform.python_version(), **versions(("numpy", "cuda-bindings", "torch"))}
    print(json.dumps(record, indent=1))
    write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
