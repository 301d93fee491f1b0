"""Assertions in kernels of specialised warps, and what such kernels may not do by address."""

from __future__ import annotations

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import FailUnless, Roles, Subtile
from cutile.dtypes import u64
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.core import Function
from cutile.ir.types import Type
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.programs import lowered, written
from tests.backend.cuda.test_failures import ASSERTED
from tests.backend.cuda.test_specialise import GEMM, refusal, types
from tests.support.kernels import define
from tests.support.programs import scalar

GUARDED = ASSERTED.format(result="acc")


def test_the_loading_warps_assert_what_is_of_numbers() -> None:
    lowering = lowered(written(GUARDED, types()), num_cta_in_cga=2)
    (roles,) = (op for op in lowering.walk() if isinstance(op, Roles))
    loading, computing = ([op for op in block.walk() if isinstance(op, FailUnless)] for block in roles.regions)
    assert [op.message for op in loading] == ["before", "after", "within"]  # so that all are known by the last turn
    assert {(op.thread, op.leaves) for op in loading} == {(256, False)}
    assert computing == []
    assert not lowering.facts["speaks"]
    assert [message for message, *_ in lowering.facts["failures"]] == ["before", "after", "within"]
    assert lowering.facts["cluster"] == 1  # of two blocks the second may have no tile block to speak of
    assert check_function(lowering) > 10


def test_what_follows_the_loop_in_pieces_keeps_its_assertions() -> None:
    text = GUARDED.replace("    if n > 5:\n    ", "").replace("convert_tile(acc,", "convert_tile(acc * acc,")
    made = lowered(written(text, types()))
    assert any(isinstance(op, Subtile) for op in made.walk())
    assert [op.message for op in made.walk() if isinstance(op, FailUnless)] == ["before", "after", "within"]


def test_an_index_that_only_the_kernel_knows_keeps_no_kernel_from_it() -> None:
    text = GEMM.replace("range(n)", "range(n * (i + 1))")
    text = text.replace("ct.load_tile(x, (z.shape[0], 64), (i, k))", "x.partition((z.shape[0], 64)).load((i, k))")
    made = lowered(written(text, types()))
    assert {op.thread for op in made.walk() if isinstance(op, FailUnless)} == {256}
    assert "refused" not in made.facts


LARGEST = "ct.reduce_max(ct.convert_tile(acc, ct.i32).reshape((16384,)), 0)"


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (
            "an index of a load, or an assertion, depends on more than numbers: reduce_max",
            {"    if n > 5:\n        ": "    ", "j < 7": f"{LARGEST} < 7"},
        ),
        ("an index or an assertion needs more than the main loop and numbers", {"if n > 5": "for j in range(n)"}),
    ],
)
def test_assertions_that_the_loading_warps_cannot_make_are_refused(reason: str, changes: dict[str, str]) -> None:
    text = GUARDED
    for old, new in changes.items():
        text = text.replace(old, new)
    assert reason in refusal(written(text, types()))


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("the right operand's tensor is no argument, but made in the kernel", ""),
        (
            "what is stored by address may be what is loaded ahead",
            "    part = ct.make_partition_view_mut(v, (64, 64))\n    part.store(part.load((i, j)), (i, j))\n",
        ),
    ],
)
def test_tensors_at_addresses_are_for_other_plans(reason: str, change: str) -> None:
    text = GEMM.replace("n: i32", "n: i32, p: u64").replace("    acc", f"    v = {VIEW}\n{change}    acc", 1)
    text = text.replace("ct.load_tile(y, ", "ct.load_tile(v, ")
    parameters = types(p=scalar(u64))
    assert reason in refusal(unsafe(text, parameters))


VIEW = "ct.make_tensor_view(p, (512, 512), (512, 1), dtype=ct.bf16, alignment=16)"


def unsafe(text: str, parameters: dict[str, Type]) -> Function:
    """A kernel that says `@entry(unsafe=True)`."""
    function = define(text)
    return run_passes(build(function, take_source(function), parameters, {}, unsafe=True).function)
