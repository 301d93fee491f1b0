"""A search on a clock and with times that are made up: order, budget, resumption, what is invalid, the run-off."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutile import ForeignLogError, TuningError
from cutile.compile.store import CacheWarning
from cutile.tune import Autotuner, Config, GridSearch, Invalid, Trial, Tuned
from cutile.tune import search as search_module
from cutile.tune.log import TrialLog
from cutile.tune.space import space_hash
from tests.tune.oracle import FakeOracle

WRONG = {
    "n=1": Invalid("no shape", "build"),
    "n=2": Invalid("too many registers", "compile"),
    "n=3": Invalid("the result is wrong", "check"),
    "n=4": Invalid("out of memory", "run"),
}


def by_n(config: Config) -> float:
    return float(config.n)


def tuner(values: Sequence[int] = (5, 3, 4), name: str = "test") -> Autotuner:
    return Autotuner(name).configs(n=values).log(None)


def ids(found: Tuned) -> list[str]:
    return [trial.config.id for trial in found.trials]


# -- order ----------------------------------------------------------------------------------------


def test_every_configuration_is_measured_in_order_and_the_fastest_wins() -> None:
    oracle = FakeOracle(by_n)
    record = tuner().run_with(oracle)
    assert oracle.measured == ids(record) == ["n=5", "n=3", "n=4"]
    assert record.best == Config(n=3)
    assert record.median_ms == 3
    assert [trial.config.n for trial in record.ranking] == [3, 4, 5]
    assert not record.out_of_time


def test_several_are_compiled_at_once_and_measured_one_after_the_other() -> None:
    oracle = FakeOracle(by_n)
    tuner((1, 2, 3, 4, 5)).run_with(oracle, ahead=2)
    assert oracle.prepared == [("n=1", "n=2"), ("n=3", "n=4"), ("n=5",)]
    assert oracle.measured == ["n=1", "n=2", "n=3", "n=4", "n=5"]


def test_what_is_pruned_is_never_visited() -> None:
    oracle = FakeOracle(by_n)
    record = (
        tuner(range(1, 9)).prune(lambda config: config.n % 2 == 0).prune(lambda config: config.n > 2).run_with(oracle)
    )
    assert oracle.looked == ids(record) == ["n=4", "n=6", "n=8"]
    with pytest.raises(TuningError, match="none is left after pruning"):
        tuner().prune(lambda config: False).run_with(FakeOracle(by_n))


def test_what_is_required_comes_first_whatever_the_budget(clock: FakeOracle) -> None:
    record = tuner(range(1, 9)).require({"n": 7}, Config(n=5)).budget(1).run_with(clock)
    assert ids(record) == ["n=7", "n=5"]
    assert record.out_of_time
    assert record.best == Config(n=5)


def test_what_is_required_has_to_be_there_and_to_be_measured() -> None:
    with pytest.raises(TuningError, match="required, and is not among"):
        tuner().require({"n": 9}).run_with(FakeOracle(by_n))
    with pytest.raises(TuningError, match="required, and is not among"):
        tuner().require({"n": 3}).prune(lambda config: config.n > 3).run_with(FakeOracle(by_n))
    with pytest.raises(TuningError, match="required and cannot be measured: out of memory"):
        tuner().require({"n": 4}).run_with(FakeOracle(by_n, WRONG))


def test_a_searcher_of_ones_own_hears_what_became_of_what_it_asked_for() -> None:
    class Halving:
        """Goes down by halves as long as that is faster."""

        parameters = ("n",)

        def __init__(self) -> None:
            self.next: int | None = 64
            self.best = float("inf")

        def ask(self, count: int) -> Sequence[Config]:
            return [] if self.next is None else [Config(n=self.next)]

        def tell(self, trial: Trial) -> None:
            assert trial.median_ms is not None
            self.next = trial.config.n // 2 if trial.median_ms < self.best else None
            self.best = min(self.best, trial.median_ms)

    oracle = FakeOracle(lambda config: abs(config.n - 8) + 1.0)
    found = Autotuner("halving").configs(Halving()).log(None).run_with(oracle)
    assert oracle.measured == ["n=64", "n=32", "n=16", "n=8", "n=4"]
    assert found.best == Config(n=8)


# -- budget ---------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeOracle:
    """An oracle whose clock the budget goes by."""
    oracle = FakeOracle(by_n)

    class Search(search_module.Search):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named, now=oracle.now)

    monkeypatch.setattr("cutile.tune.tuner.Search", Search)
    return oracle


def test_the_budget_ends_the_search_with_the_best_so_far(clock: FakeOracle) -> None:
    record = tuner((5, 3, 4, 1, 2)).budget(2.5).run_with(clock)
    assert ids(record) == ["n=5", "n=3", "n=4"]
    assert record.best == Config(n=3)
    assert record.out_of_time
    assert clock.paired == []
    assert "no time for a run-off" in record.remarks[0]
    assert "the budget ended the search" in record.title


def test_what_was_compiled_ahead_is_left_when_the_budget_ends(clock: FakeOracle) -> None:
    assert ids(tuner((5, 3, 4, 1, 2)).budget(1.5).run_with(clock, ahead=4)) == ["n=5", "n=3"]


def test_a_budget_that_is_enough_ends_nothing(clock: FakeOracle) -> None:
    found = tuner().budget(100).run_with(clock)
    assert not found.out_of_time
    assert len(clock.paired) == 1


def test_a_budget_that_ends_with_the_last_configuration_ends_nothing(clock: FakeOracle) -> None:
    found = tuner((5, 3, 4)).budget(2.5).run_with(clock)
    assert ids(found) == ["n=5", "n=3", "n=4"]
    assert not found.out_of_time


def test_a_budget_in_which_nothing_was_measured_is_an_error(clock: FakeOracle) -> None:
    with pytest.raises(TuningError, match="the budget of 0 s ended the search"):
        tuner().budget(0).run_with(clock)


# -- invalid --------------------------------------------------------------------------------------


def test_invalid_configurations_are_skipped_with_their_reasons() -> None:
    oracle = FakeOracle(by_n, WRONG)
    record = tuner((1, 2, 3, 4, 6, 5)).run_with(oracle)
    assert record.best == Config(n=5)
    assert {trial.config.id: trial.outcome for trial in record.trials if trial.median_ms is None} == WRONG
    assert oracle.measured == ["n=3", "n=4", "n=6", "n=5"]  # what does not compile is not run
    shown = repr(record)
    for config, outcome in WRONG.items():
        assert f"not used: {config}: {outcome.reason}" in shown


def test_a_search_in_which_nothing_is_valid_says_why() -> None:
    with pytest.raises(TuningError) as caught:
        tuner((1, 2)).run_with(FakeOracle(by_n, WRONG))
    assert str(caught.value) == (
        "test: no configuration could be measured\n  n=1 (build): no shape\n  n=2 (compile): too many registers"
    )


def test_one_reason_of_many_configurations_is_said_once() -> None:
    reason = Invalid("the tensor is held", "build")
    with pytest.raises(TuningError) as caught:
        tuner((1, 2, 3)).run_with(FakeOracle(by_n, {"n=1": reason, "n=2": reason, "n=3": Invalid("no shape", "build")}))
    assert str(caught.value).splitlines()[1:] == [
        "  n=1 (build): the tensor is held",
        "  n=2 for the same reason",
        "  n=3 (build): no shape",
    ]


def test_a_lost_device_ends_the_search_and_its_configuration_is_not_tried_again(tmp_path: Path) -> None:
    oracle = FakeOracle(by_n, {"n=3": Invalid("illegal address", "lost")})
    again = tuner().log(tmp_path / "log")
    with pytest.raises(TuningError, match=r"Config\(n=3\) ended the device"):
        again.run_with(oracle)
    assert oracle.measured == ["n=5", "n=3"]
    found = again.run_with(oracle)  # as another process would
    assert oracle.measured == ["n=5", "n=3", "n=4"]
    assert found.best == Config(n=4)


# -- run-off --------------------------------------------------------------------------------------


def test_the_two_best_run_off_and_the_winner_of_that_wins() -> None:
    """One was measured while the clock was high; side by side, the other is the faster."""
    oracle = FakeOracle(by_n, drift={"n=4": 0.5})
    record = tuner().run_with(oracle)
    assert oracle.paired == [("n=4", "n=3")]
    assert record.finalists == (Config(n=4), Config(n=3))
    assert record.best == Config(n=3)
    assert record.ranking[0].config == Config(n=3)
    assert record.runoff is not None
    assert record.runoff.ratio.median == pytest.approx(0.75)
    assert "n=4 is 0.750 times as fast as n=3 (0.749 to 0.751)" in repr(record)


def test_two_that_turns_do_not_tell_apart_stay_in_the_order_of_their_medians() -> None:
    found = tuner().run_with(FakeOracle(lambda config: 1 + config.n * 1e-6, drift={"n=5": 0.9, "n=4": 0.95}))
    assert found.best == Config(n=5)
    assert "which is as good" in repr(found)


def test_the_only_one_wins_without_a_run_off() -> None:
    oracle = FakeOracle(by_n, WRONG)
    found = tuner((1, 2, 7)).run_with(oracle)
    assert (found.best, found.runoff, oracle.paired) == (Config(n=7), None, [])


def test_where_the_run_off_fails_medians_decide() -> None:
    found = tuner().run_with(FakeOracle(by_n, {"n=3": Invalid("gone", "pair")}))  # pyright: ignore[reportArgumentType]
    assert found.best == Config(n=3)
    assert found.remarks == ("the run-off of the two best failed: gone",)


# -- resumption -----------------------------------------------------------------------------------


def test_a_search_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log.jsonl"
    oracle = FakeOracle(by_n, WRONG)
    first = tuner((3, 6, 5)).log(path).run_with(oracle)
    assert first.log == path
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 5  # a header, three trials, a run-off
    path.write_text("".join(lines[:2]) + lines[2][:20])  # ended while it wrote the second trial

    oracle = FakeOracle(by_n, WRONG)
    second = tuner((3, 6, 5)).log(path).run_with(oracle)
    assert oracle.measured == ["n=3", "n=6", "n=5"]  # what was invalid is tried again: that may have been by chance
    assert second.best == Config(n=5)

    oracle = FakeOracle(by_n, WRONG)
    third = tuner((3, 6, 5)).log(path).run_with(oracle)
    assert oracle.measured == ["n=3"]
    assert oracle.paired == []  # the same two met before
    assert third.best == second.best
    assert third.runoff == second.runoff
    assert [trial.resumed for trial in third.trials] == [False, True, True]
    assert "2 measured (2 of them before)" in third.title


def test_another_space_of_the_same_parameters_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tuner((5, 4)).log(path).run_with(FakeOracle(by_n))
    oracle = FakeOracle(by_n)
    record = tuner((5, 4, 3)).log(path).run_with(oracle)
    assert oracle.measured == ["n=3"]
    assert oracle.paired == [("n=3", "n=4")]
    assert record.best == Config(n=3)


def test_what_has_changed_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tuner().log(path).run_with(FakeOracle(by_n))
    oracle = FakeOracle(lambda config: 10 - by_n(config), subject="the kernel was edited")
    found = tuner().log(path).run_with(oracle)
    assert oracle.measured == ["n=5", "n=3", "n=4"]
    assert found.best == Config(n=5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ""),
        ('{"cutile.tune": 1, "name": "other", "space": "x", "parameters": ["n"]}\n', "its name is 'other'"),
        ("# notes\nwhat I did today\n", "line 1 is no JSON"),
        ('{"a": 1}\n', "it has no header"),
        ("[1, 2]\n", "line 1 is no record"),
        ("HEADER" + '{"config": {"n": 3}, "measured": {"ms": 3}, "subject": ""}\n', "line 2 is no record of a search"),
    ],
)
def test_a_foreign_log_is_refused_and_left_alone(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "log.jsonl"
    tuner().log(path).run_with(FakeOracle(by_n))
    text = text.replace("HEADER", path.read_text().splitlines(keepends=True)[0])
    path.write_text(text)
    oracle = FakeOracle(by_n)
    if not why:  # an empty file is nobody's
        assert tuner().log(path).run_with(oracle).best == Config(n=3)
        return
    with pytest.raises(ForeignLogError, match=why):
        tuner().log(path).run_with(oracle)
    assert path.read_text() == text
    assert oracle.looked == []


def test_each_name_has_a_log_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also names that differ in what a file's name cannot say, or in its case alone."""
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))
    names = ["a_b", "a b", "a/b", "A_B", "a" * 300, "a" * 301, "é", "e\u0301"]
    for name in names:
        assert Autotuner(name).configs(n=(3, 5)).progress(None).run_with(FakeOracle(by_n)).best == Config(n=3)
    logs = [path.name for path in (tmp_path / "tune").iterdir()]
    assert len({log.lower() for log in logs}) == len(names)
    assert f"a_b-{space_hash(['n'])}.jsonl" in logs  # a plain name stands alone


def test_a_log_of_other_parameters_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tuner().log(path).run_with(FakeOracle(by_n))
    with pytest.raises(ForeignLogError, match=r"its space is .* delete this one"):
        Autotuner("test").configs(m=[1, 2]).log(path).run_with(FakeOracle(lambda config: 1.0))


def test_a_header_that_was_cut_short_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tuner().log(path).run_with(FakeOracle(by_n))
    path.write_text(path.read_text()[:30])
    tuner().log(path).run_with(FakeOracle(by_n))
    oracle = FakeOracle(by_n)
    assert tuner().log(path).run_with(oracle).best == Config(n=3)
    assert oracle.measured == []


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size")
@pytest.mark.parametrize("room", [0, 30, 120, 150, 200, 250])
def test_a_full_disk_loses_no_more_than_what_it_had_no_room_for(tmp_path: Path, room: int) -> None:
    import resource

    path = tmp_path / "log.jsonl"
    log = TrialLog(path, "test", ("n",))
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write is told of the limit in place of the process
    written: list[int] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        for n in range(3):
            with suppress(OSError):
                log.add(Trial(Config(n=n), Invalid("no shape", "build")))
                written.append(n)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
        signal.signal(signal.SIGXFSZ, handler)
    assert len(written) < 3
    for n in (3, 4):
        log.add(Trial(Config(n=n), Invalid("no shape", "build")))
    assert [config.n for config, _ in TrialLog(path, "test", ("n",)).trials] == [*written, 3, 4]


def test_a_search_goes_on_where_the_cache_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.warns(CacheWarning, match=r"'my kernel' keeps no log in .* \.log\(path\)") as caught:
        found = Autotuner("my kernel").configs(n=[1, 2]).run_with(FakeOracle(by_n))
    assert len(caught) == 1
    assert (found.best, found.log) == (Config(n=1), None)
    named = Autotuner("my kernel").configs(n=[1, 2]).log(tmp_path / "file" / "log")
    with pytest.raises(OSError, match="file"):  # the user has asked for it
        named.run_with(FakeOracle(by_n))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes")
def test_a_search_goes_on_where_its_log_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))
    tuner = Autotuner("my kernel").configs(n=[1, 2])
    path = tuner.run_with(FakeOracle(by_n)).log
    assert path is not None
    path.unlink()
    path.mkdir()
    with pytest.warns(CacheWarning, match="keeps no log"):
        assert tuner.run_with(FakeOracle(by_n)).log is None


def test_without_a_path_the_log_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))
    record = Autotuner("my kernel").configs(n=[1, 2]).run_with(FakeOracle(by_n))
    assert record.log is not None
    assert record.log.parent == tmp_path / "tune"
    assert record.log.name.startswith("my_kernel-")
    oracle = FakeOracle(by_n)
    Autotuner("my kernel").configs(n=[1, 2]).run_with(oracle)
    assert oracle.measured == []
    monkeypatch.setenv("CUTILE_DISK_CACHE", "0")
    assert Autotuner("my kernel").configs(n=[1, 2]).run_with(oracle).log is None
    assert Autotuner("my kernel").configs(n=[1, 2]).log(None).run_with(oracle).log is None


# -- spaces ---------------------------------------------------------------------------------------


def test_a_configuration_is_a_mapping_with_attributes() -> None:
    config = Config({"BM": 128}, stages=None, lies=[64, (1, 2)], mode="a,b=c", f=0.5, on=True)
    assert config.BM == config["BM"] == 128
    assert config.id == "BM=128,f=0.5,lies=(64, (1, 2)),mode='a,b=c',on=True,stages=None"
    assert config == Config(dict(config))
    assert {**config} == {"BM": 128, "stages": None, "lies": (64, (1, 2)), "mode": "a,b=c", "f": 0.5, "on": True}
    assert Config(n=1) != Config(n="1")
    with pytest.raises(AttributeError, match="has no parameter 'BN'"):
        _ = config.BN


@pytest.mark.parametrize("name", ["items", "id", "2n", "a b", "_x", "for"])
def test_names_that_would_be_in_the_way_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        Config({name: 1})


def test_what_a_log_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="which a log can hold, got object"):
        Config(n=object())
    for value in (np.ones(3), np.float32):  # each has an `item` that fails
        with pytest.raises(TypeError, match="Config: n: expected an int"):
            Config(n=value)
    assert Config(n=np.int64(3), x=np.float32(0.5)) == Config(n=3, x=0.5)


def test_a_grid_has_every_combination_once() -> None:
    grid = GridSearch(a=[1, 2], b=["x", "y"])
    assert [config.id for config in grid] == ["a=1,b='x'", "a=1,b='y'", "a=2,b='x'", "a=2,b='y'"]
    assert len(GridSearch([{"a": 1}, Config(a=1), {"a": 2, "b": 0}])) == 2
    assert grid.parameters == ("a", "b")
    with pytest.raises(ValueError, match="no configuration"):
        GridSearch()
    with pytest.raises(ValueError, match="no configuration"):
        GridSearch(a=[])
    with pytest.raises(ValueError, match="not both"):
        GridSearch([{"a": 1}], b=[1])


def test_a_grid_resumes() -> None:
    grid = GridSearch(n=[1, 2, 3, 4])
    grid.tell(Trial(Config(n=2), Invalid("", "run")))
    assert [config.n for config in grid.ask(2)] == [1, 3]
    assert [config.n for config in grid.ask(2)] == [4]
    assert grid.ask(2) == []


def test_a_grid_is_searched_by_several_tuners() -> None:
    grid = GridSearch(n=[5, 3, 4])
    for name in ("one", "two"):
        tuned = Autotuner(name).configs(grid).log(None)
        assert [tuned.run_with(FakeOracle(by_n)).best["n"] for _ in range(2)] == [3, 3]


def test_a_tuner_without_a_space_says_so() -> None:
    with pytest.raises(TuningError, match=r"say what with \.configs"):
        Autotuner("nothing").run_with(FakeOracle(by_n))


# -- what is shown --------------------------------------------------------------------------------


def test_the_table(golden: Any) -> None:
    wrong = {"n=2": replace(WRONG["n=2"], reason="too many <registers>\nsecond line")}
    found = tuner((5, 2, 3, 4)).run_with(FakeOracle(by_n, wrong))
    golden("tune/table.txt", repr(found) + "\n")
    golden("tune/table.html", found._repr_html_() + "\n")  # pyright: ignore[reportPrivateUsage]


def test_a_long_table_is_cut() -> None:
    found = tuner(range(1, 40)).run_with(FakeOracle(by_n))
    assert "and 27 slower ones" in repr(found)
    assert len(repr(found).splitlines()) < 20


def test_progress_is_told_of_each_trial() -> None:
    told: list[tuple[int, int | None]] = []
    tuner().progress(lambda trials, total: told.append((len(trials), total))).run_with(FakeOracle(by_n))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("alone", [64, "f16"])
def test_an_axis_is_several_values(alone: Any) -> None:
    with pytest.raises(TypeError, match=rf"block: expected the values to try, such as \[{alone!r}\], got {alone!r}"):
        GridSearch(block=alone)
