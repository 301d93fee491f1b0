"""Ranks in processes of their own: the same program in each, one that dies, one that leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cuda_async.collective import CollectiveError, Communicator

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os
import numpy as np
from cuda_async import Device
from cuda_async.collective import Buffer, CollectiveError, Communicator

rank = Communicator.from_environment(limit_s=20)
with Device.host():
    for count in (5, 1 << 18):     # within a page, and more than the smallest file
        x = Buffer.put(np.arange(count) * (rank.rank + 1)).sync()
        got = rank.all_reduce(x).then(lambda buffer: buffer.get()).sync()
        assert (got == np.arange(count) * sum(range(1, rank.world + 1))).all()
    if os.environ.get("DIES") == str(rank.rank):
        os._exit(9)
    try:
        rank.barrier().sync()
        print("passed")
    except CollectiveError as error:
        print(error)
"""


def run(world: int, **environment: str) -> tuple[list[str], list[int], float]:
    """What each rank printed, its exit status, and seconds from the start of the last to the end of all."""
    name = Communicator.unique_id()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "CUDA_ASYNC_UNIQUE_ID": name,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    begin = time.monotonic()
    texts = [process.communicate(timeout=500)[0] for process in processes]
    seconds = time.monotonic() - begin
    assert not os.path.exists(name.rpartition(":")[0]), "the folder of the ranks was not removed"
    return texts, [process.returncode for process in processes], seconds


@pytest.mark.slow
def test_processes_add_up_and_leave_nothing_behind():
    texts, statuses, _ = run(3)
    assert statuses == [0, 0, 0], texts
    assert texts == ["passed\n"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_dies_ends_the_others_calls_with_an_error(lost: int):
    texts, statuses, seconds = run(2, DIES=str(lost))
    assert statuses[lost] == 9
    assert f"rank {lost} is gone" in texts[1 - lost]
    assert seconds < 15, "the others are told at once, not when their limit is over"


@pytest.mark.parametrize("order", [((0, 2), (1, 3)), ((1, 3), (0, 2))], ids=["0 first", "1 first"])
def test_ranks_that_disagree_about_their_number_do_not_wait(order: tuple[tuple[int, int], ...]):
    name = Communicator.unique_id()
    errors: list[str] = []

    def join(rank: int, world: int) -> None:
        try:
            Communicator.join(rank, world, name, limit_s=10)
        except CollectiveError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=join, args=pair) for pair in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all("rank 1 says that there are 3 ranks, rank 0 that there are 2" in error for error in errors)


def test_ranks_that_never_join_are_named():
    with pytest.raises(CollectiveError, match="ranks 1 and 2 did not join within"):
        Communicator.join(0, 3, Communicator.unique_id(), limit_s=0.3)
