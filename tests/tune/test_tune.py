"""Tuning kernels that run: the fastest is found, wrong and invalid ones are skipped, what was measured is kept."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, default_device
from cutile import CompileOptions, StaleRecordError, Tensor, TuningError, api, f32
from cutile.bench import BenchOptions
from cutile.tune import (
    Autotuner,
    Config,
    Invalid,
    Record,
    ToolchainDriftWarning,
    Trial,
    Tuned,
    load_verified,
)
from cutile.tune.table import NotebookTable, default_progress
from tests.support.kernels import kernel

ROOT = Path(__file__).parents[2]
QUICK = BenchOptions(warmup_ms=1, rep_ms=5, min_reps=3, max_reps=20)
SAXPY = "def saxpy(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n"
TWICE = """
def twice(y: Mut, x: Tensor, *, FACTOR: Const = 2):
    y.store(ct.load_tile_like(x, y) * FACTOR)
"""
ROUNDS = """
def rounds(y: Mut, x: Tensor, *, N: Const = 1):
    t = ct.load_tile_like(x, y)
    for _ in range(N):
        t = t * 0.5 + 1.0
    y.store(t)
"""
saxpy, twice, rounds = kernel(SAXPY), kernel(TWICE), kernel(ROUNDS)


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.parse(request.param) as device:
        yield device


def tensors(n: int = 1 << 16) -> tuple[Tensor, Tensor]:
    return api.ones((n,), f32).sync(), api.zeros((n,), f32).sync()


def outcomes(found: Tuned) -> dict[str, Any]:
    return {trial.config.id: trial.outcome for trial in found.trials}


def test_a_small_fill_is_faster_and_one_that_cannot_be_is_skipped(device: Device, tmp_path: Path) -> None:
    # The large fill writes 128 MB, some 40 us of a GPU's time: more than a launch costs a host that is busy otherwise.
    calls: list[int] = []

    def fill(config: Config) -> DeviceOp[Tensor]:
        calls.append(config.N)
        return api.full(3.0, (config.N,), f32)

    def right(result: Tensor) -> bool:
        return result.to_numpy().sync()[0] == 3

    tuner = Autotuner("fill").configs(N=[1 << 16, 1 << 25, -1]).bench(QUICK).check(right).log(tmp_path / "log.jsonl")
    first = tuner.run(fill)
    assert first.best == Config(N=1 << 16)
    refused = outcomes(first)["N=-1"]
    assert isinstance(refused, Invalid)
    assert refused.stage == "build"
    assert "every extent must be at least 0" in refused.reason
    assert first.runoff is not None
    assert first.runoff.ratio.median > 1

    calls.clear()
    again = tuner.run(fill)
    assert again.best == first.best
    assert [trial.resumed for trial in again.trials] == [True, True, False]
    assert len(calls) <= 4  # looked at, not run: what was measured is not measured again


def test_generics_options_and_tiles_are_tuned_together(device: Device) -> None:
    """Of what does 4 rounds and what does 2000 the first is the faster, whatever the tile and the options."""
    x, y = tensors()
    record = (
        Autotuner("rounds")
        .configs(rounds=[2000, 4], tile=[256, 2048], occupancy=[None, 2])
        .bench(QUICK)
        .log(None)
        .run(
            lambda c: (
                rounds(y.mut.partition((c.tile,)), x)
                .generics([c.rounds])
                .compile_options(CompileOptions(occupancy=c.occupancy))
            )
        )
    )
    assert record.best.rounds == 4
    assert len(record.ranking) == 8
    few, many = ([each.median_ms or 0.0 for each in record.ranking if each.config.rounds == n] for n in (4, 2000))
    assert sorted(few)[1] < sorted(many)[2]  # of either the middle, whoever else is at work
    api.fill(y, 0.0).sync()  # nobody holds it any more


def test_wrong_results_are_refused(device: Device) -> None:
    x, y = tensors(1000)

    def right(out: Any) -> None:
        np.testing.assert_array_equal(y.to_numpy().sync(), 2)
        assert out.x is x

    def run(factor: Sequence[int], **poison: Any) -> Tuned:
        tuner = Autotuner("twice").configs(factor=factor).bench(QUICK).log(None).check(right, **poison)
        return tuner.run(lambda c: twice(y.mut.partition((64,)), x).generics([c.factor]))

    found = run([3, 2], poison=lambda: api.fill(y, float("nan")))
    assert found.best == Config(factor=2)
    refused = outcomes(found)["factor=3"]
    assert isinstance(refused, Invalid)
    assert refused.stage == "check"
    assert refused.reason.startswith("the result is wrong")
    with pytest.raises(TuningError, match="the result is wrong"):
        run([3])


def test_outputs_are_poisoned_before_each_check() -> None:
    """What one configuration computed does not pass for what the next one leaves out."""
    x, y = tensors(1000)

    def candidate(config: Config) -> DeviceOp[Any]:
        part = y.mut.partition((64,))
        if config.whole:
            return twice(part, x)
        return twice(y.slice(range(64)).mut.partition((64,)), x.slice(range(64)))

    tuner = Autotuner("whole").configs(whole=[True, False]).bench(QUICK).log(None)

    def right(out: object) -> bool:
        return bool((y.to_numpy().sync() == 2).all())

    assert len(tuner.check(right, poison=lambda: api.fill(y, float("nan"))).run(candidate).ranking) == 1


def test_what_does_not_compile_is_skipped(device: Device) -> None:
    x, y = tensors(1000)
    wrong = kernel("def wrong(y: Mut, x: Tensor, *, N: Const = 1):\n    y.store(ct.load_tile(x, (N,), (0,)))\n")
    record = (
        Autotuner("wrong")
        .configs(N=[32, 64])
        .bench(QUICK)
        .log(None)
        .run(lambda c: wrong(y.mut.partition((64,)), x, N=c.N))
    )
    assert record.best == Config(N=64)
    refused = outcomes(record)["N=32"]
    assert isinstance(refused, Invalid)
    assert refused.stage == "compile"
    assert refused.line == "store: the tile must be f32<64>, got f32<32>"


def test_partitions_that_hold_their_tensor_may_be_made_each_time() -> None:
    x, y = tensors()
    tuner = Autotuner("held").configs(tile=[64, 4096]).bench(QUICK).log(None).check(lambda out: out.y.tensor_shape)
    found = tuner.run(lambda c: saxpy(y.partition((c.tile,)), 2.0, x))
    assert len(found.ranking) == 2
    y.reclaim()


def test_what_failed_holds_nothing() -> None:
    x, y = tensors()

    def candidate(config: Config) -> DeviceOp[Any]:
        op = saxpy(y.partition((config.tile,)), 2.0, x)
        if config.fails == "when built":
            raise RuntimeError("held by a frame of the traceback")
        return op

    def judge(out: Any) -> None:
        if out.y.partition_shape == (64,):
            raise ValueError(out)

    failing = [{"tile": 256, "fails": "when built"}, {"tile": 64, "fails": "when judged"}]
    tuner = Autotuner("held").configs([*failing, {"tile": 4096, "fails": "no"}]).bench(QUICK).log(None).check(judge)
    found = tuner.run(candidate)
    assert [trial.config.tile for trial in found.ranking] == [4096]
    stages = [trial.outcome.stage for trial in found.trials if isinstance(trial.outcome, Invalid)]
    assert stages == ["build", "run"]


def test_outputs_that_all_write_run_off_with_warm_caches_too() -> None:
    x, y = tensors()
    tuner = Autotuner("warm").configs(tile=[64, 1024, 4096]).bench(QUICK, clear_l2=False).log(None)
    for owned in (False, True):

        def candidate(config: Config, owned: bool = owned) -> DeviceOp[Any]:
            return saxpy((y if owned else y.mut).partition((config.tile,)), 2.0, x)

        found = tuner.run(candidate)
        assert len(found.ranking) == 3
        assert found.runoff is not None, found.remarks
        y.reclaim()


def test_a_function_that_makes_no_operation_is_told_apart() -> None:
    with pytest.raises(TuningError, match="takes a function from a Config to a DeviceOp"):
        Autotuner("none").configs(n=[1]).log(None).run(lambda c: 3)  # pyright: ignore[reportArgumentType, reportReturnType]


def test_a_search_can_be_awaited() -> None:
    x, y = tensors()
    ticks: list[float] = []

    async def main() -> Tuned:
        loop = asyncio.get_running_loop()
        tuner = Autotuner("awaited").configs(block=[64, 4096]).bench(QUICK).log(None)
        with Device.host():
            search = asyncio.ensure_future(tuner.run_async(lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x)))
        while not search.done():
            ticks.append(loop.time())
            await asyncio.wait({search}, timeout=0.002)
        return search.result()

    assert len(asyncio.run(main()).ranking) == 2
    assert len(ticks) > 5  # the loop went on


# -- what is kept ---------------------------------------------------------------------------------


def test_only_what_was_edited_is_measured_again(tmp_path: Path) -> None:
    x, y = tensors()
    tuner = Autotuner("edited").configs(block=[64, 4096]).bench(QUICK).log(tmp_path / "log")

    def resumed(text: str, argument: Tensor = x) -> list[bool]:
        edited = kernel(text)
        found = tuner.run(lambda c: edited(y.slice(range(argument.shape[0])).mut.partition((c.block,)), 2.0, argument))
        return [trial.resumed for trial in found.trials]

    assert resumed(SAXPY) == [False, False]
    assert resumed("\n\n" + SAXPY) == [True, True]  # it moved in its file
    assert resumed(SAXPY.replace("a * ct", "2 * a * ct")) == [False, False]
    assert resumed(SAXPY, tensors(1 << 15)[0]) == [False, False]  # other extents
    assert resumed(SAXPY) == [True, True]
    tuner.check(lambda out: True)
    assert resumed(SAXPY) == [False, False]  # what nobody judged
    assert tuner.bench(clear_l2=True) is tuner
    assert resumed(SAXPY) == [False, False]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    x, y = tensors()
    record = Autotuner("kept").configs(block=[64, 4096]).bench(QUICK).log(None).run(
        lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x)
    )  # fmt: skip
    record.save(tmp_path / "records" / "kept.json")
    return tmp_path / "records" / "kept.json"


def test_a_record_is_used_where_it_holds(record: Path) -> None:
    x, y = tensors()
    loaded = load_verified(record, lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x), name="kept")
    assert loaded.config.block in (64, 4096)
    assert loaded.median_ms > 0
    assert loaded.provenance.device == default_device().name
    assert Record.load(record) == loaded
    api.fill(y, 0.0).sync()  # the operation that was compared has been discarded


def test_a_stale_record_is_refused(record: Path) -> None:
    x, y = tensors()
    edited = kernel(SAXPY.replace("+ y", "- y"))
    with pytest.raises(StaleRecordError, match="the kernel's code is not what was tuned"):
        load_verified(record, lambda c: edited(y.mut.partition((c.block,)), 2.0, x))
    short = tensors(1 << 10)
    with pytest.raises(StaleRecordError, match="the arguments are not what was tuned"):
        load_verified(record, lambda c: saxpy(short[1].mut.partition((c.block,)), 2.0, short[0]))
    with pytest.raises(StaleRecordError, match="is the record of 'kept', not of 'other'"):
        load_verified(record, lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x), name="other")
    made = json.loads(record.read_text())
    made["provenance"]["arch"] = "sm_90a"
    record.write_text(json.dumps(made))
    with pytest.raises(StaleRecordError, match=r"\(sm_90a\) then"):
        load_verified(record, lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x))
    record.write_text("{}")
    with pytest.raises(StaleRecordError, match="is no record of a search"):
        load_verified(record, lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x))


def test_another_toolchain_is_a_warning(record: Path) -> None:
    x, y = tensors()
    then = Record.load(record)
    dataclasses.replace(then, provenance=dataclasses.replace(then.provenance, toolchain="numba 0.1")).save(record)
    with pytest.warns(ToolchainDriftWarning, match=r"made with numba 0\.1; installed is cutile"):
        found = load_verified(record, lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x))
    assert found.config == then.config


@pytest.mark.slow
def test_a_second_process_measures_nothing(tmp_path: Path) -> None:
    script = tmp_path / "tune_it.py"
    script.write_text(
        textwrap.dedent(
            """
            import cutile as ct
            from cutile import Mut, Tensor, api, f32
            from cutile.tune import Autotuner

            @ct.entry
            def saxpy(y: Mut, a: f32, x: Tensor):
                y.store(a * ct.load_tile_like(x, y) + y.load())

            x, y = api.ones((1 << 16,), f32).sync(), api.zeros((1 << 16,), f32).sync()
            found = Autotuner("saxpy").configs(block=[64, 4096]).bench(warmup_ms=1, rep_ms=5).run(
                lambda c: saxpy(y.mut.partition((c.block,)), 2.0, x)
            )
            print(found.best.block, sum(trial.resumed for trial in found.trials), saxpy.specializations)
            """
        )
    )
    environment = {**os.environ, "CUTILE_CACHE_DIR": str(tmp_path / "cache"), "CUDA_ASYNC_DEVICE": "cpu"}
    environment["PYTHONPATH"] = str(ROOT)

    def run() -> list[int]:
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # quiet, outside of a notebook
        return [int(word) for word in done.stdout.split()]

    best, resumed, compiled = run()
    assert (resumed, compiled) == (0, 2)
    assert run() == [best, 2, 0]


# -- notebooks ------------------------------------------------------------------------------------


def test_a_notebook_shows_a_table_that_fills_in() -> None:
    shown: list[str] = []
    seconds = [0.0]

    class Handle:
        def update(self, view: Any) -> None:
            shown.append(view._repr_html_())

    def display(view: Any, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(repr(view))
        return Handle()

    table = NotebookTable("gemm", display, lambda: seconds[0])
    trials = [Trial(Config(n=n), Invalid("no", "run")) for n in range(5)]
    for count in range(1, 6):
        seconds[0] += 0.15
        table(trials[:count], 5)
    assert shown[0].startswith("gemm: ...")
    assert ["gemm: 2 of 5" in each for each in shown[1:]] == [True, False, False]  # not drawn more often than is seen
    assert "gemm: 5 of 5" in shown[-1]
    table.done("gemm: n=1 is the fastest")
    assert "<table" not in shown[-1]


def test_progress_is_drawn_in_a_notebook_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    python = pytest.importorskip("IPython")
    assert default_progress("gemm") is None
    monkeypatch.setattr(python, "get_ipython", lambda: type("Shell", (), {"kernel": object()})())
    assert isinstance(default_progress("gemm"), NotebookTable)
    monkeypatch.setattr(python, "get_ipython", lambda: type("Terminal", (), {})())
    assert default_progress("gemm") is None
