"""The compile time of the library's kernels, phase by phase, from source text to a cubin. Needs no GPU.

    python -m benchmarks.compile_time [--arch sm_90a] [--out docs/benchmarks/compile/compile_time.json]

It compiles every kernel for every case that the tests run, and a product and attention with their fastest tiles, in a
process that has compiled each before, without caches. Each figure is the median over rounds, in CPU seconds of the
process, so that other work on the machine matters little. The time of a phase includes the checks of the IR after it.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import kernels
from benchmarks.record import FOLDER, write
from cuda_async import Device
from cutile import Kernel, KernelOp
from cutile.backend.cuda.build import libraries_of, to_llvm
from cutile.backend.cuda.target import architecture
from cutile.backend.cuda.toolchain import compile_ir, link
from cutile.backend.interface import Target
from cutile.backend.registry import backend
from cutile.compile.driver import Request, front, lower
from cutile.compile.key import cache_key
from cutile.frontend.source import take_source
from cutile.passes.pipeline import run_passes
from kernels.attention import attention
from kernels.example import Example
from kernels.gemm import gemm

OUT = FOLDER / "compile" / "compile_time.json"
ROUNDS = 5
OURS = ("source", "frontend", "passes", "key", "lower", "emit")
TOOLS = ("numba", "nvvm", "link")
BUDGET = 0.3
"""Seconds for the median kernel on the reference machine; no phase of ours may take more than a third of it."""
LARGE = {"gemm 4096 cubed bf16 tile 128x256x64": (0.3, 0.9), "attention 16x4096x128 bf16 tile 128x128": (0.5, 2.5)}
"""The largest kernels, with the seconds that Numba and that all phases together may take."""

GPU_TILE = (128, 128, 32)


def library() -> tuple[list[Kernel], list[Example]]:
    """The kernels of the folder `kernels`, and the examples that launch them."""
    modules = [importlib.import_module(f"kernels.{each.name}") for each in pkgutil.iter_modules(kernels.__path__)]
    found = [value for module in modules for value in vars(module).values()]
    examples = [value for value in found if isinstance(value, Example)]
    made = [value for value in found if isinstance(value, Kernel)]
    return list(dict.fromkeys(made)), list({each.name: each for each in examples}.values())


def requests(arch: str) -> dict[str, Request]:
    """The compilations: each kernel, specialized as by its cases."""
    from cutile import api

    target = Target("cuda", arch)
    requests: dict[str, Request] = {}
    rng = np.random.default_rng(0)
    with Device.host():
        entries, examples = library()
        for example in examples:
            for case in example.cases:
                if example.name.startswith("gemm") and case.tile is None:  # its tile would be chosen for the CPU
                    case = replace(case, tile=GPU_TILE)
                problem = example.problem(case, rng)
                outputs, inputs = (
                    tuple(api.from_numpy(each).sync() for each in arrays)
                    for arrays in (problem.outputs, problem.inputs)
                )
                before = {kernel: set(kernel.cache.plans) for kernel in entries}
                example.launch(case, outputs, inputs).discard()  # built, so that it is specialized; never run
                for kernel, plans in before.items():
                    for key in kernel.cache.plans.keys() - plans:
                        requests[f"{example.name} {case}"] = kernel.cache.plans[key].request(target)
    return requests


def large(arch: str) -> dict[str, Request]:
    """The requests of `LARGE`."""
    from cutile import api, bf16

    def taken(op: KernelOp) -> Request:
        request = op.request(Device.host())
        op.discard()
        assert request is not None
        return replace(request, target=Target("cuda", arch))

    with Device.host():
        x, y, z = (api.meta((4096, 4096), bf16) for _ in range(3))
        q, k, v, o = (api.meta((16, 4096, 128), bf16) for _ in range(4))
        operations = gemm(z.partition((128, 256)), x, y), attention(o.partition((1, 128, 128)), q, k, v, 0.1)
        return {name: taken(op) for name, op in zip(LARGE, operations, strict=True)}


class Stopwatch:
    """CPU seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str, work: Callable[[], Any]) -> Any:
        """Do the work, and add its time to the phase."""
        start = time.process_time()
        result = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.process_time() - start
        return result


def compile_once(request: Request) -> dict[str, float]:
    """The CPU seconds of each phase, from the source to a cubin."""
    watch = Stopwatch()
    made_by, arch = backend(request.target.backend), architecture(request.target.arch)
    watch.lap("source", lambda: take_source(request.function))
    program = watch.lap("frontend", lambda: front(request))
    function = watch.lap("passes", lambda: run_passes(program.function))
    watch.lap("key", lambda: cache_key(function, request.options, request.target, made_by.version()))
    lowered = watch.lap("lower", lambda: lower(request, function, check=True))
    source = watch.lap("emit", lambda: made_by.emit(lowered, request.target, request.options))
    modules = watch.lap("numba", lambda: to_llvm(source, arch))
    code = watch.lap("nvvm", lambda: compile_ir(modules, arch, libraries_of(modules)))
    watch.lap("link", lambda: link(code, arch))
    return watch.seconds


def measure(arch: str, rounds: int) -> dict[str, dict[str, float]]:
    """The median seconds of each phase, by kernel and case."""
    todo = requests(arch) | large(arch)
    for request in todo.values():  # warm: imports, Numba's caches of types, libdevice
        compile_once(request)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in todo}
    for _ in range(rounds):
        for name, request in todo.items():
            samples[name].append(compile_once(request))
    return {
        name: {phase: statistics.median(each[phase] for each in taken) for phase in (*OURS, *TOOLS)}
        for name, taken in samples.items()
    }


def summary(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """The median over the library: of all phases together, and of each phase."""
    library = [phases for name, phases in figures.items() if name not in LARGE]
    total = statistics.median(sum(phases.values()) for phases in library)
    return {"total": total} | {
        phase: statistics.median(phases[phase] for phases in library) for phase in (*OURS, *TOOLS)
    }


def over(figures: dict[str, dict[str, float]]) -> list[str]:
    """Messages about times over their budget."""
    medians = summary(figures)
    slow = [phase for phase in OURS if medians[phase] > BUDGET / 3]
    slow += ["the median kernel"] if medians["total"] > BUDGET else []
    for name, (numba, total) in LARGE.items():
        if figures[name]["numba"] > numba or sum(figures[name].values()) > total:
            slow.append(name)
    return slow


def main() -> int:
    """Measure, print, and write the figures if asked to. Exits with 1 when over the budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, nargs="?", const=OUT)
    options = parser.parse_args()
    figures = measure(options.arch, options.rounds)
    medians = summary(figures)
    columns = (*OURS, *TOOLS)
    print(f"CPU milliseconds, {options.arch}".ljust(44) + "".join(each.rjust(9) for each in ("total", *columns)))
    for name, phases in [*figures.items(), ("median", {each: medians[each] for each in columns})]:
        total = medians["total"] if name == "median" else sum(phases.values())
        print(name.ljust(44) + "".join(f"{1e3 * each:9.1f}" for each in (total, *(phases[each] for each in columns))))
    if options.out:
        record = {
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "numba-cuda": version("numba-cuda"),
            "arch": options.arch,
            "rounds": options.rounds,
            "median_seconds": medians,
            "seconds": figures,
        }
        write(options.out, record)
    slow = over(figures)
    print(f"over the budget: {', '.join(slow)}" if slow else "within the budget")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
