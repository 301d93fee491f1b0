"""What the library chooses for products, compiled: no spills, no stack, nothing put in line, the instructions meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.products.cases import CASES, Product
from cutile import DType, bf16, f8e4m3fn, f16, f32, i8, tf32
from cutile.backend.interface import CompileOptions
from cutile.compile.driver import Request
from cutile.ir.types import MutType, TensorType
from kernels.gemm_choice import Choice, Lie, choose, every_choice
from tests.backend.cuda.chosen import (
    LIES,
    SIZE,
    UNITS,
    Call,
    Extents,
    Kind,
    described,
    faults,
    kinds,
    machine_code,
    main,
)
from tests.backend.cuda.programs import instructions

ALL: Any = {"bias": True, "activation": "gelu", "residual": True}
ACROSS: tuple[Lie, ...] = ("left across", "right across")


def cube(size: int) -> Extents:
    """Extents that are all the same."""
    return size, size, size


def of_the_bench(case: Product) -> tuple[Kind, Extents]:
    """A case that is timed, as a call."""
    calls: dict[str, Call] = {"int8": "integer", "tf32": "tf32"}
    call = "batched" if case.batch else calls.get(case.operand, "matmul")
    dtype = {"int8": i8, "fp8": f8e4m3fn, "bf16": bf16, "f16": f16}.get(case.operand, f32)
    odd = case.k * dtype.bits % 128 or case.n * dtype.bits % 128
    lie: Lie = "otherwise" if odd else "along" if case.stored == "nk" else "right across"
    return Kind(call, dtype, lie, fast=case.fast), (case.m, case.n, case.k)


FUSED: list[tuple[Kind, Extents]] = [
    *((Kind("matmul", bf16, **ALL), size) for size in (cube(8192), (16, 8192, 8192), (512, 512, 8192))),
    (Kind("matmul", bf16, "along", activation="gelu", residual=True), cube(8192)),
    (Kind("matmul", bf16, "otherwise", **ALL), cube(8192)),
    *((Kind("matmul", f8e4m3fn, lie, **ALL), cube(8192)) for lie in ("along", *ACROSS)),
]
LARGEST: list[Kind] = [
    Kind("matmul", f8e4m3fn, "right across", activation="silu"),
    Kind("matmul", f8e4m3fn, "along", fast=True),
    Kind("matmul", f8e4m3fn, "right across", fast=True),
    Kind("integer", i8, "left across"),
    Kind("tf32", f32, "left across"),
]
"""Kinds of which the largest tile that may ever be chosen is compiled, too."""


def chosen_on_hopper() -> dict[str, Request]:
    """What is compiled, by name, each once; products of f16 as those of bf16, but for one."""
    timed = [of_the_bench(case) for case in CASES if case.operand != "f16" or case.name == "f16-4096"]
    device = described("sm_90a")
    requests = {f"{kind}: {m} x {n} x {k}": kind.request(device, (m, n, k)) for kind, (m, n, k) in (*timed, *FUSED)}
    for kind in LARGEST:
        tile = max(kind.choices(device), key=lambda each: (each.rows * each.columns, each.rows))
        requests[f"{kind}: {tile.rows} x {tile.columns}"] = kind.request(device, SIZE, tile)
    once = {f"{each.function} {each.specialization} {each.options}": name for name, each in reversed(requests.items())}
    return {name: requests[name] for name in reversed(once.values())}


HOPPER = chosen_on_hopper()
MEANT = {"f8e4m3fn": "QGMMA.", "i8": "IGMMA.", "f32": "FFMA"}
"""The instruction of a product on Hopper, by its operands' element type; HGMMA for others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOPPER)
def test_what_is_chosen_on_hopper_is_made_of_what_is_fast_there(name: str, tmp_path: Path) -> None:
    request = HOPPER[name]
    executable = machine_code(request)
    assert not faults(executable), executable.log
    assert ("persistent" in executable.facts) is ("otherwise" not in name)  # which TMA does not load
    opcodes = instructions(executable, tmp_path)
    types = request.specialization.parameters
    x, z = types["x"], types["z"]
    assert isinstance(x, TensorType)
    assert isinstance(z, MutType)
    meant = {"HGMMA." if name.startswith("tf32") else MEANT.get(x.dtype.name, "HGMMA."), "UTMALDG.2D"}
    if "otherwise" in name:
        meant = {"HMMA.", "LDSM."}
    elif z.dtype is bf16 and z.tile[0] % 64 == 0 and "8e4m3fn, left" not in name and "8e4m3fn, right" not in name:
        meant.add("UTMASTG.2D")
    missing = [each for each in meant if not any(instruction.startswith(each) for instruction in opcodes)]
    assert not missing
    assert not any(each.startswith(("LDL", "STL")) for each in opcodes)
    assert "otherwise" in name or not any(each.startswith("HMMA") for each in opcodes)


AMPERE: dict[str, tuple[Kind, Extents, tuple[str, ...]]] = {
    "bf16": (Kind("matmul", bf16), cube(4096), ("HMMA.16816", "LDGSTS", "LDSM")),
    "bf16, few tiles": (Kind("matmul", bf16), cube(512), ("HMMA.16816", "LDGSTS", "LDSM")),
    "bf16, fused": (Kind("matmul", bf16, "along", **ALL), cube(4096), ("HMMA.16816", "LDGSTS", "LDSM")),
    "tf32": (Kind("tf32", f32), SIZE, ("HMMA.1688.F32.TF32", "LDGSTS")),
    "tf32, by columns": (Kind("tf32", f32, "along"), SIZE, ("HMMA.1688.F32.TF32", "LDGSTS")),
    "int8": (Kind("integer", i8, "along"), SIZE, ("IMMA.16832", "LDGSTS", "LDSM")),
    "fp8": (Kind("matmul", f8e4m3fn, "along"), SIZE, ("HMMA.16816", "LDGSTS")),
    "f32": (Kind("matmul", f32), SIZE, ("FFMA", "LDGSTS")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AMPERE)
def test_what_is_chosen_elsewhere_is_made_of_what_is_fast_there(name: str, tmp_path: Path) -> None:
    kind, extents, meant = AMPERE[name]
    made = machine_code(kind.request(described("sm_80"), extents))
    assert not faults(made), made.log
    found = instructions(made, tmp_path)
    missing = [each for each in meant if not any(instruction.startswith(each) for instruction in found)]
    assert not missing, found
    if name == "bf16, fused":
        newer = machine_code(kind.request(described("sm_100a"), extents))
        assert not faults(newer), newer.log


@given(
    extents=st.tuples(*[st.sampled_from((1, 8, 9, 17, 40, 64, 65, 129, 200, 512, 1000, 4096, 8192, 20000))] * 3),
    dtype=st.sampled_from((bf16, f8e4m3fn, f32, i8, tf32)),
    lie=st.sampled_from(LIES),
    held=st.sampled_from((1, 2, 4)),
    batch=st.sampled_from((1, 1, 64)),
    halves=st.booleans(),
    fast=st.booleans(),
    three=st.booleans(),
    arch=st.sampled_from(sorted(UNITS)),
)
def test_what_may_be_chosen_is_known(
    extents: Extents,
    dtype: type[DType],
    lie: Lie,
    held: int,
    batch: int,
    halves: bool,
    fast: bool,
    three: bool,
    arch: str,
) -> None:
    """The tiles that are compiled by command are all that a product of any extents is given."""
    facts: Any = {"batch": batch, "held": held, "lie": lie, "halves": halves, "fast": fast, "three": three}
    found = choose(*extents, dtype, described(arch), **facts)
    assert replace(found, seconds=0.0) in [replace(each, seconds=0.0) for each in every_choice(dtype, arch, **facts)]


def test_a_call_compiles_what_was_chosen_for_it() -> None:
    device = described("sm_90a")
    for kind in kinds():
        if kind.lie != "along" or kind.activation in ("relu", "gelu"):
            continue
        request = kind.request(device, (4096, 8192, 4096))
        z = request.specialization.parameters["z"]
        assert isinstance(z, MutType)
        tiles = [
            each for each in kind.choices(device)
            if (each.rows, each.columns) == z.tile and (each.options or CompileOptions()) == request.options
        ]  # fmt: skip
        assert [kind.request(device, SIZE, each) for each in tiles].count(request) == 1, kind


def test_the_command_says_what_is_not_as_it_should_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["--arch", "sm_80", "--only", "integer of i8, along"]
    assert main(asked) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 are as they should be, 0 are not"
    spoiled = Kind("matmul", f8e4m3fn, "along")
    wide = Choice(64, 256, 128)  # fp8 has a thread's sums twice there, which is why it is never chosen
    assert wide not in spoiled.choices(described("sm_90a"))
    made = machine_code(spoiled.request(described("sm_90a"), SIZE, wide))
    assert "bytes of spills" in faults(made)
