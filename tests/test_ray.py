# pyright: basic
"""Ranks in the processes of a Ray cluster on this machine's CPU."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cuda_async import Device, LaunchError
from cuda_async.collective import CollectiveError, Communicator
from cutile import Tensor, api, bf16, bool_, f4e2m1fn, f4e2m1fnx2, f8e4m3fn, f8e8m0fnu, f32, tf32
from cutile.dtypes import DTypeLike
from cutile.ray import Workers
from kernels.mlp import Trainer, first_weights


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"pip install 'cutile\[ray\]'"):
        Workers(2)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, mock.MagicMock]:
    """Modules of Ray that do nothing."""
    modules = {
        name: mock.MagicMock()
        for name in ("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies")
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


CALLS = (
    "ray.init",
    "ray.cluster_resources",
    "ray.util.register_serializer",
    "ray.util.placement_group.placement_group",
    "ray.remote",
    "ray.remote.return_value.options.return_value.remote",
    "ray.get",
)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("call", CALLS)
def test_where_a_call_of_ray_fails_nothing_is_left(
    call: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is started by the workers, and one call on the way to them fails, the second of those for each rank."""
    modules = stand_in(monkeypatch)
    ray, groups = modules["ray"], modules["ray.util.placement_group"]
    ray.is_initialized.return_value = False
    ray.cluster_resources.return_value = {"GPU": 1}
    name = max((each for each in modules if call.startswith(f"{each}.")), key=len)
    function: mock.MagicMock = operator.attrgetter(call.removeprefix(f"{name}."))(modules[name])
    several = call in CALLS[-2:]
    function.side_effect = [mock.MagicMock(), error("refused")] if several else error("refused")
    with pytest.raises(error, match="refused"):
        Workers(2)
    assert ray.kill.call_count == {CALLS[-2]: 1, CALLS[-1]: 2}.get(call, 0)
    placed = call in CALLS[CALLS.index("ray.remote") :]
    assert groups.remove_placement_group.call_args_list == [mock.call(groups.placement_group.return_value)] * placed
    ray.shutdown.assert_called_once_with()


def test_a_process_that_cannot_be_ended_leaves_neither_its_place_nor_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = stand_in(monkeypatch)
    ray, groups = modules["ray"], modules["ray.util.placement_group"]
    ray.is_initialized.return_value = False
    workers = Workers(2, gpus=False)
    ray.kill.side_effect = RuntimeError("no connection")
    with pytest.raises(RuntimeError, match="no connection"):
        workers.close()
    groups.remove_placement_group.assert_called_once_with(groups.placement_group.return_value)
    ray.shutdown.assert_called_once_with()


def test_ranks_that_do_not_join_leave_their_place_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in for a Ray that the caller has started, and goes on to use."""
    modules = stand_in(monkeypatch)
    ray, groups = modules["ray"], modules["ray.util.placement_group"]
    ray.get.side_effect = ["tcp://here", CollectiveError("rank 1 did not join")]
    with pytest.raises(CollectiveError, match="rank 1 did not join"):
        Workers(2, gpus=False)
    assert ray.kill.call_count == 2
    groups.remove_placement_group.assert_called_once_with(groups.placement_group.return_value)
    ray.shutdown.assert_not_called()


def test_workers_are_closed_twice_and_leave_a_later_ray_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second `close` asked Ray for processes of a cluster that was gone, and ended whatever Ray ran by then."""
    modules = stand_in(monkeypatch)
    ray, groups = modules["ray"], modules["ray.util.placement_group"]
    ray.is_initialized.return_value = False
    with Workers(2, gpus=False) as workers:
        workers.close()
    assert ray.kill.call_count == 2
    groups.remove_placement_group.assert_called_once_with(groups.placement_group.return_value)
    ray.shutdown.assert_called_once_with()
    ray.put.reset_mock()
    with pytest.raises(CollectiveError, match="no processes to run a program: the workers were closed"):
        workers.run(len, 1)
    with pytest.raises(CollectiveError, match=r"were closed; make new ones: Workers\(2\)"):
        workers.renew()
    ray.put.assert_not_called()  # which starts Ray


def test_a_program_is_not_run_by_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = stand_in(monkeypatch)
    workers = Workers(2, gpus=False)
    modules["ray.util.placement_group"].placement_group.side_effect = RuntimeError("refused")
    with pytest.raises(RuntimeError, match="refused"):
        workers.renew()
    with pytest.raises(CollectiveError, match=r"renew\(\) failed, and may be called again"):
        workers.run(len)
    modules["ray.util.placement_group"].placement_group.side_effect = None
    workers.renew()
    assert len(workers.run(len)) == 2


@pytest.mark.parametrize("dtype", [f32, bf16, tf32, f8e4m3fn, f8e8m0fnu, f4e2m1fn, f4e2m1fnx2, bool_], ids=str)
def test_tensors_that_pass_between_processes_keep_their_dtype(
    dtype: DTypeLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of tf32 came as f32, and pairs of 4 bits as u8."""
    modules = stand_in(monkeypatch)
    Workers(2, gpus=False)
    forms = {call.args[0]: call.kwargs for call in modules["ray.util"].register_serializer.call_args_list}
    whole = api.from_numpy(np.ones((4, 6), dtype.numpy), dtype).sync()
    for tensor in (whole, whole[1:3]):
        form = forms[type(tensor)]
        copy = form["deserializer"](form["serializer"](tensor))
        assert (copy.dtype, copy.shape) == (dtype, tensor.shape)
        assert copy.to_numpy().sync().tobytes() == tensor.to_numpy().sync().tobytes()


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


STEPS, BLOCK, RATE = 20, 5, 1.0


def train(rank: Communicator, images: Any, labels: Any, path: str, dies: int) -> float:
    """A classifier of digits, in blocks of steps; rank 0 writes the weights down behind each."""

    async def run() -> float:
        start, weights, loss = 0, first_weights(64, 32, 10), 0.0
        if Path(path).exists():
            with np.load(path) as saved:
                start, weights = int(saved["step"]), (saved["up"], saved["down"])
        trainer = Trainer(rank, images, labels, weights)
        for step in range(start, STEPS, BLOCK):
            if step == dies and rank.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = await trainer.train(BLOCK, RATE)
            if rank.rank == 0:
                up, down = await trainer.numpy_weights()
                np.savez(f"{path}.new.npz", step=step + BLOCK, up=up, down=down)
                os.replace(f"{path}.new.npz", path)
        return loss

    return asyncio.run(run())


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


def test_a_worker_that_dies_is_named_and_training_goes_on_from_what_was_written(
    workers: Workers, tmp_path: Path
) -> None:
    datasets: Any = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn: pip install 'cutile[demo]'")
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    whole = workers.run(train, images, labels, str(tmp_path / "whole.npz"), -1)
    path = str(tmp_path / "state.npz")
    begin = time.monotonic()
    with pytest.raises(CollectiveError, match="the process of rank 1 died"):
        workers.run(train, images, labels, path, 10)
    assert time.monotonic() - begin < 10
    with np.load(path) as saved:
        assert saved["step"] == 10
    workers.renew()
    losses = workers.run(train, images, labels, path, -1)
    assert losses == whole, "the same sums in the same order"
    assert losses[0] == losses[1]
    with Device.host() as cpu, Communicator.of([cpu]) as alone:
        one = train(alone, images, labels, str(tmp_path / "alone.npz"), -1)
    np.testing.assert_allclose(losses, one, rtol=2e-5)
    assert one < 1.0


def test_more_ranks_than_there_is_room_for_are_refused(workers: Workers) -> None:
    with pytest.raises(CollectiveError, match="the cluster had no room for 9 processes"):
        Workers(9, gpus=False, limit_s=0.5)
