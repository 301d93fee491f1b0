"""Launches of few tile blocks with many turns take a kernel that divides these: which do, by a backend that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import CudaGraph, Device, Stream
from cuda_async.testing import SimDriver
from cutile import api, bf16, f32
from cutile.backend import registry
from cutile.backend.cuda.backend import CudaBackend
from cutile.backend.cuda.grids import SplitKVariants
from cutile.backend.interface import CompileOptions, Executable, Source, Target
from cutile.backend.reference.backend import ReferenceBackend, ReferenceKernel
from cutile.ir.core import Function
from kernels.gemm import gemm
from tests.support.kernels import define, kernel

SUMS = """
def sums(y: Mut, x: Tensor):
    part = x.partition((4, 8))
    i, _, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (4,), f32)
    for k in range(ct.num_tiles(part, 1)):
        acc = acc + ct.reduce_sum(part.load((i, k)), 1)
    y.store(acc)
"""
WAYS = ((1, 6, 8), (2, 4, 3), (4, 2, 2))
"""One tile block of six turns has eight pieces, and so on."""


class Dividing(ReferenceBackend):
    """Says of kernels for which nothing is asked how launches are to divide them.

    Attributes:
        compiled: the pieces of the kernels that were compiled, in order.
        compiled_with: the options of each of them.
        launched: those of the kernels that were launched or bound.
        refused: of which no kernel is made ready, as where a device has no memory for it.
    """

    options = CudaBackend.options

    def __init__(self) -> None:
        self.compiled: list[int | None] = []
        self.compiled_with: list[CompileOptions] = []
        self.launched: list[int | None] = []
        self.refused: set[int | None] = set()

    def version(self) -> str:
        return f"{super().version()}, dividing"

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source:
        self.compiled_with.append(options)
        said = {"division": (("//", ("+", ("extent", 1, 1), 7), 8), WAYS)} if options.num_pieces is None else {}
        return replace(super().emit(function, target, options), facts={"pieces": options.num_pieces, **said})

    def build(self, source: Source, target: Target) -> Executable:
        self.compiled.append(source.facts["pieces"])
        return replace(super().build(source, target), facts=source.facts)

    def load(self, executable: Executable) -> ReferenceKernel:
        return Noting(executable, self.launched, self.refused)


class Noting(ReferenceKernel):
    """Notes its launches."""

    @property
    def variants(self) -> SplitKVariants | None:  # type: ignore[override]
        return self._variants

    def __init__(self, executable: Executable, launched: list[int | None], refused: set[int | None]) -> None:
        super().__init__(executable)
        division = executable.facts.get("division")
        self._variants = None if division is None else SplitKVariants(*division)
        self._pieces = executable.facts["pieces"]
        self._launched = launched
        self._refused = refused

    def prepare(self, grid: Any, arguments: Any, stream: Any) -> Any:
        if self._pieces in self._refused:
            raise MemoryError("no room for its sums")
        return super().prepare(grid, arguments, stream)

    def launch(self, grid: Any, arguments: Any, stream: Any) -> None:
        self._launched.append(self._pieces)
        super().launch(grid, arguments, stream)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Dividing:
    made = Dividing()
    monkeypatch.setitem(registry._loaded, "reference", made)  # pyright: ignore[reportPrivateUsage]
    return made


@pytest.fixture
def stream() -> Iterator[Stream]:
    with Device.from_driver(SimDriver(seed=3)) as device:
        yield device.new_stream()


def operands(stream: Stream, tiles: int, turns: int) -> tuple[ct.Tensor, ct.Tensor]:
    """A result of so many tiles, and what is summed up: each number its row's."""
    rows = np.arange(4.0 * tiles, dtype=np.float32)
    x = api.from_numpy(np.repeat(rows[:, None], 8 * turns - 3, 1)).sync_on(stream)
    return api.full(float("nan"), (4 * tiles,), f32).sync_on(stream), x


def check(y: ct.Tensor, x: ct.Tensor, stream: Stream) -> None:
    np.testing.assert_array_equal(y.to_numpy().sync_on(stream), np.arange(1.0 * x.shape[0]) * x.shape[1])


@pytest.mark.parametrize(
    ("tiles", "turns", "pieces"),
    [(1, 6, 8), (1, 5, 3), (2, 6, 3), (2, 3, 2), (3, 9, 2), (4, 2, 2), (4, 1, None), (5, 50, None), (1, 1, None)],
)
def test_tile_blocks_and_turns_say_into_how_many_pieces(
    tiles: int, turns: int, pieces: int | None, backend: Dividing, stream: Stream
) -> None:
    sums = kernel(SUMS)
    y, x = operands(stream, tiles, turns)
    for _ in range(3):
        sums(y.mut.partition((4,)), x).sync_on(stream)
        check(y, x, stream)
    assert backend.launched == [pieces] * 3
    assert backend.compiled == [None] + [pieces] * (pieces is not None)
    assert len(sums.cache) == len(backend.compiled)


@pytest.mark.parametrize("pieces", [1, 4])
def test_what_is_asked_for_is_left_alone(pieces: int, backend: Dividing, stream: Stream) -> None:
    y, x = operands(stream, 1, 20)
    op = kernel(SUMS)(y.mut.partition((4,)), x).compile_options(CompileOptions(num_pieces=pieces))
    op.sync_on(stream)
    assert backend.compiled == backend.launched == [pieces]


def test_other_hints_are_those_of_the_launch(backend: Dividing, stream: Stream) -> None:
    y, x = operands(stream, 1, 20)
    options = CompileOptions(occupancy=2)
    kernel(SUMS)(y.mut.partition((4,)), x).compile_options(options).sync_on(stream)
    assert backend.compiled_with == [options, replace(options, num_pieces=8)]
    assert backend.launched == [8]


def test_an_awaited_launch_compiles_both_off_the_loop(backend: Dividing, stream: Stream) -> None:
    y, x = operands(stream, 2, 5)
    sums = kernel(SUMS)
    op = sums(y.mut.partition((4,)), x)
    (prepare,) = op.preparations(stream.device)
    prepare()
    assert backend.compiled == [None, 3]
    assert not list(op.preparations(stream.device))

    async def run() -> None:
        await op

    with stream:
        asyncio.run(run())
    check(y, x, stream)
    more, long = operands(stream, 1, 7)
    later = sums(more.mut.partition((4,)), long)
    assert len(list(later.preparations(stream.device))) == 1  # another number of pieces
    later.discard()
    assert backend.compiled == [None, 3]


def test_a_bound_launch_takes_what_its_arguments_say(backend: Dividing, stream: Stream) -> None:
    y, x = operands(stream, 1, 7)
    bound = kernel(SUMS)(y.mut.partition((4,)), x).bind(stream)
    bound()
    check(y, x, stream)
    for turns in (7, 4, 1, 7):
        _, x = operands(stream, 1, turns)
        bound.set(x=x)
        bound()
        check(y, x, stream)
    assert backend.launched == [8, 8, 3, None, 8]
    assert backend.compiled == [None, 8, 3]


def test_a_bound_launch_stays_as_it_was_where_another_kernel_is_not_made_ready(
    backend: Dividing, stream: Stream
) -> None:
    y, x = operands(stream, 1, 7)
    bound = kernel(SUMS)(y.mut.partition((4,)), x).bind(stream)
    _, shorter = operands(stream, 1, 4)
    backend.refused.add(3)
    with pytest.raises(MemoryError, match="no room"):
        bound.set(x=shorter)
    bound()
    check(y, x, stream)
    backend.refused.clear()
    bound.set(x=shorter)
    bound()
    check(y, shorter, stream)
    assert backend.launched == [8, 3]


def test_a_bound_launch_mixes_no_values_of_an_outer_name(backend: Dividing, stream: Stream) -> None:
    """It keeps the values that it was bound with, also in variants; a variant that it lacks is refused."""
    function = define(SUMS.replace("y.store(acc)", "y.store(acc * FACTOR)"), FACTOR=1)
    y, x = operands(stream, 1, 7)
    _, shorter = operands(stream, 1, 4)
    _, shortest = operands(stream, 1, 1)
    bound = ct.entry(function)(y.mut.partition((4,)), x).bind(stream)
    bound.set(x=shorter)
    function.__globals__["FACTOR"] = 3
    for argument in (shorter, x, shortest):
        bound.set(x=argument)
        bound()
        check(y, argument, stream)
    _, longest = operands(stream, 2, 5)
    double = api.zeros((8,), f32).sync_on(stream)
    wide = ct.entry(function)(double.mut.partition((4,)), longest).bind(stream)
    function.__globals__["FACTOR"] = 4
    _, other = operands(stream, 2, 3)
    with pytest.raises(ct.LaunchError, match="an outer name of the kernel has another value than when it was bound"):
        wide.set(x=other)
    wide()
    np.testing.assert_array_equal(double.to_numpy().sync_on(stream), np.arange(8.0) * longest.shape[1] * 3)


def test_a_graph_records_it(backend: Dividing, stream: Stream) -> None:
    y, x = operands(stream, 4, 9)
    sums = kernel(SUMS)
    with CudaGraph.scope(stream, lambda scope: scope.record(sums(y.mut.partition((4,)), x))) as graph:
        graph.launch().sync_on(stream)
        check(y, x, stream)
    assert 2 in backend.launched
    assert None not in backend.launched


def test_the_disk_cache_keeps_what_a_kernel_says(backend: Dividing, stream: Stream) -> None:
    function = define(SUMS)
    for _ in range(2):
        y, x = operands(stream, 4, 9)
        ct.entry(function)(y.mut.partition((4,)), x).sync_on(stream)
    assert backend.compiled == [None, 2]
    assert backend.launched == [2, 2]


def test_a_changed_outside_name_is_compiled_anew(backend: Dividing, stream: Stream) -> None:
    function = define(SUMS.replace("y.store(acc)", "y.store(acc * FACTOR)"), FACTOR=1)
    sums = ct.entry(function)
    for factor in (1, 3):
        function.__globals__["FACTOR"] = factor
        y, x = operands(stream, 4, 9)
        sums(y.mut.partition((4,)), x).sync_on(stream)
        wanted = np.arange(16.0) * x.shape[1] * factor
        np.testing.assert_array_equal(y.to_numpy().sync_on(stream), wanted)
    assert backend.launched == [2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((130, 616, 5000), (64, 64)),
        ((9, 1000, 8200), (16, 64)),
        ((300, 504, 4104), (128, 192)),
        ((200, 264, 8200), (128, 256)),
    ],
    ids=str,
)
def test_however_a_product_is_launched_its_bits_are_the_same(
    shape: tuple[int, int, int], tile: tuple[int, int]
) -> None:
    m, n, k = shape
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(each, dtype=np.float32).astype(bf16.numpy) for each in ((m, k), (k, n)))
    with Device(0) as device:
        stream = device.new_stream()
        x, y = api.from_numpy(a).sync_on(stream), api.from_numpy(b).sync_on(stream)
        results: list[Any] = []
        for way in ("graph", "run", "run again", "bound", "whole"):
            z = api.full(float("nan"), (m, n), f32).sync_on(stream)
            op = gemm(z.mut.partition(tile), x, y)
            if way == "bound":
                op.bind(stream)()
            elif way == "graph":
                with CudaGraph.scope(stream, lambda scope, op=op: scope.record(op)) as graph:
                    graph.launch().sync_on(stream)
            else:
                (op.compile_options(CompileOptions(num_pieces=1)) if way == "whole" else op).sync_on(stream)
            results.append(z.to_numpy().sync_on(stream))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    for each in results:
        assert np.abs(each - wanted).max() <= 1e-4 * np.abs(wanted).max()
    *divided, whole = results
    assert all(np.array_equal(each, divided[0]) for each in divided)
    assert not np.array_equal(whole, divided[0])  # which were added up in another order
