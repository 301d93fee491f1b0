"""Tune a kernel of this folder on this machine: `python -m kernels.tuned softmax`.

It finds the fastest tile for one size, and how much faster it is than the library's own choice. Every configuration is
compared with float64 before it is timed. Measurements are kept, so that a second run continues.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuda_async import Device, DeviceOp, default_device
from cuda_async import zip as together
from cutile import api, bf16, f16, f32
from cutile.bench import BenchOptions, do_bench_paired
from cutile.tune import Autotuner, Config, GridSearch, Tuned
from kernels import gemm, row_min, saxpy, softmax
from kernels.example import Case, Example, Tensors, to_device, to_host
from kernels.gemm_choice import choose, how_they_lie, may_be_halved
from kernels.gemm_model import Choice


@dataclass(frozen=True)
class Tunable:
    """A kernel, and its tunable parameters.

    Attributes:
        example: the kernel.
        size: the default size of the problem.
        space: the values of each parameter, for a device.
        launch: the op of a configuration.
        own: the library's own choice.
        keep: whether a combination of parameters makes sense.
    """

    example: Example
    size: tuple[int, ...]
    space: Callable[[Device], Mapping[str, Sequence[Any]]]
    launch: Callable[[Case, Tensors, Tensors, Config], DeviceOp[Tensors]]
    own: Callable[[Case, Tensors, Tensors], Config]
    keep: Callable[[Config], bool] = lambda config: True


def _by_tile(example: Example) -> Callable[[Case, Tensors, Tensors, Config], DeviceOp[Tensors]]:
    """The op of a configuration that has one parameter, the first extent of the tile."""
    return lambda case, outputs, inputs, config: example.launch(replace(case, tile=(config.tile,)), outputs, inputs)


def _product(case: Case, outputs: Tensors, inputs: Tensors, config: Config) -> DeviceOp[Tensors]:
    (z,), (x, y) = outputs, inputs
    choice = Choice(config.rows, config.columns, config.depth, cluster=config.cluster, halved=config.halved)
    tile = (choice.rows, choice.columns)
    op = gemm.matmul(x, y, out=z, tile=tile, depth=choice.depth, options=choice.options)
    return op.map(lambda result: (result,))


def _own_product(case: Case, outputs: Tensors, inputs: Tensors) -> Config:
    (z,), (x, y) = outputs, inputs
    facts: Any = {"lie": how_they_lie(x, y), "halves": may_be_halved(x, y, z)}
    m, n, k = case.shape
    found = choose(m, n, k, x.dtype, x.device, **facts)
    form = {"cluster": found.cluster, "halved": found.halved}
    return Config(rows=found.rows, columns=found.columns, depth=found.depth, **form)


def _products(device: Device) -> Mapping[str, Sequence[Any]]:
    if device.kind != "cuda":
        return {
            "rows": (64, 128, 256, 512), "columns": (128, 256, 512), "depth": (64, 256), "cluster": (1,),
            "halved": (False,),
        }  # fmt: skip
    return {
        "rows": (64, 128, 192, 256), "columns": (96, 128, 192, 256), "depth": (64, 128),
        "cluster": (1, 2), "halved": (False, True),
    }  # fmt: skip


TUNABLE = {
    "saxpy": Tunable(
        saxpy.EXAMPLE, (1 << 24,), lambda device: {"tile": [1 << n for n in range(8, 15)]}, _by_tile(saxpy.EXAMPLE),
        lambda case, outputs, inputs: Config(tile=2048),
    ),
    "softmax": Tunable(
        softmax.EXAMPLE, (4096, 1024), lambda device: {"tile": (1, 2, 4, 8, 16)}, _by_tile(softmax.EXAMPLE),
        lambda case, outputs, inputs: Config(tile=1),
    ),
    "row_min": Tunable(
        row_min.EXAMPLE, (4096, 1024), lambda device: {"tile": (1, 2, 4, 8, 16, 32)}, _by_tile(row_min.EXAMPLE),
        lambda case, outputs, inputs: Config(tile=row_min.tile_for(case.shape[1], inputs[0].device)[0]),
    ),
    "gemm": Tunable(
        gemm.EXAMPLE, (1024, 1024, 1024), _products, _product, _own_product,
        # In a ping-pong kernel tiles have 128 rows, and thread blocks form no clusters.
        lambda config: not config.halved or (config.rows == 128 and config.columns <= 192 and config.cluster == 1),
    ),
}  # fmt: skip


def tune(
    name: str,
    case: Case,
    *,
    budget_s: float | None = None,
    options: BenchOptions | None = None,
    space: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Tuned, Config, float]:
    """Search on the default device.

    Args:
        name: the kernel.
        case: the size and the element type.
        budget_s: seconds after which the best so far wins.
        options: the length of a measurement.
        space: the values of each parameter, in place of the kernel's own space. The library's own choice is always
            tried.

    Returns:
        The result of the search, the library's own choice, and the speed of the winner relative to it.
    """
    tunable = TUNABLE[name]
    example = tunable.example
    problem = example.problem(case, np.random.default_rng(0))
    outputs, spoiled, inputs = (to_device(each) for each in (problem.outputs, problem.outputs, problem.inputs))
    expected = example.reference(problem)
    own = tunable.own(case, outputs, inputs)
    values = space or tunable.space(default_device())

    def launch(config: Config) -> DeviceOp[Tensors]:
        return tunable.launch(case, outputs, inputs, config)

    def spoil() -> DeviceOp[tuple[None, ...]]:
        """Write the outputs' first contents again: NaN, or the input of a kernel that works in place."""
        return together(*(api.memcpy(to, of) for to, of in zip(outputs, spoiled, strict=True)))

    def right(results: Tensors) -> None:
        example.judge(case, to_host(results), expected)

    tuner = Autotuner(f"{name} {case}").configs([own, *GridSearch(**values)]).prune(tunable.keep).require(own)
    tuner.check(right, poison=spoil).bench(options)
    if budget_s is not None:
        tuner.budget(budget_s)
    search = tuner.run(launch)
    if search.best == own:
        return search, own, 1.0
    paired = do_bench_paired(lambda: launch(search.best), lambda: launch(own), options or BenchOptions())
    return search, own, paired.ratio.median


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune one kernel and print the table."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tuned", description="find the fastest tile of a kernel")
    parser.add_argument("kernel", choices=sorted(TUNABLE))
    parser.add_argument("--device", help="cpu, cuda or cuda:1; this machine's best one by default")
    parser.add_argument("--size", nargs="+", type=int, metavar="N", help="extents of the problem")
    parser.add_argument("--dtype", choices=("f16", "bf16", "f32"), default="f32", help="element type (default f32)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="end the search after so long")
    parser.add_argument("--warm", action="store_true", help="time replays without a pause, that find warm caches")
    parser.add_argument("--rep-ms", type=float, default=50.0, help="milliseconds of runs that count (default 50)")
    options = parser.parse_args(arguments)
    tunable = TUNABLE[options.kernel]
    size = tuple(options.size or tunable.size)
    if len(size) != len(tunable.size):
        print(f"--size: {options.kernel} has {len(tunable.size)} extents, got {len(size)}", file=sys.stderr)
        return 2
    case = Case(size, {"f16": f16, "bf16": bf16, "f32": f32}[options.dtype])
    with Device.parse(options.device) if options.device else default_device():
        bench = BenchOptions(warmup_ms=10, rep_ms=options.rep_ms, clear_l2=False if options.warm else None)
        found, own, ratio = tune(options.kernel, case, budget_s=options.budget, options=bench)
    print(found)
    print(f"  the library's own choice is {own.id}; the winner is {ratio:.3f} times as fast, turn by turn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
