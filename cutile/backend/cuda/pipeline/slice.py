"""The slice of a kernel that its producer runs.

It is the scalar code that computes the indices of loads and the conditions of assertions, with the control flow around
them. It has no tiles.

    e = reshape(load_tile(expert, i))      a scalar from memory that no thread block writes
    while condition(k):                    a loop whose variables are numbers: the producer carries them too
        x = load_tile(w, e, k)             a load into a stage of a pipeline
        assert(e < count)                  an assertion: the producer has its numbers anyway

Both roles run these operations, each for itself. A nest is a loop or branch around a load or its scalars. Both roles
run it, and the producer carries only the values that it needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.target import depends_on, require
from cutile.backend.gpu.layout_assignment import carried_groups
from cutile.backend.gpu.op_facts import is_number, makes_numbers
from cutile.ir import For, If, Op, TileType, Value, While


@dataclass(frozen=True)
class Slice:
    """The slice of a kernel that its producer runs.

    Attributes:
        needed: operations on scalars.
        nests: loops and branches.
        carried: by nest, the indices of the results that the producer needs.
    """

    needed: frozenset[Op]
    nests: frozenset[Op]
    carried: Mapping[Op, tuple[int, ...]]


def producer_slice(kernel: Kernel, numbers: Iterable[Value], reached: Iterable[Op]) -> Slice:
    """Slice a kernel for its producer.

    Args:
        kernel: the kernel.
        numbers: the scalars that the producer needs: indices of loads, and conditions of assertions.
        reached: operations that the producer has to reach, and so runs the nests around them.

    Raises:
        Refused: a number depends on a tile, or on memory that may change meanwhile.
    """
    variables = _variables(kernel.order)
    nests: set[Op] = set()
    needed: set[Op] = set()
    carried: dict[Op, set[int]] = {}
    pending = list(numbers)

    def add_nests(around: Iterable[Op]) -> None:
        new = [nest for nest in around if nest not in nests]
        nests.update(new)
        pending.extend(operand for nest in new for operand in _control_operands(nest))

    for op in reached:
        add_nests(kernel.parents[op])
    while pending:
        value = pending.pop()
        if value in variables:
            nest, index, group = variables[value]
            require(is_number(value), depends_on("a tile", asserts=bool(kernel.guards)))
            add_nests((*kernel.parents[nest], nest))
            if index not in carried.setdefault(nest, set()):
                carried[nest].add(index)
                pending += group
            continue
        op = kernel.definitions.get(value)
        if op is None or op in needed:  # parameters and induction variables have no operation
            continue
        require(makes_numbers(op), depends_on(f"more than numbers: {op.name}", asserts=bool(kernel.guards)))
        add_nests(kernel.parents[op])
        needed.add(op)
        # Operands that are no tiles are tensors: parameters, which no operation computes.
        pending += [operand for operand in op.operands if isinstance(operand.type, TileType)]
    return Slice(frozenset(needed), frozenset(nests), {nest: tuple(sorted(carried.get(nest, ()))) for nest in nests})


def _control_operands(nest: Op) -> list[Value]:
    """The operands that control a loop or branch."""
    if isinstance(nest, For):
        return [*nest.bounds]
    if isinstance(nest, While):
        return list(nest.condition.terminator.operands)
    require(isinstance(nest, If), f"a load is under {nest.name}")
    return list(nest.operands[:1])  # its condition


_DEFINED: dict[type[Op], tuple[int, ...]] = {For: (1, 3), While: (1, 2, 4), If: (2,)}
"""Indices into a group of `carried_groups`: the values that the nest defines, arguments of its blocks and the result.

The group of a `For` is (initial value, argument of the body, yielded value, result), of a `While` (initial value,
argument of the condition, of the body, yielded value, result), of an `If` (yielded by `then`, by `else`, result).
"""


def _variables(operations: Iterable[Op]) -> dict[Value, tuple[Op, int, tuple[Value, ...]]]:
    """Map the variables of nests to (nest, index among its results, group).

    A variable is an argument of a block, or a result. The group has all values that are one variable with it.
    """
    nests = [op for op in operations if type(op) in _DEFINED]
    variables = [(op, index, group) for op in nests for index, group in enumerate(carried_groups(op))]
    return {group[at]: (op, index, group) for op, index, group in variables for at in _DEFINED[type(op)]}
