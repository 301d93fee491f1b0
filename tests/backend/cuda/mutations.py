"""Lowered pipelines broken on purpose, each in one place: the faults that models find, and that runs find.

    python -m tests.backend.cuda.mutations         # the share that is found, by kind of fault

The models are those of `cutile/backend/cuda/model/`, which need no arguments. `executed.py` runs a kernel, and its
results are compared with NumPy's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import (
    BarriersStart,
    Dot,
    DotWait,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    Roles,
    TmaLoad,
)
from cutile.backend.cuda.ops.pipeline import PipelineType
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import bf16
from cutile.errors import IRError
from cutile.ir.control import For, While
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.text import parse, print_function
from cutile.ops import OPS
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import lowered
from tests.backend.cuda.test_executed import BRANCH
from tests.backend.cuda.test_pipeline_swaps import quantised
from tests.backend.cuda.test_pipelines import NESTED, TWO_LOOPS, WEIGHED, attention_program, products

Array = np.ndarray[Any, Any]
Fault = Callable[[], None]
"""Breaks a function."""


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.operations:
        for nested in op.regions:
            yield from _blocks(nested)


def _of(function: Function, *kinds: type[Op]) -> list[tuple[Block, Op]]:
    """The operations of some kinds, with their blocks."""
    found = [(block, op) for block in _blocks(function.body) for op in block.operations]
    return [(block, op) for block, op in found if isinstance(op, kinds)]


def _dropped(function: Function, *kinds: type[Op]) -> Iterator[Fault]:
    for block, op in _of(function, *kinds):
        yield lambda block=block, op=op: block.operations.remove(op)


def dropped_wait(function: Function) -> Iterator[Fault]:
    """A stage is read without having been waited for."""
    yield from _dropped(function, PipelineWait)


def dropped_release(function: Function) -> Iterator[Fault]:
    """A stage is never released."""
    yield from _dropped(function, PipelineRelease)


def dropped_acquire(function: Function) -> Iterator[Fault]:
    """A stage is filled without a wait for its readers."""
    yield from _dropped(function, PipelineAcquire)


def dropped_load(function: Function) -> Iterator[Fault]:
    """Bytes are announced that nobody copies."""
    yield from _dropped(function, TmaLoad)


def early_release(function: Function) -> Iterator[Fault]:
    """A stage is released ahead of the products of its block."""
    for block, op in _of(function, PipelineRelease):
        dots = [place for place, other in enumerate(block.operations) if isinstance(other, Dot)]
        place = block.operations.index(op)
        made = [value for value in op.operands if any(value in other.results for other in block.operations[:place])]
        first = max([dots[0] if dots else place, *(1 + _place(block, value) for value in made)])
        if dots and first < place and not any(isinstance(o, PipelineRelease) for o in block.operations[first:place]):

            def move(block: Block = block, op: Op = op, first: int = first) -> None:
                block.operations.remove(op)
                block.operations.insert(first, op)

            if any(isinstance(o, Dot) for o in block.operations[first:place]):
                yield move


def _place(block: Block, value: Value) -> int:
    return next(place for place, op in enumerate(block.operations) if value in op.results)


def late_products(function: Function) -> Iterator[Fault]:
    """A wait leaves one product too many under way."""
    for _, op in _of(function, DotWait):
        yield lambda op=op: op.attributes.update(pending=op.attributes["pending"] + 1)


def early_sums(function: Function) -> Iterator[Fault]:
    """Threads read sums as they are ahead of the wait for their product."""
    for _, wait in _of(function, DotWait):
        readers = [op for op in function.walk() if wait.result in op.operands and not op.terminates]
        for op in readers:
            early = tuple(wait.operands[0] if value is wait.result else value for value in op.operands)
            if not isinstance(op, Dot | DotWait):
                yield lambda op=op, early=early: setattr(op, "operands", early)


def swapped_counters(function: Function) -> Iterator[Fault]:
    """A stage is named by the counter of the one after it."""
    for block, op in _of(function, PipelineAcquire, PipelineWait, PipelineRelease):
        if (following := _next_counter(block, op.operands[1])) is not None:

            def swap(op: Op = op, block: Block = block, following: Op = following) -> None:
                op.operands = (op.operands[0], following.results[0], *op.operands[2:])
                if block.operations.index(following) > block.operations.index(op):
                    block.operations.remove(following)
                    block.operations.insert(block.operations.index(op), following)

            yield swap


def _next_counter(block: Block, counter: Value) -> Op | None:
    return next((op for op in block.operations if op.name == "add" and op.operands[0] is counter), None)


def lost_count(function: Function) -> Iterator[Fault]:
    """A loop forgets that it took a stage."""
    for _, loop in _of(function, For, While):
        assert isinstance(loop, For | While)
        last, carried = loop.body.terminator, loop.body.arguments[isinstance(loop, For) :]
        for place, (argument, value) in enumerate(zip(carried, last.operands, strict=True)):
            if argument.name.startswith("counter") and value is not argument:

                def forget(last: Op = last, place: int = place, argument: Value = argument) -> None:
                    last.operands = (*last.operands[:place], argument, *last.operands[place + 1 :])

                yield forget


def wrong_stages(function: Function) -> Iterator[Fault]:
    """Barriers count more stages than there are places."""
    yield from _retyped(function, lambda kind: replace(kind, stages=2 * kind.stages))


def wrong_arrivals(function: Function) -> Iterator[Fault]:
    """A stage is empty when one warpgroup too few, or too many, has released it."""
    yield from _retyped(function, lambda kind: replace(kind, arrivals=kind.arrivals - 1))
    yield from _retyped(function, lambda kind: replace(kind, arrivals=kind.arrivals + 1))


def _retyped(function: Function, change: Callable[[PipelineType], PipelineType]) -> Iterator[Fault]:
    for _, op in _of(function, Pipeline):
        kind = op.results[0].type
        assert isinstance(kind, PipelineType)

        def retype(op: Op = op, kind: PipelineType = kind) -> None:
            changed = change(kind)
            op.attributes.update(stages=changed.stages, arrivals=changed.arrivals)
            op.results[0].type = changed

        yield retype


def wrong_bytes(function: Function) -> Iterator[Fault]:
    """Other bytes are announced than are copied."""
    for _, op in _of(function, PipelineAcquire):
        yield lambda op=op: op.attributes.update(nbytes=op.attributes["nbytes"] + 16)


def not_started(function: Function) -> Iterator[Fault]:
    """Barriers are used that no thread has set up."""
    yield from _dropped(function, BarriersStart)
    for _, op in _of(function, BarriersStart):
        for place in range(len(op.operands)):
            yield lambda op=op, place=place: setattr(op, "operands", op.operands[:place] + op.operands[place + 1 :])


def other_pipeline(function: Function) -> Iterator[Fault]:
    """Another pipeline is waited for or released."""
    pipelines = [op.results[0] for _, op in _of(function, Pipeline)]
    for _, op in _of(function, PipelineWait, PipelineRelease):
        for other in pipelines:
            if other is not op.operands[0]:
                yield lambda op=op, other=other: setattr(op, "operands", (other, *op.operands[1:]))


FAULTS = (
    dropped_wait, dropped_release, dropped_acquire, dropped_load, early_release, late_products, early_sums,
    swapped_counters, lost_count, wrong_stages, wrong_arrivals, wrong_bytes, not_started, other_pipeline,
)  # fmt: skip


def whole(*shape: int, seed: int = 0) -> Array:
    """Small whole numbers."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(bf16.numpy)


def subjects() -> dict[str, tuple[Function, list[Any], tuple[int, int, int]]]:
    """Kernels, with the arrays and the grid that they are run on; each stage is used more than once."""
    out, x, y = whole(100, 100), whole(100, 1200), whole(1300, 100, seed=1)
    scaled = [whole(40, 1216), whole(72, 1216).astype(np.int8), np.ones((19, 72), bf16.numpy)]
    attention = [whole(1, 300, 64), whole(1, 300, 64, seed=1), whole(1, 900, 64, seed=2), whole(1, 900, 64, seed=3)]
    return {
        "two loops": (products(TWO_LOOPS, 128, 64), [out, x, y, x, y], (1, 2, 1)),
        "nested": (products(NESTED, 64, 64), [out, x[:, :400], y, np.int32(3)], (2, 2, 1)),
        "branch": (products(BRANCH, 64, 64), [out, x[:, :1200], y, np.int32(18)], (2, 2, 1)),
        "weighed": (products(WEIGHED, 128, 64), [out, x, y, np.int32(9)], (1, 2, 1)),
        "scaled weights": (quantised(8, 16, 64), [whole(40, 72), *scaled], (3, 2, 1)),
        "attention": (attention_program(64, 128, 64), [*attention, np.float32(0.25)], (1, 3, 1)),
    }


def copy_of(function: Function) -> Function:
    """The same function, to be broken."""
    return parse(print_function(function), {op.name: type(op) for op in function.walk()} | dict(OPS))


class Subject:
    """A kernel to be broken: its lowered form, and what it computes."""

    def __init__(self, function: Function, arguments: list[Any], grid: tuple[int, int, int]) -> None:
        self.lowered = copy_of(lowered(function))
        self._arguments = arguments
        self._grid = grid
        values: dict[Value, Any] = dict(zip(function.parameters, self._fresh(), strict=True))
        for index in np.ndindex(grid):
            run_block(function, dict(values), (index[0], index[1], index[2]), grid)
        self._wanted = values[function.parameters[0]]

    def _fresh(self) -> list[Any]:
        return [self._arguments[0].copy(), *self._arguments[1:]]

    def found_by_models(self, function: Function) -> bool:
        """Whether the models refuse a broken form."""
        try:
            check_function(function)
        except (IRError, ValueError, KeyError):
            return True
        return False

    def found_by_running(self, function: Function) -> bool:
        """Whether a broken form makes a fault when it runs, or computes something else."""
        arguments = self._fresh()
        try:
            execute(function, arguments, self._grid)
        except (IRError, ValueError, KeyError, IndexError):
            return True
        return arguments[0].tobytes() != self._wanted.tobytes()


def score(names: tuple[str, ...], every: int = 1) -> dict[str, Counter[str]]:
    """By kind of fault: how many there were, and how many the models, running, and neither found.

    `every`: of so many faults of a kind in a kernel, one.
    """
    reports: dict[str, Counter[str]] = {}
    for name, (function, arguments, grid) in subjects().items():
        if name not in names:
            continue
        subject = Subject(function, arguments, grid)
        assert any(isinstance(op, Roles) for op in subject.lowered.walk())
        assert not subject.found_by_models(subject.lowered)
        assert not subject.found_by_running(subject.lowered)
        for fault in FAULTS:
            for number in range(0, len(list(fault(subject.lowered))), every):
                broken = copy_of(subject.lowered)
                list(fault(broken))[number]()
                models, running = subject.found_by_models(broken), subject.found_by_running(broken)
                reports.setdefault(fault.__name__, Counter()).update(
                    faults=1, models=models, running=running, neither=not (models or running)
                )
    return reports


def main() -> int:
    """Print the share of faults that are found; 1 where one is not."""
    reports = score(tuple(subjects()))
    for name, counts in reports.items():
        print(f"{name:17} {counts['faults']:4} faults, models find {counts['models']}, running {counts['running']}")
    total = sum((Counter(counts) for counts in reports.values()), Counter[str]())
    missed = total["neither"]
    print(f"{total['faults'] - missed} of {total['faults']} are found: {1 - missed / total['faults']:.1%}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
