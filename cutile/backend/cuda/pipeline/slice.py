"""What the producer runs.

The numbers that its loads need, wherever these come from, and no tiles.

    e = reshape(load_tile(expert, i))      a number from memory, which nobody writes meanwhile
    while condition(k):                    a loop whose variables are numbers: the producer carries them too
        x = load_tile(w, e, k)             a load into a stage of a pipeline
        assert(e < count)                  an assertion: the producer has its numbers anyway

Both roles run these operations, each for itself. Control flow around a load, or around what its numbers are computed
from, is a nest: both roles run it, and the producer carries those of its values that it needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cutile.backend.cuda.pipeline.kernel import Kernel, require
from cutile.backend.gpu.layout_assignment import carried_groups
from cutile.backend.gpu.op_facts import is_number, makes_numbers
from cutile.ir import For, If, Op, TileType, Value, While


@dataclass(frozen=True)
class Slice:
    """What the producer runs.

    Attributes:
        needed: operations that make numbers.
        nests: loops and branches.
        carried: of each nest, the places among its results of those that the producer needs.
    """

    needed: frozenset[Op]
    nests: frozenset[Op]
    carried: Mapping[Op, tuple[int, ...]]


def producer_slice(kernel: Kernel, numbers: Iterable[Value], inside: Iterable[Op]) -> Slice:
    """What the producer runs to have the numbers in `wanted` and reach `inside`.

    `inside` are operations.

    Raises:
        Refused: one of them is computed from more than numbers.
    """
    variables = _variables(kernel.order)
    nests: set[Op] = set()
    needed: set[Op] = set()
    carried: dict[Op, set[int]] = {}
    pending = list(numbers)

    def enter(op: Op) -> None:
        for nest in kernel.parents[op]:
            if nest not in nests:
                nests.add(nest)
                pending.extend(_control(nest))

    for op in inside:
        enter(op)
    while pending:
        value = pending.pop()
        if value in variables:
            nest, place, same = variables[value]
            require(is_number(value), "an index of a load depends on a tile")
            if nest not in nests:
                enter(nest)
                nests.add(nest)
                pending += _control(nest)
            if place not in carried.setdefault(nest, set()):
                carried[nest].add(place)
                pending += same
            continue
        op = kernel.definitions.get(value)
        if op is None or op in needed or op in nests:
            continue
        require(makes_numbers(op), f"an index of a load depends on more than numbers: {op.name}")
        enter(op)
        needed.add(op)
        pending += [operand for operand in op.operands if isinstance(operand.type, TileType)]
    return Slice(frozenset(needed), frozenset(nests), {nest: tuple(sorted(carried.get(nest, ()))) for nest in nests})


def _control(nest: Op) -> list[Value]:
    """What decides how often a nest's blocks run."""
    if isinstance(nest, For):
        return [nest.start, nest.stop, nest.step]
    if isinstance(nest, While):
        return list(nest.condition.terminator.operands)
    require(isinstance(nest, If), f"a load is under {nest.name}")
    return list(nest.operands[:1])


_OWN: dict[type[Op], tuple[int, ...]] = {For: (1, 3), While: (1, 2, 4), If: (2,)}
"""Which of the values that are one variable (`carried_groups`) are arguments and results of control flow."""


def _variables(operations: Iterable[Op]) -> dict[Value, tuple[Op, int, tuple[Value, ...]]]:
    """The arguments and results of control flow, with their place there.

    Each with all values that are one variable with it.
    """
    nests = [op for op in operations if type(op) in _OWN]
    variables = [(op, place, group) for op in nests for place, group in enumerate(carried_groups(op))]
    return {group[own]: (op, place, group) for op, place, group in variables for own in _OWN[type(op)]}
