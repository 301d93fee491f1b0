"""Decisions of lowering: joined tile blocks, shared loops, tiles in scratch memory, products by the BLAS."""

from __future__ import annotations

import pytest

from cutile.backend.cpu.lowering.blocking import Axes, unit_reshape
from cutile.backend.cpu.stage import CopyTransposed, Gemm, ReadInside, Scratch, TimesReciprocal, Truncate
from cutile.dtypes import f16, f32, i8, i32
from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ir.types import MutType, TensorType, Type
from tests.backend.cpu.programs import (
    SAXPY,
    SOFTMAX,
    function,
    gemm_types,
    lowered,
    saxpy_types,
    softmax_types,
)
from tests.support.programs import GEMM, mut, tensor

HEAD = "def k(y: Mut, x: Tensor):\n"


def unary(body: str, *tile: int) -> Function:
    return function(HEAD + body, {"y": mut(*tile), "x": tensor(len(tile))})


def test_elementwise_blocks_are_joined() -> None:
    axes = Axes(function(SAXPY, saxpy_types(16, 32)))
    assert axes.max_joined_along[0] > 1
    assert axes.max_joined_along[1] > 1
    assert axes.refusals[2] == "a Mut has no such axis"


@pytest.mark.parametrize(
    ("body", "tile", "axis", "why"),
    [
        (
            "    t = ct.load_tile_like(x, y)\n    y.store(t - ct.reduce_sum(t, 0))\n",
            (64,), 0, "reduce_sum runs along it",
        ),
        (
            "    y.store(ct.load_tile_like(x, y) + ct.convert_tile(ct.iota((64,)), f32))\n",
            (64,), 0, "iota counts along it",
        ),
        (
            "    i, _, _ = ct.get_tile_block_id()\n    y.store(x.partition(y.shape).load((i + 1,)))\n",
            (64,), 0, "the kernel computes with the block's index",
        ),
        ("    y.store(x.partition(y.shape).load((2,)))\n", (64,), 0, "x is loaded at another index along it"),
        ("    y.store(ct.load_tile_like(x, y).reshape((32, 2)).reshape((64,)))\n", (64,), 0, "it is reshaped"),
        (
            "    i, j, _ = ct.get_tile_block_id()\n    y.store(ct.transpose(x.partition(y.shape).load((i, j))))\n",
            (8, 8), 0, "one axis of a tile follows two axes of the grid",
        ),
    ],
)  # fmt: skip
def test_blocks_stay_single_for_a_reason(body: str, tile: tuple[int, ...], axis: int, why: str) -> None:
    axes = Axes(unary(body, *tile))
    assert axes.refusals[axis] == why
    assert axes.max_joined_along[axis] == 1


def test_products_are_joined_to_blocks_that_blas_likes() -> None:
    assert Axes(function(GEMM, gemm_types(128, 256), BK=64)).max_joined_along == (2, 2, 1)
    assert Axes(function(GEMM, gemm_types(96, 80), BK=64)).max_joined_along == (3, 7, 1)


def loops(kernel: Function) -> list[str]:
    """The names of the loops, outer before inner."""
    return [op.induction.name for op in kernel.walk() if isinstance(op, For)]


def test_softmax_shares_its_row_loop_and_keeps_one_row() -> None:
    softmax = lowered(SOFTMAX, softmax_types(4, 1000))
    (scratch,) = (op for op in softmax.walk() if isinstance(op, Scratch))
    assert scratch.attributes["size"] == 1000
    nest = ["row", "column", "column", "column"]
    assert loops(softmax) == ["block", *nest, *nest]  # once without checks, once with


def test_a_cheap_tile_is_computed_twice_and_a_dear_one_once() -> None:
    text = "    t = {}\n    m = ct.reduce_max(t, 1).reshape((4, 1))\n    y.store(t - m)\n"
    cheap = lowered(HEAD + text.format("ct.load_tile_like(x, y) + 1"), softmax_types(4, 64))
    dear = lowered(HEAD + text.format("ct.exp(ct.load_tile_like(x, y))"), softmax_types(4, 64))
    assert not [op for op in cheap.walk() if isinstance(op, Scratch)]
    assert [op.attributes["size"] for op in dear.walk() if isinstance(op, Scratch)] == [64]


def test_memory_is_that_of_all_joined_tiles_and_not_of_the_longest_along_each_axis() -> None:
    text = "    t = ct.load_tile_like(x, y)\n    if x.shape[0] > 2:\n        t = ct.exp(t)\n    y.store(t)\n"
    types: dict[str, Type] = {"y": mut(1, 8, 4), "x": tensor(3)}
    axes = Axes(function(HEAD + text, types))
    assert axes.max_joined_along == (512, 512, 512)
    sizes = {op.attributes["size"] for op in lowered(HEAD + text, types).walk() if isinstance(op, Scratch)}
    assert sizes == {axes.max_joined * 32}


def test_reads_are_checked_only_at_the_edge() -> None:
    kernel = lowered(SAXPY, saxpy_types(256))
    checked = [op for op in kernel.walk() if isinstance(op, ReadInside)]
    assert [op.x.name for op in checked] == ["x"]  # in the edge's loop; y's own loop ends at y's edge


def plan(text: str, types: dict[str, Type], **generics: int) -> str:
    facts = lowered(text, types, **generics).facts
    (only,) = (*facts["plans"], *facts["refused_plans"])
    return only.partition(": ")[2]


@pytest.mark.parametrize(
    ("value", "is_element"),
    [
        ("ct.gather(x, i)", True),
        ("ct.gather(x, i * 3, mask=i < 7, padding_value=2.0)", True),
        ("ct.gather(x, i, padding_value=y.load())", False),  # the padding is no constant
        ("ct.gather(x, i, ordering=ct.ordering.ACQUIRE, scope=ct.scope.DEVICE)", False),
        ("ct.gather(y, i)", False),  # other tile blocks write there meanwhile
    ],
)
def test_a_gather_reads_elements_of_its_tensor(value: str, is_element: bool) -> None:
    text = HEAD + f"    i = ct.iota(y.shape)\n    y.store({value})\n"
    for dtype in (f32, f16, i8):
        body = lowered(
            text if dtype is f32 else text.replace("2.0", "2"), {"y": mut(16, dtype=dtype), "x": tensor(1, dtype)}
        )
        names = {op.name for op in body.walk()}
        assert ("load_pointer" not in names) == is_element
        assert ("cpu.read_inside" in names) >= is_element
        assert body.facts["noalias"] == is_element


def test_a_product_loop_is_one_call_of_blas() -> None:
    kernel = lowered(GEMM, gemm_types(128, 256), BK=64)
    assert kernel.facts["plans"][0].endswith("one product over the whole depth")
    direct, panel = (op for op in kernel.walk() if isinstance(op, Gemm))
    assert direct.a.name == "x"
    assert panel.a.name == "x_panel"


def test_half_products_go_through_panels() -> None:
    kernel = lowered(GEMM, gemm_types(128, 256, dtype=f16), BK=64)
    (panel,) = (op for op in kernel.walk() if isinstance(op, Gemm))
    assert panel.a.tensor.dtype is f32


STEPPED = """
    def k(z: Mut, x: Tensor, y: Tensor):
        i, j, _ = ct.get_tile_block_id()
        part_x, part_y = x.partition((16, 8)), y.partition((8, 16))
        acc = ct.constant(0, (16, 16), {acc})
        for k in range({bounds}):
            {body}
        z.store(ct.convert_tile(acc, z.dtype))
"""
PLAIN = "acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)"


@pytest.mark.parametrize(
    ("dtype", "acc", "bounds", "body", "why"),
    [
        (f32, "f32", "0, ct.num_tiles(part_x, 1), 2", PLAIN, "the loop's step is not 1"),
        (i8, "i32", "4", PLAIN, "BLAS has no accumulator of i32"),
        (f16, "f16", "4", PLAIN, "BLAS has no accumulator of f16"),
        (f32, "f32", "4", PLAIN + " * 0.5", "the loop carries more than the product"),
        (f32, "f32", "4", PLAIN.replace("part_x", "-part_x"), "an operand is computed, not loaded"),
        (
            f32, "f32", "4", PLAIN.replace("(i, k)", "(k, i)"),
            "an operand's index along the depth is not the loop variable",
        ),
        (f32, "f32", "4", PLAIN.replace("(i, k)", "(k, k)"), "the loop variable also moves across the result"),
    ],
)  # fmt: skip
def test_other_loops_multiply_step_by_step(dtype: type, acc: str, bounds: str, body: str, why: str) -> None:
    types: dict[str, Type] = {"z": mut(16, 16, dtype=i32 if dtype is i8 else dtype), "x": tensor(2, dtype)}
    types["y"] = tensor(2, dtype)
    text = STEPPED.format(acc=acc, bounds=bounds, body=body).replace("i32)", "ct.i32)").replace("ct.ct.", "ct.")
    assert plan(text, types) == f"one product per step, since {why}"


TRANSPOSED = """
def k(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    y.store({})
"""
ACROSS = "ct.permute(x.partition((y.shape[1], y.shape[0])).load((j, i)), (1, 0))"


@pytest.mark.parametrize(
    ("value", "copies"),
    [
        (ACROSS, 1),
        (f"{ACROSS} * 2 + ct.load_tile_like(x, y)", 1),
        ("ct.load_tile_like(x, y)", 0),
        ("ct.permute(y.load(), (1, 0))", 0),  # a store may be to an element that is read next
    ],
)
def test_columns_are_read_in_strips(value: str, copies: int) -> None:
    """The loops inside the tensor; at its edge they read element by element."""
    walk = list(lowered(TRANSPOSED.format(value), {"y": mut(32, 32), "x": tensor(2)}).walk())
    assert sum(isinstance(op, CopyTransposed) for op in walk) == copies


@pytest.mark.parametrize(
    ("value", "is_clamped"),
    [
        ("max(min(t, 127.0), -128.0)", True),
        ("min(max(t, -128.0), 127.0)", True),
        ("round(min(max(t, -3.0), 5.0))", True),
        ("min(max(t, -3.0), 127.5)", False),
        ("min(t, 127.0)", False),
        ("max(min(t, 128.0), -128.0)", False),
        ("t", False),
    ],
)
def test_what_was_clamped_is_not_saturated_again(value: str, is_clamped: bool) -> None:
    body = f"    t = ct.load_tile_like(x, y)\n    y.store(({value}).astype(ct.i8))\n"
    walk = list(lowered(HEAD + body, {"y": mut(64, dtype=i8), "x": tensor(1)}).walk())
    assert any(isinstance(op, Truncate) for op in walk) == is_clamped


@pytest.mark.parametrize(
    ("divisor", "is_reciprocal"),
    [
        ("ct.reduce_sum(t, 0)", True),
        ("255.0", True),
        ("4.0", False),
        ("t", False),
        ("ct.constant(0, (64,), f32)", False),
    ],
)
def test_quotients_by_what_a_loop_keeps_are_products(divisor: str, is_reciprocal: bool) -> None:
    body = f"    t = ct.load_tile_like(x, y)\n    y.store((t + 1) / {divisor})\n"
    walk = list(lowered(HEAD + body, {"y": mut(64), "x": tensor(1)}).walk())
    assert any(isinstance(op, TimesReciprocal) for op in walk) == is_reciprocal


def test_unit_reshapes_pair_their_axes() -> None:
    assert unit_reshape((4, 8), (4, 1, 8)) == [(0, 0), (1, 2)]
    assert unit_reshape((1, 8), (8, 1)) == [(1, 0)]
    assert unit_reshape((1, 1), (1,)) == [(0, 0)]
    assert unit_reshape((4, 2), (8,)) is None


def test_lowering_is_pure() -> None:
    saxpy = function(SAXPY, saxpy_types(256))
    before = function(SAXPY, saxpy_types(256))
    lowered(SAXPY, saxpy_types(256))
    assert saxpy == before
    assert isinstance(saxpy.parameters[0].type, MutType)
    assert isinstance(saxpy.parameters[2].type, TensorType)
