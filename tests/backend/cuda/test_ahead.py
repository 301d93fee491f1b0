"""Loops that load ahead in one group of warps: what is begun when, and that nothing is touched too early."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.lower import flatten, lower
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import Barrier, StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait
from cutile.backend.cuda.target import architecture
from cutile.backend.interface import CompileOptions, Grid, Target
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import DTypeLike, bf16, f16, f32, i8, i32, i64, u8, u32, u64
from cutile.ir.control import For
from cutile.ir.core import Function, Op
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from tests.backend.cuda.programs import AMPERE, compiled, written
from tests.backend.cuda.staged import Copies, run_lowered
from tests.support.programs import mut, scalar, tensor

PRODUCTS = """
def kernel(z: Mut, x: Tensor, y: Tensor, u: Tensor, ids: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc, other = ct.constant(0, (64, 32), f32), ct.constant(0, (64, 32), f32)
    {body}
    z.store(ct.convert_tile(acc + other, z.dtype))
"""
LOOPS = {
    "two products that share an operand": """
    for k in range(ct.num_tiles(x.partition((64, 32)), 1)):
        a = ct.load_tile(x, (64, 32), (i, k))
        acc = ct.mma(a, ct.load_tile(y, (32, 32), (k, j)), acc)
        other = ct.mma(a, ct.load_tile(u, (32, 32), (k, j)), other)
    """,
    "a computed operand": """
    for k in range(n):
        b = ct.load_tile(y, (32, 32), (k, j)).astype(f32) * ct.load_tile(u, (1, 32), (k, j)).astype(f32)
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), b.astype(x.dtype), acc)
    """,
    "a chain of products": """
    q = ct.load_tile(x, (64, 32), (i, 0))
    for k in range(n):
        s = ct.mma(q, ct.load_tile(y, (32, 32), (k, j)).transpose(), ct.constant(0, (64, 32), f32))
        acc = ct.mma(ct.convert_tile(s, x.dtype), ct.load_tile(u, (32, 32), (k, j)), acc)
    """,
    "an operand that is added up too": """
    for k in range(n):
        a = ct.load_tile(x, (64, 32), (i, k))
        acc = ct.mma(a, ct.load_tile(y, (32, 32), (k, j)), acc)
        other = other + a.astype(f32)
    """,
    "any bounds": """
    for k in range(1, n + 1, 2):
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (k * 2 - 1, j)), acc)
    """,
    "downwards": """
    for k in range(n, 0, -1):
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k - 1)), ct.load_tile(y, (32, 32), (k, j)), acc)
    """,
    "a loop in a loop": """
    for t in range(2):
        for k in range(n):
            acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (k + t, j)), acc)
    """,
    "a loop in a loop that does more": """
    for t in range(2):
        for k in range(n):
            acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (k + t, j)), acc)
        acc = acc * 2.0
    """,
    "a branch in a loop": """
    for k in range(n):
        if k % 2 == 0:
            acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (k, j)), acc)
        else:
            other = other + ct.load_tile(u, (64, 32), (i, k)).astype(f32)
    """,
    "an index from memory": """
    for k in range(n):
        expert = ct.load_tile(ids, (1,), (k,)).reshape(())
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (expert, j)), acc)
    """,
    "an index that is carried": """
    at = n * 0
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (at, j)), acc)
        at = ct.load_tile(ids, (1,), (k,)).reshape(()) + at % 2
    """,
    "rows of one tile": """
    for k in range(n):
        acc = acc + ct.load_tile(u, (64, 32), (k, j)).astype(f32)
        other = other * ct.load_tile(y, (1, 32), (k, j)).astype(f32)
    """,
    "rows that all tile blocks load": """
    for k in range(n):
        acc = acc + ct.load_tile(x, (64, 32), (i, k)).astype(f32)
        other = other + ct.load_tile(u, (64, 32), (k, 0)).astype(f32)
    """,
    "two loops": """
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(y, (32, 32), (k, j)), acc)
    for k in range(n):
        other = ct.mma(ct.load_tile(x, (64, 32), (i, k)), ct.load_tile(u, (32, 32), (k, j)), other)
    """,
}


def loop(name: str, dtype: DTypeLike = bf16) -> Function:
    x = tensor(2, dtype)
    types: dict[str, Type] = {
        "z": mut(64, 32), "x": x, "y": x, "u": x, "ids": tensor(1, i32, 4), "n": scalar(i32)
    }  # fmt: skip
    return written(dedent(PRODUCTS).format(body=LOOPS[name].strip()), types)


def one_group(function: Function, arch: str = "sm_80", **options: Any) -> Function:
    return lower(function, Target("cuda", arch), CompileOptions(**options))


def all_of(function: Function, kind: type[Op]) -> list[Any]:
    return [op for op in function.walk() if isinstance(op, kind)]


def outcomes(function: Function, lowering: Function, arrays: Sequence[Any], grid: Grid = (2, 2, 1)) -> tuple[Any, Any]:
    """What the kernel writes, and what the lowered one does."""
    expected, result = arrays[0].copy(), arrays[0].copy()
    for index in np.ndindex(grid):
        run_block(
            function, dict(zip(function.parameters, map(np.asarray, [expected, *arrays[1:]]), strict=True)), index, grid
        )
    run_lowered(lowering, [result, *arrays[1:]], grid)
    return expected, result


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_touched_too_early_and_the_results_are_the_same(name: str) -> None:
    random, kind = np.random.default_rng(7), bf16.numpy
    x = random.integers(-3, 4, (100, 32 * 5 + 8)).astype(kind)
    y, u = (random.integers(-3, 4, (32 * 9 + 16, 40)).astype(kind) for _ in range(2))
    ids = random.integers(0, 9, 8).astype(np.int32)
    z = np.full((128, 64), np.nan, np.float32)
    function = loop(name)
    lowering = one_group(function)
    verify(lowering)
    for turns in (0, 1, 2, 6):
        wanted, found = outcomes(function, lowering, [z, x, y, u, ids, np.int32(turns)], (2, 1, 1))
        np.testing.assert_array_equal(found[:100, :32], wanted[:100, :32])


AHEAD = {
    "two products that share an operand": (3, 2, 0, 0),
    "a computed operand": (2, 1, 1, 1),
    "a chain of products": (2, 2, 0, 2),
    "an operand that is added up too": (2, 1, 1, 0),
    "any bounds": (2, 1, 0, 0),
    "downwards": (2, 1, 0, 0),
    "a loop in a loop": (2, 1, 0, 0),
    "a loop in a loop that does more": (2, 1, 0, 0),
    "a branch in a loop": (3, 1, 1, 0),
    "an index from memory": (2, 1, 0, 0),
    "an index that is carried": (1, 1, 0, 1),
    "rows of one tile": (1, 0, 1, 0),
    "rows that all tile blocks load": (1, 0, 1, 0),
    "two loops": (3, 2, 0, 0),
}
"""Of each loop: the places that are copied to, products of stages, reads of them into registers, what is put there."""


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_loaded_ahead(name: str) -> None:
    lowering = one_group(loop(name))
    copies = {(op.stage[0], op.attributes["offset"], op.x.name) for op in all_of(lowering, StageTile)}
    counts = (len(copies), *(len(all_of(lowering, kind)) for kind in (StagedMma, StageRead, StagePut)))
    assert counts == AHEAD[name]
    assert not all_of(lowering, Mma)


def test_a_loop_that_is_all_that_a_loop_does_is_one_with_it() -> None:
    assert len(all_of(one_group(loop("a loop in a loop")), For)) == 1
    assert len(all_of(one_group(loop("a loop in a loop that does more")), For)) == 2


NESTS = """
def kernel(z: Mut, x: Tensor, y: Tensor, a: DTYPE, b: DTYPE, c: DTYPE, d: DTYPE):
    acc, place = ct.constant(0, (32, 32), f32), ct.i32(0)
    for t in range(a, b):
        {ahead}
        for k in range(c, d):
            acc = ct.mma(x.load_tile((32, 32), ({row}, k)), y.load_tile((32, 32), (k, 0)), acc)
            {beside}
    z.store(acc)
"""
"""The lines ahead of the inner loop, the row of its loads, and what else it does; then the loops behind `flatten`."""


# Of the last ones the product of both counts is beyond 8 bits.
@pytest.mark.parametrize(
    "bounds", [(0, 2, 0, 3), (1, 3, 1, 2), (2, 1, 0, 2), (0, 2, 3, 2), (2, 0, 2, 0), (1, 1, 0, 2), (0, 3, 0, 100)]
)
@pytest.mark.parametrize("dtype", [i32, u32, i64, u64, u8], ids=str)
@pytest.mark.parametrize(
    ("ahead", "row", "beside", "count"),
    [
        ("s = t + 1", "s", "", 1),
        ("s = t * 2", "s", "place = place + 1", 1),
        ("begin = acc", "t", "acc = acc + begin", 2),
        ("s = place + 1", "s", "place = place + 1", 2),
        ("s = place", "place + s", "place = place + 1", 2),
    ],
)
def test_one_loop_for_two_means_the_same(
    ahead: str, row: str, beside: str, count: int, dtype: DTypeLike, bounds: tuple[int, int, int, int]
) -> None:
    text = NESTS.format(ahead=ahead, row=row, beside=beside).replace("DTYPE", dtype.name)
    types: dict[str, Type] = {"z": mut(32, 32), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    function = written(text, types | {name: scalar(dtype) for name in "abcd"})
    flat = flatten(function)
    verify(flat)
    assert len(all_of(flat, For)) == (count if dtype.bits >= 32 else 2)
    random = np.random.default_rng(0)
    x, y = (random.integers(-1, 2, shape).astype(bf16.numpy) for shape in ((160, 96), (96, 32)))
    numbers = np.asarray(bounds, dtype.numpy)
    results = [np.zeros((32, 32), np.float32) for _ in range(2)]
    for program, z in zip((function, flat), results, strict=True):
        run_block(program, dict(zip(program.parameters, (z, x, y, *numbers), strict=True)), (0, 0, 0), (1, 1, 1))
    np.testing.assert_array_equal(results[0], results[1])
    verify(one_group(function))


def test_threads_that_read_what_they_copied_do_not_meet() -> None:
    lowering = one_group(loop("rows of one tile"))
    assert not all_of(lowering, Barrier)
    assert [op.meet for op in all_of(lowering, StageWait)] == [False, False]
    assert all(op.own for op in all_of(lowering, StageRead))


def test_what_a_product_needs_written_is_written_before_threads_meet_once() -> None:
    lowering = one_group(loop("a computed operand"))
    assert [op.meet for op in all_of(lowering, StageWait)] == [False, True]
    assert len(all_of(lowering, Barrier)) == 1
    (put,) = all_of(lowering, StagePut)
    assert put.stage[1] == 2  # others may still read what was written in the iteration before


def test_what_the_kernel_may_write_is_not_loaded_ahead() -> None:
    text = """
        def kernel(z: Mut, x: Tensor, n: i32):
            part, i = z.partition_mut((64, 32)), ct.get_tile_block_id()[0]
            for k in range(n):
                part.store(part.load((0, k)) + ct.load_tile(x, (64, 32), (i, k)), (0, k))
    """
    made = one_group(written(dedent(text), {"z": mut(64, 256), "x": tensor(2), "n": scalar(i32)}))
    assert {op.x.name for op in all_of(made, StageTile)} == {"x"}


def test_what_all_tile_blocks_load_goes_to_registers() -> None:
    """It comes from the cache: stages in shared memory are for what comes from memory."""
    made = one_group(loop("rows that all tile blocks load"))
    assert {op.x.name for op in all_of(made, StageTile)} == {"x"}
    (around,) = all_of(made, For)
    assert len(around.carried) == 3  # both sums, and the tile of the next iteration


@pytest.mark.parametrize(("latency", "distance"), [(1, 1), (2, 2), (7, 3)])
def test_loads_run_as_far_ahead_as_they_are_told(latency: int, distance: int) -> None:
    text = """
        def kernel(z: Mut, x: Tensor):
            part, acc, j = x.partition((64, 32)), ct.constant(0, (64, 32), f32), ct.get_tile_block_id()[1]
            for k in range(ct.num_tiles(part, 0)):
                acc = acc + part.load_pipelined((k, j), latency=LATENCY)
            z.store(acc)
    """
    made = one_group(written(dedent(text).replace("LATENCY", str(latency)), {"z": mut(64, 32), "x": tensor(2)}))
    assert [op.pending for op in all_of(made, StageWait)] == [distance - 1, 0]
    assert len(all_of(made, StageCommit)) == distance + 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_there_is_always_room(arch: str) -> None:
    """Fewer stages where there is little shared memory, then none; the kernel is compiled all the same."""
    text = """
        def kernel(z: Mut, x: Tensor):
            part, acc, j = x.partition((ROWS, 128)), ct.constant(0, (ROWS, 128), f32), ct.get_tile_block_id()[1]
            for k in range(ct.num_tiles(part, 0)):
                acc = acc + part.load((k, j)).astype(f32)
            z.store(acc)
    """
    stages: list[int] = []
    for rows in (16, 128, 256, 512):
        function = written(
            dedent(text).replace("ROWS", str(rows)), {"z": mut(rows, 128), "x": tensor(2, f16 if rows < 512 else f32)}
        )
        lowering = one_group(function, arch)
        assert lowering.facts["shared_bytes"] <= architecture(arch).shared_bytes
        stages.append(max((op.stage[1] for op in all_of(lowering, StageTile)), default=0))
    assert stages[0] == 4
    assert stages == sorted(stages, reverse=True)
    assert stages[-1] == 0
    assert all_of(lowering, LoadTile)


def test_broken_order_is_found() -> None:
    elements = np.zeros(8, np.float32)
    early, unmet, over, again, twice = Copies(), Copies(), Copies(), Copies(), Copies()
    early.copy(0, elements)
    early.commit()
    with pytest.raises(ProtocolError, match="read while the copy to it is under way"):
        early.read(0)
    with pytest.raises(ProtocolError, match="written while a copy to them is under way"):
        early.put(16, elements)
    with pytest.raises(ProtocolError, match="under way when the kernel ends"):
        early.end()
    unmet.copy(0, elements)
    unmet.commit()
    unmet.wait(0)
    assert unmet.read(0, own=True) is elements
    with pytest.raises(ProtocolError, match="before the threads that wrote there have met"):
        unmet.read(0)
    over.put(0, elements)
    over.meet()
    over.read(0)
    with pytest.raises(ProtocolError, match="other threads may still read"):
        over.copy(16, elements)
    again.put(0, elements)
    with pytest.raises(ProtocolError, match="other threads may still write"):
        again.put(16, elements)
    again.meet()
    again.put(16, elements)
    twice.copy(0, elements)
    twice.commit()
    twice.copy(64, elements)
    twice.commit()
    twice.wait(1)
    twice.meet()
    assert twice.read(0) is elements
    with pytest.raises(ProtocolError, match="nothing was copied"):
        twice.read(128)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_nothing_spills(arch: str) -> None:
    for name in ("a computed operand", "a chain of products", "a branch in a loop"):
        built = compiled(loop(name), arch)
        assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), name


@pytest.mark.parametrize("dtype", [i8, f32])
def test_other_types_load_ahead(dtype: DTypeLike) -> None:
    """Of f32 and of bytes an operand that lies the other way passes through registers."""
    acc = "i32" if dtype is i8 else "f32"
    text = f"""
        def kernel(z: Mut, x: Tensor, y: Tensor, n: i32):
            acc = ct.constant(0, (64, 32), {acc})
            for k in range(n):
                acc = ct.mma(ct.load_tile(x, (64, 32), (0, k)), ct.load_tile(y, (32, 32), (k, 0)), acc)
            z.store(acc)
    """
    kind = i32 if dtype is i8 else f32
    x = tensor(2, dtype)
    function = written(dedent(text), {"z": mut(64, 32, dtype=kind), "x": x, "y": x, "n": scalar(i32)})
    lowering = one_group(function, AMPERE.arch)
    random = np.random.default_rng(3)
    left, right = (random.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((64, 128), (128, 32)))
    z = np.zeros((64, 32), kind.numpy)
    wanted, found = outcomes(function, lowering, [z, left, right, np.int32(4)], (1, 1, 1))
    np.testing.assert_array_equal(found, wanted)
    assert len(all_of(lowering, StagedMma)) == 1
    assert len(all_of(lowering, StagePut)) == (dtype is i8)
