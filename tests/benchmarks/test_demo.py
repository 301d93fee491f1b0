"""The demo and the benchmark as programs: what they print, and that a wrong result makes them fail."""

import builtins
import dataclasses
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.first_launch import ImportClock, Launches
from benchmarks.kernels import bench, demo, digits, measure
from benchmarks.kernels.timing import TimedCall, Timing, interleaved
from benchmarks.record import duration
from kernels.example import Arrays, Case, Problem
from kernels.saxpy import EXAMPLE


def test_the_demo_runs_every_kernel_and_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--device", "cpu", "--quick"]) == 0
    printed = capsys.readouterr().out
    for word in ("saxpy", "vector_add", "gemm", "softmax", "row_min", "numpy", "GFLOP/s", "GB/s", "held-out"):
        assert word in printed
    assert "WRONG" not in printed


def test_a_wrong_kernel_fails_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def off_by_a_little(problem: Problem) -> Arrays:
        return tuple(array * 1.001 for array in EXAMPLE.reference(problem))

    broken = dataclasses.replace(EXAMPLE, reference=off_by_a_little)

    def only_broken(device: object, *, quick: bool) -> tuple[tuple[object, Case], ...]:
        return ((broken, Case((256,))),)

    monkeypatch.setattr(demo, "demo_sizes", only_broken)
    assert demo.main(["--device", "cpu", "--quick"]) == 1
    assert "WRONG: saxpy 256 f32: wrong result" in capsys.readouterr().out


def test_a_missing_library_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(module: str) -> None:
        return None

    monkeypatch.setattr(demo, "find_spec", nothing)
    assert demo.main([]) == 1
    assert "needs rich and scikit-learn; install them with: pip install" in capsys.readouterr().err


def test_the_digits_are_classified_as_numpy_does() -> None:
    outcome = digits.classify()
    assert outcome.wrong == ""
    assert outcome.agrees
    assert outcome.held_out == 449
    assert outcome.accuracy > 0.97


def test_a_digit_classified_otherwise_is_named() -> None:
    assert "accuracy" in digits.Outcome(449, 0.9, True).wrong
    assert "differ" in digits.Outcome(449, 0.99, False).wrong


def test_nearest_is_exact_on_a_case_worked_by_hand() -> None:
    examples = np.array([[0, 0], [10, 0], [0, 10]])
    images = np.array([[9, 1], [1, 2], [2, 7]])
    assert digits.nearest(images, examples).sync().tolist() == [1, 0, 2]
    assert digits.nearest_by_numpy(images, examples).tolist() == [1, 0, 2]


def test_the_benchmark_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cpu.json"
    assert bench.main(["--device", "cpu", "--quick", "--only", "saxpy", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    (row,) = record["rows"]
    assert row["kernel"] == "saxpy"
    assert row["timings"].keys() >= {"cutile", "numpy", "copy"}
    assert all(timing["median"] > 0 for timing in row["timings"].values())
    assert record["first_launch_s"].keys() == {"cold", "cached"}
    assert record["versions"]["numpy"] == np.__version__
    assert "written to" in capsys.readouterr().out


def test_a_benchmark_of_an_unknown_kernel_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--device", "cpu", "--quick", "--only", "sxpy"])
    assert "no kernel is called sxpy; expected some of gemm, row_min, saxpy" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--only", "saxpy"], ["--quick"], []])
def test_a_record_of_some_kernels_or_of_a_wrong_result_replaces_nothing(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "" if options else "saxpy: off by 1"
    row = measure.Row("saxpy", "8 f32", 0.0, wrong, {"cutile": Timing(1.0, 1.0, 1)}, 1.0, "GB/s")

    def measure_rows(*_: object) -> list[measure.Row]:
        return [row]

    def first_launches(_: str) -> dict[str, Launches]:
        return {}

    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "measure_rows", measure_rows)
    monkeypatch.setattr(bench, "first_launches", first_launches)
    assert bench.main(["--device", "cpu", *options]) == (1 if wrong else 0)
    assert list(tmp_path.iterdir()) == []


def test_runs_are_interleaved_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def scripted(name: str, *times: float) -> TimedCall:
        left = iter(times)

        def run() -> float:
            order.append(name)
            return next(left)

        return run

    timings = interleaved({"a": scripted("a", 99, 1, 5, 3), "b": scripted("b", 99, 7, 7, 8)}, budget_s=0, min_rounds=3)
    assert order == ["a", "b"] * 4
    assert (timings["a"].median, timings["a"].fastest, timings["a"].runs) == (3, 1, 3)
    assert timings["b"].median == 7


def test_a_ratio_above_one_means_faster_than_the_peer() -> None:
    timings = interleaved({"cutile": lambda: 2.0, "numpy": lambda: 3.0}, budget_s=0, min_rounds=1)
    row = measure.Row("saxpy", "8 f32", 0.0, "", timings, 1.0, "GB/s")
    assert row.ratio("numpy") == 1.5
    assert row.ratio("torch") is None


@pytest.mark.parametrize(("seconds", "shown"), [(1.23e-5, "12.3 us"), (5e-4, "500 us"), (0.01234, "12.3 ms")])
def test_durations_have_three_digits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_import_clock_counts_imports_and_nothing_else() -> None:
    before = builtins.__import__
    with ImportClock() as clock:
        sum(range(1000))
    assert clock.seconds == 0
    with ImportClock() as clock:
        importlib.import_module("json")
    assert clock.seconds > 0
    assert builtins.__import__ is before


def test_a_device_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--device", "gpu0"]) == 2
    said = "device 'gpu0': expected 'cpu', 'cuda' or 'cuda:<number>', as in Device('cuda:0')\n"
    assert capsys.readouterr().err == said
