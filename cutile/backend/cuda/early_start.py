"""Early starts of small kernels of graphs (programmatic dependent launch).

These are kernels of one group of warps; those of specialised warps start early always (`warp_specialised.py`). In a
graph of small kernels up to a third of the time passes between one kernel's end and the next one's first load (measured
on an H200: softmax of 8 x 1024 takes 1.2 us in place of 1.5, a copy 0.8 in place of 1.1).

    m = reduce_max(t)           -->    grid_dependency_wait
    w = load_tile(weight)              w = load_tile(weight)
    ...                                m = reduce_max(t)

All accesses stay behind the wait. The kernel ahead may write a tensor between this kernel's start and the wait, so that
loads may no longer take `ld.global.nc`, which wants memory that nobody writes from start to end (PTX ISA). Compilers
move other loads over no barrier and no store. So this pass moves them to the front first, and leaves a kernel alone
where it cannot.

It leaves kernels alone, too, that

- load numbers beside tiles, which are no tile's index: with plain loads ptxas has them in uniform registers, and waits
  for them ahead of other loads, or converts a tile ahead of them. Cross entropy's gradient, which has three numbers for
  each row, took 1.16 times as long (H200);
- have loops: most run so long that a microsecond is nothing, and one of them spilled behind a wait.
"""

from collections.abc import Sequence

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import GridDependencyWait
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.ir.core import Block, Effect, Function, Op, Value

__all__ = ("start_early",)

MOVED_WORDS = 32
"""Registers of a thread that moved loads may fill, of 255 at most; chosen, not measured."""

MOST_BLOCKS = 1024
"""Thread blocks of a grid up to which the next kernel may start before it ends.

Each block that says so costs the device 0.24 ns: norms of 131,072 rows of 1024, a block each, took 161 us in place of
130 (H200). So 1024 blocks take at most half of what 8 rows of 1024 gain, some 0.5 us; other limits were not timed.
"""


def start_early(function: Function, arch: Architecture) -> Function:
    """The function with a wait ahead of its accesses.

    Itself where it has one, or loops or branches, or loads numbers beside tiles, and where a load of constant memory
    cannot be at the front.

    Args:
        function: lowered. Its loads are changed in place.
        arch: of its target. The wait is there from sm_90 on (PTX ISA, "griddepcontrol").
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
    # In graphs alone: elsewhere such a launch needs a configuration of its shape and stream, which the quick launch
    # path has not. There a launch takes the host 4 us and more (docs/benchmarks/runtime): small kernels wait for it.
    facts = {**function.facts, "early": "in graphs"}
    return Function(function.name, body, function.source, function.file, function.stage, facts)


def _has_numbers_beside_tiles(operations: Sequence[Op], loads: Sequence[Op]) -> bool:
    """Whether a load of one element is beside tiles, of which none waits for it."""
    indices: set[Value] = set()
    for op in reversed(operations):
        if op in loads or not indices.isdisjoint(op.results):
            indices.update(op.operands)
    sizes = [load.results[0].tile.size for load in loads]
    numbers = [load.results[0] for load, size in zip(loads, sizes, strict=True) if size == 1]
    return max(sizes, default=1) > 1 and not indices.issuperset(numbers)


def _to_front(function: Function) -> tuple[list[Op], list[Op], int]:
    """The operations that may come first, and the others.

    The first are loads of constant memory, and the scalars of their indices. None moves over an operation that writes
    or may end the launch.

    Returns:
        Both, and how many words of each thread the loads fill that something else stood ahead of.
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
