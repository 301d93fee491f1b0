"""What fails on one rank fails on all, and the ranks' next collectives still meet.

Whether the failure is known when the collective is called, or comes out later, and however the collective is called.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from cuda_async import CudaGraph, Device, DeviceOp, DriverError, ExecutionContext, NotReadyError, Stream, Use, unsafe
from cuda_async.collective import Buffer, CollectiveError, Communicator
from cuda_async.driver.interface import Meet
from cuda_async.errors import ArgumentError, ArgumentTypeError
from tests.cuda_async.ranks import ENGINES, WORLD, Ranks, on_host, outcome


@pytest.fixture(params=list(ENGINES))
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Ranks]]:
    """Make ranks of an engine; they are closed at the end."""
    engines: list[Ranks] = []

    def ranks_of_engine(**settings: Any) -> Ranks:
        engines.append(ENGINES[request.param](**settings))
        return engines[-1]

    yield ranks_of_engine
    for ranks in engines:
        for rank in ranks.ranks:
            rank.close()


class Fails(DeviceOp[Buffer]):
    """Was to write a buffer."""

    has_effects = True

    def __init__(self, buffer: Buffer) -> None:
        super().__init__()
        self._buffer = buffer
        self.lend(Use("buffer", buffer.storage, True, buffer.start, buffer.stop))

    def execute(self, context: ExecutionContext) -> Buffer:
        def fail() -> None:
            raise DriverError(1, "BROKEN", "a kernel of this rank")

        self._buffer.storage.use(context.stream, write=True)
        context.stream.call(fail)
        return self._buffer


Caller = Callable[[], object]
"""Enqueues one rank's call, and does not wait."""


class _Callers:
    """The same collective of all ranks, called in one of the ways."""

    def __init__(self, way: str, ranks: Ranks, x: list[Buffer], streams: list[Stream]) -> None:
        self._streams, self._x = streams, x
        self._graphs: list[CudaGraph[Any]] = []
        self._calls: list[Caller] = []
        for rank, buffer, stream in zip(ranks.ranks, x, streams, strict=True):
            if way == "operation":
                self._calls.append(lambda r=rank, x=buffer, s=stream: unsafe.async_on(r.all_reduce(x), s))
            elif way == "bound":
                self._calls.append(rank.all_reduce(buffer).bind(stream))
            else:
                self._graphs.append(rank.all_reduce(buffer).graph_on(stream))
                self._calls.append(self._graphs[-1].launch().bind(stream))

    def fail(self, rank: int) -> None:
        """Have what was to write a rank's operand fail, and wait for that."""
        if self._graphs:  # nobody else may write what a graph uses: an earlier launch of it has failed
            self._x[rank].storage.error = DriverError(1, "BROKEN", "a kernel of this rank")
            return
        with pytest.raises(DriverError, match="BROKEN"):
            Fails(self._x[rank]).sync_on(self._streams[rank].device.new_stream())

    def call(self) -> list[Exception | None]:
        """Have all ranks call, and wait for all: what each raises."""
        errors = [outcome(call) for call in self._calls]
        waited = [outcome(stream.synchronize) for stream in self._streams]
        return [error or later for error, later in zip(errors, waited, strict=True)]


WAYS = ("operation", "bound", "graph")


@pytest.mark.parametrize("make", list(ENGINES)[:4], indirect=True)  # a GPU does not go on after a failure
def test_the_failure_of_one_rank_reaches_all_and_nothing_hangs(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    one, two, three = ranks.ranks
    errors = ranks.run(one.all_reduce(x[0]), Fails(x[1]).then(two.all_reduce), three.all_reduce(x[2]))
    assert isinstance(errors[1], DriverError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, CollectiveError)
        assert "failed on rank 1: DriverError: BROKEN" in str(error)
    y = ranks.put([np.ones(4, np.float32)] * WORLD)  # the communicator goes on
    ranks.run(*(rank.all_reduce(y[i]) for i, rank in enumerate(ranks.ranks)))
    np.testing.assert_array_equal(ranks.get(y), np.full((WORLD, 4), WORLD))


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_that_is_known_keeps_the_ranks_together(make: Callable[..., Ranks], way: str) -> None:
    ranks = make()
    streams = [device.new_stream() for device in ranks.devices]
    x, y = (ranks.put([np.full(4, i + first, np.uint32) for i in range(WORLD)]) for first in (1, 10))
    callers = _Callers(way, ranks, x, streams)
    callers.fail(1)
    errors = callers.call()
    assert isinstance(errors[1], DriverError)
    # NCCL's calls move data whatever the kernels before did, and a graph of them tells nobody that it was launched.
    of_gpus = all(rank.max_ctas is None and type(rank._engine).__name__ == "NcclEngine" for rank in ranks.ranks)  # pyright: ignore[reportPrivateUsage]
    if not (of_gpus and way == "graph"):
        for error in (errors[0], errors[2]):
            assert isinstance(error, CollectiveError)
            assert "failed on rank 1: DriverError: BROKEN" in str(error)
    assert _Callers(way, ranks, y, streams).call() == [None] * WORLD  # and not with another step's elements
    np.testing.assert_array_equal(ranks.get(y), np.full((WORLD, 4), 10 + 11 + 12))


@pytest.mark.parametrize("way", ["operation", "bound"])
@pytest.mark.parametrize("make", list(ENGINES)[:4], indirect=True)  # a GPU's failure comes out when its data has moved
def test_a_failure_that_nobody_waited_for_is_the_collectives(make: Callable[..., Ranks], way: str) -> None:
    ranks = make()
    streams = [device.new_stream() for device in ranks.devices]
    x = ranks.put([np.full(4, i + 1, np.uint32) for i in range(WORLD)])
    callers = _Callers(way, ranks, x, streams)
    unsafe.async_on(Fails(ranks.put([np.zeros(4)] * WORLD)[1]), streams[1])
    errors = callers.call()
    assert isinstance(errors[1], DriverError)
    assert all("failed on rank 1: DriverError: BROKEN" in str(errors[i]) for i in (0, 2))
    y = ranks.put([np.full(4, i + 10, np.uint32) for i in range(WORLD)])
    assert _Callers(way, ranks, y, streams).call() == [None] * WORLD
    np.testing.assert_array_equal(ranks.get(y), np.full((WORLD, 4), 10 + 11 + 12))


@pytest.mark.parametrize("is_bound", [False, True], ids=["operation", "bound"])
def test_a_graph_that_was_launched_too_early_is_launched_again(make: Callable[..., Ranks], is_bound: bool) -> None:
    """Its operand is another graph's output, which that graph's next launch makes: the earlier failure is over."""
    ranks = make()
    streams = [(device.new_stream(), device.new_stream()) for device in ranks.devices]
    parts = [Buffer.put(np.full(4, i + 1, np.uint32)).graph_on(home) for i, (home, _) in enumerate(streams)]
    x = cast("list[Buffer]", [graph.take_output() for graph in parts])
    sums = [rank.all_reduce(x[i]).graph_on(streams[i][1]) for i, rank in enumerate(ranks.ranks)]
    launches = [graph.launch().bind(graph.stream) for graph in sums]

    def add_up() -> list[Exception | None]:
        if not is_bound:
            return [error if isinstance(error, Exception) else None for error in ranks.run(*(g.launch() for g in sums))]
        errors = [outcome(launch) for launch in launches]
        return [error or outcome(graph.stream.synchronize) for error, graph in zip(errors, sums, strict=True)]

    assert all(isinstance(error, NotReadyError | CollectiveError) for error in add_up())
    for _ in range(2):
        for graph in parts:
            graph.launch().sync_on(graph.stream)
        assert add_up() == [None] * WORLD
        np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 1 + 2 + 3))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", list(ENGINES)[:4], indirect=True)
def test_random_programs_with_failures(make: Callable[..., Ranks], seed: int) -> None:
    """In each step all ranks fail or none does, and then the sums are NumPy's."""
    chance = random.Random(seed)
    ranks = make()
    streams = [device.new_stream() for device in ranks.devices]
    for _ in range(12):
        way, failure = chance.choice(WAYS), chance.choice(["none", "none", "known", "unwaited"])
        parts = [np.array([chance.randrange(100) for _ in range(5)], np.uint32) for _ in range(WORLD)]
        x, broken = ranks.put(parts), chance.randrange(WORLD)
        callers = _Callers(way, ranks, x, streams)
        if failure == "known":
            callers.fail(broken)
        elif failure == "unwaited":
            unsafe.async_on(Fails(ranks.put([np.zeros(4)] * WORLD)[broken]), streams[broken])
        errors = callers.call()
        if failure == "none":
            assert errors == [None] * WORLD
            np.testing.assert_array_equal(ranks.get(x), [np.sum(parts, axis=0)] * WORLD)
        else:
            assert all(f"failed on rank {broken}" in str(errors[i]) for i in range(WORLD) if i != broken)
            assert isinstance(errors[broken], DriverError)


@pytest.mark.parametrize("raised", [MemoryError("no room"), KeyError("unforeseen")])
@pytest.mark.parametrize("make", list(ENGINES)[:4], indirect=True)  # on GPUs this process adds nothing up
def test_what_a_reduction_raises_reaches_all_ranks(
    make: Callable[..., Ranks], raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise raised

    ranks = make()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    for engine in ("local", "processes"):
        monkeypatch.setattr(f"cuda_async.collective.{engine}.outcome", fail)
    for error in ranks.run(*(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks))):
        assert isinstance(error, CollectiveError)
        assert f"{type(raised).__name__}: {raised}" in str(error)


def test_ranks_on_one_stream_are_told_that_they_need_one_each() -> None:
    """The second rank's call is behind the first one's, which waits for it."""
    ranks = on_host(limit_s=0.2)
    stream = ranks.devices[0].new_stream()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    for i, rank in enumerate(ranks.ranks):
        rank.all_reduce(x[i]).bind(stream)()
    with pytest.raises(CollectiveError, match=r"rank 1 has called all_reduce\(.*\) at .*, which waits on its stream"):
        stream.synchronize()


def test_a_meeting_that_cannot_be_made_leaves_its_stream_to_others() -> None:
    """Policies skip a stream on which a meeting waits."""
    driver = Device.host().new_stream().driver

    def make() -> Meet:
        raise KeyError("no meeting")

    with pytest.raises(KeyError, match="no meeting"):
        driver.meet(make)
    driver.begin_capture()
    driver.meet(make)
    graph = driver.end_capture()
    with pytest.raises(KeyError, match="no meeting"):
        driver.launch_graph(graph)
    assert driver.parked == 0


@pytest.mark.parametrize("limit", ["a", float("nan"), 0, -1, True])
def test_a_limit_is_a_number_of_seconds(limit: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"limit_s: expected seconds, more than 0, or None"):
        Communicator.of([Device.host()], limit_s=limit)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"limit_s: expected seconds, more than 0, or None"):
        Communicator.join(0, 1, Communicator.unique_id(), limit_s=limit)


def test_no_limit_is_infinite_seconds() -> None:
    with Communicator.of([Device.host()], limit_s=float("inf")) as rank:
        rank.barrier().sync()


def test_arguments_of_another_type_are_named() -> None:
    host: Any = Device.host()
    ranks = on_host()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    rank, together = ranks.ranks[0], ranks.together
    assert together is not None
    y = [*x[1:], Buffer.put(np.ones(4, np.float16)).sync_on(host.new_stream())]
    z = [*x[1:], Buffer.put(np.ones(5, np.float32)).sync_on(host.new_stream())]
    wrong: Any = None
    wrong_device: Any = 1.5
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: rank.all_reduce(x[0], op=wrong), "all_reduce: op None; expected one of sum"),
        (lambda: rank.reduce(x[0], op=""), "reduce: op ''; expected one of sum"),
        (lambda: rank.reduce_scatter(x[0], x[0], op=["sum"]), "reduce_scatter: op"),  # pyright: ignore[reportArgumentType]
        (lambda: together.all_reduce(y), r"all_reduce: x is float32\[4\] on ranks 0 and 1, float16\[4\] on rank 2"),
        (lambda: together.all_reduce(z), r"all_reduce: x is float32\[4\] on ranks 0 and 1, float32\[5\] on rank 2"),
        (lambda: rank.broadcast(x[0], root="0"), "root: expected a rank from 0 to 2, got '0'"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.of(host), "devices: expected a sequence of devices"),
        (lambda: Communicator.of([host], max_ctas=1.5), "max_ctas: expected 1 to 32"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.of([host], max_ctas="8"), "max_ctas: expected 1 to 32"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.join("0", 1, "x"), "rank: expected a whole number, got '0'"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.join(0, 1.0, "x"), "world: expected a whole number, got 1.0"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.join(0, 1, 5), "unique_id: expected text from Communicator.unique_id"),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.join(0, 1, "x", device=wrong_device), "device: expected a device, .*; got float: 1.5"),
        (lambda: Communicator.of([wrong_device]), "devices: expected a device, .*; got float: 1.5"),
        (lambda: Communicator.of(3), r"devices: expected a sequence of devices, got 3; such as \["),  # pyright: ignore[reportArgumentType]
        (lambda: Communicator.of("cpu"), r"devices: expected a sequence of devices, got 'cpu'; write \['cpu'\]"),
        (lambda: Communicator.unique_id("no.such.host.invalid"), "unique_id: .*no.such.host.invalid"),
    ]
    for call, words in refused:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
            call()
    with Communicator.of(["cpu", host]) as pair:
        assert pair.devices == (host, host)
    with Communicator.join(0, 1, Communicator.unique_id(), device="cpu") as alone:
        assert alone.devices == (host,)
    rank.broadcast(x[0], root=np.int64(0)).discard()  # pyright: ignore[reportArgumentType]
