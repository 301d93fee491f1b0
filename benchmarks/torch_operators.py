# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (PyTorch is not among what the tests install)
"""The cost per call of our operators beside PyTorch's own, and of a compiled model with them. Needs a GPU.

    python -m benchmarks.torch_operators [--output docs/benchmarks/torch_operators/nvidia_h200.json]

Each figure is the median over rounds of the time per call in a batch on a small tensor, so that the device is never
waited for. The device is drained between rounds, and the candidates take turns round by round. Under CUDA graphs the
figure is the time of a node: the time of a graph of many calls, divided by their number. Results are compared first.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import cutile.torch as ctt
from benchmarks.torch_model import Model
from kernels.vector_add import vector_add

EXTENT, BATCH, ROUNDS, NODES = 1024, 100, 60, 200
WIDTH = 1024
Call = Callable[[], object]


def _add(x, y):
    z = torch.empty_like(x)
    ctt.launch(vector_add, ctt.partition(z, (1024,)), x, y)
    return z


plain_add = ctt.register("cutile_bench::plain_add(Tensor x, Tensor y) -> Tensor", _add, fake=torch.add)
add = ctt.register(
    "cutile_bench::add(Tensor x, Tensor y) -> Tensor", _add, fake=torch.add, backward=lambda context, dz: (dz, dz)
)


@torch.library.custom_op("cutile_bench::custom_add", mutates_args=())
def custom_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _add(x, y)


custom_add.register_fake(torch.add)
custom_add.register_autograd(lambda context, dz: (dz, dz))


def per_call_us(calls: dict[str, Call]) -> dict[str, float]:
    """The median time per call of each, in microseconds, taken in turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(BATCH):
            call()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(BATCH):
                call()
            samples[name].append((time.perf_counter() - start) / BATCH * 1e6)
            torch.cuda.synchronize()
    return {name: round(statistics.median(each), 2) for name, each in samples.items()}


def per_node_us(calls: dict[str, Call]) -> dict[str, float]:
    """The median time of a node in a CUDA graph of `NODES` calls that PyTorch has captured, in microseconds."""
    graphs: dict[str, Any] = {}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        graph = graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(ROUNDS + 3):
        for name, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 3:
                samples[name].append(begin.elapsed_time(end) / NODES * 1e3)
    return {name: round(statistics.median(each), 3) for name, each in samples.items()}


def overheads() -> dict[str, dict[str, float]]:
    """Microseconds per call of `add` in each situation."""
    x, y = (torch.randn(EXTENT, device="cuda") for _ in range(2))
    for operator in (plain_add, add, custom_add):
        torch.testing.assert_close(operator(x, y), x + y)
    times: dict[str, dict[str, float]] = {}

    def calls(x: Any, y: Any, *, plain: bool) -> dict[str, Call]:
        named: dict[str, Call] = {"torch.add": lambda: torch.add(x, y)}
        if plain:
            named["ours, without a backward"] = lambda: plain_add(x, y)
        named["ours, with a backward"] = lambda: add(x, y)
        named["torch.library.custom_op"] = lambda: custom_add(x, y)
        return named

    times["default stream"] = per_call_us(calls(x, y, plain=True))
    with torch.cuda.stream(torch.cuda.Stream()):
        times["another stream"] = per_call_us(calls(x, y, plain=True))
    with torch.no_grad():
        times["no_grad, of parameters"] = per_call_us(calls(x.requires_grad_(), y, plain=True))
    times["a gradient is wanted"] = per_call_us(calls(x, y, plain=False))
    x = x.detach()
    times["in a CUDA graph"] = per_node_us(calls(x, y, plain=True))
    return times


def compiled_models() -> dict[str, Any]:
    """The same model compiled with our operators and with PyTorch's: differences of results, and time of a call."""
    torch.manual_seed(0)
    ours, theirs = (Model(WIDTH, ours=each).cuda().bfloat16() for each in (True, False))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    rows: dict[str, Any] = {}
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        a = torch.compile(ours, fullgraph=True, mode=mode)
        b = torch.compile(theirs, fullgraph=True, mode=mode)
        gradients: dict[str, Any] = {}
        for _ in range(3):
            for name, model, compiled in (("ours", ours, a), ("torch", theirs, b)):
                model.zero_grad()
                torch.compiler.cudagraph_mark_step_begin()
                compiled(x).square().mean().backward()
                # A gradient is in the memory of its CUDA graph, which the next step overwrites.
                gradients[name] = model.first.grad.float().clone()
        gradient = float((gradients["ours"] - gradients["torch"]).norm() / gradients["torch"].norm())
        with torch.no_grad():
            mine, peer = a(x).float().clone(), b(x).float().clone()
            difference = float((mine - peer).norm() / peer.norm())
            assert difference < 2e-2, f"{mode}: results differ by {difference}"
            assert gradient < 5e-2, f"{mode}: gradients differ by {gradient}"
            times = per_call_us_of_device({"ours": lambda a=a: a(x), "torch": lambda b=b: b(x)})
        rows[mode] = {"difference": difference, "difference of gradients": gradient, "us": times}
    return rows


def per_call_us_of_device(calls: dict[str, Call]) -> dict[str, float]:
    """The median time of a call between two events on the device, waits for the host included, in microseconds."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(ROUNDS + 5):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 5:
                samples[name].append(begin.elapsed_time(end) * 1e3)
    return {name: round(statistics.median(each), 1) for name, each in samples.items()}


def table(times: dict[str, dict[str, float]]) -> str:
    """The overheads as text: each figure, and its difference to torch.add."""
    names = list(next(iter(times.values())))
    width = max(map(len, times)) + 2
    lines = [" " * width + "".join(f"{name:>28}" for name in names)]
    for situation, row in times.items():
        base = row["torch.add"]
        cells = [f"{row[name]:.2f} ({row[name] - base:+.2f})" if name in row else "-" for name in names]
        lines.append(f"{situation:<{width}}" + "".join(f"{cell:>28}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--no-model", action="store_true", help="leave the compiled models out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU, and a build of PyTorch for it", file=sys.stderr)
        return 1
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": {name: version(name) for name in ("numba-cuda", "cuda-core", "cuda-bindings")},
        "extent": EXTENT,
        "us_per_call": overheads(),
    }
    print("microseconds per call (above torch.add)")
    print(table(record["us_per_call"]), flush=True)
    if not options.no_model:
        record["compiled_model"] = compiled_models()
        for mode, row in record["compiled_model"].items():
            print(
                f"compiled model, {mode}: ours {row['us']['ours']} us, torch's {row['us']['torch']} us; results differ "
                f"by {row['difference']:.1e}, gradients by {row['difference of gradients']:.1e}"
            )
    if options.output is not None:
        options.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
