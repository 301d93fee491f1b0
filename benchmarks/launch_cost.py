# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# (the peers ship no types)
"""The host time of a launch beside its peers, and of `await` and graphs. Needs a GPU.

    python -m benchmarks.launch_cost [--out docs/benchmarks/runtime/launch_cost.json]

Each figure is the median over rounds of the time per launch in a batch that is not waited for. A batch is shorter than
the driver's queue, which is drained between rounds; peers take turns round by round. The kernel is saxpy on 1024
floats, so that the device is never waited for; its result is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
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
from benchmarks.record import FOLDER, versions, write
from cuda_async import CudaGraph, Device, SingleStream, Stream
from cuda_async.unsafe import async_on
from cutile import Mut, Tensor, api, f32

EXTENT, BATCH, ROUNDS = 1024, 100, 60
GRAPH_TILE = 512  # the tile with which the device is done soonest, of 128 to 1024; torch chooses its grid too
OUT = FOLDER / "runtime" / "launch_cost.json"
RAW = """
extern "C" __global__ void saxpy(float* y, float a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
Launch = Callable[[], object]


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


def per_launch_us(launches: dict[str, Launch], drain: Launch) -> dict[str, float]:
    """The median time per launch of each, in microseconds, taken in turns."""
    samples: dict[str, list[float]] = {name: [] for name in launches}
    for launch in launches.values():
        for _ in range(BATCH):
            launch()
    drain()
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            start = time.perf_counter()
            for _ in range(BATCH):
                launch()
            samples[name].append((time.perf_counter() - start) / BATCH * 1e6)
            drain()
    return {name: round(statistics.median(each), 2) for name, each in samples.items()}


def ours(stream: Stream) -> dict[str, Launch]:
    """The whole path, and bound relaunches."""
    x = api.ones((EXTENT,), f32).sync_on(stream)
    y = api.zeros((EXTENT,), f32).sync_on(stream)
    part = y.mut.partition((EXTENT,))
    saxpy(part, 2.0, x).sync_on(stream)
    assert np.all(y.to_numpy().sync_on(stream) == 2.0)
    bound = saxpy(part, 0.0, x).bind(stream)
    chain = [saxpy(part, 0.0, x).bind(stream) for _ in range(10)]

    def chain_of_ten() -> None:
        for each in chain:
            each()

    def set_and_launch() -> None:
        bound.set(a=0.0)
        bound()

    return {
        "cutile: kernel(...) built and executed": lambda: async_on(saxpy(part, 0.0, x), stream),
        "cutile: bound relaunch": bound,
        "cutile: bound relaunch with a new scalar": set_and_launch,
        "cutile: chain of ten bound launches (all ten)": chain_of_ten,
    }


def raw(stream: Stream) -> dict[str, Launch]:
    """`cuLaunchKernel` with everything prepared, and cuda.core."""
    from cuda.bindings import driver
    from cuda.core import Device as CoreDevice
    from cuda.core import LaunchConfig, Program, ProgramOptions, launch
    from cuda.core import Stream as CoreStream

    core = CoreDevice(0)
    core.set_current()
    options = ProgramOptions(std="c++17", arch=f"sm_{core.arch}")
    code = Program(RAW, code_type="c++", options=options).compile("cubin")
    kernel = code.get_kernel("saxpy")
    x = api.ones((EXTENT,), f32).sync_on(stream)
    y = api.zeros((EXTENT,), f32).sync_on(stream)
    values = (
        ctypes.c_uint64(int(y.device_pointer())),
        ctypes.c_float(0.0),
        ctypes.c_uint64(int(x.device_pointer())),
        ctypes.c_int32(EXTENT),
    )
    addresses = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    where = ctypes.addressof(addresses)
    handle = driver.CUstream(stream.cu_stream())
    module = driver.cuModuleLoadData(bytes(code.code))[1]
    function = driver.cuModuleGetFunction(module, b"saxpy")[1]
    call = driver.cuLaunchKernel
    core_stream = CoreStream.from_handle(stream.cu_stream())
    config = LaunchConfig(grid=4, block=256)
    arguments = (int(y.device_pointer()), np.float32(0.0), int(x.device_pointer()), np.int32(EXTENT))
    keep = (values, addresses, x, y)

    def launch_raw() -> None:
        call(function, 4, 1, 1, 256, 1, 1, 0, handle, where, 0)

    def launch_core() -> object:
        return keep and launch(core_stream, config, kernel, *arguments)

    launch_raw.keep = (keep, module)  # type: ignore[attr-defined]
    return {"raw cuLaunchKernel, prepared parameters": launch_raw, "cuda.core.launch": launch_core}


def peers() -> dict[str, Launch]:
    """CuPy, Triton and torch, as far as they are installed; on their own current streams."""
    launches: dict[str, Launch] = {}
    try:
        import cupy

        kernel = cupy.RawKernel(RAW, "saxpy")
        cx, cy = cupy.ones(EXTENT, cupy.float32), cupy.zeros(EXTENT, cupy.float32)
        launches["CuPy RawKernel"] = lambda: kernel((4,), (256,), (cy, np.float32(0.0), cx, np.int32(EXTENT)))
    except ImportError:
        pass
    try:
        import torch

        tx, ty = torch.ones(EXTENT, device="cuda"), torch.zeros(EXTENT, device="cuda")
        launches["torch add_"] = lambda: ty.add_(tx, alpha=0.0)
        from benchmarks.triton_saxpy import launcher

        launches["Triton"] = launcher(ty, tx)
    except ImportError:
        pass
    return launches


def completion(device: Device) -> dict[str, float]:
    """Microseconds from building a short op to its result: blocking, and awaited."""
    policy = SingleStream(device)
    stream = policy.stream
    x = api.ones((EXTENT,), f32).sync_on(stream)
    y = api.zeros((EXTENT,), f32).sync_on(stream)
    part = y.mut.partition((EXTENT,))
    blocking: list[float] = []
    awaited: list[float] = []

    async def main() -> None:
        for _ in range(20):
            await saxpy(part, 0.0, x).schedule(policy)
        for _ in range(500):
            start = time.perf_counter()
            saxpy(part, 0.0, x).sync_on(stream)
            middle = time.perf_counter()
            await saxpy(part, 0.0, x).schedule(policy)
            awaited.append((time.perf_counter() - middle) * 1e6)
            blocking.append((middle - start) * 1e6)

    asyncio.run(main())
    return {
        "launch and wait, blocking": round(statistics.median(blocking), 2),
        "launch and await": round(statistics.median(awaited), 2),
        "launch and await, p99": round(statistics.quantiles(awaited, n=100)[98], 2),
    }


def graphs(stream: Stream) -> dict[str, float]:
    """Microseconds per replay of a graph of 100 kernels, waited for: ours, in both forms, and torch's, ten in turn."""
    x = api.ones((EXTENT,), f32).sync_on(stream)
    y = api.zeros((EXTENT,), f32).sync_on(stream)

    def record(scope: Any) -> None:
        for _ in range(100):
            scope.record(saxpy(y.mut.partition((GRAPH_TILE,)), 1.0, x))

    graph = CudaGraph.scope(stream, record)
    bound = graph.launch().bind(stream)

    def replay_bound() -> None:
        bound()
        stream.synchronize()

    replays: dict[str, Launch] = {
        "cutile: graph.launch().sync_on(stream)": lambda: graph.launch().sync_on(stream),
        "cutile: the same, bound": replay_bound,
    }
    try:
        import torch

        tx, ty = torch.ones(EXTENT, device="cuda"), torch.zeros(EXTENT, device="cuda")
        ty.add_(tx, alpha=1.0)
        torch.cuda.synchronize()
        peer = torch.cuda.CUDAGraph()
        with torch.cuda.graph(peer):
            for _ in range(100):
                ty.add_(tx, alpha=1.0)

        def replay() -> None:
            peer.replay()
            torch.cuda.synchronize()

        replays["torch: graph.replay(), synchronize()"] = replay
    except ImportError:
        pass
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(12):
        for name, launch in replays.items():
            for _ in range(10):  # in a row: what runs after another graph pays for the change
                start = time.perf_counter()
                launch()
                samples[name].append((time.perf_counter() - start) * 1e6)
    graph.close()
    return {name: round(statistics.median(each), 2) for name, each in samples.items()}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="the host's cost of launches, beside peers")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    device = Device(0)
    stream = device.new_stream()

    def drain() -> None:
        stream.synchronize()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.synchronize()

    with device:
        record: dict[str, Any] = {
            "us per launch": per_launch_us({**ours(stream), **raw(stream), **peers()}, drain),
            "us to completion": completion(device),
            "us per replay of 100 kernels": graphs(stream),
        }
    libraries = versions(("numpy", "cuda-bindings", "cuda-core", "cupy-cuda13x", "torch", "triton"))
    record["device"] = device.name
    record["command"] = "python -m benchmarks.launch_cost"
    record["versions"] = {"python": platform.python_version(), **libraries}
    print(json.dumps(record, indent=1))
    write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
