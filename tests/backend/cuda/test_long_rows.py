"""Rows in shared memory and over clusters: they compute what the kernel means, and are read once."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile import CompileOptions, api
from cutile.backend.cuda.grids import PersistentGrid, launch_blocks
from cutile.backend.cuda.held_rows import held_rows
from cutile.backend.cuda.long_rows import cluster_rows, narrow_extremes, plan_row
from cutile.backend.cuda.ops import ClusterArrive, ClusterRank, ClusterReduce, HeldSlice, HoldRow, StageTile
from cutile.backend.cuda.target import architecture
from cutile.backend.gpu.row_axis import row_axis
from cutile.backend.interface import Target
from cutile.backend.reference.interpret import Walker, load, run_block
from cutile.dtypes import DTypeLike, bf16, f32, i32, i64
from cutile.ir.core import Function, Op, Value
from cutile.ir.text import print_function
from cutile.ir.types import MutType, Type
from cutile.ir.verify import verify
from tests.backend.cuda.programs import compiled, disassembly, instructions, lowered, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.support.golden import Golden
from tests.support.kernels import define
from tests.support.programs import scalar, tensor

Array = np.ndarray[Any, Any]

SOFTMAX = """
def softmax(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))
"""
NORM = """
def norm(y: Mut, mean: Mut, x: Tensor, w: Tensor, eps: f32):
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(f32)
    m = ct.reduce_sum(t, 1) / n
    t = t - m[:, None]
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    mean.store(m)
    y.store((t * scale * ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]).astype(y.dtype))
"""
INPLACE = """
def inplace(y: Mut, x: Tensor):
    t = y.load().astype(f32)
    y.store((t - ct.reduce_sum(t * ct.load_tile_like(x, y).astype(f32), 1)[:, None]).astype(y.dtype))
"""
PLACES = """
def places(y: Mut, x: Tensor, n: i32):
    t = x.partition(y.shape, padding=ct.padding.NEG_INF).load((ct.get_tile_block_id()[0], 0))
    inside = ct.iota((y.shape[1],))[None, :].broadcast(y.shape) < n
    t = ct.select(inside, t, -1000.0)
    y.store(t - ct.reduce_max(t, 1)[:, None] + ct.reduce_min(t, 1)[:, None])
"""
WIDE_PLACES = """
def wide_places(y: Mut, x: Tensor, n: i64):
    t = ct.load_tile_like(x, y)
    t = ct.select(ct.iota((y.shape[1],), i64)[None, :].broadcast(y.shape) < n, t, -1000.0)
    y.store(t - ct.reduce_max(t, 1)[:, None])
"""
INTEGERS = """
def integers(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y)
    y.store(t - ct.reduce_max(t, 1)[:, None] + ct.reduce_sum(t, 1)[:, None])
"""


def kernels(rows: int, columns: int) -> dict[str, tuple[Function, list[Array]]]:
    """Each kernel with arguments whose last row lacks columns."""
    rng = np.random.default_rng(rows * columns)

    def drawn(*shape: int, dtype: DTypeLike = bf16) -> Array:
        return np.asarray(rng.standard_normal(shape) * 4).astype(dtype.numpy)

    def mut(dtype: DTypeLike = bf16) -> MutType:
        return MutType(tensor(2, dtype), (rows, columns))

    short = columns - 40
    y, m = np.zeros((2 * rows, short), bf16.numpy), np.zeros((2 * rows,), np.float32)
    wide: dict[str, tuple[str, dict[str, Type], list[Any]]] = {
        "softmax": (SOFTMAX, {"y": mut(), "x": tensor(2, bf16)}, [y, drawn(2 * rows, short)]),
        "norm": (
            NORM,
            {"y": mut(), "mean": MutType(tensor(1), (rows,)), "x": tensor(2, bf16), "w": tensor(1, bf16),
             "eps": scalar(f32)},
            [y, m, drawn(2 * rows, short), drawn(short), np.float32(1e-5)],
        ),
        "inplace": (INPLACE, {"y": mut(), "x": tensor(2, bf16)}, [drawn(2 * rows, short), drawn(2 * rows, short)]),
        "places": (
            PLACES,
            {"y": mut(f32), "x": tensor(2, f32), "n": scalar(i32)},
            [y.astype(np.float32), drawn(2 * rows, short, dtype=f32), np.int32(short - 7)],
        ),
        "wide_places": (
            WIDE_PLACES,
            {"y": mut(f32), "x": tensor(2, f32), "n": scalar(i64)},
            [y.astype(np.float32), drawn(2 * rows, short, dtype=f32), np.int64(short - 7)],
        ),
        "integers": (
            INTEGERS, {"y": mut(i32), "x": tensor(2, i32)},
            [y.astype(np.int32), drawn(2 * rows, short, dtype=f32).astype(np.int32)],
        ),
    }  # fmt: skip
    return {name: (written(text, types), arguments) for name, (text, types, arguments) in wide.items()}


WARPS = 1
NAMES = ("softmax", "norm", "inplace", "places", "wide_places", "integers")


class RowWalker(Walker):
    """A thread block, with the rows that it holds; `rank` in its cluster."""

    rank = 0

    def __init__(self, values: MutableMapping[Value, Array], index: Any, grid: Any) -> None:
        super().__init__(values, index, grid)
        self.held: dict[int, list[Array]] = {}

    def operation(self, op: Op) -> Sequence[Array]:
        match op:
            case HoldRow():
                starts = [int(self.values[each]) for each in op.index]
                starts[op.axis] *= op.parts
                parts = [[*starts] for _ in range(op.parts)]
                for number, at in enumerate(parts):
                    at[op.axis] += number
                self.held[op.row] = [load(self.values[op.x], op.shape, at) for at in parts]
                return []
            case HeldSlice():
                slices = self.held[op.row]
                if op.result.tile.size > slices[0].size:  # the whole row
                    return [np.concatenate(slices, -1)]
                return [slices[int(self.values[op.part])].copy()]
            case ClusterRank():
                return [np.asarray(self.rank, np.int32)]
            case ClusterArrive():
                return []
            case _:
                return super().operation(op)


FOLDS = {"reduce_sum": np.add, "reduce_max": np.fmax, "reduce_min": np.fmin}


def run_cluster(function: Function, values: dict[Value, Array], index: Any, grid: Any, blocks: int) -> None:
    """All blocks of a cluster, one after the other up to each reduction, where they meet."""
    walkers = [RowWalker(dict(values), index, grid) for _ in range(blocks)]
    for rank, walker in enumerate(walkers):
        walker.rank = rank
    stretch: list[Op] = []
    for op in (*function.body.operations, None):
        if isinstance(op, ClusterReduce | None):
            for walker in walkers:
                for each in stretch:
                    walker.values.update(zip(each.results, walker.operation(each), strict=True))
            stretch = []
        else:
            stretch.append(op)
        if isinstance(op, ClusterReduce):
            assert op.blocks == blocks
            total = walkers[0].values[op.x]
            for walker in walkers[1:]:
                total = FOLDS[op.kind](total, walker.values[op.x]).astype(total.dtype)
            for walker in walkers:
                walker.values[op.result] = total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("blocks", "parts"), [(1, 4), (4, 1), (2, 3)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 3072), (3, 192)])
def test_slices_compute_what_the_kernel_means(name: str, blocks: int, parts: int, rows: int, columns: int) -> None:
    function, arguments = kernels(rows, columns)[name]
    sliced = narrow_extremes(function)
    row = row_axis(sliced)
    assert row is not None
    assert row.extent == columns
    if blocks > 1:
        sliced, row = cluster_rows(sliced, row, blocks)
        verify(sliced)
    if parts > 1:
        assert row.extent == columns // blocks
        sliced = held_rows(sliced, row, parts, WARPS)
        verify(sliced)
        slices = {op.result.tile.size for op in sliced.walk() if isinstance(op, HeldSlice)}
        own = rows * columns // blocks
        whole: set[int] = {own} if name == "softmax" and rows == 1 and own % (32 * WARPS * 8 * parts) == 0 else set()
        assert slices == (set() if name == "places" else {own // parts} | whole)  # which pads otherwise
    results: list[list[Array]] = []
    for program in (function, sliced):
        copies = [np.array(argument) for argument in arguments]
        values = dict(zip(program.body.arguments, copies, strict=True))
        for tile in range(2):
            if program is function:
                run_block(program, values, (tile, 0, 0), (2, 1, 1))
            else:
                run_cluster(program, values, (tile, 0, 0), (2, 1, 1), blocks)
        results.append([copy.astype(np.float64) for copy in copies])
    for expected, result in zip(*results, strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2)
        assert np.abs(result - expected).mean() <= 1e-3 * np.abs(expected).mean()


ROW = tensor(2, bf16)


def softmax_of(columns: int) -> Function:
    """A softmax of whole rows of bf16."""
    return written(SOFTMAX, {"y": MutType(ROW, (1, columns)), "x": ROW})


def test_the_passes_are_golden(golden: Golden) -> None:
    function = narrow_extremes(softmax_of(65536))
    row = row_axis(function)
    assert row is not None
    sliced, short = cluster_rows(function, row, 2)
    golden("passes/cluster_rows.ir", print_function(sliced))
    golden("passes/held_rows.ir", print_function(held_rows(sliced, short, 4, 8)))


@pytest.mark.parametrize(("arch", "blocks"), [("sm_80", 1), ("sm_90a", 2), ("sm_100a", 4)])
def test_machine_code_reads_a_row_once_and_spills_nothing(arch: str, blocks: int, tmp_path: Path) -> None:
    """Of 65536 elements of bf16, of which threads of 16 warps would spill 1.7 KB each."""
    executable = compiled(softmax_of(65536), arch, num_cta_in_cga=None if blocks == 2 else blocks)
    assert_clean(executable)
    assert executable.facts["shared_bytes"] // 1024 == 128 // blocks
    text = disassembly(executable, tmp_path)
    assert re.findall(r"\bLDG\b", text) == []  # no load but the copies to shared memory
    counts = instructions(executable, tmp_path)
    words = 65536 // blocks // (32 * (16 if arch == "sm_80" else 8)) // 2  # of a thread
    if arch == "sm_80":
        assert counts["HMNMX2.BF16_V2"] == words - 1
        return
    # One instruction takes three words: 6 elements. Ties of quotients are looked for in two at a time.
    assert counts["VHMNMX.BF16_V2"] >= words // 2 - 1
    assert counts["HMNMX2.BF16_V2"] <= 1
    assert counts["VIADDMNMX.U16"] >= 14
    # What blocks send each other is counted by barriers in shared memory. A barrier of the cluster stands at the top
    # alone, and releases nothing: it would wait for all stores to global memory.
    sends = 2 * (blocks > 1)
    assert [len(re.findall(rf"\b{name}\b", text)) for name in ("STAS", "UCGABAR_ARV", "MEMBAR")] == [
        sends,
        int(blocks > 1),
        0,
    ]


def test_rows_are_cut_where_they_do_not_fit_registers() -> None:
    def plan(columns: int, arch: str = "sm_90a", text: str = SOFTMAX, **options: Any) -> tuple[int, int, int] | None:
        function = written(text, {"y": MutType(ROW, (1, columns)), "x": ROW})
        row = row_axis(function)
        assert row is not None
        chosen = plan_row(function, row, architecture(arch), CompileOptions(**options))
        return None if chosen is None else (chosen.blocks, chosen.warps, chosen.parts)

    lengths = (8192, 16384, 32768, 65536)
    assert [plan(columns) for columns in lengths] == [(1, 4, 2), (1, 8, 2), (1, 8, 4), (2, 8, 4)]
    assert plan(4096) is None
    assert [plan(columns) for columns in (128256, 262144)] == [(4, 8, 4), (8, 8, 4)]
    assert plan(128256, num_cta_in_cga=8) == (8, 8, 2)
    assert plan(65536, num_cta_in_cga=2, num_worker_warps=4) == (2, 4, 8)
    assert plan(65536, "sm_80", num_cta_in_cga=2) == (1, 16, 4)  # there are none
    assert plan(128256, "sm_80") is None  # it does not fit
    cheap = SOFTMAX.replace("ct.exp(", "(")  # nothing takes long to be computed again
    lengths = (2048, 4096, 8192, 16384)
    assert [plan(columns, text=cheap) for columns in lengths] == [None, (1, 4, 1), (1, 4, 2), (1, 8, 2)]
    assert [plan(columns, text=cheap) for columns in (32768, 65536)] == [(2, 8, 2), (2, 8, 4)]
    assert plan(32768, "sm_80", cheap) == (1, 8, 4)
    assert plan(65537) is None  # nothing but single elements can be copied


def test_a_cluster_that_a_kernel_does_not_get_is_refused_by_name() -> None:
    def refusal(text: str, columns: int, blocks: int, arch: str = "sm_90a") -> str:
        function = written(text, {"y": MutType(ROW, (1, columns)), "x": ROW})
        facts = lowered(function, Target("cuda", arch), num_cta_in_cga=blocks).facts
        return dict(facts.get("refused", ())).get("rows in a cluster", "")

    assert [refusal(SOFTMAX, 65536, blocks) for blocks in (1, 2, 4)] == ["", "", ""]
    for blocks in (3, 16):
        expected = f"{blocks} blocks to a cluster are asked for; 1, 2, 4 or 8 share a row"
        assert refusal(SOFTMAX, 65536, blocks) == expected
    assert refusal(SOFTMAX, 32768, 2, "sm_80") == "2 blocks to a cluster are asked for: sm_80 has no clusters"
    copy = "def copy(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n"
    for text, columns in ((SOFTMAX, 1024), (copy, 65536)):
        assert refusal(text, columns, 2) == "2 blocks to a cluster are asked for: there is no row that they would share"
    plan = source(softmax_of(1024), num_cta_in_cga=16).facts["plan"]
    (why,) = (line for heading, line in plan if heading == "why not better")
    assert why.startswith("rows in a cluster: 16 blocks to a cluster are asked for")
    assert why.endswith("Leave out num_cta_in_cga")


def test_rows_that_many_loads_wait_for_are_held_when_they_are_long() -> None:
    """Of a sum of three rows that is reduced twice; of two it is as of one."""

    def plan(columns: int, *names: str) -> bool:
        total = " + ".join(f"ct.load_tile_like({name}, y).astype(f32)" for name in names)
        text = (
            f"def norm(y: Mut, {', '.join(f'{name}: Tensor' for name in names)}):\n    t = {total}\n"
            "    t = t - ct.reduce_sum(t, 1)[:, None]\n"
            "    y.store((t - ct.reduce_max(t, 1)[:, None]).astype(y.dtype))\n"
        )
        function = written(text, {"y": MutType(ROW, (1, columns)), **dict.fromkeys(names, ROW)})
        row = row_axis(function)
        assert row is not None
        return plan_row(function, row, architecture("sm_90a"), CompileOptions()) is not None

    assert [plan(columns, "u", "v") for columns in (2048, 4096, 8192)] == [False, True, True]
    assert [plan(columns, "u", "v", "w") for columns in (4096, 8192, 16384)] == [False, False, True]


COUNTED = """
def counted(y: Mut, c: Mut, x: Tensor):
    t = ct.load_tile_like(x, y).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    total = ct.reduce_sum(e, 1)[:, None]
    scale = c.load()
    y.store((scale * e / total).astype(y.dtype))
    c.store(scale + 1)
"""
"""A softmax that counts how often it ran, and computes with that."""


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (COUNTED, 1),
        (COUNTED.replace("scale + 1", "total"), 1),
        (
            COUNTED.replace("c.load()", "2.0").replace("scale + 1", "total"),
            2,
        ),
        (COUNTED.replace("c.load()", "2.0").replace("ct.load_tile_like(x, y)", "y.load()"), 2),
    ],
)
def test_no_thread_block_of_a_cluster_stores_what_another_one_has_yet_to_load(text: str, blocks: int) -> None:
    types: dict[str, Type] = {"y": MutType(ROW, (1, 65536)), "c": MutType(tensor(2), (1, 1)), "x": ROW}
    function = written(text, types)
    assert lowered(function).facts.get("cluster", 1) == blocks
    row = row_axis(function)
    assert row is not None
    sliced, _ = cluster_rows(function, row, 2)
    random, results = np.random.default_rng(0), list[Array]()
    drawn = random.standard_normal((1, 65536)).astype(bf16.numpy)
    for program, count in ((function, 1), (sliced, 2)):
        y, c = drawn.copy(), np.full((1, 1), 3, np.float32)
        run_cluster(program, dict(zip(program.body.arguments, (y, c, drawn), strict=True)), (0, 0, 0), (1, 1, 1), count)
        results.append(y.astype(np.float32) * 1e4)
    close = np.allclose(*results, rtol=2e-2)
    assert close or blocks == 1
    assert not close or text != COUNTED  # the second block has loaded what the first one has stored


def test_what_is_no_plain_row_stays_as_it_is() -> None:
    """Loops, scans, two stores to one tensor, and what people see."""
    loop = "for k in range(2):\n        t = t + k"
    texts = {
        "loop": SOFTMAX.replace("e = ct", f"{loop}\n    e = ct"),
        "scan": SOFTMAX.replace("ct.exp(t - ", "ct.exp(ct.scan_sum(t, 1) - "),
        "twice": SOFTMAX + "    y.store(t.astype(y.dtype))\n",
        "print": SOFTMAX + "    ct.print_tko('{}', ct.reduce_sum(t, 1).reshape(()))\n",
    }
    types = {"y": MutType(ROW, (1, 4096)), "x": ROW}
    assert {name: row_axis(written(text, types)) for name, text in texts.items()} == dict.fromkeys(texts)


def test_a_plan_is_told() -> None:
    text = "\n".join(f"{name}: {line}" for name, line in source(softmax_of(65536)).facts["plan"])
    assert "x: held from pass to pass, 64 KiB in shared memory, read in 4 slices, filled by one copy (TMA)" in text
    assert "a cluster of 2 thread blocks for each tile: each has a slice of its rows" in text


def test_a_launch_has_a_cluster_for_each_tile_block() -> None:
    facts = lowered(softmax_of(65536), num_cta_in_cga=4).facts
    grid = PersistentGrid(facts)
    assert (grid.plain, grid.blocks(launch_blocks((3, 5, 1)), 0)) == (False, 60)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [None, 2, 8])
@pytest.mark.parametrize(("rows", "columns"), [(1, 65536), (2, 24576)])
def test_long_rows_agree_with_float64_on_a_gpu(rows: int, columns: int, blocks: int | None) -> None:
    """Twice the same, to the bit."""
    kernel = define(SOFTMAX)
    x = np.random.default_rng().standard_normal((5, columns)).astype(np.float32)
    options = CompileOptions(num_cta_in_cga=blocks)
    results: list[Array] = []
    with Device(0):
        tensor_x = api.from_numpy(x).sync()
        for _ in range(2):
            y = api.full(np.nan, x.shape).sync()
            ct.entry(kernel)(y.mut.partition((rows, columns)), tensor_x).compile_options(options).sync()
            results.append(y.to_numpy().sync())
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    assert np.linalg.norm(results[0] - exact) < 1e-6 * np.linalg.norm(exact)
    np.testing.assert_array_equal(results[0], results[1])


Reduction = tuple[int, int]
"""Where the words of all blocks arrive, and the barrier that counts their bytes."""


def cluster_of(reductions: Sequence[Reduction], blocks: int, seed: int, waits: bool = True) -> None:
    """Blocks of a cluster in a drawn order: each sends its words one by one, and waits for all that come to it."""
    memory: list[dict[int, Any]] = [{} for _ in range(blocks)]
    counts: list[Counter[int]] = [Counter() for _ in range(blocks)]
    started, ended = set[int](), set[int]()

    def block(rank: int) -> Iterator[None]:
        yield
        started.add(rank)
        for number, (place, counter) in enumerate(reductions):
            while waits and not number and len(started) < blocks:
                yield
            for peer in range(blocks):
                assert peer in started - ended, f"block {rank} writes to block {peer}, which does not run"
                assert place + 4 * rank not in memory[peer], "a place is written twice"
                memory[peer][place + 4 * rank] = rank, number
                counts[peer][counter] += 4
                yield
            while counts[rank][counter] < 4 * blocks:
                yield
            words = [memory[rank][place + 4 * sender] for sender in range(blocks)]
            assert words == [(sender, number) for sender in range(blocks)]
        ended.add(rank)

    draw, running = random.Random(seed), [block(rank) for rank in range(blocks)]
    for _ in range(100_000):
        if not running:
            return
        chosen = draw.choice(running)
        if next(chosen, running) is running:
            running.remove(chosen)
    raise AssertionError("a block waits for ever")


def test_blocks_of_a_cluster_meet_in_any_order() -> None:
    function = lowered(softmax_of(65536), num_cta_in_cga=4)
    sums = [op for op in function.walk() if isinstance(op, ClusterReduce)]
    reductions = [(op.attributes["offset"], op.attributes["counter"]) for op in sums]
    for seed in range(50):
        cluster_of(reductions, 4, seed)
    with pytest.raises(AssertionError, match="does not run"):
        cluster_of(reductions, 4, 0, waits=False)
    # Nothing lies where something else does: rows, words of 16 bytes, barriers of 8.
    (row,) = {
        (op.attributes["offset"], op.stage[1] * op.stage[2]) for op in function.walk() if isinstance(op, StageTile)
    }
    places = [row, *((place, 16) for place, _ in reductions), *((counter, 8) for _, counter in reductions)]
    ends = [(first, first + size) for first, size in sorted(places)]
    assert all(end <= following for (_, end), (following, _) in pairwise(ends))
    assert ends[-1][1] <= function.facts["shared_bytes"]


def test_nothing_else_takes_the_room_of_rows() -> None:
    """Weights of f32 would be copied ahead into shared memory, and one row fewer would fit a multiprocessor."""
    x = tensor(2)
    types = {"y": MutType(x, (1, 16384)), "mean": MutType(tensor(1), (1,)), "x": x, "w": tensor(1), "eps": scalar(f32)}
    function = lowered(written(NORM, types))
    assert {op.x.name for op in function.walk() if isinstance(op, StageTile)} == {"x"}
    assert function.facts["shared_bytes"] // 1024 == 64
