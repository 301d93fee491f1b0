"""What stands before the loop of products and uses the tile block's index: also where only a region reads it."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.gpu.op_facts import DefUse, reads
from cutile.dtypes import DTypeLike, bf16, f32, i32
from cutile.ir.control import For, If
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops.arith import Add
from cutile.ops.grid import TileBlockId
from tests.backend.cuda.programs import AMPERE, compiled, lowered, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_specialise import refusal
from tests.support.programs import mut, scalar, tensor

KERNEL = """
def f(z: Mut, x: Tensor, y: Tensor, bias: Tensor, n: i32):
    BM, BN = z.shape
    px, py = x.partition((BM, 64)), y.partition((64, BN))
    i, j, _ = ct.get_tile_block_id()
{before}
    acc = ct.constant(0, (BM, BN), ct.f32)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(ct.convert_tile({after}, z.dtype))
"""

ROW_SUMS = """
    s = ct.constant(0, (BM,), ct.f32)
    for k in range(ct.num_tiles(px, 1)):
        s = s + ct.reduce_sum(ct.convert_tile(px.load((i, k)), ct.f32), 1)
"""
CHOSEN = """
    c = 0
    if n > 3:
        c = i * 2 + j
"""
NESTED = """
    c = 0
    for a in range(n):
        if a > 1:
            for b in range(a):
                c = c + i * b
"""
OWN_TILE = """
    s = ct.constant(0, (BM,), ct.f32)
    for a in range(n):
        s = s + ct.reduce_sum(ct.convert_tile(z.load(), ct.f32), 1)
"""
BEFORE = {
    "row sums": (ROW_SUMS, "acc * s.reshape((BM, 1))"),
    "an if": (CHOSEN, "acc * ct.convert_tile(c, ct.f32)"),
    "nested": (NESTED, "acc + ct.convert_tile(c, ct.f32)"),
    "its own tile": (OWN_TILE, "acc * s.reshape((BM, 1))"),
}

FORMS: dict[str, tuple[tuple[int, int], DTypeLike, dict[str, Any]]] = {
    "two groups": ((128, 128), bf16, {}),
    "a wide tile": ((128, 256), bf16, {}),
    "one group": ((64, 64), bf16, {}),
    "few rows": ((16, 64), bf16, {}),
    "groups alone": ((128, 128), bf16, {"num_worker_warps": 4}),
    "a cluster": ((128, 128), bf16, {"num_cta_in_cga": 2}),
    "pieces of a cluster": ((128, 128), bf16, {"num_pieces": 4}),
    "pieces in memory": ((128, 128), bf16, {"num_pieces": 16}),
}


def kernel(name: str) -> str:
    """A kernel's text."""
    before, after = BEFORE[name]
    return KERNEL.format(before=before, after=after)


def types(tile: tuple[int, int], dtype: DTypeLike) -> dict[str, Type]:
    x = tensor(2, dtype)
    return {"z": mut(*tile, dtype=dtype), "x": x, "y": x, "bias": tensor(1, f32), "n": scalar(i32)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BEFORE)
def test_what_a_region_reads_is_there_before_it(name: str, form: str) -> None:
    tile, dtype, options = FORMS[form]
    lowering = lowered(written(kernel(name), types(tile, dtype)), **options)
    verify(lowering)
    if not lowering.facts.get("refused"):
        assert check_function(lowering) > 0


@pytest.mark.parametrize("name", ["row sums", "an if", "nested"])
def test_such_kernels_keep_specialised_warps(name: str) -> None:
    assert refusal(written(kernel(name), types((128, 128), bf16))) == ""


def test_the_code_is_as_good_as_without() -> None:
    assert_clean(compiled(written(kernel("an if"), types((128, 128), bf16))))


def test_other_architectures_compile_it_as_well() -> None:
    verify(lowered(written(kernel("row sums"), types((128, 128), bf16)), AMPERE))


def test_reads_follows_regions() -> None:
    function = written(kernel("nested"), types((128, 128), bf16))
    (index,) = (op.result for op in function.walk() if isinstance(op, TileBlockId) and op.axis == 0)
    before = next(op for op in function.body.operations if isinstance(op, For | If))
    assert index not in before.operands
    assert index in reads(before)


def test_def_use_chains_tell_definitions_readers_blocks_and_loops() -> None:
    text = """
def sums(z: Mut, n: i32):
    total = ct.constant(0, z.shape, ct.f32)
    for k in range(n):
        if k > 2:
            total = total + total
    z.store(total)
"""
    function = written(text, {"z": mut(64), "n": scalar(i32)})
    chains = DefUse(function.body)
    (loop,) = (op for op in chains.order if isinstance(op, For))
    (branch,) = (op for op in chains.order if isinstance(op, If))
    (added,) = (op for op in chains.order if isinstance(op, Add))
    assert list(chains.order.values()) == list(range(len([*function.walk()])))
    assert chains.definitions[added.result] is added
    assert list(chains.users[added.x]).count(added) == 2  # it reads the value twice
    assert chains.parents[added] == (loop, branch)
    assert chains.parents[loop] == ()
    assert (chains.home[branch], chains.home[added]) == (loop.body, branch.then)
    assert list(chains.users[loop.induction]) == [chains.definitions[branch.condition]]
