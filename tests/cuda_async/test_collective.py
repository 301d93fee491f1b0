"""Collectives on every engine: ranks of the CPU, of simulated devices, and ranks that joined.

The programs are the same; NumPy is the judge.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from cuda_async import Device, DeviceOp, ExecutionContext, OwnershipError, SingleStream, value
from cuda_async import zip as zip_ops
from cuda_async.collective import Buffer, CollectiveError, Communicator, Network
from cuda_async.collective.semantics import REDUCTIONS
from cuda_async.errors import ArgumentError, ArgumentTypeError, DependencyError
from cuda_async.testing import Ledger, SimDriver
from cutile import Tensor, api, i32
from cutile.host.exchange import from_dlpack
from tests.cuda_async.ranks import ENGINES, WORLD, Array, Ranks, across, joined, on_host, on_sim
from tests.cuda_async.work import Affine


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


def numbers(rng: np.random.Generator, dtype: Any, count: int) -> Array:
    return rng.integers(0, 5, count).astype(dtype)


# ---- what they mean -----------------------------------------------------------------------------------------------

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64, np.uint32]


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_every_collective_is_what_numpy_says(make: Callable[..., Ranks], count: int):
    ranks, rng = make(), np.random.default_rng(count)
    for dtype in DTYPES if count == 7 else DTYPES[:1]:
        parts = [numbers(rng, dtype, WORLD * count) for _ in range(WORLD)]
        whole = sum(part.astype(np.float64) for part in parts)

        x = ranks.put(parts)
        ranks.run(*(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks)))
        for got in ranks.get(x):
            np.testing.assert_array_equal(got, np.asarray(whole).astype(dtype))

        x = ranks.put(parts)
        ranks.run(*(rank.reduce(x[i], root=1) for i, rank in enumerate(ranks.ranks)))
        for i, got in enumerate(ranks.get(x)):
            np.testing.assert_array_equal(got, np.asarray(whole).astype(dtype) if i == 1 else parts[i])

        x = ranks.put(parts)
        ranks.run(*(rank.broadcast(x[i], root=2) for i, rank in enumerate(ranks.ranks)))
        for got in ranks.get(x):
            np.testing.assert_array_equal(got, parts[2])

        x, into = ranks.put(parts), ranks.put([np.zeros(WORLD * WORLD * count, dtype)] * WORLD)
        ranks.run(*(rank.all_gather(x[i], into[i]) for i, rank in enumerate(ranks.ranks)))
        for got in ranks.get(into):
            np.testing.assert_array_equal(got, np.concatenate(parts))

        x, into = ranks.put(parts), ranks.put([np.zeros(count, dtype)] * WORLD)
        ranks.run(*(rank.reduce_scatter(x[i], into[i]) for i, rank in enumerate(ranks.ranks)))
        for i, got in enumerate(ranks.get(into)):
            np.testing.assert_array_equal(got, np.asarray(whole).astype(dtype)[i * count : (i + 1) * count])

        x, into = ranks.put(parts), ranks.put([np.zeros(WORLD * count, dtype)] * WORLD)
        ranks.run(*(rank.all_to_all(x[i], into[i]) for i, rank in enumerate(ranks.ranks)))
        for i, got in enumerate(ranks.get(into)):
            np.testing.assert_array_equal(got, np.concatenate([p.reshape(WORLD, -1)[i] for p in parts]))


def test_large_data_pass_both_ways_at_once():
    """More than sockets hold: a rank that only writes, to a hub that only writes to it, would wait for ever."""
    ranks, count, calls = across(), 1 << 20, 4
    parts = [np.arange(count) + i for i in range(WORLD)]
    x = [ranks.put(parts) for _ in range(calls)]

    async def main() -> None:
        waits = [
            rank.all_reduce(x[k][i]).schedule(SingleStream(ranks.devices[i]))
            for k in range(calls)
            for i, rank in enumerate(ranks.ranks)
        ]
        await asyncio.gather(*waits)

    asyncio.run(main())
    for sums in x:
        for total in ranks.get(sums):
            np.testing.assert_array_equal(total, np.sum(parts, axis=0))
    for rank in ranks.ranks:
        rank.close()


def test_reductions(make: Callable[..., Ranks]):
    ranks = make()
    parts = [np.array([1.5, np.nan, -2.0, 3.0], np.float32) * np.float32(i + 1) for i in range(WORLD)]
    expected = {
        "sum": np.sum(parts, axis=0), "prod": np.prod(parts, axis=0), "min": np.min(parts, axis=0),
        "max": np.max(parts, axis=0), "avg": np.mean(parts, axis=0),
    }  # fmt: skip
    assert expected.keys() == REDUCTIONS.keys()
    for op, result in expected.items():
        x = ranks.put(parts)
        ranks.run(*(rank.all_reduce(x[i], op=op) for i, rank in enumerate(ranks.ranks)))
        for got in ranks.get(x):
            np.testing.assert_array_equal(got, result.astype(np.float32))


def test_small_floats_are_added_up_in_f32(make: Callable[..., Ranks]):
    """One after the other in f16, 2048 + 1 + 1 would stay 2048."""
    ranks = make()
    x = ranks.put([np.array([number], np.float16) for number in (2048, 1, 1)])
    ranks.run(*(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks)))
    assert [float(got[0]) for got in ranks.get(x)] == [2050.0] * WORLD


def test_messages_arrive_in_their_order(make: Callable[..., Ranks]):
    ranks = make()
    first, _, third = ranks.ranks
    sent = [Buffer.put(np.array([number], np.int32)).sync_on(ranks.devices[0].new_stream()) for number in (4, 5)]
    got = [Buffer.put(np.array([0], np.int32)).sync_on(ranks.devices[2].new_stream()) for _ in range(2)]
    ranks.run(
        zip_ops(first.send(sent[0], to=2), first.send(sent[1], to=2)),
        value(None),
        zip_ops(third.recv(got[0], source=0), third.recv(got[1], source=0)),
    )
    assert [int(each.get().sync_on(ranks.devices[2].new_stream())[0]) for each in got] == [4, 5]


def test_a_barrier_holds_every_rank_back(make: Callable[..., Ranks]):
    ranks = make()
    seen: list[str] = []

    class Note(DeviceOp[None]):
        has_effects = True

        def __init__(self, text: str) -> None:
            super().__init__()
            self._text = text

        def execute(self, context: ExecutionContext) -> None:
            context.stream.call(lambda: seen.append(self._text))

    ops = [zip_ops(Note(f"before {i}"), rank.barrier(), Note(f"behind {i}")) for i, rank in enumerate(ranks.ranks)]
    ranks.run(*ops)
    assert {text.split()[0] for text in seen[:WORLD]} == {"before"}
    assert {text.split()[0] for text in seen[WORLD:]} == {"behind"}


@pytest.mark.parametrize("engine", [on_host, on_sim])
def test_one_process_may_run_all_ranks_in_one_operation(engine: Callable[..., Ranks]):
    ranks = engine()
    together = ranks.together
    assert together is not None
    x, y = ranks.put([np.full(4, i + 1, np.int32) for i in range(WORLD)]), ranks.put([np.ones(2, np.int32)] * WORLD)
    into = ranks.put([np.zeros(2 * WORLD, np.int32)] * WORLD)
    (sums, pair) = zip_ops(together.all_reduce(x), together.all_gather(y, into)).sync_on(ranks.devices[0].new_stream())
    assert sums is x
    assert pair == (y, into)
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 6))
    np.testing.assert_array_equal(ranks.get(into), np.ones((WORLD, 2 * WORLD)))


def test_a_bound_call_repeats(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.full(4, i + 1, np.uint32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    bound = [ranks.ranks[i].all_reduce(x[i]).bind(streams[i]) for i in range(WORLD)]
    for _ in range(3):
        for i in range(WORLD):
            bound[i]()  # waits for nobody
    for stream in streams:
        stream.synchronize()
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 6 * 9))
    op = Affine(x[0].storage, 2, 1)
    with pytest.raises(OwnershipError, match="argument 'x'"):
        bound[0]()
    op.discard()
    with Affine(x[0].storage, 2, 1).graph_on(streams[0]), pytest.raises(OwnershipError, match="but the graph captured"):
        bound[0]()
    assert repr(bound[0]).startswith("<bound all_reduce on ")
    for rank in ranks.ranks:
        rank.close()


# ---- order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [on_host, on_sim])
def test_collectives_are_ordered_with_kernels_on_other_streams(engine: Callable[..., Ranks]):
    ledger = Ledger()
    ranks = engine(ledger=ledger)
    x = ranks.put([np.full(64, i + 1, np.uint32) for i in range(WORLD)])
    for _ in range(4):  # each run is on a stream of its own
        ranks.run(*(Affine(each.storage, 2, 1) for each in x))
        ranks.run(*(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks)))
    sums = [1, 2, 3]
    for _ in range(4):
        sums = [sum(2 * term + 1 for term in sums)] * WORLD
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 64), sums[0], np.uint32))
    assert ledger.uses > 20
    assert not ledger.races


def test_two_communicators_in_opposite_order_do_not_wait_for_each_other(make: Callable[..., Ranks]):
    left, right = make(), make()
    x, y = left.put([np.ones(3, np.int32)] * WORLD), left.put([np.ones(3, np.int32)] * WORLD)
    policies = [[SingleStream(device) for _ in range(2)] for device in left.devices]

    async def main() -> None:
        waits: list[Any] = []
        for i in range(WORLD):
            ops = [left.ranks[i].all_reduce(x[i]), right.ranks[i].all_reduce(y[i])]
            order = (0, 1) if i % 2 else (1, 0)
            waits += [ops[k].schedule(policies[i][k]) for k in order]
        await asyncio.gather(*waits)

    asyncio.run(main())
    np.testing.assert_array_equal(left.get(x) + left.get(y), np.full((2 * WORLD, 3), WORLD))


def test_programs_of_more_ranks_than_the_device_has_streams_do_not_wait_for_each_other():
    """`await` takes the next of four streams, on which another rank's collective may wait for this one."""

    async def program(rank: Communicator) -> list[float]:
        x = await api.full(float(rank.rank), (8,))
        for _ in range(3):
            await rank.all_reduce(x)
        return (await x.to_numpy()).tolist()

    async def main(ranks: Communicator) -> list[list[float]]:
        return await asyncio.gather(*(program(ranks[i]) for i in range(len(ranks))))

    with Device.host() as cpu, Communicator.of([cpu] * 6, limit_s=20) as ranks:
        assert asyncio.run(main(ranks)) == [[15.0 * 36] * 8] * 6


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int):
    """Collectives and kernels in a random order, on simulated devices: any legal order gives the same."""
    chance = random.Random(seed)
    ledger = Ledger()
    ranks = on_sim(ledger=ledger, seed=seed)
    count = 4 * WORLD
    model = [[np.array([chance.randrange(9) for _ in range(count)], np.uint32) for _ in range(2)] for _ in range(WORLD)]
    buffers = [ranks.put([row[k] for row in model]) for k in range(2)]
    for _ in range(12):
        k = chance.randrange(2)
        x, kind = buffers[k], chance.choice(["all_reduce", "broadcast", "reduce", "all_to_all", "kernel"])
        before = [row[k].copy() for row in model]
        if kind == "kernel":
            rank = chance.randrange(WORLD)
            Affine(x[rank].storage, 3, 1).sync_on(ranks.devices[rank].new_stream())
            model[rank][k] = before[rank] * 3 + 1
        elif kind == "all_to_all":
            into = buffers[1 - k]
            ranks.run(*(each.all_to_all(x[i], into[i]) for i, each in enumerate(ranks.ranks)))
            for i in range(WORLD):
                model[i][1 - k] = np.concatenate([part.reshape(WORLD, -1)[i] for part in before])
        else:
            root = chance.randrange(WORLD)
            settings: dict[str, Any] = {} if kind == "all_reduce" else {"root": root}
            ranks.run(*(getattr(each, kind)(x[i], **settings) for i, each in enumerate(ranks.ranks)))
            for i in range(WORLD):
                if kind == "broadcast":
                    model[i][k] = before[root]
                elif kind == "all_reduce" or i == root:
                    model[i][k] = np.sum(before, axis=0, dtype=np.uint32)
    for k in range(2):
        np.testing.assert_array_equal(ranks.get(buffers[k]), [row[k] for row in model])
    assert not ledger.races


@pytest.mark.parametrize("wrapped", [1, WORLD])
def test_a_graph_of_a_graph_repeats_collectives(make: Callable[..., Ranks], wrapped: int):
    """Also where other ranks launch the inner graph itself: recording it again is no call."""
    ranks = make(limit_s=5)
    x = ranks.put([np.full(4, i + 1, np.uint32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    graphs = [ranks.ranks[i].all_reduce(x[i]).graph_on(streams[i]) for i in range(WORLD)]
    outer = [graph.launch().graph_on(streams[i]) for i, graph in enumerate(graphs[:wrapped])]
    for _ in range(3):
        ranks.run(*(graph.launch() for graph in (*outer, *graphs[wrapped:])))
    for graph in (*outer, *graphs):
        graph.close()
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 6 * 9))


def test_a_graph_repeats_collectives(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.full(4, i + 1, np.uint32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    graphs = [ranks.ranks[i].all_reduce(x[i]).graph_on(streams[i]) for i in range(WORLD)]
    for _ in range(3):
        ranks.run(*(graph.launch() for graph in graphs))
    for graph in graphs:
        graph.close()
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 6 * 9))


def test_a_graph_sums_what_another_graph_computes(make: Callable[..., Ranks]):
    """Its operand holds nothing when it is recorded, and each launch of the other one fills it anew."""
    ranks = make()
    x = [api.full(i + 1, (4,), i32).sync_on(device.new_stream()) for i, device in enumerate(ranks.devices)]
    computing, summing = ([device.new_stream() for device in ranks.devices] for _ in range(2))
    computed = [tensor.dup().graph_on(stream) for tensor, stream in zip(x, computing, strict=True)]
    parts = [cast("Tensor", graph.take_output()) for graph in computed]
    summed = [ranks.ranks[i].all_reduce(parts[i]).graph_on(summing[i]) for i in range(WORLD)]
    for _ in range(2):
        assert ranks.run(*(graph.launch() for graph in computed)) == [None] * WORLD
        assert ranks.run(*(graph.launch() for graph in summed)) == [None] * WORLD
    for graph in (*computed, *summed):
        graph.close()
    for part, device in zip(parts, ranks.devices, strict=True):
        np.testing.assert_array_equal(part.to_numpy().sync_on(device.new_stream()), np.full(4, 6))


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def test_ranks_that_call_different_things_are_named(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    one, two, three = ranks.ranks
    errors = ranks.run(one.all_reduce(x[0]), two.all_reduce(x[1], op="max"), three.all_reduce(x[2]))
    for error in errors:
        assert isinstance(error, CollectiveError)
        assert "called different things" in str(error)
        assert "all_reduce(float32[4], sum)" in str(error)
        assert "all_reduce(float32[4], max)" in str(error)
        assert "test_collective.py" in str(error)
    (again, *_) = ranks.run(*(rank.barrier() for rank in ranks.ranks))
    assert isinstance(again, CollectiveError)
    assert "make a new one" in str(again)


def test_a_rank_that_does_not_come_is_named_within_the_limit(make: Callable[..., Ranks]):
    ranks = make(limit_s=0.2)
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    ranks.run(*(rank.barrier() for rank in ranks.ranks))
    one, two, _ = ranks.ranks
    errors = ranks.run(one.all_reduce(x[0]), two.all_reduce(x[1]), value(None))
    for error in errors[:2]:
        assert isinstance(error, CollectiveError)
        assert "waited 0.2 s: rank 2 has not come; its last call was barrier()" in str(error)


def test_abort_ends_what_waits_and_what_comes(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)

    async def main() -> BaseException | None:
        policy = SingleStream(ranks.devices[0])
        task = asyncio.ensure_future(ranks.ranks[0].all_reduce(x[0]).schedule(policy))
        await asyncio.sleep(0)
        ranks.ranks[1].abort("enough")
        (error,) = await asyncio.gather(task, return_exceptions=True)
        return error if isinstance(error, BaseException) else None

    assert "enough" in str(asyncio.run(main()))
    (error, *_) = ranks.run(*(rank.barrier() for rank in ranks.ranks))
    assert isinstance(error, CollectiveError)
    assert "enough" in str(error)


def test_a_rank_that_closes_its_communicator_is_named():
    ranks = joined()
    ranks.ranks[2].close()
    for error in ranks.run(*(rank.barrier() for rank in ranks.ranks))[:2]:
        assert isinstance(error, CollectiveError)
        assert "rank 2 is gone (it closed its communicator) and has called nothing yet" in str(error)


def test_a_cancelled_task_leaves_the_others_their_result(make: Callable[..., Ranks]):
    ranks = make()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)

    async def main() -> None:
        policies = [SingleStream(device) for device in ranks.devices]
        first = asyncio.ensure_future(ranks.ranks[0].all_reduce(x[0]).schedule(policies[0]))
        await asyncio.sleep(0)
        first.cancel()
        rest = [ranks.ranks[i].all_reduce(x[i]).schedule(policies[i]) for i in (1, 2)]
        await asyncio.gather(*rest)

    asyncio.run(main())
    for i in (1, 2):
        got = x[i].get().sync_on(ranks.devices[i].new_stream())
        np.testing.assert_array_equal(got, np.full(4, WORLD))


@pytest.mark.skipif(sys.platform == "win32", reason="signals a thread of its own process")
@pytest.mark.parametrize("make", ["host", "joined", "across", "gpus"], indirect=True)  # a simulation waits for nobody
def test_ctrl_c_ends_the_wait_for_the_others_and_nothing_else(make: Callable[..., Ranks]):
    ranks = make(limit_s=None)
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    signals = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    signals.start()
    stream = ranks.devices[0].new_stream()
    with pytest.raises(KeyboardInterrupt):
        ranks.ranks[0].all_reduce(x[0]).sync_on(stream)
    signals.join()
    ranks.run(value(None), *(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks) if i))
    stream.synchronize()  # nobody else waits for the part of the sum that was interrupted
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), WORLD))


def test_operands_are_lent(make: Callable[..., Ranks]):
    rank = make().ranks[0]
    x = Buffer.put(np.ones(4, np.uint32)).sync_on(rank.devices[0].new_stream())
    op = rank.all_reduce(x)
    with pytest.raises(OwnershipError, match="argument 'x'"):
        Affine(x.storage, 2, 1)
    op.discard()
    Affine(x.storage, 2, 1).discard()


def test_bad_arguments_are_refused_when_an_operation_is_built():
    ranks = on_host()
    rank = ranks.ranks[0]
    x, bools = Buffer.put(np.ones(4, np.float32)), Buffer.put(np.ones(4, np.bool_))
    stream = Device.host().new_stream()
    x, bools = x.sync_on(stream), bools.sync_on(stream)
    together = ranks.together
    assert together is not None
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: rank.all_reduce(x, op="mean"), ArgumentError, "expected one of sum"),
        (lambda: rank.all_reduce(bools), ArgumentError, "bools have no sum"),
        (lambda: rank.all_gather(x, x), ArgumentError, "3 times as many in into"),
        (lambda: rank.reduce_scatter(x, x), ArgumentError, "3 times as many in x"),
        (lambda: rank.all_to_all(x, x), ArgumentError, "a multiple of 3"),
        (lambda: rank.broadcast(x, root=3), ArgumentError, "a rank from 0 to 2"),
        (lambda: rank.send(x, to=0), ArgumentError, "to itself"),
        (lambda: rank.all_reduce([1, 2]), ArgumentTypeError, "expected a tensor, or a Buffer"),
        (lambda: rank.all_reduce(np.ones(2)), ArgumentTypeError, r"make a tensor of it: .*from_numpy\(array\).sync"),
        (lambda: rank.all_reduce(value(1)), ArgumentTypeError, "an operation that has not run: run it first"),
        (lambda: together.all_reduce(x), ArgumentTypeError, "a list of 3 operands"),
        (lambda: together.send(x, to=1), ArgumentError, "several local ranks"),
        (lambda: Communicator.of([]), ArgumentError, "one or more"),
        (lambda: Communicator.of([Device.host()], network=Network()), ArgumentError, "only simulated devices"),
        (lambda: Communicator.join(2, 2, "x"), ArgumentError, "expected 0 to 1"),
        (lambda: Communicator.join(0, 1, "x"), ArgumentError, "unique_id"),
        (lambda: Buffer(x.storage, np.dtype(np.float64), count=3), ArgumentError, "a part of its 16 bytes"),
        (lambda: Buffer(x.storage, np.dtype("S")), ArgumentError, "expected a dtype of plain bytes"),
        (lambda: Buffer(x.storage, np.dtype(object)), ArgumentError, "expected a dtype of plain bytes"),
        (lambda: Buffer.put(np.array([{}], object)), ArgumentError, "expected a dtype of plain bytes"),
    ]
    for call, kind, words in refused:
        with pytest.raises(kind, match=words):
            call()


def test_tensors_are_operands_if_they_are_contiguous_and_may_be_written():
    frozen = np.arange(4, dtype=np.float32)
    frozen.setflags(write=False)
    with Device.host() as cpu:
        (rank,) = (Communicator.of([cpu]),)
        x = api.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4)).sync()
        assert rank.all_reduce(x[1].mut).sync() is not None
        (out,) = rank.all_reduce([x]).sync()  # a list, as a program for several devices passes
        assert out is x
        with pytest.raises(TypeError, match=r"all_reduce: argument 'x' of rank 0: expected a tensor.*, got int: 5"):
            rank.all_reduce([5])
        with pytest.raises(ValueError, match=r"not contiguous; pass a copy \(dup\(\)\)"):
            rank.all_reduce(x[:, :2].mut)
        with pytest.raises(OwnershipError, match="lent it to be read"):
            rank.all_reduce(from_dlpack(frozen))


# ---- simulated networks -------------------------------------------------------------------------------------------


def test_a_late_rank_makes_all_late_by_the_networks_time():
    def virtual_seconds(network: Network) -> float:
        ranks = on_sim(limit_s=None, network=network)
        x = ranks.put([np.ones(1 << 16, np.float32)] * WORLD)
        driver = ranks.devices[0].driver
        assert isinstance(driver, SimDriver)
        start = driver.time
        ranks.run(
            *(rank.all_reduce(x[i]).then(lambda b: Affine(b.storage, 1, 0)) for i, rank in enumerate(ranks.ranks))
        )
        return driver.time - start

    slow = Network(latency_s=0.5, bytes_per_s=1e6)
    expected = slow.seconds("all_reduce", 4 << 16, WORLD)
    assert expected == pytest.approx(2 * 2 * (0.5 + (4 << 16) / 3 / 1e6))
    assert virtual_seconds(slow) == pytest.approx(expected, abs=0.01)
    late = Network(latency_s=0.5, bytes_per_s=1e6, late={1: 7.0})
    assert virtual_seconds(late) == pytest.approx(7.0 + expected, abs=0.01)


def test_a_lost_rank_is_named():
    ranks = on_sim(limit_s=5.0, network=Network(lost=frozenset({1})))
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    errors = ranks.run(*(rank.all_reduce(x[i]) for i, rank in enumerate(ranks.ranks)))
    for error in errors:
        assert isinstance(error, CollectiveError | DependencyError)
        assert "rank 1 has not come and has called nothing yet" in str(error)


def test_arrays_are_read_when_the_operation_runs() -> None:
    """However their elements lie."""
    array = np.arange(8.0)
    whole, every_other = Buffer.put(array), Buffer.put(array[::2])
    array[:] = 7
    assert whole.sync().get().sync().tolist() == [7] * 8
    assert every_other.sync().get().sync().tolist() == [7] * 4
