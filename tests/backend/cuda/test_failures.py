"""Assertions and index checks in a kernel: their cost, the warps that go on, and the host's error."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_async.core.report import REPORT_BYTES
from cutile.backend.common.abi import failure
from cutile.backend.cuda.load import load
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.properties import check_failures
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import BarriersStart, Failed, FailUnless, Roles, Store, TmaStore
from cutile.backend.interface import Executable
from cutile.dtypes import bf16, f32, f64, i32
from cutile.ir.core import Function, Value
from cutile.ir.types import Type
from cutile.ops.debug import Assert, subjects
from cutile.ops.view import StoreView
from tests.backend.cuda.failing_run import CASES
from tests.backend.cuda.programs import compiled, disassembly, instructions, lowered, ptx, written
from tests.backend.cuda.recorder import Recorder
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, scalar, tensor

SPLIT = """
def f(z: Mut, x: Tensor, y: Tensor):
    _, BM, BN = z.shape
    px, py = x.partition((BM, 64)), y.partition((64, BN))
    s, i, j = ct.get_tile_block_id()
    n = ct.num_tiles(px, 1)
    acc = ct.constant(0, (BM, BN), ct.f32)
    for k in range(s * n // 4, (s + 1) * n // 4):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(acc.reshape((1, BM, BN)))
"""
UNCHECKED = SPLIT.replace("px.load(", "ct.load_tile(x, (BM, 64), ").replace("py.load(", "ct.load_tile(y, (64, BN), ")
PRODUCT = """
def f(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(x.shape[1] // 64):
        acc = ct.mma(ct.load_tile(x, (z.shape[0], 64), (i, k)), ct.load_tile(y, (64, z.shape[1]), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def split(text: str, tile: tuple[int, int]) -> Function:
    """A product whose steps are divided by hand."""
    x = tensor(2, bf16)
    return written(text, {"z": mut(1, *tile, dtype=f32), "x": x, "y": x})


def calls(executable: Executable, folder: Path) -> list[str]:
    """The calls and traps in machine code, but for calls of the assembler's own divisions, which have no frame."""
    found = re.findall(r"\b(?:CALL|BPT)\S*", disassembly(executable, folder))
    return [each for each in found if "NOINC" not in each]


@pytest.mark.slow
def test_checks_leave_products_of_warp_groups_as_they_are(tmp_path: Path) -> None:
    checked, plain = (compiled(split(text, (128, 256))) for text in (SPLIT, UNCHECKED))
    assert len(checked.facts["failures"]) == 6
    assert "failures" not in plain.facts
    assert_clean(checked)  # no stack, no spills, no remark of the linker, such as C7510
    assert checked.facts["registers"] <= plain.facts["registers"]  # whose indices are kept near the tensor
    assert calls(checked, tmp_path) == []
    counts = [instructions(each, tmp_path) for each in (checked, plain)]
    wanted = [{name: n for name, n in each.items() if "HGMMA" in name or "WARPGROUP" in name} for each in counts]
    assert wanted[0] == wanted[1]
    assert wanted[0]


PLAIN = """
def f(y: Mut, x: Tensor, n: i32):
    i = ct.get_tile_block_id()[0]
{check}    y.store(ct.load_tile_like(x, y) * 2.0)
"""
CHECK = "    assert i + n > 3, 'too few'\n"


@pytest.mark.parametrize("arch", ARCHS)
def test_assertions_call_nothing(arch: str, tmp_path: Path) -> None:
    types: dict[str, Type] = {"y": mut(1024), "x": tensor(1), "n": scalar(i32)}
    checked, plain = (compiled(written(PLAIN.format(check=check), types), arch) for check in (CHECK, ""))
    assert calls(checked, tmp_path) == []
    assert checked.facts["stack"] == checked.facts["spills"] == 0
    assert not checked.facts["speaks"]  # nothing is printed, so that no wait flushes what was
    assert checked.facts["registers"] <= plain.facts["registers"] + 8


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_checks_of_products_by_one_group_call_nothing(arch: str, tmp_path: Path) -> None:
    checked = compiled(split(SPLIT.replace("for k in", "for k in range(1):\n     for k in"), (64, 64)), arch)
    assert checked.facts["failures"]
    assert calls(checked, tmp_path) == []
    assert checked.facts["stack"] == 0


ASSERTED = """
def f(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    ct.cuda_tile_assert(n > i, "before")
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(n):
        ct.cuda_tile_assert(k < 100, "within")
        a, b = ct.load_tile(x, (z.shape[0], 64), (i, k)), ct.load_tile(y, (64, z.shape[1]), (k, j))
        acc = ct.mma(a, b, acc)
    if n > 5:
        ct.cuda_tile_assert(j < 7, "after")
    z.store(ct.convert_tile({result}, z.dtype))
"""
FORMS: dict[str, tuple[tuple[int, int], Any, str, dict[str, Any]]] = {
    "two groups": ((128, 128), bf16, "acc", {}),
    "a wide tile": ((128, 256), bf16, "acc", {}),
    "in pieces": ((128, 256), bf16, "acc * acc", {}),
    "by threads": ((128, 128), f32, "acc", {}),
    "few rows": ((16, 64), bf16, "acc", {}),
    "pieces of a cluster": ((128, 128), bf16, "acc", {"num_pieces": 4}),
    "pieces in memory": ((128, 128), bf16, "acc", {"num_pieces": 16}),
}


def asserted(tile: tuple[int, int], dtype: Any, result: str) -> Function:
    """A product with assertions ahead of its loop, in it and behind."""
    x = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(*tile, dtype=dtype), "x": x, "y": x, "n": scalar(i32)}
    return written(ASSERTED.format(result=result), types)


@pytest.mark.parametrize("form", FORMS)
def test_nobody_leaves_and_nothing_more_is_stored(form: str) -> None:
    tile, dtype, result, options = FORMS[form]
    lowering = lowered(asserted(tile, dtype, result), **options)
    assert any(isinstance(op, Roles) for op in lowering.walk())
    assert check_failures(lowering) == 3
    assert check_function(lowering) > 0


def _leaves(function: Function) -> None:
    next(op for op in function.walk() if isinstance(op, FailUnless)).attributes["leaves"] = True


def _not_cleared(function: Function) -> None:
    start = next(op for op in function.walk() if isinstance(op, BarriersStart))
    start.operands = tuple(value for value in start.operands if value is not start.flag)


def _elsewhere(function: Function) -> None:
    failed = next(op for op in function.walk() if isinstance(op, Failed))
    failed.operands = (Value(failed.flag.type),)


def _stores_all_the_same(function: Function) -> None:
    for op in function.walk():
        if isinstance(op, Store | TmaStore | StoreView):
            before = len(op.operands) - len(op.index)
            op.operands = (*op.operands[:before], *op.operands[before + 1 :], op.operands[-1])


def test_a_loop_that_certainly_runs_needs_no_verdict() -> None:
    text = ASSERTED.replace("range(n)", "range(3)").format(result="acc")
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    for kernel, verdicts in ((written(text, types | {"n": scalar(i32)}), 0), (asserted((128, 128), bf16, "acc"), 1)):
        lowering = lowered(kernel)
        assert sum(op.name == "cuda.pipeline" and op.results[0].name == "verdict" for op in lowering.walk()) == verdicts
        check_function(lowering)


def _stored_in_front(function: Function) -> None:
    for op in function.walk():
        if isinstance(op, TmaStore):
            op.attributes["dropped"] = False


def _asked_at_once(function: Function) -> None:
    """Neither role takes part in the verdict: without iterations nothing orders the flag behind the assertions."""
    for op in function.walk():
        for block in op.regions:
            verdict = [of for of in block.operations if of.operands and of.operands[0].name == "verdict"]
            block.operations[:] = [of for of in block.operations if of not in verdict]


@pytest.mark.parametrize("fault", [_leaves, _not_cleared, _elsewhere, _stores_all_the_same, _asked_at_once])
def test_the_model_sees_what_is_wrong(fault: Any) -> None:
    lowering = lowered(split(SPLIT, (128, 128)))
    check_failures(lowering)
    fault(lowering)
    with pytest.raises(ProtocolError):
        check_function(lowering)


@pytest.mark.parametrize("form", ["two groups", "in pieces"])
def test_the_model_sees_what_the_copy_engine_is_given(form: str) -> None:
    tile, dtype, result, options = FORMS[form]
    lowering = lowered(asserted(tile, dtype, result), **options)
    _stored_in_front(lowering)
    with pytest.raises(ProtocolError, match="before a tensor's first"):
        check_function(lowering)


def begun_if(text: str) -> list[set[str]]:
    """For each store of TMA in PTX, the comparisons that decide whether it begins."""
    definitions = {name: line for line in text.splitlines() for name in re.findall(r"^\s*[\w.]+\s+(%p\d+),", line)}
    guards: list[set[str]] = []
    for before in text.split("cp.async.bulk.tensor.2d.global")[:-1]:
        (*_, last) = re.findall(r"@!?(%p\d+) bra", before)
        tests, pending = set[str](), [last]
        while pending:
            line = definitions[pending.pop()]
            if "setp" in line:
                tests.add(re.sub(r"%\w+", "_", " ".join(line.split())))
            else:
                pending += re.findall(r"%p\d+", line)[1:]
        guards.append(tests)
    return guards


@pytest.mark.parametrize("form", ["two groups", "a wide tile"])
def test_nothing_is_begun_for_what_is_not_stored(form: str) -> None:
    tile, dtype, result, _ = FORMS[form]
    types: dict[str, Type] = {"z": mut(*tile, dtype=dtype), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    checked, plain = (begun_if(ptx(each)) for each in (asserted(tile, dtype, result), written(PRODUCT, types)))
    assert checked
    assert plain
    below = {"setp.gt.s32 _, _, -1;", "setp.lt.s32 _, _, 0;"}
    assert all(tests & below for tests in checked), checked
    assert not any(tests & below for tests in plain), plain


# What is told.


def test_what_a_condition_is_about() -> None:
    function = split(SPLIT, (128, 128))
    definitions = {value: op for op in function.walk() for value in op.results}
    told = [subjects(op.condition, definitions)[0] for op in function.walk() if isinstance(op, Assert)]
    assert told == [
        ("i", "count"),
        ("j", "count"),
        ("index", "n"),
        ("index", "n"),
        ("index", "count"),
        ("index", "count"),
    ]


SITES = (
    ("n must be even", ("halve", "k.py", 3, "assert n % 2 == 0"), (), ()),
    ("the index is out of range", ("take", "k.py", 7, "x.load(k)"), ("k", "count"), ("i32", "u64")),
    ("%.1f%% of %g, %s", ("part", "k.py", 9, "assert x > y"), ("n",), ("f32", "f64", "bool", "i64")),
)


def test_a_report_is_the_message_the_line_and_the_values() -> None:
    report = struct.pack("=II3i12xqQ", 2, 1, 4, 0, 2, -1, 2**64 - 1).ljust(REPORT_BYTES, b"\0")
    error = failure(json.loads(json.dumps(SITES)), report)  # as it comes from the disk cache
    assert str(error).splitlines() == [
        "take: the index is out of range",
        '  File "k.py", line 7, in tile block (4, 0, 2)',
        "    x.load(k)",
        "    with k = -1, count = 18446744073709551615",
    ]
    assert isinstance(error, AssertionError)
    error = failure(SITES, struct.pack("=II3i", 2, 0, 1, 0, 0).ljust(REPORT_BYTES, b"\0"))
    assert str(error).endswith("assert n % 2 == 0")
    report = struct.pack("=II3i12xf4xdqq", 2, 2, 0, 0, 0, 12.5, -1e300, 1, -3).ljust(REPORT_BYTES, b"\0")
    text = str(failure(SITES, report))
    assert text.startswith("part: 12.5% of -1e+300, True\n")
    assert text.endswith("    with n = -3")


MESSAGE = "    assert i + n > 3, f'{a:.1f} of {b}, {a > 1.0}'\n"


@pytest.mark.parametrize("arch", ARCHS)
def test_values_of_a_message_are_reported_by_their_bits(arch: str, tmp_path: Path) -> None:
    text = PLAIN.format(check=MESSAGE).replace("n: i32", "n: i32, a: f32, b: f64")
    types: dict[str, Type] = {
        "y": mut(1024), "x": tensor(1), "n": scalar(i32), "a": scalar(f32), "b": scalar(f64),
    }  # fmt: skip
    executable = compiled(written(text, types), arch)
    ((message, _, names, dtypes),) = executable.facts["failures"]
    assert (message, names, dtypes) == ("%.1f of %g, %s", ("number 0",), ("f32", "f64", "bool", "i32"))
    assert calls(executable, tmp_path) == []
    assert ptx(written(text, types)).count("st.global.b64 [") == 4


def test_a_product_whose_assertion_shows_values_keeps_its_warps() -> None:
    text = ASSERTED.format(result="acc").replace('"within"', 'f"{k} of {n}: {a:.2f}"')
    text = text.replace("n: i32", "n: i32, a: f32")
    text = text.replace("a, b = ", "left, right = ").replace("mma(a, b,", "mma(left, right,")
    x = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": x, "y": x, "n": scalar(i32), "a": scalar(f32)}
    lowering = lowered(written(text, types))
    assert any(isinstance(op, Roles) for op in lowering.walk())
    assert check_failures(lowering) == 3
    assert check_function(lowering) > 0


@pytest.fixture(scope="module")
def asserting() -> Executable:
    """A kernel with an assertion."""
    types: dict[str, Type] = {"y": mut(1024), "x": tensor(1), "n": scalar(i32)}
    return compiled(written(PLAIN.format(check=CHECK), types))


def test_each_launch_has_a_report_and_one_that_is_repeated_has_one(asserting: Executable) -> None:
    loaded = load(asserting)
    stream = Recorder(sizes=(8,) * len(asserting.parameters))
    (place,) = (i for i, each in enumerate(asserting.parameters) if each.kind == "report")
    arguments = [0] * len(asserting.parameters)
    assert loaded.packed(stream) is None
    for _ in range(2):
        loaded.launch((1, 1, 1), arguments, stream)
    prepared = loaded.prepare((1, 1, 1), arguments, stream)
    for _ in range(2):
        prepared.launch()
    addresses = [int.from_bytes(values[place], "little") for *_, values in stream.launches]
    assert addresses == [64, 128, 192, 192]
    assert [(each.lasting, each.expected) for each in stream.reports] == [(False, 1), (False, 1), (True, 2)]
    said = str(stream.reports[0].read(struct.pack("=II3i12xq", 2, 0, 5, 0, 0, 3).ljust(REPORT_BYTES, b"\0")))
    assert "f: too few" in said
    assert "in tile block (5, 0, 0)" in said


def test_a_kernel_without_assertions_asks_for_no_report() -> None:
    types: dict[str, Type] = {"y": mut(1024), "x": tensor(1), "n": scalar(i32)}
    executable = compiled(written(PLAIN.format(check=""), types))
    assert not any(each.kind == "report" for each in executable.parameters)
    stream = Recorder(sizes=(8,) * len(executable.parameters))
    assert load(executable).packed(stream) is not None
    load(executable).launch((1, 1, 1), [0] * len(executable.parameters), stream)
    assert stream.reports == []


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_failing_check_ends_in_an_exception(case: str) -> None:
    """In a process of its own, since a warp that left would keep the others waiting for ever."""
    command = [sys.executable, "-m", "tests.backend.cuda.failing_run", case]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ran.stdout.endswith("right\n"), ran.stdout + ran.stderr
