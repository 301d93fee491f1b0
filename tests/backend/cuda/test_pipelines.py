"""Loops of several products: what is pipelined, rotated and lowered to specialised warps, and what is proved of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.loops.eight import KEYS, attention_f8
from benchmarks.loops.latent import latent
from benchmarks.loops.scaled import scaled_experts
from benchmarks.loops.shapes import product_softmax
from cuda_async import Device
from cutile import api, bf16, f16
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.protocol import Event, ProtocolError, check_together
from cutile.backend.cuda.ops import (
    Barrier,
    Dot,
    DotWait,
    NextTile,
    Pipeline,
    PipelineRelease,
    PipelineWait,
    ReceiveTile,
    Roles,
    TileIndex,
    TmaLoad,
    TmaStore,
)
from cutile.backend.cuda.ops.pipeline import PipelineType
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.cuda.pipeline.rules import plan
from cutile.backend.cuda.pipeline.schedule import Order
from cutile.backend.cuda.target import Refused, architecture
from cutile.backend.interface import CompileOptions
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import f8e4m3fn, i32
from cutile.ir.control import For
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.text import parse, print_function
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops import OPS
from cutile.ops.create import Iota
from cutile.ops.matmul import Mma
from cutile.ops.reduce import Reduce
from kernels.attention import attend, attention, attention_of
from kernels.decode import decode_paged, decode_part
from kernels.packed import packed
from kernels.swiglu import swiglu
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped, written
from tests.support.programs import mut, scalar, tensor


def attention_program(
    width: int = 128, rows: int = 128, keys: int = 128, *, causal: bool = False, window: int = 0
) -> Function:
    operand = tensor(3, bf16)
    parameters: dict[str, Type] = {
        "o": mut(1, rows, width, dtype=bf16),
        "q": operand,
        "k": operand,
        "v": operand,
        "scale": scalar(),
    }
    return shipped(attention, parameters, BN=keys, CAUSAL=int(causal), WINDOW=window)


def eight_program() -> Function:
    operand = tensor(3, f8e4m3fn)
    given: dict[str, Type] = {"o": mut(1, 128, 128, dtype=bf16), "q": operand, "k": operand, "v": operand}
    return shipped(attention_f8, {**given, "scale": scalar(), "by": scalar()}, BN=KEYS)


def packed_program() -> Function:
    operand, bounds = tensor(3, bf16), tensor(1, i32)
    given: dict[str, Type] = {"o": mut(1, 192, 64, dtype=bf16), "q": operand, "k": operand, "v": operand}
    return shipped(packed, {**given, "since": bounds, "until": bounds, "scale": scalar()}, BN=128)


def decode_program(page: int = 0) -> Function:
    """Of keys in pages of so many rows, or in one piece."""
    operand = tensor(3, bf16)
    given: dict[str, Type] = {"part": mut(1, 64, 128), "lse": mut(1, 64, 1), "q": operand, "k": operand, "v": operand}
    if not page:
        return shipped(decode_part, {**given, "scale": scalar()}, BN=128)
    given |= {"k": tensor(4, bf16), "v": tensor(4, bf16), "pages": tensor(2, i32), "counts": tensor(1, i32)}
    return shipped(decode_paged, {**given, "scale": scalar()}, HEADS=8, BN=page)


def latent_program() -> Function:
    part, lse = mut(1, 64, 512, dtype=bf16), mut(1, 64, 1)
    given: dict[str, Type] = {"part": part, "lse": lse, "q": tensor(3, bf16), "k": tensor(3, bf16)}
    return shipped(latent, {**given, "scale": scalar()})


def scaled_program() -> Function:
    eight = tensor(2, f8e4m3fn)
    given: dict[str, Type] = {"z": mut(128, 256, dtype=bf16), "x": eight, "w": tensor(3, f8e4m3fn)}
    given |= {"of_x": tensor(2), "of_w": tensor(3), "expert": tensor(1, i32)}
    return shipped(scaled_experts, given)


STEPPED = """
def stepped(z: Mut, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor):
    i, j, _ = ct.get_tile_block_id()
    none = ct.constant(0, z.shape, f32)
    acc = none
    for k in range(0, ct.ceil_div(x.shape[1], 128), 4):
        part = ct.mma(ct.load_tile(x, (128, 128), (i, k)), ct.load_tile(w, (128, 128), (j, k)).transpose(), none)
        scale = ct.load_tile(of_x, (1, 128), (k, i)).reshape((128, 1)) * ct.load_tile(of_w, (1, 1), (j, k))
        for step in ct.static_range(1, 4):
            right = ct.load_tile(w, (128, 128), (j, k + step)).transpose()
            behind = ct.mma(ct.load_tile(x, (128, 128), (i, k + step)), right, none)
            of_rows = ct.load_tile(of_x, (1, 128), (k + step, i)).reshape((128, 1))
            by = of_rows * ct.load_tile(of_w, (1, 1), (j, k + step))
            acc = ct.fma(part, ct.broadcast(scale, z.shape), acc)
            part, scale = behind, by
        acc = ct.fma(part, ct.broadcast(scale, z.shape), acc)
    z.store(acc.astype(z.dtype))
"""
"""Four steps of K in an iteration, the sums of each scaled while the next is multiplied."""


def stepped_program() -> Function:
    eight, scale = tensor(2, f8e4m3fn), tensor(2)
    given: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": eight, "w": eight, "of_x": scale, "of_w": scale}
    return written(STEPPED, given)


def swiglu_program(rows: int = 128, columns: int = 128) -> Function:
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(rows, columns, dtype=bf16), "x": operand, "gate": operand, "up": operand}
    return shipped(swiglu, given, BK=64)


STRAIGHT = """
def straight(z: Mut, x: Tensor, w: Tensor, s: f32, t: f32):
    i, j, _ = ct.get_tile_block_id()
    none = ct.constant(0, z.shape, f32)
    part = ct.mma(ct.load_tile(x, (128, K), (i, 0)), ct.load_tile(w, (128, K), (j, 0)).transpose(), none)
    behind = ct.mma(ct.load_tile(x, (128, K), (i, 1)), ct.load_tile(w, (128, K), (j, 1)).transpose(), none)
    z.store(ct.fma(behind, ct.broadcast(t, z.shape), part * s).astype(z.dtype))
"""
"""Two steps of K without a loop."""


TWO_LOOPS = """
def two_loops(z: Mut, x: Tensor, y: Tensor, u: Tensor, v: Tensor):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    for k in range(ct.num_tiles(u.partition((BM, 64)), 1)):
        acc = ct.mma(ct.load_tile(u, (BM, 64), (i, k)), ct.load_tile(v, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
BRANCH = """
def branch(z: Mut, x: Tensor, y: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    if n > 3:
        for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
            acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
NESTED = """
def nested(z: Mut, x: Tensor, y: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for t in range(n):
        for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
            acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k + t, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
STEADY = """
def steady(z: Mut, x: Tensor, y: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    a, b = ct.load_tile(x, (BM, 64), (i, 0)), ct.load_tile(y, (64, BN), (0, j))
    for _ in range(n):
        acc = ct.mma(a, b, acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
WEIGHED = """
def weighed(z: Mut, x: Tensor, y: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(n):
        acc = ct.mma(ct.convert_tile(acc, x.dtype), ct.load_tile(y, (BN, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def products(text: str, rows: int = 128, columns: int = 256) -> Function:
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(rows, columns, dtype=bf16), "x": operand, "y": operand}
    more: dict[str, Type] = {"u": operand, "v": operand} if "u: Tensor" in text else {"n": scalar(i32)}
    return written(text, {**given, **more})


PROGRAMS: dict[str, tuple[Callable[[], Function], int]] = {
    "attention 128": (attention_program, 3),
    "attention 64": (lambda: attention_program(64), 3),
    "causal attention": (lambda: attention_program(causal=True), 4),
    "attention of 192 rows": (lambda: attention_program(64, 192), 3),
    "attention of 64 rows": (lambda: attention_program(64, 64, 64), 3),
    "attention of a window": (lambda: attention_program(causal=True, window=1024), 4),
    "attention of a window of 192 rows": (lambda: attention_program(64, 192, causal=True, window=1024), 4),
    "attention 256": (lambda: attention_program(256, keys=64, causal=True), 4),
    "packed attention": (packed_program, 4),
    "attention of 8-bit floats": (eight_program, 3),
    "decoding": (decode_program, 4),
    "decoding with latent keys": (latent_program, 5),
    "decoding of pages": (lambda: decode_program(64), 4),
    "scales of blocks": (scaled_program, 1),
    "steps with scales": (stepped_program, 1),
    "SwiGLU": (swiglu_program, 1),
    "two loops": (lambda: products(TWO_LOOPS), 1),
    "a branch": (lambda: products(BRANCH), 1),
    "nested loops": (lambda: products(NESTED), 1),
    "a loop that loads nothing": (lambda: products(STEADY), 1),
    "a left operand of sums, stored by TMA": (lambda: products(WEIGHED, columns=64), 1),
}
"""Kernels, and the pipelines that each has; where tile blocks differ, one is for their numbers."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_pipeline_is_proved(name: str) -> None:
    make, count = PROGRAMS[name]
    function = lowered(make())
    verify(function)
    assert [name for name, _ in function.facts["refused"]] == ["specialised warps"]
    assert len([op for op in function.walk() if isinstance(op, Pipeline)]) == count
    assert not any(isinstance(op, Mma) for op in function.walk())
    assert check_function(function) >= 9  # one for each tile block, at least
    assert check_layouts(function) > 3
    assert function.facts["shared_bytes"] <= 232448


@pytest.mark.parametrize(("depth", "stages"), [(64, {2}), (128, {2}), (256, set[int]())])
def test_steps_without_a_loop_have_two_stages(depth: int, stages: set[int]) -> None:
    """With one, consumers wait for a stage that they hold: what has no room for two is lowered otherwise."""
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": operand, "w": operand, "s": scalar(), "t": scalar()}
    function = lowered(written(STRAIGHT.replace("K)", f"{depth})"), given))
    check_function(function)
    assert {op.stages for op in function.walk() if isinstance(op, Pipeline)} == stages


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "attention of 192 rows",
        "attention of a window of 192 rows",
        "attention 256",
        "attention of 8-bit floats",
        "packed attention",
        "decoding of pages",
        "decoding with latent keys",
        "scales of blocks",
        "SwiGLU",
    ],
)
def test_nothing_spills_and_nothing_is_serialised(name: str, tmp_path: Any) -> None:
    make, _ = PROGRAMS[name]
    built = compiled(make())
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    names = instructions(built, tmp_path)
    assert any(each.startswith(("HGMMA", "QGMMA")) for each in names)
    assert any(each.startswith("UTMALDG") for each in names)
    assert not any(each.startswith("HMMA") for each in names)


@pytest.mark.slow
def test_a_softmax_of_rows_behind_a_product_does_not_spill() -> None:
    """Its sums start at zeros: registers that nobody sets would be kept beside the tile that the softmax holds."""
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(128, 256, dtype=bf16), "x": operand, "w": operand}
    built = compiled(shipped(product_softmax, given))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log


def test_a_lowered_kernel_reads_back() -> None:
    function = lowered(attention_program())
    again = parse(print_function(function), {op.name: type(op) for op in function.walk()} | dict(OPS))
    assert again == function


def test_what_two_products_share_is_loaded_once() -> None:
    function = lowered(swiglu_program())
    assert sorted(op.x.name for op in function.walk() if isinstance(op, TmaLoad)) == ["gate", "up", "x"]
    assert any(isinstance(op, TmaStore) for op in function.walk())


def test_a_loop_that_only_multiplies_waits_for_the_iteration_before() -> None:
    (roles,) = (op for op in lowered(swiglu_program()).walk() if isinstance(op, Roles))
    loops = [op for op in roles.consumer.walk() if isinstance(op, For)]
    inner = loops[-1].body.operations
    assert len([op for op in inner if isinstance(op, Dot)]) == 2
    assert [(op.pending, op.goes_on) for op in inner if isinstance(op, DotWait)] == [(2, True)]


@pytest.mark.parametrize(("program", "values_first"), [(attention_program, False), (eight_program, True)])
def test_the_next_scores_are_begun_beside_values(program: Callable[[], Function], *, values_first: bool) -> None:
    (roles,) = (op for op in lowered(program()).walk() if isinstance(op, Roles))
    loops = [op for op in roles.consumer.walk() if isinstance(op, For)]
    body = [op for op in loops[-1].body.operations if isinstance(op, Dot | DotWait)]
    kinds = [(type(op).__name__, op.from_registers if isinstance(op, Dot) else op.pending) for op in body]
    waits = [("DotWait", 0 if values_first else 1), ("DotWait", 0)]
    assert kinds == [("Dot", values_first), ("Dot", not values_first), *waits]


def test_rows_and_columns_of_a_square_tile_are_counted_apart() -> None:
    """One operation counts both in the kernel; what counts columns is made where they lie, and waits for no barrier."""
    function = lowered(attention_program(causal=True))
    assert not any(op.attributes.get("how") == "move" for op in function.walk())
    counts = {op.attributes["layout"] for op in function.walk() if isinstance(op, Iota)}
    assert len(counts) == 2


def test_steps_of_k_share_a_pipeline_and_take_turns_in_two_sets_of_registers() -> None:
    """Each step's sums are scaled while the one behind it is multiplied: waits leave one product under way."""
    (roles,) = (op for op in lowered(stepped_program()).walk() if isinstance(op, Roles))
    body = [op for op in roles.consumer.walk() if isinstance(op, For)][-1].body.operations
    dots = [op for op in body if isinstance(op, Dot)]
    waits = [op for op in body if isinstance(op, DotWait)]
    assert [op.pending for op in waits] == [1, 1, 1, 0]
    assert len({op.right for op in dots}) == 1  # one buffer, whose stages are gone through
    assert [op.fresh for op in dots] == [True, True, False, False]
    assert [op.sums[0] for op in dots[2:]] == [op.result for op in waits[:2]]


CHAINS = """
def chains(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, f32)
    for k in range(n):
        left, right = ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j))
        sums = ct.mma(left, right, ct.mma(left, right, ct.constant(0, z.shape, f32)))
        more = ct.mma(ct.load_tile(x, (128, 64), (i + 1, k)), right, ct.constant(0, z.shape, f32))
        acc = acc + sums * more
    z.store(acc.astype(z.dtype))
"""


def test_sums_that_another_product_adds_to_keep_their_registers() -> None:
    (roles,) = (op for op in lowered(products(CHAINS, columns=64)).walk() if isinstance(op, Roles))
    assert [op.fresh for op in roles.consumer.walk() if isinstance(op, Dot)] == [True, False, True]
    assert not any(op.replaces for op in roles.consumer.walk() if isinstance(op, Dot))


def test_consumers_meet_no_more_often_than_they_have_to() -> None:
    """In the sum over warps and behind weights: in the next greatest score they meet again before either is written."""
    (roles,) = (op for op in lowered(latent_program()).walk() if isinstance(op, Roles))
    body = next(op for op in roles.consumer.walk() if isinstance(op, For)).body.operations
    reductions = [op for op in body if isinstance(op, Reduce)]
    assert [op.attributes["fence"] for op in reductions] == [False] * len(reductions)
    assert sum(isinstance(op, Barrier) for op in body) == 1


# The order of tile blocks.

TRIANGLE = """
def triangle(z: Mut, x: Tensor, y: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range({bounds}):
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize(
    ("bounds", "order"),
    [
        ("n", Order()),
        ("i + 1", Order(True, (0,))),
        ("max((j * BN + 63) // 64 - 1, 0)", Order(True, (1,))),
        ("i, n", Order(True)),  # the first one is the longest
        ("i, n + j", Order(True, (1,))),
        ("i, n + i", Order(True)),
        ("n - i, n", Order(True, (0,))),
        ("i * n", Order(True)),  # n may be negative
        ("i % 8", Order(True)),
        ("1024 // (i + 1)", Order(True)),  # the first one is the longest
        ("-i, n", Order(True, (0,))),
    ],
)
def test_tile_blocks_that_differ_are_taken_the_longest_first(bounds: str, order: Order) -> None:
    found = plan(Kernel(products(TRIANGLE.format(bounds=bounds))), architecture("sm_90a"), CompileOptions())
    assert found.tiles.order == order


def test_a_loop_in_a_loop_of_the_same_length_differs_for_no_tile_block() -> None:
    found = plan(Kernel(products(NESTED.replace("1))", "1) - t)"))), architecture("sm_90a"), CompileOptions())
    assert found.tiles.order == Order()


def test_the_axis_along_which_tile_blocks_grow_is_the_slowest() -> None:
    for causal, expected in ((True, [(0, 1, False), (0, 1, True), (0, 1, False)]), (False, [(0, 1, False)] * 3)):
        function = lowered(attention_program(causal=causal))
        (roles,) = (op for op in function.walk() if isinstance(op, Roles))
        found = [(op.rows, op.columns, op.backwards) for op in roles.consumer.walk() if isinstance(op, TileIndex)]
        assert found == expected
        assert any(isinstance(op, NextTile) for op in function.walk()) == causal
        assert {op.group for op in roles.consumer.walk() if isinstance(op, TileIndex)} == {32 if causal else 12}


def test_a_thread_block_goes_on_with_its_next_tile_block_as_soon_as_may_be() -> None:
    """Its producer asks for that behind all loads; consumers give up what loops have read ahead of what they store."""
    (roles,) = (op for op in lowered(attention_program(causal=True)).walk() if isinstance(op, Roles))
    order = {type(op): at for at, op in enumerate(roles.producer.walk())}  # of the last of each kind
    assert order[TmaLoad] < order[NextTile]
    queries, stored, tiles = [op for op in roles.consumer.walk() if isinstance(op, PipelineRelease | TmaStore)][-3:]
    assert isinstance(stored, TmaStore)
    released = [op.pipeline.name for op in (queries, tiles) if isinstance(op, PipelineRelease)]
    assert released == ["q_pipeline", "tiles_pipeline"]


# Rotation is a pass of tile IR: its meaning is that of the loop.


def chained(causal: bool = False) -> Function:
    return attention_program(32, 32, 32, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_a_rotated_loop_is_valid_and_has_its_products_apart(causal: bool) -> None:
    function = chained(causal)
    rotated = rotate(function)
    verify(rotated)
    count = sum(isinstance(op, Mma) for op in function.walk())
    assert sum(isinstance(op, Mma) for op in rotated.walk()) == 2 * count
    unchained = swiglu_program()
    assert rotate(unchained) is unchained
    assert print_function(rotate(products(NESTED))) == print_function(products(NESTED))


@pytest.mark.parametrize(("rows", "keys"), [(40, 100), (64, 32), (33, 31), (32, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_rotated_loop_means_the_same(rows: int, keys: int, causal: bool) -> None:
    """By NumPy, on edges of rows and keys, on one iteration and on none."""
    function = chained(causal and keys >= rows)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, count, 32)).astype(bf16.numpy) for count in (rows, keys, keys))
    results: list[np.ndarray[Any, Any]] = []
    for program in (function, rotate(function)):
        o = np.full(q.shape, np.nan, bf16.numpy)
        values: dict[Value, Any] = dict(zip(program.parameters, (o, q, k, v, np.float32(0.2)), strict=True))
        grid = (2, -(-rows // 32), 1)
        for head, tile in np.ndindex(grid[:2]):
            with np.errstate(all="ignore"):  # of no key, nothing is divided by nothing
                run_block(program, values, (head, tile, 0), grid)
        results.append(o.astype(np.float32))
    np.testing.assert_array_equal(results[0], results[1])


# Refusals, by their reasons.


def refusal(function: Function, **options: Any) -> str:
    with pytest.raises(Refused) as reason:
        plan(Kernel(function), architecture("sm_90a"), CompileOptions(**options))
    return str(reason.value)


def test_the_reason_is_said() -> None:
    assert refusal(products(NESTED, 96)) == "a tile of 96 rows is no whole number of 64"
    assert refusal(swiglu_program(128, 256)).startswith("a thread would hold 256 sums and operands")
    assert refusal(products(NESTED, 192)) == "a thread would hold 128 sums of one product, and 96 at most compile"
    assert refusal(products(NESTED), num_worker_warps=4) == "4 worker warps are asked for, the tiles have 8"
    assert refusal(products(NESTED), num_cta_in_cga=2) == "2 blocks to a cluster are asked for"
    with pytest.raises(Refused, match=r"sm_80 has no warp group products \(sm_90a has\)"):
        plan(Kernel(products(NESTED)), architecture("sm_80"), CompileOptions())


def test_stages_are_powers_of_two_and_fill_shared_memory() -> None:
    found = plan(Kernel(rotate(attention_program())), architecture("sm_90a"), CompileOptions())
    assert found.stages == (2, 2, 2)  # of queries, keys and values: 32 KiB each


# What the model must find.


def _all_blocks(block: Block) -> list[Block]:
    return [block, *(each for op in block.operations for nested in op.regions for each in _all_blocks(nested))]


def _without(function: Function, unwanted: Callable[[Op], bool]) -> None:
    for block in _all_blocks(function.body):
        block.operations[:] = [op for op in block.operations if not unwanted(op)]


def _is_last_of(kind: type[Op], function: Function) -> Callable[[Op], bool]:
    last = [op for op in function.walk() if isinstance(op, kind)][-1]
    return lambda op: op is last


def never_released(function: Function) -> None:
    _without(function, _is_last_of(PipelineRelease, function))


def never_waited_for(function: Function) -> None:
    _without(function, _is_last_of(PipelineWait, function))


def released_while_read(function: Function) -> None:
    """The second product of a step is not waited for before its stage is released."""
    for op in function.walk():
        if isinstance(op, DotWait) and op.pending == 0:
            op.attributes["pending"] = 1


def tile_never_released(function: Function) -> None:
    _without(function, lambda op: isinstance(op, PipelineRelease) and op.warps)


def tile_read_too_early(function: Function) -> None:
    (number,) = (op for op in function.walk() if isinstance(op, ReceiveTile))
    _without(function, lambda op: isinstance(op, PipelineWait) and op.pipeline is number.pipeline)


def tile_released_by_one_warp(function: Function) -> None:
    for op in function.walk():
        if isinstance(op, PipelineRelease):
            op.attributes["warps"] = False


FAULTS = (
    *((False, fault) for fault in (never_released, never_waited_for, released_while_read)),
    *((True, fault) for fault in (tile_never_released, tile_read_too_early, tile_released_by_one_warp)),
)


@pytest.mark.parametrize(("causal", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_broken_protocol_is_found(causal: bool, fault: Callable[[Function], None]) -> None:
    function = lowered(attention_program(causal=causal))
    check_function(function)
    fault(function)
    with pytest.raises(ProtocolError):
        check_function(function)


def test_pipelines_that_wait_for_each_other_are_found() -> None:
    """The producer fills the first pipeline twice before the second; its only stage is released behind a wait for the
    second. Each pipeline alone is in order."""
    first, second = Value(PipelineType(1, 1, 1), "first"), Value(PipelineType(1, 1, 1), "second")

    def event(what: str, count: int, pipeline: Value) -> Event:
        return Event(what, count, pipeline=pipeline)

    reads = [
        *(event("wait", 0, first), event("wait", 0, second), event("release", 0, first), event("release", 0, second)),
        *(event("wait", 1, first), event("release", 1, first)),
    ]
    right = [event("acquire", 0, first), event("acquire", 0, second), event("acquire", 1, first)]
    check_together({first: 1, second: 1}, right, [reads])
    with pytest.raises(ProtocolError, match="deadlock"):
        check_together({first: 1, second: 1}, [right[0], right[2], right[1]], [reads])


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((3, 512, 512, 128), (128, 128)),
        ((2, 300, 700, 64), (128, 128)),
        ((4, 1000, 1000, 128), (128, 64)),
        ((2, 130, 200, 64), (64, 64)),
        ((2, 500, 700, 64), (192, 128)),
    ],
    ids=str,
)
def test_attention_is_right_on_a_gpu(shape: tuple[int, ...], tile: tuple[int, int], causal: bool) -> None:
    heads, rows, keys, width = shape
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((heads, count, width)).astype(np.float16) for count in (rows, keys, keys))
    with Device(0):
        tensors = [api.from_numpy(each).sync() for each in (q, k, v)]
        out = api.full(float("nan"), q.shape, f16).sync()
        result = attend(*tensors, out=out, causal=causal, tile=tile).sync().to_numpy().sync()
    wanted = attention_of(*(each.astype(np.float64) for each in (q, k, v)), causal=causal)
    error = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
    assert error < 2e-3
