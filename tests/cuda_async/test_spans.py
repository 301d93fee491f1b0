"""Leases on memory that others own: lists by ranges of addresses, and what an operation is compared with."""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest

from cuda_async import OwnershipError, Use
from cuda_async.core.lease import FEW_USES, GuardLease, Lease, LeaseList, end, lend
from cuda_async.foreign import RECENT, Spans
from tests.support.interrupts import handled

SITE = ("test.py", 1)


@dataclass(eq=False)
class Import:
    """Memory that was imported: it knows the list of its range, as a storage does."""

    spans: Spans
    start: int
    stop: int
    nbytes: int = 1 << 64
    leases: LeaseList = field(init=False)

    def __post_init__(self) -> None:
        self.leases = self.spans.leases(self.start, self.stop)


def use_of(memory: Import, write: bool, start: int | None = None, stop: int | None = None) -> Use:
    return Use("x", memory, write, memory.start if start is None else start, memory.stop if stop is None else stop)


def test_imports_of_one_range_share_a_list() -> None:
    spans = Spans()
    assert Import(spans, 64, 128).leases is not Import(spans, 128, 256).leases
    first, again = Import(spans, 64, 128), Import(spans, 64, 128)
    assert first.leases is again.leases


def test_what_does_not_overlap_is_not_compared() -> None:
    spans = Spans()
    imports = [Import(spans, start, stop) for start, stop in pairwise(range(0, 64 * 1000, 64))]
    leases = [lend([use_of(each, write=True)], object(), SITE) for each in imports]
    assert [each.leases for each in imports] == [[lease] for lease in leases]


@pytest.mark.parametrize("seed", range(40))
def test_conflicts_are_those_of_bytes(seed: int) -> None:
    """Random imports of random ranges, lent at random: refused is what overlaps what is held, and nothing else."""
    rng = random.Random(seed)
    spans, imports = Spans(), list[Import]()
    held: list[Lease] = []

    def interval(low: int, high: int) -> tuple[int, int]:
        start, stop = sorted((rng.randrange(low, high), rng.randrange(low, high)))
        return start, stop + 1

    for _ in range(150):
        if len(imports) > 12:  # the lists of ranges that nobody has any more end
            imports.pop(rng.randrange(len(imports)))
            if rng.random() < 0.1:
                gc.collect()
        width = rng.choice((8, 64, 1024))
        low = rng.randrange(0, 1024, width)
        imports.append(Import(spans, *interval(low, low + width)))
        several = rng.choice((1, 2, 3, FEW_USES + 4))
        uses = list[Use]()
        for memory in rng.choices(imports, k=several):
            uses.append(use_of(memory, rng.random() < 0.3 / several, *interval(memory.start, memory.stop)))
        taken = [(use, other) for lease in held for other in lease.uses for use in uses]
        taken += [(use, other) for position, use in enumerate(uses) for other in uses[:position]]
        expected = any(
            (use[2] or other[2]) and max(use[3], other[3]) < min(use[4] or 0, other[4] or 0) for use, other in taken
        )
        try:
            held.append(lend(uses, object(), SITE))
        except OwnershipError:
            assert expected
        else:
            assert not expected
        if len(held) > 6:
            end([held.pop(rng.randrange(len(held)))])


def test_a_neighbour_that_is_imported_later_finds_what_is_held() -> None:
    spans = Spans()
    whole = Import(spans, 0, 1024)
    lease = lend([use_of(whole, write=True)], object(), SITE)
    part = Import(spans, 512, 640)
    with pytest.raises(OwnershipError):
        lend([use_of(part, write=False)], object(), SITE)
    end([lease])
    lend([use_of(part, write=True)], object(), SITE)
    with pytest.raises(OwnershipError):
        lend([use_of(whole, write=False)], object(), SITE)


def test_ranges_are_forgotten_with_their_lists() -> None:
    spans = Spans()
    for start in range(0, 64 * 3 * RECENT, 64):
        Import(spans, start, start + 64)
    gc.collect()
    kept = Import(spans, 0, 32)
    assert len(spans) == RECENT + 1, "the last ones are kept, and one list was made before one was forgotten"
    assert kept.leases == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
@pytest.mark.parametrize("again", [(0, 64), (64, 128), (128, 192), (256, 320), (304, 320), (0, 4096)])
def test_a_handler_imports_at_any_place(again: tuple[int, int]) -> None:
    """A handler took the last ended range (IndexError); or its range was forgotten, or had two lists."""
    for number in count():
        spans, imports = Spans(), list[Import]()
        for start in (0, 64, 128):
            Import(spans, start, start + 64)
        spans._recent.clear()  # pyright: ignore[reportPrivateUsage]  # so that the lists end
        gc.collect()

        def handler(spans: Spans = spans, imports: list[Import] = imports) -> None:
            imports.append(Import(spans, *again))

        def action(spans: Spans = spans, imports: list[Import] = imports) -> None:
            imports.append(Import(spans, 256, 320))

        place = handled(action, number, handler)
        if place is None:
            assert number > 20
            return
        for memory in imports:
            lease = lend([use_of(memory, write=True)], object(), SITE)
            for other in (*imports, Import(spans, memory.start + 8, memory.stop + 8)):
                if other is not memory and max(memory.start, other.start) < min(memory.stop, other.stop):
                    with pytest.raises(OwnershipError):
                        lend([use_of(other, write=True)], object(), SITE)
            end([lease])


def test_no_bytes_have_no_neighbours() -> None:
    spans = Spans()
    whole, empty = Import(spans, 0, 64), Import(spans, 32, 32)
    lend([use_of(whole, write=True)], object(), SITE)
    lend([use_of(empty, write=True)], object(), SITE)


def test_an_operation_conflicts_with_one_of_a_graphs_many_operands() -> None:
    spans = Spans()
    operands = [Import(spans, start, start + 64) for start in range(0, 64 * 300, 64)]
    graph = GuardLease([use_of(each, write=True) for each in operands], object(), SITE)
    for each in operands:
        each.leases.append(graph)
    lease = lend([use_of(operands[7], write=True)], object(), SITE)
    assert [guard for _, guard in lease.guarded] == [graph]
    end([graph])
    assert graph.uses == (), "which held the operands"
