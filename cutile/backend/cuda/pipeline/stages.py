"""The pipelines of a kernel: the loads on each, and its number of stages."""

from collections.abc import Iterable, Mapping, Sequence
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


def max_stages(latencies: Iterable[int]) -> int:
    """The stages of a pipeline whose loads run ahead as far as the author said.

    Its operands share them, so the furthest counts. A stage is in use while the others are filled: loads that run `n`
    iterations ahead need `n + 1`.
    """
    ahead = max(latencies, default=0)
    return min(MAX_STAGES, ahead + 1) if ahead else MAX_STAGES


def with_stages(plan: Plan, kernel: Kernel, arch: Architecture) -> Plan:
    """The plan with the stages of each pipeline.

    Two in loops and one else, and twice as many while shared memory has room. Ahead of that, operands that consumers
    write have two places: what is written then waits for no reader.

    A power of two each: the stage of a counter is a division's remainder, between the products. Where all left operands
    are loaded, or all computed, one stage more counts for more than the remainder: there it is one more at a time.
    """
    above, numbers = kernel.parents, range(len(plan.operands))
    looped = {of.pipeline for op, of in plan.groups.items() if any(isinstance(nest, For | While) for nest in above[op])}
    limits = [max_stages(operand.latency for operand in operands) for operands in plan.operands]
    written = sum(smem_layout.place_bytes for smem_layout in plan.written)
    room = arch.shared_bytes - ALIGNMENT - plan.staging_bytes - written
    sizes = [plan.stage_bytes(number) for number in numbers]
    stages = [min(2 if number in looped else 1, limits[number]) for number in numbers]
    total = sum(count * size for count, size in zip(stages, sizes, strict=True))
    require(total <= room, f"two stages of every pipeline take {total} bytes of shared memory, there are {room}")
    if total + written <= room:
        plan, room = replace(plan, places=2), room - written
    by_one, grows = len({dot.left is None for dot in plan.dots.values()}) == 1, True
    while grows:
        grows = False
        for number in sorted(numbers, key=lambda pipeline: stages[pipeline]):
            most = limits[number] if number in looped else 2
            more = 1 if by_one else stages[number]
            if stages[number] + more <= most and total + more * sizes[number] <= room:
                total += more * sizes[number]
                stages[number] += more
                grows = True
    return replace(plan, stages=tuple(stages))


@dataclass
class _Arrival:
    """Loads of one block that arrive together.

    Attributes:
        block: of the kernel.
        operands: that are loaded.
        dots: the products that read them; none where threads alone do.
        within: whether their stage is released in the block's own products.
    """

    block: Block
    operands: list[Operand]
    dots: list[Dot]
    within: bool = True


def groups_of(
    kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads
) -> tuple[dict[Op, Group], tuple[tuple[Operand, ...], ...]]:
    """The loads that arrive together, and the buffers of each pipeline.

    Loads of several blocks may take the same pipeline, whose counter runs on from one to the next: those before a loop,
    in it and after it. Not those of a block and of one inside it where a stage of the outer one is held meanwhile. Of
    one block, those of products that each begin at zero, as steps of K do whose sums are scaled.
    """
    home, order = kernel.home, kernel.order
    arrivals = _arrivals(kernel, dots, reads)
    arrivals.sort(key=lambda arrival: max(order[operand.load] for operand in arrival.operands))
    nests = {op for arrival in arrivals for operand in arrival.operands for op in kernel.parents[operand.load]}
    users: list[list[_Arrival]] = []
    groups: dict[Op, Group] = {}
    for arrival in arrivals:
        block, loads = arrival.block, sorted((operand.load for operand in arrival.operands), key=order.__getitem__)
        first, last = (block.operations.index(load) for load in (loads[0], loads[-1]))
        # The producer fills a stage where the last load stands, when consumers may wait ahead of the loop already.
        apart = any(op in nests for op in block.operations[first:last])
        require(not apart, "loads that arrive together stand ahead of a loop of other loads and behind it")
        readers = [*(dot.op for dot in arrival.dots), *(op for load in loads for op in reads.users.get(load, ()))]
        arrival.within = all(home[op] is block for op in readers)
        number = _pipeline_of(kernel, arrival, users)
        users[number].append(arrival)
        ahead = first < last and not any(op.regions for op in block.operations)
        group = Group(tuple(arrival.operands), number, arrival.within, loads[0], loads[-1], ahead)
        groups.update((load, group) for load in loads)
    return groups, tuple(tuple(of[0].operands) for of in users)


def _arrivals(kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads) -> list[_Arrival]:
    """The loads that arrive together.

    Those of one product do, with what threads combine its sums with, and with those of products that share one of them.
    """
    home, arrivals = kernel.home, list[_Arrival]()
    for dot in dots.values():
        operands = [*dot.operands, *(operand for operand in reads.operands.values() if operand.beside is dot.op)]
        for block in dict.fromkeys(home[operand.load] for operand in operands):
            own = _Arrival(block, [operand for operand in operands if home[operand.load] is block], [dot])
            sharing = [one for one in arrivals if loads_of(one.operands) & loads_of(own.operands)]
            joined = _Arrival(block, [], [dot for one in (*sharing, own) for dot in one.dots])
            for operand in (operand for one in (*sharing, own) for operand in one.operands):  # one may join several
                if operand.load not in loads_of(joined.operands):
                    joined.operands.append(operand)
            arrivals = [*(one for one in arrivals if one not in sharing), joined]
    present = loads_of(operand for arrival in arrivals for operand in arrival.operands)
    # What else threads read of a block arrives together; in the order of the program, which sets do not keep.
    others = [operand for load, operand in reads.operands.items() if load not in present]
    for block in dict.fromkeys(home[operand.load] for operand in others):
        arrivals.append(_Arrival(block, [operand for operand in others if home[operand.load] is block], []))
    return arrivals


def _pipeline_of(kernel: Kernel, arrival: _Arrival, users: list[list[_Arrival]]) -> int:
    """The number of the pipeline that some loads arrive on.

    A further one is added where none is free.
    """
    fitting = [number for number, of in enumerate(users) if _fits(kernel, arrival, of)]
    tensors = [operand.load.x for operand in arrival.operands]
    alike = [number for number in fitting if tensors == [operand.load.x for operand in users[number][0].operands]]
    if not fitting:
        users.append([])
    return (alike or fitting or [len(users) - 1])[0]


def _fits(kernel: Kernel, arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether loads lie as others do, of which no stage is held meanwhile."""
    above = kernel.parents[arrival.operands[0].load]
    beside = [other for other in others if other.block is arrival.block]
    if _forms(others[0].operands) != _forms(arrival.operands) or (beside and not _is_step(arrival, beside)):
        return False
    apart = [other for other in others if other not in beside]
    around = any(_inside(above, other.block) and not other.within for other in apart)
    within = any(_inside(kernel.parents[other.operands[0].load], arrival.block) for other in apart)
    return not around and (arrival.within or not within)


def _is_step(arrival: _Arrival, others: Sequence[_Arrival]) -> bool:
    """Whether loads are of one more step of K, whose sums begin at zero.

    All but one of the steps before it are read by then: two stages, which every pipeline has, hold those
    under way.
    """
    arrivals, operations = [*others, arrival], arrival.block.operations
    tensors = {tuple(operand.load.x for operand in one.operands) for one in arrivals}
    if len(tensors) > 1 or not all(one.within and one.dots and all(dot.fresh for dot in one.dots) for one in arrivals):
        return False
    read = {value for op in operations[: operations.index(arrival.dots[0].op)] for value in op.operands}
    return sum(not read.issuperset(dot.op.result for dot in other.dots) for other in others) <= 1


def _forms(operands: Sequence[Operand]) -> tuple[tuple[SmemLayout, DTypeLike], ...]:
    """How operands lie in shared memory."""
    return tuple((operand.smem_layout, operand.load.x.tensor.dtype) for operand in operands)


def _inside(above: Sequence[Op], block: Block) -> bool:
    """Whether a block stands directly or not in what is around another."""
    return any(op in block.operations for op in above)
