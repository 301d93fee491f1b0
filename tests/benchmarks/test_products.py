"""`python -m kernels bench` as a program, on products that take no time; and what it would say of wrong ones."""

from __future__ import annotations

import importlib.util
import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.products import bench, cases, chart, page, peers, terminal
from benchmarks.products.cases import CASES, Product, chosen
from benchmarks.products.operands import DTYPES, draw, judge
from benchmarks.products.ours import NotThereError, OurArm, require
from benchmarks.record import machine, readings
from cuda_async import Device
from cutile import api, i16
from cutile.bench import Budget
from kernels import __main__ as program

SMALL = (
    Product("small", 64, 48, 40, "f32", devices=("host",)),
    Product("turned", 33, 20, 17, "f16", "nk", devices=("host",)),
    Product("batched", 16, 24, 8, "f32", batch=3, devices=("host",)),
    Product("bytes", 16, 24, 32, "int8", "nk", graph=True, devices=("host",)),
    Product("rounded", 16, 24, 32, "tf32", devices=("host",)),
)
QUICK = ["--device", "cpu", "--warm", "0", "--seconds", "0.01", "--pairs", "6"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CASES", SMALL)
    monkeypatch.setattr(bench, "PAUSE_S", 0.0)


@pytest.mark.slow
def test_products_are_compared_judged_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures" / "run.json"
    names = [case.name for case in SMALL]
    assert program.main(["bench", *QUICK, "--cases", *names, "--json", str(file)]) == 0
    record: dict[str, Any] = json.loads(file.read_text())
    cases = {case["name"]: case for case in record["cases"]}
    for name in ("small", "batched"):
        ratio = cases[name]["peers"]["numpy"]["ratio"]
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
        assert ratio["count"] == 6
        assert cases[name]["error"] < 1e-6
    assert cases["turned"]["absent"] == {"numpy": "NumPy has no fast product of f16"}
    assert cases["bytes"]["sets"] == 20
    assert cases["bytes"]["error"] == 0
    assert 1e-6 < cases["rounded"]["error"] < 1e-3
    assert {"device", "host", "versions", "inputs", "command", "date"} <= record.keys()
    assert record["versions"]["numpy"] == np.__version__
    printed = capsys.readouterr().out
    assert "small " in printed
    assert "without numpy: NumPy has no fast product of f16" in printed
    assert "WRONG" not in printed


def test_a_wrong_product_is_said_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Careless(OurArm):
        """Computes, and then writes over what it computed."""

        def close(self) -> None:
            super().close()
            api.fill(self.sets[0].z, 0.0).sync()

    monkeypatch.setattr(bench, "OurArm", Careless)
    assert bench.main([*QUICK, "--cases", "small"]) == 1
    assert "WRONG: error" in capsys.readouterr().out


def test_a_product_that_does_not_run_fails_the_run_and_no_other_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*QUICK, "--cases", "small", "turned", "--tile", "16", "32", "0"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("WRONG: it does not run: ") == 2


def test_a_tile_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*QUICK, "--cases", "small", "--tile", "16", "32", "8"]) == 0
    assert "WRONG" not in capsys.readouterr().out


def test_names_and_patterns_choose_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert [case.name for case in chosen(["b*"], "host")] == ["batched", "bytes"]
    assert [case.name for case in chosen(None, "host")] == [case.name for case in SMALL]
    assert chosen(None, "cuda") == []
    assert bench.main(["--device", "cpu", "--cases", "smal"]) == 2
    assert "no case is called 'smal'; there are small, turned" in capsys.readouterr().err
    assert bench.main(["--device", "cpu", "--list"]) == 0
    assert "33 x 20 x 17 f16, B stored NK" in capsys.readouterr().out


def test_a_chart_without_matplotlib_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def nothing(module: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    assert bench.main([*QUICK, "--png", str(tmp_path / "chart.png")]) == 2
    assert "pip install -e '.[viz]'" in capsys.readouterr().err


def operands(operand: Any = "f32", size: int = 96) -> tuple[Product, Any, Any, Any]:
    random = np.random.default_rng(3)
    case = Product("p", size, size, size, operand)
    x, y = (random.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    return case, x, y, (x.astype(np.float64) @ y).astype(np.float32)


def test_a_right_result_is_accepted() -> None:
    case, x, y, z = operands()
    found = judge(case, x, y, z, np.random.default_rng(1))
    assert found.wrong == ""
    assert found.error < 1e-6


@pytest.mark.parametrize("place", [(0, 0), (50, 95)])
@pytest.mark.parametrize("value", [np.nan, 0.5, np.inf])
def test_one_wrong_element_among_thousands_is_found(place: tuple[int, int], value: float) -> None:
    case, x, y, z = operands(size=400)
    z[place] += value
    assert "allowed" in judge(case, x, y, z, np.random.default_rng(2)).wrong


def test_a_product_of_one_row_is_judged_by_the_size_of_its_row() -> None:
    """Its product with a vector may be next to nothing, and then would tell nothing."""
    random = np.random.default_rng(4)
    for seed in range(50):
        x, y = random.standard_normal((1, 64)), random.standard_normal((64, 80))
        z = (x @ y).astype(np.float32)
        case = Product("p", 1, 80, 64, "f32")
        assert judge(case, x, y, z, np.random.default_rng(seed)).wrong == ""
        z[0, seed] *= 1.1
        assert judge(case, x, y, z, np.random.default_rng(seed)).wrong


def test_a_transposed_or_rounded_result_is_wrong() -> None:
    case, x, y, z = operands()
    assert judge(case, x, y, z.T.copy(), np.random.default_rng(1)).wrong
    assert judge(case, x, y, z.astype(np.float16).astype(np.float32), np.random.default_rng(1)).wrong


def test_inputs_are_drawn_afresh_and_outputs_poisoned() -> None:
    device = Device.host()
    stream, random = device.new_stream(), np.random.default_rng(1)
    with device:
        first, second = (draw(SMALL[0], device, stream, random)[0] for _ in range(2))
        (integers, *rest) = draw(SMALL[3], device, stream, random)
        x, other = (each.x.to_numpy().sync_on(stream) for each in (first, second))
        assert abs(x.mean()) < 0.2
        assert 0.8 < x.std() < 1.2
        assert not np.array_equal(x, other)
        assert np.isnan(first.z.to_numpy().sync_on(stream)).all()
        assert len(rest) == 19
        assert (integers.z.to_numpy().sync_on(stream) == -77).all()
        assert integers.y.shape == (32, 24)


def test_a_kernel_that_does_not_compile_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DTYPES, "int8", i16)
    with Device.host():
        for case in SMALL[:3]:
            require(case)
        with pytest.raises(NotThereError, match="i16"):
            require(SMALL[3])
        assert "i16" in bench.measured(SMALL[3], Device.host(), (), Budget())["skipped"]


def test_every_row_of_the_table_is_a_case() -> None:
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    squares = {
        f"{operand}-{size}{end}" for operand in ("bf16", "f16") for size in (4096, 8192, 16384) for end in ("", "-nk")
    }
    small = {f"{operand}-{size}" for operand in ("bf16", "f16") for size in (512, 1024, 2048)}
    others = {"bf16-short-k", "bf16-m1", "bf16-m16", "bf16-m64", "bf16-m128", "bf16-odd", "bf16-batched", "f32-2048"}
    eights = {"tf32-8192", "tf32-8192-nk", "fp8-8192-nk", "fp8-promoted-nk", "int8-8192", "int8-8192-nk", "f32-8192"}
    beyond = {"bf16-deep", "bf16-few-deep"}  # whose steps are divided
    assert names == squares | small | others | eights | beyond
    assert all(case.graph for case in CASES if case.m <= 2048 and case.operand in ("bf16", "f16") and not case.batch)


FOUND = {
    "name": "bf16-4096", "flops": 2 * 4096**3, "nbytes": 6 * 4096**2, "shape": [0, 4096, 4096, 4096], "operand": "bf16",
    "seconds": 2e-4, "error": 1.7e-3, "wrong": "", "absent": {},
    "peers": {"torch": {"ours_s": 2e-4, "theirs_s": 1.9e-4, "ratio": {"median": 0.95, "low": 0.94, "high": 0.96}}},
}  # fmt: skip


def test_a_line_shows_the_rate_the_ratio_and_its_interval() -> None:
    assert terminal.lines(FOUND) == ["bf16-4096           200 us      687  torch    0.950  0.940 to 0.960   1.7e-03"]


def test_charts_are_made_of_what_was_measured(tmp_path: Path) -> None:
    record = {"cases": [FOUND, {"name": "fp8", "skipped": "no"} | {"shape": [0, 1, 1, 1]}], "date": "2026-01-01"}
    rate = 2 * 4096**3 / 2e-4
    assert chart.points(record)["cutile"] == [(pytest.approx(4096 / 3), rate, "bf16-4096")]
    assert chart.by_size(record)["cutile", "bf16"] == [(4096, rate)]
    assert chart.by_size(record)["torch", "bf16"][0][1] > rate
    if importlib.util.find_spec("matplotlib") is None:
        return  # without it nothing is drawn; that it is said is tested above
    chart.draw(tmp_path / "chart.png", record | {"device": {"name": "a GPU", "arch": "sm_90a"}})
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_what_the_files_say(tmp_path: Path) -> None:
    assert (page.FOLDER / "README.md").read_text(encoding="utf-8") == page.page(page.FOLDER)
    case = FOUND | {"what": "4096 cubed", "device_time_of_graph": False, "tile": [128, 256, 64]}
    left_out = {"what": "fp8", "device_time_of_graph": True, "skipped": "no kernel"}
    record = {"date": "2026-01-01", "command": "bench", "inputs": "normal", "cases": [case, left_out], "start": None}
    record |= {
        "device": {"name": "a GPU", "arch": "sm_90a"},
        "host": {"cores": 2, "python": "3.13"},
        "versions": {"a": "1"},
    }
    (tmp_path / "a.json").write_text(json.dumps(record | {"budget": {"pairs": 20, "warm_s": 5.0}}))
    (tmp_path / "a.png").write_bytes(b"")
    text = page.page(tmp_path)
    assert "| 4096 cubed | 128 x 256 x 64 | 200 us | 687 | torch | 0.950 | 0.940 to 0.960 | 1.7e-03 |" in text
    assert "| fp8, a graph of 20 | – | – | – | – | – | – | no kernel |" in text
    assert "20 pairs after 5 s of warming" in text
    assert "(a.png)" in text


def test_sensors_and_machine_are_read() -> None:
    found = readings("1755, 1980, 3201, 698.20, 700.00, 61, 580.159.04\n")
    assert (found["sm_mhz"], found["power_w"], found["driver"]) == (1755.0, 698.2, "580.159.04")
    assert "power_w" not in readings("1755, 1980, 3201, [N/A], 700.00, 61, 580.159.04")
    assert machine(Device.host())["device"]["kind"] == "host"


@pytest.mark.parametrize("graph", [True, False])
def test_a_peer_keeps_the_operands_that_its_calls_read(graph: bool) -> None:
    operand, torch = np.ones(1), MagicMock(__name__="torch")
    alive, came = weakref.ref(operand), list[float]()

    def read(numbers: Any) -> None:
        came.append(float(numbers[0]))

    arm = peers._Events("torch", [partial(read, operand)], torch, graph=graph)  # pyright: ignore[reportPrivateUsage]
    del operand
    assert alive() is not None
    arm.run(2)
    # Ahead of the recording, and in it; without a graph, in each run.
    assert came == [1, 1]
    del arm
    assert alive() is None


def test_a_recorded_call_returns_what_was_recorded_of_it() -> None:
    torch = MagicMock()
    replayed = peers.recorded(torch, partial(np.copy, np.ones(1)))
    assert replayed() is replayed()
    assert torch.cuda.CUDAGraph.return_value.replay.call_count == 2
