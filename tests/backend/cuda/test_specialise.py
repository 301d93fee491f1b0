"""Warp specialisation: the kernels that get it, the reasons against it, and the lowered IR.

Clusters, warpgroups and the epilogue have files of their own.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from cutile.backend import cuda
from cutile.backend.cuda.explain import REMEDIES, unused
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import (
    Dot,
    OptimizationBarrier,
    PackPairs,
    Pipeline,
    Roles,
    SetMaxRegisters,
    StageTile,
    StageWait,
    Store,
    TileIndex,
    TmaLoad,
    Undef,
    ZeroUnless,
)
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.plans import lower
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.target import Lack, Refusal, architecture
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.interface import CompileOptions
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f64, i16, i32, i64, u32
from cutile.ir.control import For
from cutile.ir.core import Block, Function
from cutile.ir.text import print_function
from cutile.ir.types import TensorType, Type
from cutile.ir.verify import verify
from cutile.ops.shape import Permute
from tests.backend.cuda.programs import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    compiled,
    gemm_program,
    instructions,
    lowered,
    source,
    written,
)
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, scalar, tensor

GEMM = """
def f(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(n):
        a, b = ct.load_tile(x, (z.shape[0], 64), (i, k)), ct.load_tile(y, (64, z.shape[1]), (k, j))
        acc = ct.mma(a, b, acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""

SUM_OF_A = "ct.reduce_sum(ct.convert_tile(a, ct.f32), 1).reshape((128, 1))"


def column_major(dtype: DTypeLike = bf16) -> TensorType:
    """A transposed view."""
    return TensorType(dtype, (None, None), (1, None), 16)


def types(tile: tuple[int, int] = (128, 128), /, **others: Type) -> dict[str, Type]:
    x = tensor(2, bf16)
    return {"z": mut(*tile, dtype=bf16), "x": x, "y": x, "n": scalar(i32)} | others


def refusal(function: Function, **options: Any) -> str:
    """Why a kernel has no specialised warps; empty if it has."""
    made = lowered(function, **options)
    return dict(made.facts.get("refused", ())).get("specialised warps", "")


@pytest.mark.parametrize(
    ("reason", "text", "others"),
    [
        ("the left operand is used twice", GEMM.replace("acc)\n", f"acc) + {SUM_OF_A}\n", 1), {}),
        ("the left operand is not loaded in the loop", GEMM.replace("mma(a", "mma(a + a"), {}),
        ("rows of the left operand's tensor do not begin at multiples of 16 bytes", GEMM, {"x": tensor(2, bf16, 8)}),
        ("a tile of 96 rows is no whole number of 64", GEMM, {"z": mut(96, 80, dtype=bf16)}),
        ("the right operand's tile (64, 100) does not lie in whole panels", GEMM, {"z": mut(128, 100, dtype=bf16)}),
        ("a thread would hold 192 sums", GEMM, {"z": mut(256, 192, dtype=bf16)}),
        (
            "the kernel has 2 products, not one",
            GEMM.replace("acc)\n", "acc)\n        acc = ct.mma(a, b, acc)\n", 1),
            {},
        ),
        ("the loop's step is no positive constant", GEMM.replace("range(n)", "range(0, n, n)"), {}),
    ],
)
def test_a_refusal_says_why(reason: str, text: str, others: dict[str, Type]) -> None:
    assert reason in refusal(written(text, types(**others)))


def test_the_generated_text_says_why_too() -> None:
    ragged = gemm_program(bf16, (96, 80), 64)
    assert "\n# plan     no specialised warps: a tile of 96 rows is no whole number of 64\n" in source(ragged).text
    assert "# plan" not in source(gemm_program(bf16, (128, 128), 64)).text


def test_a_loop_that_does_more_than_multiply_is_refused() -> None:
    text = GEMM.replace("acc)\n", "acc)\n        acc = acc * 0.5\n", 1)
    assert "the loop does more than multiply: " in refusal(written(text, types()))


def test_other_architectures_and_dtypes_are_refused() -> None:
    made = lowered(gemm_program(bf16, (128, 128), 64), AMPERE)
    assert made.facts["refused"] == (
        ("specialised warps", "sm_80 has no warp group products (sm_90a has)"),
        ("pipelines", "sm_80 has no warp group products (sm_90a has)"),
    )
    text = GEMM.replace("64", "16").replace("f32", "f64").replace("ct.convert_tile(acc, z.dtype)", "acc")
    x = tensor(2, f64)
    why = refusal(written(text, types(z=mut(128, 128, dtype=f64), x=x, y=x)))
    assert "there is no wgmma for products of f64 and f64" in why


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)], ids=str)
def test_tiles_whose_axes_are_exchanged_are_read_another_way(turned: tuple[bool, bool]) -> None:
    text = GEMM
    if turned[0]:
        text = text.replace(
            "ct.load_tile(x, (z.shape[0], 64), (i, k))", "ct.load_tile(x, (64, z.shape[0]), (k, i)).transpose()"
        )
    if turned[1]:
        text = text.replace(
            "ct.load_tile(y, (64, z.shape[1]), (k, j))", "ct.load_tile(y, (z.shape[1], 64), (j, k)).transpose()"
        )
    lowering = lowered(written(text, types((128, 256))))
    assert check_function(lowering) > 0
    (product,) = (op for op in lowering.walk() if isinstance(op, Dot))
    assert [each.smem_layout[3] for each in buffer_types((product.left, product.right))] == [not turned[0], turned[1]]
    assert not any(isinstance(op, Permute) for op in lowering.walk())


@pytest.mark.parametrize("counter", [i64, i16, u32], ids=str)
def test_a_loop_may_count_in_other_integers(counter: DTypeLike) -> None:
    """Then there is no delayed epilogue and no split-K: both compute with iterations in i32."""
    program = written(GEMM, types((128, 128), n=scalar(counter)))
    plan = lowered(program)
    assert check_function(plan) > 10
    assert not any(isinstance(op, PackPairs) for op in plan.walk())  # of a delayed epilogue
    assert_clean(compiled(program))
    small = lowered(written(GEMM, types((64, 64), n=scalar(counter))), num_pieces=4)
    assert small.facts["divided"] == f"no: the loop counts in {counter}, and pieces in i32"
    operands: dict[str, Type] = {"x": tensor(2, f8e4m3fn), "y": column_major(f8e4m3fn)}
    f8_plan = lowered(written(GEMM.replace("64", "128"), types((128, 128), n=scalar(counter), **operands)))
    assert check_function(f8_plan) > 10
    assert [op.promote_columns > 0 for op in f8_plan.walk() if isinstance(op, Dot)] == [True]
    y_across_k = written(GEMM, types((64, 64), n=scalar(counter), x=tensor(2, f8e4m3fn), y=tensor(2, f8e4m3fn)))
    assert "lies across K needs fewer accumulators, and a loop counted in i32" in refusal(y_across_k)


def test_options_that_contradict_the_plan_are_obeyed() -> None:
    function = gemm_program(bf16, (128, 128), 64)
    assert "16 worker warps are asked for" in refusal(function, num_worker_warps=16)
    assert "2 blocks to a multiprocessor are asked for" in refusal(function, occupancy=2)
    assert refusal(function, num_worker_warps=8, occupancy=1) == ""


REFUSED_OPTIONS: list[tuple[CompileOptions, Lack, str, str | None]] = [
    (CompileOptions(num_worker_warps=16), Lack.WARPS, "Leave out num_worker_warps", None),
    (CompileOptions(occupancy=3), Lack.OCCUPANCY, "Leave out occupancy", None),
    (CompileOptions(num_cta_in_cga=3), Lack.CLUSTER, "Leave out num_cta_in_cga", "num_cta_in_cga=3: another reason"),
]


@pytest.mark.parametrize(("options", "kind", "remedy", "line"), REFUSED_OPTIONS)
def test_a_refused_option_is_explained_by_its_kind(
    options: CompileOptions, kind: Lack, remedy: str, line: str | None
) -> None:
    """Whatever the text of the refusal says. `line`: what `unused` says of the option; None where it is used."""
    function = gemm_program(bf16, (128, 128), 64)
    plan = lower(function, HOPPER, options)
    (name, reason), *rest = plan.facts["refused"]
    assert reason.kind is kind
    other = Refusal("other words", kind, "another reason")
    assert REMEDIES[kind] == remedy
    plan.facts["refused"] = ((name, other), *rest)
    lines = list(unused(function, plan, options, architecture(HOPPER.arch)))
    assert (line in "\n".join(lines)) if line else (lines == [])


RULES = ("require", "Refusal", "Refused", "asked_for")
"""Functions and classes that take a refusal's text, alone or as attributes."""


def test_every_refusal_of_an_option_has_a_kind() -> None:
    """A call whose message says what is asked for passes a `Lack`."""
    calls: list[str] = []
    for file in Path(cuda.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in RULES:
                text = ast.unparse(node)
                if "asked_for" in text or "asked for" in text or "not one" in text:
                    assert re.search(r"\bLack\.|\bkind\b", text), f"{file.name}:{node.lineno}"
                    calls.append(text)
    assert len(calls) >= 5  # warps, occupancy, cluster, split-K, one product


def test_the_reason_is_in_the_dump() -> None:
    assert "refused = [['specialised warps', 'a tile of 96 rows" in print_function(
        lowered(gemm_program(bf16, (96, 80), 64))
    )


@pytest.mark.parametrize("tile", [(64, 64), (64, 256), (128, 192), (128, 208), (128, 256), (256, 128)], ids=str)
def test_the_plan_fills_shared_memory(tile: tuple[int, int]) -> None:
    lowering = lowered(gemm_program(bf16, tile, 64), num_cta_in_cga=1)
    verify(lowering)
    (pipeline,) = (op for op in lowering.walk() if isinstance(op, Pipeline))
    (product,) = (op for op in lowering.walk() if isinstance(op, Dot))
    groups = 1 if tile[0] == 64 else 2
    assert pipeline.arrivals == groups
    assert lowering.facts["threads"] == 128 * (groups + 1)
    assert layouts_of(lowering)[product.attributes["layout"]] == group_accumulator(tile, groups)
    stage_bytes = 64 * sum(tile) * 2
    # Eight stages at most, or one more would not fit 227 KiB.
    assert pipeline.stages == 8 or lowering.facts["shared_bytes"] + stage_bytes > 232448
    registers = [op.count for op in lowering.walk() if isinstance(op, SetMaxRegisters)]
    if registers:  # of a multiprocessor: 65,536; a warpgroup has 128 threads
        assert 128 * (registers[0] + groups * registers[1]) <= 65536
    else:
        assert groups == 1


@pytest.mark.parametrize(
    ("x", "y", "boxes"),
    [
        (tensor(2, bf16), tensor(2, bf16), [((128, 64), (0, 1)), ((64, 64), (0, 1))]),
        (tensor(2, bf16), column_major(), [((128, 64), (0, 1)), ((64, 256), (1, 0))]),
        (column_major(), tensor(2, bf16), [((64, 64), (1, 0)), ((64, 64), (0, 1))]),
    ],
)
def test_operands_are_loaded_as_they_lie(
    x: TensorType, y: TensorType, boxes: list[tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    function = written(GEMM, types((128, 256), x=x, y=y))
    made = source(function, num_cta_in_cga=1)
    maps = [each.map for each in made.parameters if each.kind == "tensor_map"]
    assert maps[:2] == [TensorMap(box, 128, order) for box, order in boxes]
    assert maps[2] == TensorMap((16, 64), 128, (0, 1))
    product = next(op for op in lowered(function).walk() if isinstance(op, Dot))
    left, right = (SmemLayout(*each.smem_layout) for each in buffer_types((product.left, product.right)))
    assert (left.k_major, right.k_major) == (x.unit_axis == 1, y.unit_axis == 0)


@pytest.mark.parametrize(("columns", "swizzle"), [(256, 128), (192, 128), (160, 64), (208, 32)])
def test_the_swizzle_is_the_widest_that_divides_a_row(columns: int, swizzle: int) -> None:
    smem_layout = SmemLayout(columns, 64, 2, k_major=False)
    assert (smem_layout.swizzle, smem_layout.count * smem_layout.span) == (swizzle, columns)
    assert smem_layout.nbytes == 64 * columns * 2


def test_a_part_of_an_operand_begins_where_the_copy_put_it() -> None:
    deep = SmemLayout(128, 256, 2, k_major=True)
    assert [deep.offset(0, k) for k in (0, 16, 48, 64, 80)] == [0, 32, 96, 256 * 128, 256 * 128 + 32]
    assert deep.offset(64, 0) == 64 * 128
    wide = SmemLayout(256, 64, 2, k_major=False)
    assert [wide.offset(mn, k) for mn, k in ((0, 16), (32, 0), (64, 0), (128, 16))] == [2048, 64, 8192, 2 * 8192 + 2048]
    with pytest.raises(ValueError, match="begins at a piece"):
        wide.offset(36, 0)


HINTED = """
def f(z: Mut, x: Tensor, y: Tensor, n: i32):
    part_x, part_y = x.partition((z.shape[0], 64)), y.partition((64, z.shape[1]))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(ct.num_tiles(part_x, 1)):
        a = ct.load_view_tko(part_x, (i, k){left})
        acc = ct.mma(a, part_y.load_pipelined((k, j){right}), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def hinted(left: str = "", right: str = "") -> Function:
    return written(HINTED.format(left=left, right=right), types())


def stages(function: Function) -> set[int]:
    return {op.stages for op in function.walk() if isinstance(op, Pipeline)}


NARROWER = """
def narrower(z: Mut, w: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 192), f32)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 192), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
    w.store(ct.constant(1, (128, 64), w.dtype))
"""


def test_all_columns_of_a_result_narrower_than_the_accumulator_are_stored() -> None:
    operand = tensor(2, bf16)
    results: dict[str, Type] = {"z": mut(128, 192, dtype=bf16), "w": mut(128, 64)}
    made = lowered(written(NARROWER, {**results, "x": operand, "y": operand, "n": scalar(i32)}))
    assert any(isinstance(op, Roles) for op in made.walk())
    stored = [op for op in made.walk() if isinstance(op, Store) and op.x.name == "w"]
    assert sum(op.value.tile.shape[1] for op in stored) == 64


def test_a_load_that_disables_tma_uses_none() -> None:
    assert refusal(hinted(", tma=ct.tma.ENABLED")) == ""
    off = hinted(", tma=ct.tma.DISABLED")
    assert refusal(off) == "the left operand's load keeps off TMA: it says ct.tma.DISABLED"
    assert "bulk = False" in print_function(off)
    assert not any(isinstance(op, TmaLoad) for op in lowered(off).walk())


def test_a_latency_says_how_far_loads_run_ahead() -> None:
    (most,) = stages(lowered(hinted()))
    assert most > 3
    # Both operands are in one pipeline: the larger latency counts, and one stage is being read.
    assert stages(lowered(hinted(", latency=2", ", 1"))) == {3}
    assert stages(lowered(hinted("", ", ct.Latency(1)"))) == {2}
    assert stages(lowered(hinted(", latency=100"))) == {most}  # as many as fit
    check_function(lowered(hinted(", latency=1")))
    for right, count in (("", 3), (", latency=1", 2)):
        copied = lowered(hinted(", latency=1", right), BLACKWELL)
        assert {op.stage[1] for op in copied.walk() if isinstance(op, StageTile)} == {count}
        # The wait leaves no copy under way: the next one is begun behind it.
        assert {op.pending for op in copied.walk() if isinstance(op, StageWait)} == {0}


CHAIN = """
def chain(z: Mut, x: Tensor, y: Tensor, w: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 64), f32)
    left = ct.load_tile(x, (128, 64), (i, 0))
    parts, rows = y.partition((64, 64)), w.partition((64, 64))
    for k in range(n):
        scores = ct.mma(left, parts.load_pipelined((0, k), LATENCY), ct.constant(0, (128, 64), f32))
        acc = ct.mma(ct.convert_tile(scores, bf16), rows.load_pipelined((k, j), LATENCY), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""Two products, the second one's left operand computed: such a loop has twice the stages, without `latency`."""


@pytest.mark.parametrize(("latency", "count"), [("1", 2), ("2", 3), ("3", 4), ("4", 5), ("7", 8), ("None", 8)])
def test_a_latency_is_kept_where_stages_would_double(latency: str, count: int) -> None:
    types: dict[str, Type] = {"z": mut(128, 64, dtype=bf16), "n": scalar(i32)}
    for name in "xyw":
        types[name] = tensor(2, bf16)
    function = lowered(written(CHAIN.replace("LATENCY", latency), types))
    assert stages(function) == {2, count}  # two of the left operand: the next tile block's is loaded meanwhile
    check_function(function)


LOOP_OF_CONSUMERS = """
def k(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 64), f32)
    BEFORE
    for k in range(0, i % 3 + 1):
        acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), acc)
    BEHIND
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("place", ["BEFORE", "BEHIND"])
def test_the_model_assumes_no_bounds_of_loops_that_the_producer_has_not(place: str) -> None:
    """The bounds of the loads' loop depend on a value of a loop that only the consumers run."""
    text = LOOP_OF_CONSUMERS.replace(place, "for k in range(i % 3, n):\n        acc = acc + 1.0")
    text = text.replace("    BEFORE\n", "").replace("    BEHIND\n", "")
    operand, types = tensor(2, bf16), dict[str, Type](z=mut(128, 64, dtype=bf16), n=scalar(i32))
    function = lowered(written(text, types | {"x": operand, "y": operand}))
    assert any(isinstance(op, Roles) for op in function.walk())
    check_function(function)


def consumer_block(function: Function) -> Block:
    """The block of the consumer warpgroups."""
    (roles,) = (op for op in lowered(function).walk() if isinstance(op, Roles))
    return roles.consumer


def test_the_first_product_takes_the_place_of_zeros() -> None:
    parameters = types((64, 128))  # a tile whose epilogue is not delayed
    (product,) = (op for op in consumer_block(written(GEMM, parameters)).walk() if isinstance(op, Dot))
    assert product.replaces
    kinds = {type(op) for op in consumer_block(written(GEMM, parameters)).walk()}
    assert {Undef, ZeroUnless} <= kinds  # zeros are written only if the loop has no iteration
    assert OptimizationBarrier not in kinds
    ones = {type(op) for op in consumer_block(written(GEMM.replace("constant(0", "constant(1"), parameters)).walk()}
    assert OptimizationBarrier in ones  # other initial values stand in registers before the first product
    assert not {Undef, ZeroUnless} & ones


@pytest.mark.parametrize(
    ("change", "nested"),
    [
        (("range(n)", "range(n)"), True),
        (("z.store(", "acc = acc + ct.convert_tile(i * 2 + j, ct.f32)\n    z.store("), True),
        (("range(n)", "range(i + 1)"), False),  # the loop needs it
        (("(z.shape[0], 64), (i, k)", "(z.shape[0], 64), (i * 2, k)"), True),  # the producer computes its own
    ],
)
def test_the_tile_index_is_computed_behind_the_first_product(change: tuple[str, str], nested: bool) -> None:
    block = consumer_block(written(GEMM.replace(*change), types()))
    (tiles,) = (op for op in block.operations if isinstance(op, For))
    indices = [op for op in tiles.body.operations if isinstance(op, TileIndex)]
    assert bool(indices) is not nested
    (products,) = (op for op in tiles.body.operations if isinstance(op, For))
    within = [op for op in products.body.walk() if isinstance(op, TileIndex)]
    assert len(within) == (2 if nested else 0)  # of the row and of the column


def test_waits_that_last_too_long_end_the_kernel_where_that_is_asked_for(tmp_path: Path) -> None:
    function = gemm_program(bf16, (128, 256), 64)
    for limited in (False, True):
        executable = compiled(function, limit_waits=limited)
        assert executable.facts["speaks"] is limited
        # The call is the message of a wait that lasts too long.
        assert any(each.startswith("CALL") for each in instructions(executable, tmp_path)) is limited
