"""Which variables are live where: what Numba's `compute_live_map` says, in sets of bits.

Numba asks for it four times for each function, and unites Python sets of all variables at each of its blocks: of a
kernel with 160 branches, that was 1.8 of the 6.8 s that Numba took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Variables = Mapping[int, Iterable[str]]
"""By the offset of each block."""


def live_map(graph: Any, blocks: Mapping[int, Any], used: Variables, defined: Variables) -> dict[int, set[str]]:
    """The variables that are live at the beginning of each block.

    Args:
        graph: the blocks' control flow; it has `successors` and `predecessors`.
        blocks: by offset.
        used, defined: the variables that each block reads before it sets them, and that it sets.
    """
    names = sorted({name for each in (used, defined) for variables in each.values() for name in variables})
    place = {name: 1 << at for at, name in enumerate(names)}
    uses, sets = ({at: _bits(place, each[at]) for at in each} for each in (used, defined))
    following = {at: [other for other, _ in graph.successors(at)] for at in sets}
    before = {at: [other for other, _ in graph.predecessors(at)] for at in blocks}

    reaches = {at: sets[at] | uses[at] for at in sets}
    waiting = set(reaches)
    while waiting:
        at = waiting.pop()
        for other in following[at]:
            if reaches[at] & ~reaches[other]:
                reaches[other] |= reaches[at]
                waiting.add(other)

    live = {at: uses[at] for at in uses}
    waiting = set(live)
    while waiting:
        at = waiting.pop()
        for other in before[at]:
            passed = live[at] & reaches[other] & ~sets[other]
            if passed & ~live[other]:
                live[other] |= passed
                waiting.add(other)
    return {at: {names[bit] for bit in _places(bits)} for at, bits in live.items()}


def _bits(place: Mapping[str, int], names: Iterable[str]) -> int:
    total = 0
    for name in names:
        total |= place[name]
    return total


def _places(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
