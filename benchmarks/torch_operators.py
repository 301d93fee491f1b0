# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (PyTorch is not among what the tests install)
"""What an operator of ours costs beside PyTorch's own, per call, and a compiled model of our operators. Needs a GPU.

    python -m benchmarks.torch_operators [--output docs/benchmarks/torch_operators/nvidia_h200.json]

Each figure is the median over rounds of the time per call of a batch on a small tensor, so that the device is never
what is waited for; it is drained between rounds, and what is compared takes turns round by round. Under CUDA graphs it
is the time of a node: that of a launch of a graph of many, divided by their number. Results are compared first.
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

import cutile as ct
import cutile.torch as ctt
from cutile import Mut, Tensor, f32

EXTENT, BATCH, ROUNDS, NODES = 1024, 100, 60, 200
WIDTH = 1024
Call = Callable[[], object]


@ct.entry
def add_kernel(z: Mut, x: Tensor, y: Tensor):
    """z = x + y."""
    z.store(ct.load_tile_like(x, z) + ct.load_tile_like(y, z))


@ct.entry
def softmax_kernel(y: Mut, x: Tensor):
    """The softmax of each row; a tile has whole rows."""
    t = ct.convert_tile(ct.load_tile_like(x, y), f32)
    e = ct.exp(t - ct.reduce_max(t, 1).reshape((t.shape[0], 1)))
    y.store(ct.convert_tile(e / ct.reduce_sum(e, 1).reshape((t.shape[0], 1)), y.dtype))


@ct.entry
def softmax_backward_kernel(dx: Mut, dy: Tensor, y: Tensor):
    """dx = y * (dy - the sum of y * dy over the row)."""
    p, g = ct.convert_tile(ct.load_tile_like(y, dx), f32), ct.convert_tile(ct.load_tile_like(dy, dx), f32)
    dx.store(ct.convert_tile(p * (g - ct.reduce_sum(p * g, 1).reshape((p.shape[0], 1))), dx.dtype))


@ct.entry
def matmul_kernel(z: Mut, x: Tensor, y: Tensor, *, BK: ct.Const = 64):
    """z = x @ y, accumulated in float32."""
    bm, bn = z.shape
    px, py = x.partition((bm, BK)), y.partition((BK, bn))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (bm, bn), f32)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


def _add(x, y):
    z = torch.empty_like(x)
    ctt.launch(add_kernel, ctt.partition(z, (1024,)), x, y)
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


@ctt.register("cutile_bench::softmax_backward(Tensor dy, Tensor y) -> Tensor", fake=lambda dy, y: torch.empty_like(y))
def softmax_backward(dy, y):
    dx = torch.empty_like(y)
    ctt.launch(softmax_backward_kernel, ctt.partition(dx, (1, y.shape[1])), dy.contiguous(), y)
    return dx


@ctt.register(
    "cutile_bench::softmax(Tensor x) -> Tensor",
    fake=torch.empty_like,
    backward=lambda context, dy: softmax_backward(dy, *context.saved_tensors),
    setup_context=lambda context, inputs, output: context.save_for_backward(output),
)
def softmax(x):
    y = torch.empty_like(x)
    ctt.launch(softmax_kernel, ctt.partition(y, (1, x.shape[1])), x)
    return y


def _matmul_backward(context, dz):
    x, y = context.saved_tensors
    return matmul(dz, y.t()), matmul(x.t(), dz)


@ctt.register(
    "cutile_bench::matmul(Tensor x, Tensor y) -> Tensor",
    fake=lambda x, y: x.new_empty((x.shape[0], y.shape[1])),
    backward=_matmul_backward,
    setup_context=lambda context, inputs, output: context.save_for_backward(*inputs),
)
def matmul(x, y):
    z = x.new_empty((x.shape[0], y.shape[1]))
    ctt.launch(matmul_kernel, ctt.partition(z, (128, 128)), x, y)
    return z


class Model(torch.nn.Module):
    """A product, a softmax and a product, of our operators or of PyTorch's; between them what its compiler fuses."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.second = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.ours = ours

    def forward(self, x):
        multiply = matmul if self.ours else torch.matmul
        normalize = softmax if self.ours else (lambda t: torch.softmax(t, 1))
        h = torch.nn.functional.gelu(multiply(x, self.first))
        return multiply(normalize(h * 2.0), self.second) + 1.0


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
    found: dict[str, dict[str, float]] = {}

    def calls(x: Any, y: Any, *, plain: bool) -> dict[str, Call]:
        named: dict[str, Call] = {"torch.add": lambda: torch.add(x, y)}
        if plain:
            named["ours, without a backward"] = lambda: plain_add(x, y)
        named["ours, with a backward"] = lambda: add(x, y)
        named["torch.library.custom_op"] = lambda: custom_add(x, y)
        return named

    found["default stream"] = per_call_us(calls(x, y, plain=True))
    with torch.cuda.stream(torch.cuda.Stream()):
        found["another stream"] = per_call_us(calls(x, y, plain=True))
    with torch.no_grad():
        found["no_grad, of parameters"] = per_call_us(calls(x.requires_grad_(), y, plain=True))
    found["a gradient is wanted"] = per_call_us(calls(x, y, plain=False))
    x = x.detach()
    found["in a CUDA graph"] = per_node_us(calls(x, y, plain=True))
    return found


def compiled_models() -> dict[str, Any]:
    """The same model compiled with our operators and with PyTorch's: differences of results, and time of a call."""
    torch.manual_seed(0)
    ours, theirs = Model(True).cuda().bfloat16(), Model(False).cuda().bfloat16()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    found: dict[str, Any] = {}
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
                # A gradient lies in the memory of its CUDA graph, which the next step writes over.
                gradients[name] = model.first.grad.float().clone()
        gradient = float((gradients["ours"] - gradients["torch"]).norm() / gradients["torch"].norm())
        with torch.no_grad():
            mine, peer = a(x).float().clone(), b(x).float().clone()
            difference = float((mine - peer).norm() / peer.norm())
            assert difference < 2e-2, f"{mode}: results differ by {difference}"
            assert gradient < 5e-2, f"{mode}: gradients differ by {gradient}"
            times = per_call_us_of_device({"ours": lambda a=a: a(x), "torch": lambda b=b: b(x)})
        found[mode] = {"difference": difference, "difference of gradients": gradient, "us": times}
    return found


def per_call_us_of_device(calls: dict[str, Call]) -> dict[str, float]:
    """The median time of a call on the device, with what it waits for the host, in microseconds."""
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


def table(found: dict[str, dict[str, float]]) -> str:
    """The overheads as text: each figure, and what it is above torch.add."""
    names = list(next(iter(found.values())))
    width = max(map(len, found)) + 2
    lines = [" " * width + "".join(f"{name:>28}" for name in names)]
    for situation, row in found.items():
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
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": {name: version(name) for name in ("numba-cuda", "cuda-core", "cuda-bindings")},
        "extent": EXTENT,
        "us_per_call": overheads(),
    }
    print("microseconds per call (above torch.add)")
    print(table(found["us_per_call"]), flush=True)
    if not options.no_model:
        found["compiled_model"] = compiled_models()
        for mode, row in found["compiled_model"].items():
            print(
                f"compiled model, {mode}: ours {row['us']['ours']} us, torch's {row['us']['torch']} us; results differ "
                f"by {row['difference']:.1e}, gradients by {row['difference of gradients']:.1e}"
            )
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
