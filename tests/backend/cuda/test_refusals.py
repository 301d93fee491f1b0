"""Refused plans: each kind of refusal is raised, and has a remedy that a kernel's author is told."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutile.backend import cuda
from cutile.backend.cuda.explain import REMEDIES, plan
from cutile.backend.cuda.target import Lack, Refusal, Refused, architecture, require
from cutile.dtypes import bf16, f32, f64, i8, i32, u64
from cutile.ir.core import Function
from cutile.ir.types import TensorType, Type
from tests.backend.cuda.programs import AMPERE, lowered, written
from tests.backend.cuda.test_specialise import GEMM, SUM_OF_A, column_major, hinted, types
from tests.support.programs import mut, scalar, tensor

Lowered = Callable[[], Function]

BYTES = GEMM.replace("64)", "128)").replace("(64,", "(128,").replace("ct.f32", "ct.i32")
DOUBLES = GEMM.replace("64", "16").replace("f32", "f64").replace("ct.convert_tile(acc, z.dtype)", "acc")
BATCH = """
def f(z: Mut, x: Tensor, y: Tensor, n: i32):
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (2, 64, 64), (b, i, k)), ct.load_tile(y, (2, 64, 64), (b, k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
TWICE = GEMM.replace("acc)\n", "acc)\n        acc = ct.mma(a, b, acc)\n", 1)
COUNTED = GEMM.replace("    acc", "    for m in range(n):\n        i += m\n    acc", 1)
OF_SUMS = GEMM.replace("(i, k)", "(ct.reduce_max(ct.convert_tile(acc, ct.i32).reshape((16384,)), 0), k)")
SCALED = GEMM.replace("acc)\n", "acc)\n        acc = acc * 0.5\n", 1)
OF_RESULT = GEMM.replace(
    "ct.load_tile(x, (z.shape[0], 64), (i, k))", "ct.make_partition_view_mut(z, (128, 64)).load((i, k))"
)
AT_ADDRESS = GEMM.replace("n: i32", "n: i32, p: u64").replace(
    "    acc",
    "    v = ct.make_tensor_view(p, (512, 512), (512, 1), dtype=ct.bf16, alignment=16)\n"
    "    part = ct.make_partition_view_mut(v, (64, 64))\n    part.store(part.load((i, j)), (i, j))\n    acc",
    1,
)


def of(text: str, others: dict[str, Type] | None = None, /, **options: Any) -> Lowered:
    """A kernel of text after `lower`, with other types of its parameters."""
    return lambda: lowered(written(text, types(**others or {})), **options)


SAMPLES: dict[Lack, Lowered] = {
    Lack.CLUSTER: of(GEMM, num_cta_in_cga=3),
    Lack.OCCUPANCY: of(GEMM, occupancy=3),
    Lack.PIECES: of(SCALED, num_pieces=4),
    Lack.WARPS: of(GEMM, num_worker_warps=16),
    Lack.ARCHITECTURE: lambda: lowered(written(GEMM, types()), AMPERE),
    Lack.ALIGNED_ROWS: of(GEMM, {"x": tensor(2, bf16, 8)}),
    Lack.ANY_ORDER: of(GEMM.replace("    z.store", "    print(n)\n    z.store")),
    Lack.BULK_LOADS: lambda: lowered(hinted(", tma=ct.tma.DISABLED")),
    Lack.COLUMNS: of(BYTES, {"x": tensor(2, i8), "y": column_major(i8), "z": mut(128, 200, dtype=i32)}),
    Lack.CONTIGUOUS_AXIS: of(GEMM, {"x": TensorType(bf16, (None, None), (None, None), 16)}),
    Lack.DTYPES: of(DOUBLES, {"z": mut(128, 128, dtype=f64), "x": tensor(2, f64), "y": tensor(2, f64)}),
    Lack.K_MAJOR: of(BYTES, {"x": column_major(i8), "y": tensor(2, i8), "z": mut(128, 256, dtype=i32)}),
    Lack.LOADS_IN_LOOP: of(GEMM.replace("mma(a", "mma(a + a")),
    Lack.NO_ADDRESSES: lambda: lowered(written(AT_ADDRESS, types(p=scalar(u64)), unsafe=True)),
    Lack.NO_ASSERTIONS: of(GEMM.replace("    acc", "    assert n < 7\n    acc", 1), num_worker_warps=4),
    Lack.NUMBERS: of(COUNTED),
    Lack.ONE_PRODUCT: of(TWICE),
    Lack.ONE_USE: of(GEMM.replace("acc)\n", f"acc) + {SUM_OF_A}\n", 1)),
    Lack.ONLY_SUMS: of(SCALED),
    Lack.READ_ONLY: lambda: lowered(written(OF_RESULT, types(), unsafe=True)),
    Lack.REGISTERS: of(GEMM, {"z": mut(256, 192, dtype=bf16)}),
    Lack.ROWS: of(GEMM, {"z": mut(96, 80, dtype=bf16)}),
    Lack.SHARED_MEMORY: of(GEMM.replace("64", "256"), {"z": mut(128, 256, dtype=bf16)}),
    Lack.STEPS_OF_K: of(GEMM.replace("64", "24")),
    Lack.TF32: of(GEMM, {"z": mut(128, 128), "x": tensor(2, f32), "y": tensor(2, f32)}, occupancy=2),
    Lack.TWO_AXES: of(BATCH, {"z": mut(2, 64, 64, dtype=bf16), "x": tensor(3, bf16), "y": tensor(3, bf16)}),
}
WITHOUT_REMEDY = {Lack.ELSE}


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.name)
def test_the_author_is_told_the_remedy(kind: Lack) -> None:
    function = SAMPLES[kind]()
    (reason, *_) = (reason for _, reason in function.facts["refused"] if reason.kind is kind)
    told = [text for heading, text in plan(function, architecture("sm_90a")) if heading == "why not better"]
    assert any(line.endswith(f": {reason}. {REMEDIES[kind]}") for line in told), told


def test_every_kind_is_raised_and_has_a_remedy_and_a_sample() -> None:
    raised: set[Lack] = set()
    for file in Path(cuda.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("require", "Refusal", "Refused", "asked_for"):
                found = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
                raised |= {Lack[each.attr] for each in found if ast.unparse(each.value) == "Lack"}
    assert raised | WITHOUT_REMEDY == set(Lack)
    assert REMEDIES.keys() == set(Lack) - WITHOUT_REMEDY == SAMPLES.keys()
    assert len(set(REMEDIES.values())) == len(REMEDIES)


def test_the_words_of_a_refusal_decide_nothing() -> None:
    function = SAMPLES[Lack.ROWS]()
    for kind, ending in ((Lack.ONE_USE, ". Load the operand once for each use"), (Lack.ELSE, "")):
        reason = Refusal("a tile of 96 rows is no whole number of 64", kind)
        function.facts["refused"] = (("pipelines", reason),)
        assert ("why not better", f"warp specialisation: {reason}{ending}") in plan(function, architecture("sm_90a"))


@pytest.mark.parametrize("text", [COUNTED, OF_SUMS], ids=["of a loop", "of a tile"])
@pytest.mark.parametrize("asserts", [False, True], ids=["no assertion", "an assertion"])
def test_an_index_is_not_taken_for_an_assertion(text: str, asserts: bool) -> None:
    """Where a kernel asserts nothing, nothing is to be proved."""
    if asserts:
        text = text.replace("    acc", "    assert n < 7\n    acc", 1)
    *_, (_, reason) = of(text)().facts["refused"]
    assert reason.startswith("an index ")
    assert reason.kind is (Lack.NO_ASSERTIONS if asserts else Lack.NUMBERS)


def test_an_operand_that_is_read_before_its_conversion_is_refused_in_plain_words() -> None:
    rounded = GEMM.replace("mma(a, b", "mma(ct.convert_tile(a, ct.tf32), ct.convert_tile(b, ct.tf32)")
    text = rounded.replace("acc)\n", f"acc) + {SUM_OF_A}\n", 1)
    reasons = [str(reason) for _, reason in of(text, {"x": tensor(2, f32), "y": column_major(f32)})().facts["refused"]]
    assert reasons == [
        "the left operand is used before it is converted",
        "threads read tiles of x, which TMA rounds to tf32 for products alone",
    ]


def test_a_requirement_is_refused_with_its_kind() -> None:
    require(True, "nothing", Lack.ROWS)
    with pytest.raises(Refused, match="few rows") as refused:
        require(False, "few rows", Lack.ROWS)
    assert refused.value.refusal.kind is Lack.ROWS
    with pytest.raises(Refused) as refused:
        require(False, Refusal("few columns", Lack.COLUMNS, "a detail"))
    assert (refused.value.refusal.kind, refused.value.refusal.detail) == (Lack.COLUMNS, "a detail")
