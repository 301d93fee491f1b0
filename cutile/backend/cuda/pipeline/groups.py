"""Loads that arrive together: the buffers of each pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cutile.backend.cuda.panels import Panels
from cutile.backend.cuda.pipeline.kernel import Kernel, require
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.plan import Dot, Group
from cutile.backend.cuda.pipeline.reads import Reads
from cutile.dtypes import DTypeLike
from cutile.ir.core import Block, Op

_User = tuple[Block, tuple[Op, ...], bool]
"""Of a pipeline: the block of some loads, what is around it, and whether their stage is released in that block's own
products."""


def groups_of(
    kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads
) -> tuple[dict[Op, Group], tuple[tuple[Operand, ...], ...]]:
    """The loads that arrive together, and the buffers of each pipeline.

    Loads of several blocks may take the same pipeline, whose counter runs on from one to the next: those before a loop,
    in it and after it. Not those of a block and of one inside it where a stage of the outer one is held meanwhile, and
    not two of one block, whose products may be under way together.
    """
    home, order, parents = kernel.home, kernel.order, kernel.parents
    together: list[tuple[Block, list[Operand], list[Dot]]] = []
    for dot in dots.values():
        for block in dict.fromkeys(home[operand.load] for operand in dot.operands):
            operands = [group_ for group_ in dot.operands if home[group_.load] is block]
            sharing = [group_ for group_ in together if group_[0] is block and loads_of(group_[1]) & loads_of(operands)]
            joined: tuple[Block, list[Operand], list[Dot]] = (block, [], [])
            for _, others, readers in (*sharing, (block, operands, [dot])):  # one product may join several groups
                loads_known = loads_of(joined[1])
                joined[1].extend(group_ for group_ in others if group_.load not in loads_known)
                joined[2].extend(readers)
            together = [*(group_ for group_ in together if group_ not in sharing), joined]
    loads_known = loads_of(operand for _, operands, _ in together for operand in operands)
    # What threads alone read of a block arrives together; in the order of the program, which sets do not keep.
    for load in (load for load in reads.operands if load not in loads_known):
        others_of_threads = next((group_ for group_ in together if group_[0] is home[load] and not group_[2]), None)
        if others_of_threads is None:
            together.append((home[load], [reads.operands[load]], []))
        else:
            others_of_threads[1].append(reads.operands[load])
    together.sort(key=lambda group_: max(order[operand.load] for operand in group_[1]))
    nests = {op for _, operands, _ in together for operand in operands for op in parents[operand.load]}
    for block, operands, _ in together:
        places = [block.operations.index(operand.load) for operand in operands]
        # The producer fills a stage where the last load stands, when consumers may wait ahead of the loop already.
        apart = any(op in nests for op in block.operations[min(places) : max(places)])
        require(not apart, "loads that arrive together stand ahead of a loop of other loads and behind it")
    buffers: list[tuple[Operand, ...]] = []
    users: list[list[tuple[Block, tuple[Op, ...], bool]]] = []
    groups: dict[Op, Group] = {}
    for block, operands, readers in together:
        loads = sorted((operand.load for operand in operands), key=lambda load: order[load])
        users_of = [op for load in loads for op in reads.users.get(load, ())]
        within = all(home[op] is block for op in (*(dot.op for dot in readers), *users_of))
        user = (block, parents[operands[0].load], within)
        fitting = [n for n, other in enumerate(buffers) if _forms(other) == _forms(operands) and _free(user, users[n])]
        alike = [n for n in fitting if all(a.load.x is b.load.x for a, b in zip(buffers[n], operands, strict=True))]
        if not fitting:
            buffers.append(tuple(operands))
            users.append([])
        number = (alike or fitting or [len(buffers) - 1])[0]
        users[number].append(user)
        arriving = Group(tuple(operands), number, within, loads[0], loads[-1])
        groups.update((load, arriving) for load in loads)
    return groups, tuple(buffers)


def _forms(operands: Sequence[Operand]) -> tuple[tuple[Panels, DTypeLike], ...]:
    """How operands lie in shared memory."""
    return tuple((operand.panels, operand.load.x.tensor.dtype) for operand in operands)


def _free(user: _User, others: Iterable[_User]) -> bool:
    """Whether no stage of others is held while loads of this user arrive."""
    block, above, within = user
    for other, others_above, others_within in others:
        if other is block:
            return False
        if _inside(above, other) and not others_within:
            return False
        if _inside(others_above, block) and not within:
            return False
    return True


def _inside(above: Sequence[Op], block: Block) -> bool:
    """Whether a block stands directly or not in what is around another."""
    return any(op in block.operations for op in above)


def loads_on(groups: Mapping[Op, Group], count: int) -> list[list[Op]]:
    """The loads that arrive on each pipeline."""
    return [
        [operand.load for group in groups.values() if group.pipeline == number for operand in group.operands]
        for number in range(count)
    ]
