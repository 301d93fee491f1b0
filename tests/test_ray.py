# pyright: basic
"""Ranks in the processes of a Ray cluster on this machine's CPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_async import LaunchError
from cuda_async.collective import CollectiveError, Communicator
from cutile import Tensor, api
from cutile.ray import Workers


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"pip install 'cutile\[ray\]'"):
        Workers(2)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install 'cutile[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with Workers(2, gpus=False, limit_s=20) as workers:
        yield workers
    ray.shutdown()


def add(rank: Communicator, x: Tensor, scale: float) -> tuple[int, Any, Tensor]:
    mine = api.full(scale * (rank.rank + 1), x.shape).sync()
    rank.all_reduce(mine).sync()
    return rank.rank, x.to_numpy().sync() + mine.to_numpy().sync(), mine


def descend(rank: Communicator, path: str, steps: int, dies: int) -> float:
    """Least squares: gradients of each rank's rows are averaged, and rank 0 writes what there is."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 4)), rng.standard_normal(64)
    rows = slice(rank.rank, None, rank.world)
    start, x = (0, np.zeros(4)) if not Path(path).exists() else np.load(path, allow_pickle=True)
    for step in range(start, steps):
        if step == dies and rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = api.from_numpy(a[rows].T @ (a[rows] @ x - b[rows]) / len(b[rows])).sync()
        rank.all_reduce(gradient, op="avg").sync()
        x = x - 0.1 * gradient.to_numpy().sync()
        if rank.rank == 0:
            np.save(path, np.array([step + 1, x], object), allow_pickle=True)
    return float(np.square(a @ x - b).mean())


def test_each_rank_runs_the_program_and_tensors_pass(workers: Workers) -> None:
    x = api.arange(5).sync()
    for rank, (number, array, tensor) in enumerate(workers.run(add, x, 10.0)):
        assert number == rank
        np.testing.assert_array_equal(array, np.arange(5) + 30)
        np.testing.assert_array_equal(tensor.to_numpy().sync(), np.full(5, 30))


def fail(rank: Communicator) -> None:
    if rank.rank == 1:
        raise KeyError("of rank 1")
    rank.barrier().sync()


def test_what_a_program_raises_is_raised_here_and_ends_the_others_at_once(workers: Workers) -> None:
    begin = time.monotonic()
    with pytest.raises(KeyError, match="of rank 1"):
        workers.run(fail)
    assert time.monotonic() - begin < 10
    with pytest.raises(CollectiveError, match="KeyError"):
        workers.run(add, api.arange(5).sync(), 1.0)
    workers.renew()
    assert len(workers.run(add, api.arange(5).sync(), 1.0)) == 2


def test_a_worker_that_dies_is_named_and_the_group_is_formed_anew(workers: Workers, tmp_path: Path) -> None:
    path = str(tmp_path / "state.npy")
    begin = time.monotonic()
    with pytest.raises(CollectiveError, match="the process of rank 1 died"):
        workers.run(descend, path, 20, 10)
    assert time.monotonic() - begin < 10
    workers.renew()
    losses = workers.run(descend, path, 20, -1)
    whole = workers.run(descend, str(tmp_path / "other.npy"), 20, -1)
    assert losses == whole
    assert losses[0] == losses[1]


def test_more_ranks_than_there_is_room_for_are_refused(workers: Workers) -> None:
    with pytest.raises(CollectiveError, match="no machine of the cluster had room for 9 processes"):
        Workers(9, gpus=False, limit_s=0.5)
