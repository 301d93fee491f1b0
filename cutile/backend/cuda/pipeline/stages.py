"""The pipelines of a kernel: the loads on each, and its number of stages."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda.pipeline.kernel import Kernel, require
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.plan import Dot, Group, Plan
from cutile.backend.cuda.pipeline.reads import Reads
from cutile.backend.cuda.smem_layout import ALIGNMENT, SmemLayout
from cutile.backend.cuda.target import Architecture
from cutile.dtypes import DTypeLike
from cutile.ir import Block, For, Op, While

MAX_STAGES = 8
"""Stages of a pipeline at most: a bound for small tiles, of which shared memory would hold dozens."""


def max_stages(latency: int) -> int:
    """Limit the stages of a pipeline by the largest latency of its loads; 0 is none.

    One stage is read while the others are filled, so loads that run `n` iterations ahead need `n + 1`.
    """
    return min(MAX_STAGES, latency + 1) if latency else MAX_STAGES


def with_stages(plan: Plan, kernel: Kernel, arch: Architecture) -> Plan:
    """The plan with the number of stages of each pipeline.

    It begins with two stages in loops and for steps of K (`_is_step`), and one else. Next the operands that consumers
    write get a second place, so that a write waits for no reader. Then stages double, in the smallest pipelines first,
    while shared memory has room. So their number is a power of two, and the stage of a counter is one instruction.

    Where all left operands are loaded, or all are computed, single stages are added in place of that. A third stage is
    worth more there than a quick division: consumers of weights of 8 and 4 bits wait for loads. Pipelines whose loads
    have a latency get single stages too: the user says how many.
    """
    numbers, groups = range(len(plan.operands)), set(plan.groups.values())
    looped = {of.pipeline for of in groups if any(isinstance(nest, For | While) for nest in kernel.parents[of.first])}
    in_block = Counter((group.pipeline, kernel.home[group.first]) for group in groups)
    twice = looped | {number for (number, _), count in in_block.items() if count > 1}
    # Outside of loops a second stage takes the next tile block's loads; a third one would never be filled.
    latencies = [max((x.latency for of in groups if of.pipeline == n for x in of.operands), default=0) for n in numbers]
    limits = [max_stages(latencies[number]) if number in looped else 2 for number in numbers]
    written_bytes = sum(smem_layout.place_bytes for smem_layout in plan.written)
    # The buffers stand first. `ALIGNMENT` bytes are kept for what lies behind them: barriers, tile numbers and flags.
    room = arch.shared_bytes - ALIGNMENT - plan.staging_bytes - written_bytes
    sizes = [plan.stage_bytes(number) for number in numbers]
    stages = [2 if number in twice else 1 for number in numbers]
    total = sum(count * size for count, size in zip(stages, sizes, strict=True))
    require(total <= room, f"the stages of all pipelines take {total} bytes of shared memory, there are {room}")
    if total + written_bytes <= room:
        plan, room = replace(plan, places=2), room - written_bytes
    single, grows = len({dot.left is None for dot in plan.dots.values()}) == 1, True
    while grows:
        grows = False
        for number in sorted(numbers, key=lambda pipeline: stages[pipeline]):
            more = 1 if single or latencies[number] else stages[number]
            if stages[number] + more <= limits[number] and total + more * sizes[number] <= room:
                total += more * sizes[number]
                stages[number] += more
                grows = True
    return replace(plan, stages=tuple(stages))


@dataclass
class _Arrival:
    """Loads of one block that arrive together: a group that has no pipeline yet.

    Attributes:
        block: the block of the kernel.
        operands: what the loads load.
        dots: the products that read them; empty where threads alone do.
        within: whether all readers stand in the block, so that the stage is released there. Written by `groups_of`.
    """

    block: Block
    operands: list[Operand]
    dots: list[Dot]
    within: bool = True


def groups_of(
    kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads
) -> tuple[dict[Op, Group], tuple[tuple[Operand, ...], ...]]:
    """Assign loads to groups, and groups to pipelines.

    Groups before, in and behind a loop may share a pipeline, whose counter runs on from one to the next. A group of a
    block and one of a block inside it may not, while a stage of the outer group is held. Groups of one block share a
    pipeline only as steps of K (`_is_step`).

    Returns:
        The group of each load, and the operands of each pipeline.
    """
    home, order = kernel.home, kernel.order
    # The producer fills a stage at the last load of its group. So this is the order in which it fills stages.
    arrivals = sorted(_arrivals(kernel, dots, reads), key=lambda one: max(order[each.load] for each in one.operands))
    nests = {op for arrival in arrivals for operand in arrival.operands for op in kernel.parents[operand.load]}
    pipelines: defaultdict[int, list[_Arrival]] = defaultdict(list)
    groups: dict[Op, Group] = {}
    for arrival in arrivals:
        block, loads = arrival.block, sorted((operand.load for operand in arrival.operands), key=order.__getitem__)
        first, last = (block.operations.index(load) for load in (loads[0], loads[-1]))
        # The producer fills the stage at the last load, and consumers wait for it at the first. Both would wait for
        # each other at a loop of loads between the two.
        nest_between = any(op in nests for op in block.operations[first:last])
        require(not nest_between, "loads that arrive together stand ahead of a loop of other loads and behind it")
        readers = [*(dot.op for dot in arrival.dots), *(op for load in loads for op in reads.users.get(load, ()))]
        arrival.within = all(home[op] is block for op in readers)
        number = _pipeline_of(kernel, arrival, pipelines)
        pipelines[number].append(arrival)
        ahead = first < last and not any(op.regions for op in block.operations)
        group = Group(tuple(arrival.operands), number, arrival.within, loads[0], loads[-1], ahead)
        groups.update((load, group) for load in loads)
    return groups, tuple(tuple(sharing[0].operands) for sharing in pipelines.values())


def _arrivals(kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads) -> list[_Arrival]:
    """Find the loads that arrive together.

    They are the operands of a product, the tiles that threads combine with its sums, and the operands of products that
    share one of these.
    """
    home, arrivals = kernel.home, list[_Arrival]()
    for dot in dots.values():
        operands = [*dot.operands, *(operand for operand in reads.operands.values() if operand.beside is dot.op)]
        for block in dict.fromkeys(home[operand.load] for operand in operands):
            own = _Arrival(block, [operand for operand in operands if home[operand.load] is block], [dot])
            sharing = [one for one in arrivals if loads_of(one.operands) & loads_of(own.operands)]
            merged = _Arrival(block, [], [dot for one in (*sharing, own) for dot in one.dots])
            for operand in (operand for one in (*sharing, own) for operand in one.operands):  # one may join several
                if operand.load not in loads_of(merged.operands):
                    merged.operands.append(operand)
            arrivals = [*(one for one in arrivals if one not in sharing), merged]
    assigned = loads_of(operand for arrival in arrivals for operand in arrival.operands)
    # The other tiles of a block that threads read arrive together. `dict.fromkeys` keeps the order of the program.
    others = [operand for load, operand in reads.operands.items() if load not in assigned]
    for block in dict.fromkeys(home[operand.load] for operand in others):
        arrivals.append(_Arrival(block, [operand for operand in others if home[operand.load] is block], []))
    return arrivals


def _pipeline_of(kernel: Kernel, arrival: _Arrival, pipelines: Mapping[int, Sequence[_Arrival]]) -> int:
    """Choose the pipeline of an arrival: one that fits, or a new one.

    One with the same tensors comes first, so that what is loaded before, in and behind a loop keeps one pipeline.
    """
    fitting = [number for number, others in pipelines.items() if _fits(kernel, arrival, others)]
    tensors = [operand.load.x for operand in arrival.operands]
    alike = [number for number in fitting if tensors == [each.load.x for each in pipelines[number][0].operands]]
    return (alike or fitting or [len(pipelines)])[0]


def _fits(kernel: Kernel, arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether an arrival may share the pipeline of others.

    Its operands have their layouts in shared memory, and neither holds a stage while the other one's are filled.
    """
    parents = kernel.parents[arrival.operands[0].load]
    same_block = [other for other in others if other.block is arrival.block]
    if _forms(others[0].operands) != _forms(arrival.operands) or (same_block and not _is_step(arrival, same_block)):
        return False
    elsewhere = [other for other in others if other not in same_block]
    held_around = any(_holds(other.block, parents) and not other.within for other in elsewhere)
    inside = any(_holds(arrival.block, kernel.parents[other.operands[0].load]) for other in elsewhere)
    return not held_around and (arrival.within or not inside)


def _is_step(arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether an arrival is a further step of K, behind others of its block.

    The products of each step begin at zero, as where threads scale the sums of each step. At most one earlier step is
    not read when this one begins. So two stages are enough, and `with_stages` sees to it that there are two: with one,
    consumers would wait for a stage that they hold themselves.
    """
    arrivals, operations = [*others, arrival], arrival.block.operations
    tensors = {tuple(operand.load.x for operand in one.operands) for one in arrivals}
    if len(tensors) > 1 or not all(one.within and one.dots and all(dot.fresh for dot in one.dots) for one in arrivals):
        return False
    # Beside nests the producer fills stages in the order of the last loads, and consumers wait in that of the first.
    first, *firsts = (min(operations.index(each.load) for each in one.operands) for one in (arrival, *others))
    swapped = first < max(firsts) and any(op.regions for op in operations)
    read = {value for op in operations[: operations.index(arrival.dots[0].op)] for value in op.operands}
    return not swapped and sum(not read.issuperset(dot.op.result for dot in other.dots) for other in others) <= 1


def _forms(operands: Sequence[Operand]) -> tuple[tuple[SmemLayout, DTypeLike], ...]:
    """The layouts of operands in shared memory, with their dtypes."""
    return tuple((operand.smem_layout, operand.load.x.tensor.dtype) for operand in operands)


def _holds(block: Block, nests: Sequence[Op]) -> bool:
    """Whether one of these loops and branches stands in a block."""
    return any(op in block.operations for op in nests)
