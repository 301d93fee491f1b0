# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# (the peers ship no types)
"""Two GPUs: the same pipeline on each at once, and copies between them. Needs two GPUs.

    python -m benchmarks.two_gpus [--out docs/benchmarks/runtime/two_gpus.json]

The pipeline has ten steps: a matrix product in bf16 at 8192 cubed, and a softmax of its result. Each step is one
awaited op, and one event loop drives both devices. Scaling is twice the time of one device alone over the time of both
at once. The copy has 1 GiB and is waited for, beside `cuMemcpyPeerAsync` called with nothing around it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import FOLDER, write
from cuda_async import Device, SingleStream, device_count
from cutile import Tensor, api, bf16, f32
from kernels.gemm import matmul
from kernels.softmax import row_softmax

OUT = FOLDER / "runtime" / "two_gpus.json"
EXTENT, STEPS, ROUNDS = 8192, 10, 7


class Pipeline:
    """A product and a softmax on one device, with its own stream and tensors."""

    def __init__(self, ordinal: int) -> None:
        self.device = Device(ordinal)
        self.policy = SingleStream(self.device)
        stream = self.policy.stream
        rng = np.random.default_rng(ordinal)
        with self.device:
            host = rng.standard_normal((EXTENT, EXTENT), np.float32).astype(bf16.numpy)
            self.x: Tensor = api.from_numpy(host).sync_on(stream)
            self.z: Tensor = api.zeros((EXTENT, EXTENT), bf16).sync_on(stream)

    async def run(self) -> None:
        """All steps; each is awaited, as a server would."""
        with self.device:
            for _ in range(STEPS):
                step = matmul(self.x, self.x, out=self.z).then(row_softmax)
                await step.schedule(self.policy)


def scaling() -> dict[str, float]:
    """Seconds alone and together, in turns; medians."""
    pipelines = [Pipeline(0), Pipeline(1)]
    alone: list[float] = []
    together: list[float] = []

    async def main() -> None:
        await asyncio.gather(*(each.run() for each in pipelines))
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await pipelines[0].run()
            middle = time.perf_counter()
            await asyncio.gather(*(each.run() for each in pipelines))
            alone.append(middle - start)
            together.append(time.perf_counter() - middle)

    asyncio.run(main())
    one, both = statistics.median(alone), statistics.median(together)
    return {"seconds, one GPU": round(one, 5), "seconds, both": round(both, 5), "scaling": round(2 * one / both, 3)}


def copies() -> dict[str, float]:
    """GB/s of a 1 GiB copy from the first GPU to the second: ours, and the driver's call."""
    from cuda.bindings import driver

    count = 2**28
    first, second = Device(0), Device(1)
    here, there = first.new_stream(), second.new_stream()
    with first:
        source = api.arange(count, f32).sync_on(here)
    with second:
        target = api.zeros((count,), f32).sync_on(there)
    api.memcpy(target, source).sync_on(there)
    tail = target[count - 4 :].to_numpy().sync_on(there)
    np.testing.assert_array_equal(tail, np.arange(count - 4, count).astype(np.float32))
    contexts: list[Any] = [driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(each)[1])[1] for each in (0, 1)]
    driver.cuCtxSetCurrent(contexts[1])
    raw_stream = driver.CUstream(there.cu_stream())
    addresses = int(target.device_pointer()), int(source.device_pointer())
    ours: list[float] = []
    raw: list[float] = []
    for _ in range(15):
        start = time.perf_counter()
        api.memcpy(target, source).sync_on(there)
        middle = time.perf_counter()
        driver.cuMemcpyPeerAsync(addresses[0], contexts[1], addresses[1], contexts[0], 4 * count, raw_stream)
        driver.cuStreamSynchronize(raw_stream)
        ours.append(middle - start)
        raw.append(time.perf_counter() - middle)
    rate = {"ours": 4 * count / statistics.median(ours) / 1e9, "raw": 4 * count / statistics.median(raw) / 1e9}
    return {
        "GB/s, memcpy": round(rate["ours"], 1),
        "GB/s, cuMemcpyPeerAsync": round(rate["raw"], 1),
        "ratio": round(rate["ours"] / rate["raw"], 3),
    }


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="two GPUs at once")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if device_count() < 2:
        print("two GPUs are needed", file=sys.stderr)
        return 1
    record = {"pipeline": scaling(), "peer copy": copies(), "device": Device(0).name}
    record["command"] = "python -m benchmarks.two_gpus"
    print(json.dumps(record, indent=1))
    write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
