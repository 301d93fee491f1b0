"""The team of native threads: each block runs once; several launches at once, and more than the team takes."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import pytest

from cutile.backend.cpu.team import MAX_JOBS, Job, Team

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX threads")

SIZE = 3
STEP = 64
"""Bytes of scratch memory of a thread."""

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(SIZE)


def run(team: Team, blocks: int, grain: int, barrier: threading.Barrier | None = None) -> list[tuple[int, int, int]]:
    """Run a job that notes its ranges: the scratch address of each, its first block and the one behind its last."""
    ranges: list[tuple[int, int, int]] = []

    def body(_arguments: Any, scratch: int, first: int, last: int) -> None:
        ranges.append((scratch, first, last))
        if barrier is not None and first == 0:
            barrier.wait(20)

    function = _BODY(body)
    address = ctypes.cast(function, ctypes.c_void_p).value
    team.run(Job(address, 0, blocks, grain, -(-blocks // grain), 0, 0, STEP, STEP), STEP * (SIZE + 1))
    return ranges


@pytest.mark.parametrize(("blocks", "grain"), [(1, 1), (100, 7), (64, 8)])
def test_every_block_runs_once(team: Team, blocks: int, grain: int) -> None:
    ranges = run(team, blocks, grain)
    assert sorted(first for _, first, _ in ranges) == list(range(0, blocks, grain))
    assert all(last == min(first + grain, blocks) for _, first, last in ranges)
    assert {scratch for scratch, _, _ in ranges} <= {STEP * (member + 1) for member in range(SIZE + 1)}


def test_more_launches_than_it_takes_at_once(team: Team) -> None:
    """All are in their first range at the same time: some on the threads that brought them, without the team."""
    count = MAX_JOBS + 2
    barrier = threading.Barrier(count)
    results: list[list[tuple[int, int, int]]] = []
    threads = [threading.Thread(target=lambda: results.append(run(team, 20, 2, barrier))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [sorted(first for _, first, _ in ranges) for ranges in results] == [list(range(0, 20, 2))] * count
