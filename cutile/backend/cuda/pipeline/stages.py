"""How many stages each pipeline has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutile.backend.cuda.panels import ALIGNMENT
from cutile.backend.cuda.pipeline.kernel import require
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.target import Architecture

MAX_STAGES = 8


def max_stages(latencies: Iterable[int]) -> int:
    """The stages of a pipeline whose loads run ahead as far as the author said.

    Its operands share them, so the furthest counts. A stage is in use while the others are filled: loads that run `n`
    iterations ahead need `n + 1`.
    """
    ahead = max(latencies, default=0)
    return min(MAX_STAGES, ahead + 1) if ahead else MAX_STAGES


def stages_of(plan: Plan, looped: Sequence[bool], limits: Sequence[int], arch: Architecture) -> tuple[int, ...]:
    """The stages of each pipeline.

    Two in loops and one else, and twice as many while shared memory has room.

    A power of two each: the stage of a counter is a division's remainder, between the products.
    """
    room = arch.shared_bytes - ALIGNMENT - plan.staging_bytes - plan.written_bytes
    sizes = [plan.stage_bytes(number) for number in range(len(plan.operands))]
    stages = [min(2 if inside else 1, limit) for inside, limit in zip(looped, limits, strict=True)]
    total = sum(count * size for count, size in zip(stages, sizes, strict=True))
    require(total <= room, f"two stages of every pipeline take {total} bytes of shared memory, there are {room}")
    grows = True
    while grows:
        grows = False
        for number in sorted(range(len(stages)), key=lambda pipeline: stages[pipeline]):
            most = limits[number] if looped[number] else 2
            if 2 * stages[number] <= most and total + stages[number] * sizes[number] <= room:
                total += stages[number] * sizes[number]
                stages[number] *= 2
                grows = True
    return tuple(stages)
