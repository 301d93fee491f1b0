"""Early starts of small kernels of graphs (programmatic dependent launch).

These are kernels of one group of warps; kernels of specialised warps always start early (`warp_specialised.py`). In a
graph of small kernels up to a third of the time passes between one kernel's end and the next one's first load (measured
on an H200: with early starts a softmax of 8 x 1024 takes 1.2 us in place of 1.5, a copy 0.8 in place of 1.1).

    m = reduce_max(t)           -->    grid_dependency_wait
    w = load_tile(weight)              w = load_tile(weight)
    ...                                m = reduce_max(t)

All accesses stay after the wait. The kernel ahead may write a tensor between this kernel's start and the wait. So
loads may not use `ld.global.nc`, which requires that nobody writes the memory while the kernel runs (PTX ISA). The
compiler moves other loads over no barrier and no store. So this pass moves the loads to the front itself. It leaves a
kernel alone where it cannot.

It also leaves kernels alone that

- load single numbers beside tiles, unless they are indices of tiles: with plain loads ptxas has the numbers in uniform
  registers, and waits for them ahead of other loads, or converts a tile ahead of them. Cross entropy's gradient, which
  has three numbers for each row, took 1.16 times as long (H200);
- have loops: most run so long that a microsecond is nothing, and one of them spilled after a wait.
"""

from collections.abc import Sequence

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import GridDependencyWait
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.ir.core import Block, Effect, Function, Op, Value

__all__ = ("start_early",)

MOVED_WORDS = 32
"""Registers of a thread that moved loads may fill. A thread has 255 at most; the limit was chosen, not measured."""

MOST_BLOCKS = 1024
"""Thread blocks of a grid up to which the next kernel may start before it ends.

Each block that lets the next kernel start costs the device 0.24 ns: norms of 131,072 rows of 1024, a block each, took
161 us in place of 130 (H200). So 1024 blocks cost at most half of the gain of 8 rows of 1024, some 0.5 us; other limits
were not timed.
"""


def start_early(function: Function, arch: Architecture) -> Function:
    """The function with a wait ahead of its accesses.

    It is the function itself where it has a wait already, has loops or branches, loads numbers beside tiles, or has a
    load of constant memory that cannot move to the front.

    Args:
        function: a lowered function. Its loads are changed in place.
        arch: its architecture. The wait exists from sm_90 on (PTX ISA, "griddepcontrol").
    """
    operations = function.body.operations
    if arch.major < 9 or "early" in function.facts or any(op.regions for op in operations):
        return function
    loads = [op for op in operations if op.attributes.get("constant")]
    if _has_numbers_beside_tiles(operations, loads):
        return function
    front, rest, words = _to_front(function)
    if words > MOVED_WORDS or not set(loads) <= set(front):
        return function
    for load in loads:
        load.attributes["constant"] = False
    body = Block(function.parameters, [GridDependencyWait(most_blocks=MOST_BLOCKS), *front, *rest])
    # In graphs alone: elsewhere such a launch needs a configuration with its shape and stream, which the fast path of
    # launches does without. There a launch takes the host 4 us and more (docs/benchmarks/runtime), so that small
    # kernels wait for the host.
    facts = {**function.facts, "early": "in graphs"}
    return Function(function.name, body, function.source, function.file, function.stage, facts)


def _has_numbers_beside_tiles(operations: Sequence[Op], loads: Sequence[Op]) -> bool:
    """Whether tiles are loaded, and beside them a number that no load's index needs."""
    indices: set[Value] = set()
    for op in reversed(operations):
        if op in loads or not indices.isdisjoint(op.results):
            indices.update(op.operands)
    sizes = [load.results[0].tile.size for load in loads]
    numbers = [load.results[0] for load, size in zip(loads, sizes, strict=True) if size == 1]
    return max(sizes, default=1) > 1 and not indices.issuperset(numbers)


def _to_front(function: Function) -> tuple[list[Op], list[Op], int]:
    """The operations that may come first, and the others.

    Those that may come first are loads of constant memory, and the scalars of their indices. None moves over an
    operation that writes or may end the launch.

    Returns:
        Both, in order, and the registers of a thread that moved loads fill.
    """
    layouts = layouts_of(function)
    operations = function.body.operations
    front: list[Op] = []
    rest: list[Op] = []
    ready: set[Value] = set(function.parameters)
    words = 0
    for position, op in enumerate(operations):
        if op.effect >= Effect.WRITE:
            return front, rest + operations[position:], words
        loads = bool(op.attributes.get("constant"))
        if (loads or _is_scalar(op)) and ready.issuperset(op.operands):
            front.append(op)
            ready.update(op.results)
            if loads and rest and is_tile(op.results[0]):
                words += layouts[op.attributes["layout"]].registers * op.results[0].tile.dtype.bits // 32
        else:
            rest.append(op)
    return front, rest, words


def _is_scalar(op: Op) -> bool:
    return op.effect == Effect.NONE and not op.regions and not any(map(is_tile, op.results))
