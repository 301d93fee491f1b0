"""Decisions: who holds what, how wide accesses are, what goes through shared memory and who waits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.mma_layouts import mma_accumulator
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.ops import (
    Barrier,
    ConvertLayout,
    StageCommit,
    StagedMma,
    StagePut,
    StageTile,
    StageWait,
    Store,
)
from cutile.backend.gpu.layout import Layout, outer_accumulator
from cutile.backend.interface import Target
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e8m0fnu, f16, f32, f64, i8, i32, tf32, u8
from cutile.errors import KernelTypeError
from cutile.ir.constant import Constant
from cutile.ir.control import For, Yield
from cutile.ir.core import Function, Op
from cutile.ir.types import MutType, TensorType, Type
from cutile.ir.verify import verify
from cutile.ops.arith import Add
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma, MmaScaled
from cutile.ops.memory import LoadTile
from cutile.ops.reduce import Reduce
from tests.backend.cuda.programs import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    compiled,
    gemm_program,
    lowered,
    row_min_program,
    saxpy_program,
    softmax_program,
    written,
)
from tests.support.programs import mut, scalar, tensor

GEMM = """
def f(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 48), ct.f32)
    for k in range(n):
        a, b = ct.load_tile(x, (64, BK), (i, k)), ct.load_tile(y, (BK, 48), (k, j))
        acc = ct.mma(a, b, acc)
    z.store(acc)
"""


K = TypeVar("K", bound=Op)


def only(function: Function, kind: type[K]) -> K:
    (found,) = (op for op in function.walk() if isinstance(op, kind))
    return found


def dedent(text: str) -> str:
    return textwrap.dedent(text).lstrip()


def count(function: Function, kind: type[Op]) -> int:
    return sum(isinstance(op, kind) for op in function.walk())


@pytest.mark.parametrize(
    "function",
    [saxpy_program(1024), softmax_program(1, 4096), gemm_program(f16, (96, 80), 32), row_min_program(16)],
    ids=["saxpy", "softmax", "gemm", "row_min"],
)
def test_lowered_ir_is_valid(function: Function) -> None:
    made = lowered(function)
    verify(made)
    assert made.stage == "cuda"


def test_lowering_is_pure_and_repeatable() -> None:
    function = gemm_program(bf16, (128, 128), 32)
    assert lowered(function) == lowered(function)
    assert function.stage == "ir"


def test_saxpy_moves_nothing_and_reads_vectors() -> None:
    lowering = lowered(saxpy_program(1024), AMPERE)
    assert lowering.facts["threads"] == 128
    assert lowering.facts["shared_bytes"] == 0
    assert count(lowering, ConvertLayout) == count(lowering, Barrier) == 0
    loads = [op for op in lowering.walk() if isinstance(op, LoadTile)]
    assert [op.attributes["vector"] for op in loads] == [(0, 4), (0, 4)]
    assert sorted(op.attributes["constant"] for op in loads) == [False, True]  # y is written in this launch
    assert only(lowering, Store).attributes["vector"] == (0, 4)


@pytest.mark.parametrize(
    ("alignment", "dtype", "tile", "width"),
    [
        (16, f32, 1024, 4),
        (8, f32, 1024, 2),
        (4, f32, 1024, 1),
        (16, f16, 1024, 8),
        (2, f16, 1024, 1),
        (16, f64, 1024, 2),
        (16, f32, 6, 2),
        (16, f32, 7, 1),
    ],
)
def test_the_access_width_is_what_the_promise_and_the_tile_allow(
    alignment: int, dtype: DTypeLike, tile: int, width: int
) -> None:
    x = tensor(1, dtype, alignment)
    lowering = lowered(
        written(
            "def copy(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n", {"y": MutType(x, (tile,)), "x": x}
        )
    )
    assert only(lowering, LoadTile).attributes["vector"] == ((0, width) if width > 1 else None)


def test_a_column_major_tensor_is_read_along_its_columns() -> None:
    x = TensorType(f32, (None, None), (1, None), 16)
    lowering = lowered(
        written(
            "def double(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) * 2.0)\n",
            {"y": MutType(x, (64, 16)), "x": x},
        )
    )
    load = only(lowering, LoadTile)
    assert load.attributes["vector"] == (0, 4)
    assert layouts_of(lowering)[load.attributes["layout"]].vector(0) == 4


def test_softmax_keeps_its_row_in_registers() -> None:
    lowering = lowered(softmax_program(1, 1024))
    assert count(lowering, LoadTile) == count(lowering, Store) == 1
    assert count(lowering, ConvertLayout) == 0
    reductions = [op for op in lowering.walk() if isinstance(op, Reduce)]
    assert len({op.attributes["offset"] for op in reductions}) == 2  # each has its own place, so none waits
    assert not any(op.attributes["fence"] for op in reductions)


@pytest.mark.parametrize(
    ("dtype", "kind", "make"),
    [(f16, StagedMma, mma_accumulator), (bf16, StagedMma, mma_accumulator), (f32, StagedMma, outer_accumulator)],
)
def test_a_product_adds_up_where_its_instruction_does(
    dtype: DTypeLike, kind: type[Op], make: Callable[[tuple[int, int], int], Layout]
) -> None:
    lowering = lowered(gemm_program(dtype, (96, 80), 32))
    product = only(lowering, kind)
    assert layouts_of(lowering)[product.attributes["layout"]] == make((96, 80), lowering.facts["warps"])
    assert count(lowering, ConvertLayout) == 0


def test_operands_through_registers_wait_before_their_place_is_used_again() -> None:
    assert only(lowered(product_loop(i8, i32, "tn")), Mma).attributes["fence"]


TURNED = """
    def turned(z: Mut, x: Tensor, y: Tensor):
        i, j, _ = ct.get_tile_block_id()
        px, py = x.partition((64, 32)), y.partition((32, 64))
        acc = ct.constant(0, (64, 64), ct.ACC)
        for k in range(ct.num_tiles(px, 1)):
            acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
        z.store(acc)
"""


def product_loop(dtype: DTypeLike, acc: DTypeLike, turned: str) -> Function:
    """A loop of products; "t" for an operand that is a transposed view."""
    operands = (TensorType(dtype, (None, None), (1, None) if each == "t" else (None, 1), 16) for each in turned)
    types = dict(zip("xy", operands, strict=True)) | {"z": mut(64, 64, dtype=acc)}
    return written(dedent(TURNED).replace("ACC", acc.name), {name: types[name] for name in "zxy"})


@pytest.mark.parametrize(
    ("dtype", "acc", "staged"),
    [
        (f16, f32, "nn nt tn tt"),  # ldmatrix transposes 16 bits
        (f64, f64, "nn nt tn tt"),  # each thread loads its own elements
        (f32, f32, "nn"),  # outer products want K of the left operand, N of the right one
        (tf32, f32, "nn nt tn tt"),  # ldmatrix, or each thread its own
        (i8, i32, "nt"), (u8, i32, "nt"), (f8e4m3fn, f32, "nt"),  # both along K
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", ["nn", "nt", "tn", "tt"])
def test_operands_are_copied_as_they_lie_where_a_product_can_take_them_so(
    dtype: DTypeLike, acc: DTypeLike, staged: str, turned: str
) -> None:
    lowering = lowered(product_loop(dtype, acc, turned), AMPERE)
    sides = [any(each[side] == turned[side] for each in staged.split()) for side in range(2)]
    assert count(lowering, StagedMma) == any(sides)
    assert count(lowering, StagePut) == (sum(sides) == 1)  # the other operand passes through registers
    assert count(lowering, Mma) == (not any(sides))
    if turned in staged.split():
        assert only(lowering, StagedMma).swaps == (turned[0] == "t", turned[1] == "t")


def test_a_conversion_to_tf32_is_done_as_operands_are_multiplied() -> None:
    text = dedent(TURNED).replace("ACC", "f32").replace("(i, k))", "(i, k)).astype(ct.tf32)")
    text = text.replace("(k, j))", "(k, j)).astype(ct.tf32)")
    made = lowered(written(text, {"z": mut(64, 64), "x": tensor(2), "y": tensor(2)}), AMPERE)
    assert only(made, StagedMma).rounds
    assert count(made, Convert) == 0


@pytest.mark.parametrize("target", [AMPERE, HOPPER, BLACKWELL])
def test_a_scaled_product_is_one_of_bf16_whatever_the_architecture(target: Target) -> None:
    text = """
        def scaled(z: Mut, x: Tensor, y: Tensor, s: Tensor, t: Tensor):
            a, b = ct.load_tile(x, (16, 32), (0, 0)), ct.load_tile(y, (32, 16), (0, 0))
            p, q = ct.load_tile(s, (16, 1), (0, 0)), ct.load_tile(t, (1, 16), (0, 0))
            z.store(ct.mmaf_scaled(a, b, z.load(), p, q))
    """
    eights, scales = tensor(2, dtype=f8e4m3fn), tensor(2, dtype=f8e8m0fnu)
    given: dict[str, Type] = {"z": mut(16, 16), "x": eights, "y": eights, "s": scales, "t": scales}
    lowering = lowered(written(dedent(text), given), target)
    product = only(lowering, Mma)
    assert {product.a.tile.dtype, product.b.tile.dtype} == {bf16}
    assert count(lowering, MmaScaled) == 0


def test_operands_are_copied_turns_ahead_of_their_product() -> None:
    lowering = lowered(gemm_program(bf16, (128, 128), 64), BLACKWELL)
    assert count(lowering, LoadTile) == count(lowering, Mma) == 0
    loop = only(lowering, For)
    before = lowering.body.operations[: lowering.body.operations.index(loop)]
    kinds = [type(op) for op in before if isinstance(op, StageTile | StageCommit)]
    assert kinds == [StageTile, StageTile, StageCommit] * 2  # two turns ahead in a ring of three slots
    inside = [type(op) for op in loop.body.operations if not isinstance(op, Constant | Add)]
    assert inside == [StageWait, StageTile, StageTile, StageCommit, StagedMma, Yield]
    assert [op.pending for op in lowering.walk() if isinstance(op, StageWait)] == [1, 0]
    assert {op.stage[1] for op in lowering.walk() if isinstance(op, StageTile)} == {3}
    assert only(lowering, StagedMma).left[1:] == only(lowering, StagedMma).right[1:] == (3, 35840)


@pytest.mark.parametrize(
    ("why", "depth", "alignment", "text"),
    [
        ("the depth is no whole number of steps", 24, 16, GEMM),
        ("rows do not begin at 16 bytes", 32, 8, GEMM),
        ("no operand is a load", 32, 16, GEMM.replace("mma(a, b", "mma(a + a, b + b")),
    ],
)
def test_other_products_take_their_operands_from_registers(why: str, depth: int, alignment: int, text: str) -> None:
    x = tensor(2, bf16, alignment)
    types = {"z": mut(64, 48), "x": x, "y": x, "n": scalar(i32)}
    made = lowered(written(text.replace("BK", str(depth)), types), AMPERE)
    assert count(made, StagedMma) == 0, why
    assert count(made, Mma) == 1


def test_the_loop_that_the_others_differ_from_runs_ahead() -> None:
    x = tensor(2, bf16)
    types = {"z": mut(64, 48), "x": x, "y": x, "n": scalar(i32)}
    assert count(lowered(written(GEMM.replace("BK", "32"), types), AMPERE), StagedMma) == 1


def test_an_index_that_is_computed_in_the_loop_is_computed_ahead() -> None:
    x = tensor(2, bf16)
    types = {"z": mut(64, 48), "x": x, "y": x, "n": scalar(i32)}
    text = GEMM.replace("BK", "32").replace("(i, k)", "(i, k * 2 + n)")
    made = lowered(written(text, types), AMPERE)
    assert count(made, StagedMma) == 1
    staged = [op for op in made.walk() if isinstance(op, StageTile) and op.x.name == "x"]
    assert len({op.index[1] for op in staged}) == len(staged)  # of each iteration ahead, an index of its own


def test_a_ring_in_a_loop_waits_for_the_ring_before() -> None:
    text = """
        def often(z: Mut, x: Tensor, y: Tensor, n: i32):
            total = ct.constant(0, (64, 48), ct.f32)
            for t in range(n):
                for k in range(n):
                    total = ct.mma(ct.load_tile(x, (64, 32), (t, k)), ct.load_tile(y, (32, 48), (k, 0)), total)
                total = total * 0.5
            z.store(total)
        """
    x = tensor(2, bf16)
    made = lowered(written(dedent(text), {"z": mut(64, 48), "x": x, "y": x, "n": scalar(i32)}), AMPERE)
    assert count(made, Barrier) == 1


def test_a_ring_takes_tiles_whose_axes_are_exchanged_as_they_lie() -> None:
    text = """
        def turned(z: Mut, x: Tensor, y: Tensor, n: i32):
            acc = ct.constant(0, (64, 48), ct.f32)
            for k in range(n):
                acc = ct.mma(ct.load_tile(x, (32, 64), (k, 0)).transpose(), ct.load_tile(y, (32, 48), (k, 0)), acc)
            z.store(acc)
        """
    x = tensor(2, bf16)
    lowering = lowered(written(dedent(text), {"z": mut(64, 48), "x": x, "y": x, "n": scalar(i32)}), AMPERE)
    (product,) = (op for op in lowering.walk() if isinstance(op, StagedMma))
    assert product.swaps == (True, False)
    stages = [op for op in lowering.walk() if isinstance(op, StageTile)]
    assert {op.attributes["vector"] for op in stages} == {(1, 8)}
    assert not any(op.name == "permute" for op in lowering.walk())


def test_two_blocks_share_a_multiprocessor_where_both_fit() -> None:
    assert lowered(gemm_program(bf16, (128, 128), 64), AMPERE).facts["min_blocks"] == 2
    assert lowered(gemm_program(bf16, (128, 256), 64), AMPERE).facts["min_blocks"] == 1
    assert lowered(gemm_program(f32, (128, 128), 32), AMPERE).facts["min_blocks"] == 2
    assert lowered(gemm_program(f32, (128, 128), 64), AMPERE).facts["min_blocks"] == 1
    assert lowered(saxpy_program(1024)).facts["min_blocks"] == 0


def test_options_are_obeyed() -> None:
    made = lowered(saxpy_program(1024), num_worker_warps=2, occupancy=3)
    assert (made.facts["threads"], made.facts["min_blocks"]) == (64, 3)


def test_tiles_that_cannot_fit_are_refused_with_a_remedy() -> None:
    with pytest.raises(KernelTypeError, match=r"bytes of shared memory; a block on sm_90a has 232448\n"):
        lowered(gemm_program(f32, (512, 512), 128))


def test_a_broadcast_of_a_reduction_moves_nothing() -> None:
    made = lowered(row_min_program(16))
    assert count(made, ConvertLayout) == 0


@pytest.mark.parametrize(("rows", "depth", "columns"), [(32, 64, 32), (64, 32, 64), (64, 64, 64), (8, 512, 8)])
def test_a_thread_adds_up_products_of_broadcasts_itself(rows: int, depth: int, columns: int) -> None:
    """With the reduced axis over lanes and warps, 64 x 64 sums of each warp took 256 KiB of shared memory."""
    text = f"""
def contract(y: Mut, p: Tensor, q: Tensor):
    left, right = ct.load_tile(p, ({rows}, {depth}), (0, 0)), ct.load_tile(q, ({depth}, {columns}), (0, 0))
    y.store(ct.reduce_sum(left[:, :, None] * right[None], 1))
"""
    function = lowered(written(text, {"y": mut(rows, columns), "p": tensor(2), "q": tensor(2)}))
    check_layouts(function)
    (reduction,) = [op for op in function.walk() if isinstance(op, Reduce)]
    layouts = layouts_of(function)
    source, sums = (layouts[reduction.attributes[name]] for name in ("source", "layout"))
    assert source.collapse(1).registers == sums.registers <= 8
    assert function.facts["shared_bytes"] <= 4 * depth * max(rows, columns)  # the larger operand's


def test_a_transposed_store_goes_through_shared_memory() -> None:
    lowering = lowered(
        written(
            "def turn(y: Mut, x: Tensor):\n    y.store(ct.load_tile(x, (64, 32), (0, 0)).transpose())\n",
            {"y": mut(32, 64), "x": tensor(2)},
        )
    )
    (moved,) = (op for op in lowering.walk() if isinstance(op, ConvertLayout))
    assert moved.attributes["how"] == "swizzle"
    accesses = [op.attributes["vector"] for op in lowering.walk() if isinstance(op, LoadTile | Store)]
    assert accesses == [(1, 4), (1, 4)]  # both wide


def test_threads_wait_before_they_read_what_others_stored() -> None:
    text = """
        def twice(y: Mut, x: Tensor):
            y.store(ct.load_tile_like(x, y))
            row = ct.reduce_sum(y.load(), 0).reshape((1, 64))
            y.store(y.load() + row)
        """
    made = lowered(written(dedent(text), {"y": mut(32, 64), "x": tensor(2)}))
    assert count(made, Barrier) == 0  # one layout: each thread reads what it stored itself
    copied = lowered(
        written(
            "def small(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n    y.store(y.load() + 1.0)\n",
            {"y": mut(4), "x": tensor(1)},
        )
    )
    assert count(copied, Barrier) == 3  # several threads hold each element, one of them stores it


def test_threads_wait_before_they_store_over_what_others_stored() -> None:
    over = """
        def over(y: Mut, x: Tensor, z: Tensor):
            y.store(ct.load_tile_like(z, y))
            y.store(ct.load_tile_like(x, y))
        """
    by_columns = TensorType(f32, (None, None), (1, None), 16)
    both: dict[str, Type] = {"y": mut(64, 64), "x": tensor(2), "z": by_columns}
    both_ways = lowered(written(dedent(over), both))
    assert count(both_ways, Barrier) == 0  # each element is stored by the same thread, which is handed it
    assert [op.attributes["how"] for op in both_ways.walk() if isinstance(op, ConvertLayout)] == ["swizzle"]
    assert count(lowered(written(dedent(over), {**both, "z": tensor(2)})), Barrier) == 0
    pieces = """
        def pieces(y: Mut, x: Tensor):
            part = y.partition_mut((32, 32))
            for i in range(ct.num_tiles(part, 0)):
                part.store(x.load_tile((32, 32), (i, 0)), (i, 0))
                part.store(x.load_tile((32, 32), (i, 1)), (i, 1))
        """
    views: dict[str, Type] = {"y": mut(64, 64), "x": tensor(2)}
    assert count(lowered(written(dedent(pieces), views)), Barrier) == 0  # two tiles of a grid share nothing, or all
    other = dedent(pieces).replace(
        "part.store(x.load_tile((32, 32), (i, 1)", "y.partition_mut((64, 16)).store(x.load_tile((64, 16), (i, 1)"
    )
    assert count(lowered(written(other, views)), Barrier) == 2


@pytest.mark.parametrize(
    ("body", "barriers"),
    [
        ("y.partition((1024,)).store(t, (0,))\nz.store(y.slice(0, 1, 1025).partition((1024,)).load((0,)))", 2),
        (
            "s = y.slice(0, 1, 1025).partition((1024,)).load((0,))\n"
            "y.partition((1024,)).store(s, (0,))\nz.store(s + t)",
            2,
        ),
        ("z.store(x.slice(0, 1, 1025).partition((1024,)).load((0,)) + t)", 0),  # nothing writes it
    ],
)
def test_a_slice_waits_for_stores_to_its_tensor(body: str, barriers: int) -> None:
    """Element i of a slice from 1 on is another thread's element i + 1."""
    text = "def k(z: Mut, y: SharedMut, x: Tensor):\n    t = ct.load_tile_like(x, z)\n" + textwrap.indent(body, "    ")
    types: dict[str, Type] = {"z": mut(1024), "y": replace(tensor(1), stable=False), "x": tensor(1)}
    assert count(lowered(written(text, types, unsafe=bool(barriers))), Barrier) == barriers


def test_loop_carried_reductions_wait_for_one_another() -> None:
    text = """
        def total(y: Mut, x: Tensor, n: i32):
            acc = ct.constant(0, (1,), ct.f32)
            for k in range(n):
                acc = acc + ct.reduce_sum(ct.load_tile(x, (4096,), (k,)), 0)
            y.store(acc)
        """
    made = lowered(written(dedent(text), {"y": mut(1), "x": tensor(1), "n": scalar(i32)}))
    assert only(made, Reduce).attributes["fence"]


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0)])
def test_loads_of_no_elements_are_padding_that_compiles(shape: tuple[int, ...]) -> None:
    """Also loads that become padding behind the choice of layouts, as those of a parameter that is written."""
    text = "def k(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n"
    empty = replace(tensor(len(shape)), shape=shape)
    types: dict[str, Type] = {"y": MutType(empty, (64,) * len(shape)), "a": scalar(), "x": empty}
    compiled(written(text, types))
