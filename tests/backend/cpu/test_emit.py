"""The generated file: the same bytes each time, readable, and what an editor would write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import ismodule
from pathlib import Path

import pytest

from cutile.backend.cpu.emit._text import CONVERSIONS, FUNCTIONS, RESERVED
from cutile.backend.interface import Source
from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, i32, u32
from tests.backend.cpu.programs import (
    SAXPY,
    SOFTMAX,
    gemm_types,
    lowered,
    saxpy_types,
    softmax_types,
    source,
)
from tests.support.golden import Golden
from tests.support.programs import GEMM, mut, scalar, tensor

DEMOS: dict[str, Callable[[], Source]] = {
    "saxpy": lambda: source(SAXPY, saxpy_types(256)),
    "saxpy_f16": lambda: source(SAXPY, saxpy_types(8, 32, dtype=f16)),
    "softmax": lambda: source(SOFTMAX, softmax_types(1, 1000)),
    "gemm": lambda: source(GEMM, gemm_types(96, 80), BK=64),
    "gemm_bf16": lambda: source(GEMM, gemm_types(128, 256, dtype=bf16), BK=64),
}


@pytest.mark.parametrize("name", DEMOS)
def test_the_text_is_golden(name: str, golden: Golden) -> None:
    golden(f"emit_cpu/{name}.py.txt", DEMOS[name]().text)


@pytest.mark.parametrize("name", DEMOS)
def test_the_same_program_gives_the_same_bytes(name: str) -> None:
    assert DEMOS[name]() == DEMOS[name]()


def test_the_files_pass_the_linter(tmp_path: Path) -> None:
    for name, make in DEMOS.items():
        (tmp_path / f"{name}.py").write_text(make().text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", DEMOS)
def test_each_line_of_the_user_is_quoted_once(name: str) -> None:
    generated = DEMOS[name]()
    quoted = [line.strip() for line in generated.text.splitlines() if line.strip().startswith("# ")]
    body = quoted[next(at for at, line in enumerate(quoted) if "blocks" in line) :]
    assert len(body) == len(set(body))
    assert any("store" in line for line in body)


@pytest.mark.parametrize("name", DEMOS)
def test_the_line_map_leads_to_the_user(name: str) -> None:
    demo = DEMOS[name]()
    text = demo.text.splitlines()
    stores = [number for number in demo.lines if "y[" in text[number - 1]]
    assert demo.lines
    assert all(1 <= number <= len(text) for number in demo.lines)
    assert name.startswith("gemm") or stores


def test_one_operation_one_expression() -> None:
    def store_of(expression: str, dtype: type = i32) -> str:
        text = f"def k(y: Mut, x: Tensor):\n    t = ct.load_tile_like(x, y)\n    y.store({expression})\n"
        generated = source(text, {"y": mut(16, dtype=dtype), "x": tensor(1, dtype)})
        return next(line.strip() for line in generated.text.splitlines() if line.strip().startswith("y[at]"))

    assert store_of("t + 1") == "y[at] = i32(x[at] + i32(1))"
    assert store_of("t // 3") == "y[at] = floor_div(x[at], i32(3))"
    assert store_of("t % 3", u32) == "y[at] = mod_unsigned(x[at], u32(3))"
    assert store_of("t * 0.5", f16) == "y[at] = f16_bits(f16_round(f16_value(x[at]) * f32(0.5)))"
    assert store_of("~t", bool_) == "y[at] = u8(not x[at] != 0)"


def test_the_users_names_survive_beside_intrinsics() -> None:
    text = "def exp(y: Mut, sin: Tensor, floor: f32):\n    y.store(ct.exp(ct.load_tile_like(sin, y)) * floor)\n"
    generated = source(text, {"y": mut(16), "sin": tensor(1), "floor": scalar()})
    assert generated.entry == "exp_"
    assert "y[at] = exp(sin_[at]) * floor_" in generated.text


def test_a_loop_variable_keeps_its_name() -> None:
    text = (
        "def k(y: Mut, x: Tensor):\n"
        "    for at in range(3):\n"
        "        part = y.partition_mut((5,))\n"
        "        part.store(x.partition((5,)).load((at,)), (at,))\n"
    )
    generated = source(text, {"y": mut(16), "x": tensor(1)})
    assigned = [line.split()[0] for line in generated.text.splitlines() if " = " in line and not line.startswith("#")]
    assert assigned.count("at") == 1, generated.text


def test_the_list_of_intrinsics_is_what_there_is() -> None:
    from cutile.backend.cpu import intrinsics

    own = {name for name, each in vars(intrinsics).items() if not (name[0] == "_" or name.isupper() or ismodule(each))}
    assert own | set(intrinsics.FUNCTIONS) | set(intrinsics.CONVERSIONS) | {"range"} == RESERVED
    assert set(FUNCTIONS.values()) == set(intrinsics.FUNCTIONS)
    assert set(intrinsics.CONVERSIONS) == CONVERSIONS


def test_lowered_ir_prints() -> None:
    from cutile.ir.text import print_function

    text = print_function(lowered(SAXPY, saxpy_types(256)))
    assert "stage cpu" in text
    assert "cpu.write(%y" in text


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_the_plan_counts_the_scratch_memory_that_a_thread_has(dtype: DTypeLike) -> None:
    """Of a tile of 16-bit floats as of f32: their values are f32 there."""
    text = """
    def k(y: Mut, x: Tensor):
        t = ct.exp(ct.load_tile_like(x, y))
        y.store(t / ct.reduce_max(t, 0))
"""
    facts = source(text, {"y": mut(4096, dtype=dtype), "x": tensor(1, dtype)}).facts
    assert facts["scratch"] == (4 * 4096,)
    assert [row for row in facts["plan"] if row[0] == "scratch"] == [("scratch", "16 KiB a thread: t")]
