"""Kernels that spill: more warps where the compiler chose too few, and a warning where nothing helps."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cutile as ct
from cutile import CompileOptions, api, bf16, config
from cutile.backend.cuda import lower
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.interface import Backend, Executable, Source, Target
from cutile.compile import driver
from cutile.compile.ahead import Builders
from cutile.compile.driver import Request, compile_kernel, machine_code, render, warn_of_spills
from cutile.dtypes import i32
from cutile.errors import KernelTypeError, SpillWarning
from tests.backend.cuda import programs
from tests.backend.cuda.programs import compiled, gemm_program, written
from tests.support.kernels import kernel
from tests.support.programs import mut, scalar, tensor

TEXT = """
def few(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc, at = ct.constant(0, z.shape, ct.f32), n - n
    for _ in range(n):  # carries the index, so that nothing is loaded ahead
        a, b = ct.load_tile(x, (z.shape[0], 64), (i, at)), ct.load_tile(y, (64, z.shape[1]), (at, j))
        acc = ct.mma(a * 2, b, acc)
        at = at + 1
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))


def request_of(**options: Any) -> Request:
    """A product of 16 rows whose operands pass through registers."""
    z, x, y = api.meta((64, 256), bf16), api.meta((64, 256), bf16), api.meta((256, 256), bf16)
    op = kernel(TEXT)(z.mut.partition((16, 128)), x, y, 4).compile_options(CompileOptions(**options))
    try:
        found = op.request(x.device)
        assert found is not None
        return replace(found, target=Target("cuda", "sm_80"))
    finally:
        op.discard()


def test_products_of_few_rows_get_enough_warps() -> None:
    """One warp would have 208 registers of sums and operands, and spill a thousand bytes."""
    x = tensor(2, bf16)
    made = compiled(written(TEXT, {"z": mut(16, 128, dtype=bf16), "x": x, "y": x, "n": scalar(i32)}), "sm_80")
    assert made.facts["spills"] == 0
    assert made.facts["warps"] > 1


@pytest.mark.slow
def test_where_the_choice_spills_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of()
    monkeypatch.setattr(lower, "MAX_PRODUCT_REGISTERS", 10_000)  # so that one warp is chosen
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = compile_kernel(request)
    assert (made.executable.facts["warps"], made.executable.facts["spills"]) == (8, 0)
    assert "with 1 warps " in made.executable.log
    assert compile_kernel(request).from_disk


def test_the_log_and_the_plan_are_those_of_the_build_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of()
    monkeypatch.setattr(lower, "MAX_PRODUCT_REGISTERS", 10_000)  # so that one warp is chosen

    def build(_: Backend, source: Source, target: Target) -> Executable:
        warps = source.facts["warps"]
        facts = {**source.facts, "spills": 8 if warps == 1 else 0, "registers": 255, "stack": 0}
        return Executable(target, b"", "few", source.parameters, facts, source.text, f"built with {warps} warps")

    monkeypatch.setattr(driver, "_build", build)
    assert render(request, "log", {}) == "with 1 warps 8 bytes would spill: 8 taken\nbuilt with 8 warps"
    assert "8 warps" in render(request, "plan", {})


@pytest.mark.slow
def test_kernels_built_ahead_get_more_warps_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of()
    monkeypatch.setattr(lower, "MAX_PRODUCT_REGISTERS", 10_000)  # so that one warp is chosen
    with Builders(workers=1, limit_s=300) as builders:
        assert builders.compile([request]) == [None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched = compile_kernel(request)
    assert launched.from_disk
    assert (launched.executable.facts["warps"], launched.executable.facts["spills"]) == (8, 0)
    assert "with 1 warps " in launched.executable.log


@pytest.mark.slow
def test_what_the_user_chose_stays_and_says_once_that_it_spills() -> None:
    request = request_of(num_worker_warps=1)
    with pytest.warns(SpillWarning) as said:
        compiled, _ = compile_kernel(request), compile_kernel(request)
    assert compiled.executable.facts["warps"] == 1
    (only,) = said
    text = str(only.message)
    assert text.startswith("kernel 'few' (z bf16[?, ?] in tiles of 16 x 128; x bf16[?, ?]; y bf16[?, ?]; n i32): its ")
    assert "its tiles do not fit into the 255 registers of each of 32 threads on sm_80" in text
    assert f"{compiled.executable.facts['spills']} bytes" in text
    assert "Use smaller tiles; or more than num_worker_warps=1, or none given." in text
    assert "few" in request.source.name
    assert only.filename == request.source.file


class _Toolchain:
    """A toolchain whose code spills as a table says.

    Attributes:
        spills: the bytes that code spills, by its warps and the blocks that it is compiled for; 9 for others.
        builds: the warps and the blocks of the code that it has built.
    """

    def __init__(self, spills: dict[tuple[int, int], int], registers: int) -> None:
        self._spills, self._registers = spills, registers
        self.builds: list[tuple[int, int]] = []

    def build(self, source: Source, target: Target) -> Executable:
        form = source.facts["warps"], source.facts["min_blocks"]
        self.builds.append(form)
        facts = {**source.facts, "spills": self._spills.get(form, 9), "registers": self._registers, "stack": 0}
        return Executable(target, b"", source.entry, source.parameters, facts, source.text, f"built as {form}")


@pytest.mark.parametrize(
    ("options", "registers", "spills", "builds", "notes"),
    [
        # Nothing spills: nothing is tried.
        ({}, 255, {(4, 2): 0}, [(4, 2)], []),
        # The code without a number of blocks is taken even if it spills as much; more warps if they spill less.
        ({}, 255, {}, [(4, 2), (4, 0), (8, 2), (8, 0)], ["2 blocks to a multiprocessor"]),
        ({}, 255, {(4, 0): 0}, [(4, 2), (4, 0)], ["2 blocks to a multiprocessor"]),
        ({}, 255, {(8, 2): 8}, [(4, 2), (4, 0), (8, 2), (8, 0)], ["2 blocks to a multiprocessor"]),
        ({}, 255, {(8, 0): 8}, [(4, 2), (4, 0), (8, 2), (8, 0)], ["with 4 warps 9 bytes", "2 blocks"]),
        ({}, 255, {(8, 2): 0}, [(4, 2), (4, 0), (8, 2)], ["with 4 warps 9 bytes"]),
        # Threads that might have more registers get them, if they spill less then.
        ({}, 32, {(4, 1): 0}, [(4, 2), (4, 0), (4, 1)], ["32 registers would spill 9 bytes"]),
        ({}, 32, {(4, 1): 8, (8, 2): 0}, [(4, 2), (4, 0), (4, 1), (8, 2)], ["with 4 warps 8 bytes"]),
        # What the user has fixed, no attempt changes.
        ({"occupancy": 2}, 32, {}, [(4, 2), (8, 2)], []),
        ({"num_worker_warps": 4}, 255, {}, [(4, 2), (4, 0)], ["2 blocks to a multiprocessor"]),
        ({"num_worker_warps": 4, "occupancy": 2}, 32, {}, [(4, 2)], []),
    ],
)
def test_attempts(
    options: dict[str, Any],
    registers: int,
    spills: dict[tuple[int, int], int],
    builds: list[tuple[int, int]],
    notes: list[str],
) -> None:
    """What is built, in which order, and which code is taken."""
    function, target = gemm_program(bf16, (128, 128), 64), Target("cuda", "sm_80")
    toolchain = _Toolchain(spills, registers)
    source = programs.source(function, target, **options)
    executable = machine_code(function, source, target, CompileOptions(**options), toolchain.build, config.load())
    assert toolchain.builds == builds
    *lines, form = executable.log.splitlines()
    assert form == f"built as {(executable.facts['warps'], executable.facts['min_blocks'])}"
    assert len(lines) == len(notes)
    assert all(line.startswith(note) for line, note in zip(lines, notes, strict=True))


def test_an_attempt_that_does_not_fit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(_function: object, _target: object, options: CompileOptions) -> None:
        raise KernelTypeError(f"no room for {options.num_worker_warps} warps")

    function, target, toolchain = gemm_program(bf16, (128, 128), 64), Target("cuda", "sm_80"), _Toolchain({}, 255)
    source = programs.source(function, target)
    monkeypatch.setattr(BACKEND, "lower", lower)
    executable = machine_code(function, source, target, CompileOptions(), toolchain.build, config.load())
    assert toolchain.builds == [(4, 2), (4, 0)]
    assert executable.facts["warps"] == 4


def test_notes_name_facts() -> None:
    """A note names facts of the code that spills, which has those of the generated text and of the toolchain."""
    facts = programs.source(gemm_program(bf16, (128, 128), 64), Target("cuda", "sm_80")).facts
    for attempt in BACKEND.attempts:
        assert attempt.note.format_map({**facts, "spills": 9, "registers": 255})


def test_each_specialisation_says_so_once_and_filters_decide() -> None:
    request, facts = request_of(), {"spills": 8, "registers": 255, "threads": 128, "warps": 4}
    facts_of_two = facts | {"plan": (("products", "a"), ("products", "b"), ("warps", "4"))}

    def warned(key: str, facts: dict[str, Any], options: CompileOptions = request.options) -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            warn_of_spills(request.source, facts, options, "sm_80", key, "z f32[?]")
        return [str(each.message) for each in said]

    (text,) = warned("one", facts)
    assert text.endswith("; or more warps, which share a tile (4 here): CompileOptions(num_worker_warps=8).")
    assert warned("one", facts) == []
    (text,) = warned("two", facts_of_two, CompileOptions(occupancy=2))
    assert text.endswith(
        "; or less than occupancy=2, or none given; or fewer accumulators at a time (2 products here)."
    )
    (text,) = warned("three", facts | {"computing": 128})
    assert text.endswith("Use smaller tiles.")
    warn_of_spills(request.source, {"spills": 0}, request.options, "sm_80", "none", "")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ct.SpillWarning)
        with pytest.raises(SpillWarning, match="8 bytes"):
            warn_of_spills(request.source, facts, request.options, "sm_80", "four", "")
        warnings.filterwarnings("ignore", category=ct.SpillWarning)
        warn_of_spills(request.source, facts, request.options, "sm_80", "five", "")
