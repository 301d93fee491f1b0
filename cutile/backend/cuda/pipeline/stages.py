"""The pipelines of a kernel: the loads on each, and its number of stages."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.plan import Dot, Group, Plan
from cutile.backend.cuda.pipeline.reads import Reads
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.target import Architecture, Lack, require
from cutile.dtypes import DTypeLike
from cutile.ir import Block, For, Op, While

MAX_STAGES = 8
"""Stages of a pipeline at most: a bound for small tiles, of which shared memory would hold dozens."""
# Bytes of shared memory kept for barriers, tile numbers and flags. A kernel that needs more is planned again, with less
# room for stages (`plans.py`, `_specialised`).
CONTROL_BYTES = 1024


def max_stages(latency: int) -> int:
    """The most stages of a pipeline, by the largest latency of its loads; 0 is none.

    One stage is read while the others are filled, so loads that run `n` iterations ahead need `n + 1`.
    """
    return min(MAX_STAGES, latency + 1) if latency else MAX_STAGES


def with_stages(plan: Plan, kernel: Kernel, arch: Architecture) -> Plan:
    """The plan with the number of stages of each pipeline.

    A pipeline begins with two stages in loops and for steps of K (`_is_step`), and with one elsewhere. Next the
    operands that consumers write get a second stage, so that a write waits for no reader. Then pipelines get more
    stages while shared memory has room, those with the fewest stages first.

    Stages double if some left operands are loaded and others are computed. Their number is then a power of two, and the
    stage of a counter is one instruction. If all are loaded, or all computed, stages are added one at a time. A third
    stage is worth more there than a quick division: consumers of weights of 8 and 4 bits wait for loads. Pipelines
    whose loads have a latency get one stage at a time too: the user says how many.
    """
    numbers, groups = range(len(plan.operands)), set(plan.groups.values())
    looped = {of.pipeline for of in groups if any(isinstance(nest, For | While) for nest in kernel.parents[of.first])}
    in_block = Counter((group.pipeline, kernel.home[group.first]) for group in groups)
    # Groups of one block share a pipeline only as steps of K: consumers hold one step while they wait for the next.
    need_two = looped | {number for (number, _), count in in_block.items() if count > 1}
    latencies = [
        max(x.load.latency for of in groups if of.pipeline == number for x in of.operands) for number in numbers
    ]
    # Outside of loops a second stage takes the next tile block's loads. A third one would never be filled.
    limits = [max_stages(latencies[number]) if number in looped else 2 for number in numbers]
    written_bytes = sum(smem_layout.place_bytes for smem_layout in plan.written)  # one stage of each
    room = arch.shared_bytes - CONTROL_BYTES - plan.staging_bytes - written_bytes
    sizes = [plan.stage_bytes(number) for number in numbers]
    stages = [2 if number in need_two else 1 for number in numbers]
    total = sum(count * size for count, size in zip(stages, sizes, strict=True))
    why = f"the stages of all pipelines take {total} bytes of shared memory, there are {room}"
    require(total <= room, why, Lack.SHARED_MEMORY)
    if total + written_bytes <= room:
        plan, room = replace(plan, written_stages=2), room - written_bytes
    one_by_one, grows = len({dot.left is None for dot in plan.dots.values()}) == 1, True
    while grows:
        grows = False
        for number in sorted(numbers, key=lambda pipeline: stages[pipeline]):
            more = 1 if one_by_one or latencies[number] else stages[number]
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
        operands: the loaded operands.
        dots: the products that read them; empty where threads alone do.
        readers: the products, and the operations that take the tiles from registers. Written by `groups_of`.
        brief: whether all readers stand in the block, and no loop or branch with loads stands ahead of one: then no
            stage is filled in an inner block while this one is held. Written by `groups_of`.
    """

    block: Block
    operands: list[Operand]
    dots: list[Dot]
    readers: Sequence[Op] = ()
    brief: bool = True


def groups_of(
    kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads
) -> tuple[dict[Op, Group], tuple[tuple[Operand, ...], ...]]:
    """Assign loads to groups, and groups to pipelines.

    Groups before, in and after a loop may share a pipeline, whose counter runs on from one to the next. A group may
    not share one with a group of a block inside its own if it holds its stage meanwhile (`_holds_around`). Groups of
    one block share a pipeline only as steps of K (`_is_step`).

    Returns:
        The group of each load, and the operands of each pipeline.
    """
    home, order = kernel.home, kernel.order
    # In the order in which the producer fills stages: each at the last load of its group.
    arrivals = sorted(_arrivals(kernel, dots, reads), key=lambda of: max(order[x.load] for x in of.operands))
    nests = {op for arrival in arrivals for operand in arrival.operands for op in kernel.parents[operand.load]}
    pipelines: defaultdict[int, list[_Arrival]] = defaultdict(list)
    groups: dict[Op, Group] = {}
    for arrival in arrivals:
        block, loads = arrival.block, sorted((operand.load for operand in arrival.operands), key=order.__getitem__)
        first, last = (block.operations.index(load) for load in (loads[0], loads[-1]))
        # The producer fills the stage at the last load, and consumers wait for the stage at the first. At a loop of
        # loads between the two loads, producer and consumers would wait for each other.
        apart = nests.isdisjoint(block.operations[first:last])
        require(apart, "loads that arrive together stand ahead of a loop of other loads and behind it")
        arrival.readers = [*(dot.op for dot in arrival.dots), *(op for x in loads for op in reads.users.get(x, ()))]
        within = all(home[op] is block for op in arrival.readers)
        places = map(block.operations.index, arrival.readers)
        arrival.brief = within and nests.isdisjoint(block.operations[first : max(places, default=first)])
        number = _pipeline_of(kernel, arrival, pipelines)
        pipelines[number].append(arrival)
        ahead = first < last and not any(op.regions for op in block.operations)
        group = Group(tuple(arrival.operands), number, within, loads[0], loads[-1], ahead)
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
            # A product may share loads with several arrivals: all of them become one.
            sharing = [other for other in arrivals if loads_of(other.operands) & loads_of(own.operands)]
            merged = _Arrival(block, [], [dot for part in (*sharing, own) for dot in part.dots])
            for operand in (operand for part in (*sharing, own) for operand in part.operands):
                if operand.load not in loads_of(merged.operands):
                    merged.operands.append(operand)
            arrivals = [*(other for other in arrivals if other not in sharing), merged]
    assigned = loads_of(operand for arrival in arrivals for operand in arrival.operands)
    # The other tiles of a block that threads read arrive together. `dict.fromkeys` keeps the order of the program.
    others = [operand for load, operand in reads.operands.items() if load not in assigned]
    blocks = dict.fromkeys(home[operand.load] for operand in others)
    return arrivals + [_Arrival(block, [of for of in others if home[of.load] is block], []) for block in blocks]


def _pipeline_of(kernel: Kernel, arrival: _Arrival, pipelines: Mapping[int, Sequence[_Arrival]]) -> int:
    """Choose the pipeline of an arrival: one that fits, or a new one.

    A pipeline of the same tensors comes first, so that their loads before, in and after a loop keep one pipeline.
    """
    fitting = [number for number, others in pipelines.items() if _fits(kernel, arrival, others)]
    tensors = [operand.load.x for operand in arrival.operands]
    return min(fitting, key=lambda n: tensors != [x.load.x for x in pipelines[n][0].operands], default=len(pipelines))


def _fits(kernel: Kernel, arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether an arrival may share the pipeline of others.

    The operands of both have the same layouts in shared memory, and neither holds a stage while the other one's stages
    are filled.
    """
    same_block = [other for other in others if other.block is arrival.block]
    if _buffers(others[0].operands) != _buffers(arrival.operands) or (same_block and not _is_step(arrival, same_block)):
        return False
    pairs = [pair for other in others for pair in ((other, arrival), (arrival, other))]
    return not any(_holds_around(outer, inner, kernel) for outer, inner in pairs)


def _is_step(arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether an arrival is a further step of K, after others of its block.

    The products of each step begin at zero, as where threads scale the sums of each step. Ahead of this step's first
    reader, the sums of the earlier steps are read and their stages released, apart from the stage that is filled last.
    So two stages are enough, and `with_stages` sees to it that there are two: with one, consumers would wait for a
    stage that they hold themselves.
    """
    arrivals, operations = [*others, arrival], arrival.block.operations
    tensors = {tuple(operand.load.x for operand in step.operands) for step in arrivals}
    if len(tensors) > 1 or not all(of.brief and of.dots and all(dot.fresh for dot in of.dots) for of in arrivals):
        return False
    # Beside loops and branches the producer fills stages in the order of the steps' last loads (`Group.ahead`), and
    # consumers wait in the order of their first loads. The two have to be the same.
    first, *firsts = (min(operations.index(x.load) for x in step.operands) for step in (arrival, *others))
    swapped = first < max(firsts) and any(op.regions for op in operations)
    ahead = operations[: min(map(operations.index, arrival.readers))]
    read = {*ahead, *(value for op in ahead for value in op.operands)}
    return not swapped and all(read.issuperset((*of.readers, *(x.op.result for x in of.dots))) for of in others[:-1])


def _buffers(operands: Sequence[Operand]) -> tuple[tuple[SmemLayout, DTypeLike], ...]:
    """The layouts of operands in shared memory, with their dtypes."""
    return tuple((operand.smem_layout, operand.load.x.tensor.dtype) for operand in operands)


def _holds_around(outer: _Arrival, inner: _Arrival, kernel: Kernel) -> bool:
    """Whether a stage is held while a loop or branch with the inner loads runs.

    If both shared a pipeline, the inner loads would come to that stage in their turn, and wait for its release.
    """
    return not outer.brief and any(op in outer.block.operations for op in kernel.parents[inner.operands[0].load])
