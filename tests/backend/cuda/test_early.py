"""Kernels that are launched before the one ahead of them has ended: who waits, where, and what a launch says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import CudaGraph, Device, DeviceOp
from cuda_async.graph import Scope
from cutile import api
from cutile.backend.cuda.early_start import MOST_BLOCKS
from cutile.backend.cuda.load import load
from cutile.backend.cuda.ops import BarriersStart, GridDependencyWait, Roles, TmaPrefetch
from cutile.backend.cuda.ops.pipeline import RESOURCES
from cutile.backend.interface import Executable, Target
from cutile.dtypes import bf16, i32
from cutile.ir.core import Function
from cutile.ir.types import Type
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import LoadPointer
from cutile.ops.reduce import ReduceSum
from kernels.gemm import gemm
from tests.backend.cuda.programs import (
    AMPERE,
    HOPPER,
    compiled,
    disassembly,
    gemm_program,
    instructions,
    lowered,
    saxpy_program,
    written,
)
from tests.backend.cuda.recorder import Recorder
from tests.support.programs import mut, scalar, tensor


@pytest.mark.parametrize("tile", [(64, 64), (128, 256), (192, 160)], ids=str)
def test_a_specialised_kernel_waits_before_it_touches_memory(tile: tuple[int, int]) -> None:
    made = lowered(gemm_program(bf16, tile, 64))
    assert made.facts["early"] == "always"
    kinds = [type(op) for op in made.body.operations if not isinstance(op, RESOURCES)]
    # descriptors are arguments of the launch, and the barriers are the block's own
    assert kinds == [TmaPrefetch] * 3 + [BarriersStart, GridDependencyWait, Roles]


def test_others_are_launched_when_all_ahead_of_them_is_done() -> None:
    for made in (lowered(gemm_program(bf16, (128, 128), 32), AMPERE), lowered(saxpy_program(1024), AMPERE)):
        assert "early" not in made.facts
        assert not any(isinstance(op, GridDependencyWait) for op in made.walk())


def test_the_wait_is_in_the_machine_code(tmp_path: Path) -> None:
    found = instructions(compiled(gemm_program(bf16, (128, 128), 64)), tmp_path)
    assert (found["ACQBULK"], found["PREEXIT"]) == (1, 1)


BESIDE = """
def f(z: Mut, x: Tensor, y: Tensor, bias: Tensor, rows: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), ct.f32)
    for k in range(n):
        a, b = ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j))
        acc = ct.mma(a, b, acc)
    acc = acc + ct.load_tile(bias, (1, BN), (0, j))
    acc = acc + ct.gather(rows, ct.iota((BM,), ct.i32) + i * BM).reshape((BM, 1))
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=lambda each: each.arch)
def test_what_the_kernel_ahead_may_be_writing_is_read_by_plain_loads(target: Target, tmp_path: Path) -> None:
    """`ld.global.nc` wants memory that nobody writes from the kernel's begin on."""
    x = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": x, "y": x, "bias": tensor(2), "rows": tensor(1)}
    function = written(BESIDE, types | {"n": scalar(i32)})
    lowering = lowered(function, target)
    loads = [op for op in lowering.walk() if isinstance(op, LoadTile | LoadPointer)]
    assert loads
    early = "early" in lowering.facts
    assert early == (target is HOPPER)
    assert any(op.attributes["constant"] for op in loads) == (not early)
    found = instructions(compiled(function, target.arch), tmp_path)
    assert any(".CONSTANT" in each for each in found) == (not early)


NORM = """
def norm(y: Mut, x: Tensor, w: Tensor):
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(ct.f32)
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / n)
    {between}
    y.store((t * scale[:, None] * ct.load_tile(w, (n,), (0,)).astype(ct.f32)[None, :]).astype(y.dtype))
"""


def norm(columns: int, between: str = "pass") -> Function:
    return written(
        NORM.format(between=between), {"y": mut(1, columns, dtype=bf16), "x": tensor(2, bf16), "w": tensor(1, bf16)}
    )


SCALED = """
def scaled(y: Mut, x: Tensor, scales: Tensor):
    row = ct.get_tile_block_id()[0]
    y.store(ct.load_tile_like(x, y) * ct.load_tile(scales, (1,), (row,))[:, None])
"""
CHOSEN = """
def chosen(y: Mut, x: Tensor, rows: Tensor):
    row = ct.load_tile(rows, (1,), (ct.get_tile_block_id()[0],)).reshape(())
    y.store(ct.load_tile(x, y.shape, (row, 0)))
"""


def test_a_number_that_is_an_index_comes_first() -> None:
    """The tile waits for it anyway."""
    lowering = lowered(written(CHOSEN, {"y": mut(1, 1024), "x": tensor(2), "rows": tensor(1, i32)}))
    assert lowering.facts["early"] == "in graphs"
    loads = [op for op in lowering.body.operations if isinstance(op, LoadTile)]
    assert [op.operands[0].name for op in loads] == ["rows", "x"]


def test_only_small_grids_let_the_next_kernel_start_before_they_end(tmp_path: Path) -> None:
    """All wait; each thread block that lets the next one start costs the device time."""
    text = disassembly(compiled(norm(1024)), tmp_path)
    assert len(re.findall(r"@!?U?P\d+ PREEXIT", text)) == text.count("PREEXIT") == 1  # under a predicate
    assert text.count("ACQBULK") == 1


def test_a_small_kernel_waits_and_then_loads() -> None:
    """Plain loads, all ahead of the sum: behind it they would wait for it."""
    operations = lowered(norm(1024)).body.operations
    assert isinstance(operations[0], GridDependencyWait)
    assert operations[0].most_blocks == MOST_BLOCKS
    kinds = [type(op) for op in operations]
    loads = [i for i, op in enumerate(operations) if isinstance(op, LoadTile)]
    assert [operations[i].operands[0].name for i in loads] == ["x", "w"]
    assert loads[-1] < kinds.index(ReduceSum)
    assert not any(operations[i].attributes["constant"] for i in loads)


@pytest.mark.parametrize(
    "function",
    [
        norm(1024, "assert ct.reduce_sum(scale, 0) > 0.0, 'no'"),  # a load may not move over what ends the launch
        norm(1024, "for _ in range(x.shape[0]): scale = scale * 1.5"),
        norm(32768),  # too many registers
        written(SCALED, {"y": mut(1, 1024), "x": tensor(2), "scales": tensor(1)}),  # ptxas waits for the number first
    ],
    ids=["assertion", "loop", "wide", "number"],
)
def test_kernels_whose_loads_cannot_come_first_stay_as_they_are(function: Function) -> None:
    lowering = lowered(function)
    assert "early" not in lowering.facts
    assert not any(isinstance(op, GridDependencyWait) for op in lowering.walk())
    assert all(op.attributes["constant"] for op in lowering.walk() if isinstance(op, LoadTile))


@pytest.mark.parametrize("early", ["in graphs", "always"])
def test_the_driver_is_told(early: str) -> None:
    facts = {"threads": 128, "shared_bytes": 4096, "early": early}
    stream = Recorder()
    load(Executable(Target("cuda", "sm_90a"), b"cubin", "kernel", (), facts, "")).launch((1, 1, 1), [], stream)
    assert stream.early == [early]


def test_what_a_launch_says() -> None:
    pytest.importorskip("cuda.bindings.driver")
    from cuda_async.driver.cuda.early import early_configuration

    made = early_configuration((132, 1, 1), (384, 1, 1), 229376, 0)
    assert (made.gridDimX, made.blockDimX, made.sharedMemBytes, made.numAttrs) == (132, 384, 229376, 1)
    (attribute,) = made.attrs
    assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1


@ct.entry
def add_the_row_below(y: ct.Mut, x: ct.Tensor, ones: ct.Tensor):
    """Reads what other blocks of the kernel before have written, and changes what these read."""
    row = ct.get_tile_block_id()[0]
    below = ct.load_tile(x, y.shape, ((row + 1) % x.shape[0], 0))
    y.store(y.load() + below + ct.reduce_sum(ct.load_tile(ones, (8,), (0,)), 0))


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1024, 1001], ids=["rows of whole cache lines", "rows that share cache lines"])
def test_small_kernels_of_a_graph_read_what_the_one_before_wrote(columns: int) -> None:
    """Each begins while the one before still runs."""
    rows, times, replays = 97, 60, 20
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31, (2, rows, columns)).astype(np.int32)
    with Device(0) as device:
        stream = device.new_stream()
        first, second, ones = (api.from_numpy(each).sync_on(stream) for each in (x, y, np.ones(8, np.int32)))

        def record(scope: Scope) -> None:
            for _ in range(times):
                scope.record(add_the_row_below(second.mut.partition((1, 1024)), first, ones))
                scope.record(add_the_row_below(first.mut.partition((1, 1024)), second, ones))

        with CudaGraph.scope(stream, record) as graph:
            for _ in range(replays):
                graph.launch().sync_on(stream)
        results = [tensor.to_numpy().sync_on(stream) for tensor in (first, second)]
    for _ in range(times * replays):
        y += np.roll(x, -1, 0) + 8
        x += np.roll(y, -1, 0) + 8
    np.testing.assert_array_equal(results, [x, y])


PAIRS, REPLAYS, SIZE = 10, 5, 640


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True], ids=["launched", "recorded"])
@pytest.mark.parametrize("tile", [(64, 64), (128, 128), (128, 256), (192, 160)], ids=str)
def test_each_of_a_chain_of_products_reads_what_the_one_before_wrote(tile: tuple[int, int], recorded: bool) -> None:
    """Two tensors, each read while the other is written: `x @ p @ p @ ...` for a permutation `p`, which is exact."""
    random = np.random.default_rng(3)
    moved = random.permutation(SIZE)
    p, x = np.zeros((SIZE, SIZE), np.float16), random.integers(-8, 9, (SIZE, SIZE)).astype(np.float16)
    p[np.arange(SIZE), moved] = 1
    with Device(0) as device:
        stream = device.new_stream()
        first, second, turn = (api.from_numpy(each).sync_on(stream) for each in (x, np.zeros_like(x), p))

        def there() -> DeviceOp[Any]:
            return gemm(second.mut.partition(tile), first, turn, BK=64)

        def back() -> DeviceOp[Any]:
            return gemm(first.mut.partition(tile), second, turn, BK=64)

        def record(scope: Scope) -> None:
            for _ in range(PAIRS):
                scope.record(back())
                scope.record(there())

        there().sync_on(stream)
        if recorded:
            with CudaGraph.scope(stream, record) as graph:
                for _ in range(REPLAYS):
                    graph.launch().sync_on(stream)
        else:
            op = back().then(lambda _: there())
            for _ in range(PAIRS * REPLAYS - 1):
                op = op.then(lambda _: back()).then(lambda _: there())
            op.sync_on(stream)
        found = second.to_numpy().sync_on(stream)
    times = np.linalg.matrix_power(p.astype(np.float64), 1 + 2 * PAIRS * REPLAYS)
    assert np.array_equal(found, x @ times)
