"""Ranks on GPUs, with what stands for NCCL on the CPU: what is theirs alone, beside the suite of all engines."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_async import CudaGraph, Device, Stream
from cuda_async import zip as zip_ops
from cuda_async.collective import Buffer, CollectiveError, Communicator
from cuda_async.collective.board import ALL, Call, CallLog, Group, Meeting
from cuda_async.collective.communicator import _Numbers  # pyright: ignore[reportPrivateUsage]
from cuda_async.collective.engine import Seat
from cuda_async.collective.nccl import Nccl, element_type, load_nccl
from cuda_async.collective.nccl_engine import NcclEngine
from cuda_async.collective.processes import ProcessEngine
from cuda_async.errors import ArgumentError, LaunchError
from cuda_async.testing import CheckedDriver, Ledger
from tests.cuda_async.fake_nccl import Comm, FakeNccl, NCCLError
from tests.cuda_async.ranks import WORLD, on_gpus, outcome
from tests.cuda_async.work import Affine
from tests.support.interrupts import interrupted


def test_gpus_of_one_process_call_together():
    """Each has its part on a stream of its own, ordered with what other streams do to the operands."""
    ledger = Ledger()
    device = Device.from_driver(CheckedDriver(Device.host().driver, ledger))
    fake = FakeNccl()
    engine = NcclEngine(
        Nccl(fake, handle=lambda stream: stream), range(WORLD), [device] * WORLD, fake.comm_init_all(WORLD, []), WORLD
    )
    with Communicator(engine, range(WORLD), [device] * WORLD, _Numbers()) as together:
        x = [Buffer.put(np.full(4, i + 1, np.uint32)).sync_on(device.new_stream()) for i in range(WORLD)]
        for buffer in x:
            Affine(buffer.storage, 2, 1).sync_on(device.new_stream())
        streams = [device.new_stream() for _ in range(2)]
        with pytest.raises(LaunchError, match="a graph takes the collectives of one GPU"):
            together.all_reduce(x).graph_on(streams[0])
        together.all_reduce(x).sync_on(streams[0])
        zip_ops(together.all_reduce(x), together.barrier()).sync_on(streams[1])
        for buffer in x:
            np.testing.assert_array_equal(buffer.get().sync_on(device.new_stream()), np.full(4, 3 * (3 + 5 + 7)))
        assert not ledger.races
        with pytest.raises(LaunchError, match=r"all_reduce\(uint32\[4\], sum\) at .*: GPUs of one process call"):
            together[1].all_reduce(x[1]).sync_on(streams[0])
    with pytest.raises(CollectiveError, match="was closed"):
        together.barrier().sync_on(streams[0])


@pytest.mark.parametrize("ahead", [False, True], ids=["behind NCCL's call", "ahead of NCCL's call"])
def test_an_abort_amid_a_call_fails_the_call(ahead: bool, monkeypatch: pytest.MonkeyPatch):
    """Another thread aborts while the call is enqueued: NCCL ends it without an error, and its data are wrong."""
    device, fake = Device.host(), FakeNccl()
    nccl = Nccl(fake, handle=lambda stream: stream)
    engine = NcclEngine(nccl, range(WORLD), [device] * WORLD, fake.comm_init_all(WORLD, []), WORLD)
    issue = nccl.issue

    def issue_amid_an_abort(*arguments: Any) -> None:
        if not ahead:
            issue(*arguments)
        aborting = threading.Thread(target=engine.abort, args=("enough",))
        aborting.start()
        aborting.join()
        if ahead:
            issue(*arguments)

    with Communicator(engine, range(WORLD), [device] * WORLD, _Numbers()) as together:
        x = [Buffer.put(np.full(4, i + 1, np.uint32)).sync_on(device.new_stream()) for i in range(WORLD)]
        monkeypatch.setattr(nccl, "issue", issue_amid_an_abort)
        with pytest.raises(CollectiveError, match="enough"):
            together.all_reduce(x).sync_on(device.new_stream())


def all_here(fake: FakeNccl) -> Communicator:
    """Ranks of one process."""
    device = Device.host()
    nccl = Nccl(fake, handle=lambda stream: stream)
    engine = NcclEngine(nccl, range(WORLD), [device] * WORLD, fake.comm_init_all(WORLD, []), WORLD)
    return Communicator(engine, range(WORLD), [device] * WORLD, _Numbers())


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_call_of_several_ranks_that_nccl_refuses(rank: int) -> None:
    """The error is NCCL's, nothing is enqueued, and the next call is the first one."""
    fake, stream = FakeNccl(), Device.host().new_stream()
    with all_here(fake) as together:
        x = [Buffer.put(np.full(4, i, np.uint32)).sync_on(stream) for i in range(WORLD)]
        fake.fails["all_reduce", rank] = NCCLError("invalid argument")
        with pytest.raises(CollectiveError, match="NCCL refuses the call: invalid argument"):
            together.all_reduce(x).sync_on(stream)
        assert not fake.calls
        together.all_reduce(x).sync_on(stream)
        assert [buffer.get().sync_on(stream).tolist() for buffer in x] == [[3] * 4] * WORLD
    assert sorted(fake.aborted) == list(range(WORLD))


@pytest.mark.parametrize(("call", "function"), [("all_to_all", "send"), ("all_to_all", "recv"), ("send", "send")])
def test_a_group_of_one_rank_that_nccl_refuses(call: str, function: str) -> None:
    fake = FakeNccl()
    ranks = on_gpus(fake=fake)
    parts = [np.arange(WORLD, dtype=np.uint32) + 10 * i for i in range(WORLD)]
    x, into = ranks.put(parts), ranks.put([np.zeros(WORLD, np.uint32)] * WORLD)
    stream = ranks.devices[1].new_stream()
    first = ranks.ranks[1].send(x[1], to=2) if call == "send" else ranks.ranks[1].all_to_all(x[1], into[1])
    fake.fails[function, 1] = NCCLError("invalid argument")
    with pytest.raises(CollectiveError, match="NCCL refuses the call: invalid argument"):
        first.sync_on(stream)
    ranks.run(*(rank.all_to_all(x[i], into[i]) for i, rank in enumerate(ranks.ranks)))
    np.testing.assert_array_equal(ranks.get(into), np.transpose(parts))
    for rank in ranks.ranks:
        rank.close()


def test_a_group_that_the_bindings_enqueue_in_part_ends_the_communicator() -> None:
    """NCCL has no error then, and enqueues the commands ahead of the failed one, for whose data they wait."""
    fake, stream = FakeNccl(), Device.host().new_stream()
    with all_here(fake) as together:
        x = [Buffer.put(np.full(4, i, np.uint32)).sync_on(stream) for i in range(WORLD)]
        fake.fails["all_reduce", 1] = TypeError("an integer is required")
        with pytest.raises(TypeError, match="an integer is required"):
            together.all_reduce(x).sync_on(stream)
        assert fake.calls == ["all_reduce"]  # of rank 0
        with pytest.raises(CollectiveError, match=r"enqueued in part \(TypeError: an integer is required\). This comm"):
            together.all_reduce(x).sync_on(stream)
        assert sorted(fake.aborted) == list(range(WORLD))
    synchronize(stream)


def test_the_other_processes_end_where_the_bindings_enqueue_a_group_in_part() -> None:
    fake = FakeNccl()
    ranks = on_gpus(limit_s=1000, fake=fake)
    x, into = (ranks.put([np.zeros(WORLD, np.uint32)] * WORLD) for _ in range(2))
    streams = [device.new_stream() for device in ranks.devices]
    fake.fails["recv", 1] = TypeError("an integer is required")
    calls = [rank.all_to_all(x[i], into[i]).bind(streams[i]) for i, rank in enumerate(ranks.ranks)]
    calls[0]()
    with pytest.raises(TypeError, match="an integer is required"):
        calls[1]()
    with pytest.raises(CollectiveError, match=r"enqueued in part .* on rank 1"):
        synchronize(streams[0])


def test_gpus_are_told_of_many_calls_by_few_messages(monkeypatch: pytest.MonkeyPatch):
    """A message takes longer than a call; the last call's error waits for the word about all of them."""
    told: list[int] = []
    tell = ProcessEngine.tell

    def counting(engine: ProcessEngine, calls: Sequence[tuple[Group, Call, str]]) -> None:
        told.append(len(calls))
        tell(engine, calls)

    monkeypatch.setattr(ProcessEngine, "tell", counting)
    ranks = on_gpus()
    x = ranks.put([np.full(4, i, np.uint32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    bound = [ranks.ranks[i].all_reduce(x[i], op="max").bind(streams[i]) for i in range(WORLD)]
    for i in range(WORLD):
        for _ in range(200):
            bound[i]()
    for stream in streams:
        stream.synchronize()
    assert sum(told) == 200 * WORLD
    assert len(told) < 200
    errors = ranks.run(*(rank.all_reduce(x[i], op="min" if i else "sum") for i, rank in enumerate(ranks.ranks)))
    assert all("called different things" in str(error) for error in errors)


def test_the_hub_is_told_while_the_data_are_under_way(monkeypatch: pytest.MonkeyPatch):
    """Its word is there when they are: as soon as somebody waits, it is asked."""
    monkeypatch.setattr("cuda_async.collective.nccl_engine._GATHER_S", 1000.0)
    told, come = threading.Event(), threading.Event()
    tell = ProcessEngine.tell

    def telling(engine: ProcessEngine, calls: Sequence[tuple[Group, Call, str]]) -> None:
        tell(engine, calls)
        told.set()

    def waiting() -> None:
        come.wait()

    monkeypatch.setattr(ProcessEngine, "tell", telling)
    ranks = on_gpus()
    x = ranks.put([np.full(4, i, np.uint32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    streams[0].call(waiting)
    for i, rank in enumerate(ranks.ranks):
        rank.all_reduce(x[i]).bind(streams[i])()
    waits = [threading.Thread(target=stream.synchronize) for stream in streams]
    waits[0].start()
    assert told.wait(20)
    assert not streams[0].query()
    come.set()
    for wait in waits[1:]:
        wait.start()
    for wait in waits:
        wait.join()
    np.testing.assert_array_equal(ranks.get(x), np.full((WORLD, 4), 3))


class _Bindings:
    """What stands for NCCL's bindings where nothing moves. Their functions are C code, amid which no signal comes."""

    NCCLError = NCCLError

    def __init__(self) -> None:
        self.calls: list[str] = []

    def comm_get_async_error(self, comm: object) -> int:
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            self.calls.append(name)

        return call


class _Hub:
    """What stands for the hub: it keeps what it is told, and agrees."""

    def __init__(self) -> None:
        self.told: list[tuple[Group, Call, str]] = []
        self._agree: Callable[[Group, int], None] | None = None

    def on_agreement(self, agree: Callable[[Group, int], None], fail: object) -> None:
        self._agree = agree

    def on_break(self, end: object) -> None:
        pass

    def tell(self, calls: Sequence[tuple[Group, Call, str]]) -> None:
        self.told += calls
        assert self._agree is not None
        self._agree(calls[-1][0], len(self.told))

    def close(self) -> None:
        pass


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where signals may come")
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_the_hub_is_told_of_a_call_wherever_ctrl_c_comes(kind: str) -> None:
    """It is told once of each call of NCCL, and of no other: else this rank's next call would be taken for the last."""
    bindings, hub = _Bindings(), _Hub()
    device, stream = Device.host(), Device.host().new_stream()
    nccl = Nccl(bindings, handle=id)
    engine = NcclEngine(nccl, [0], [device], ["comm"], WORLD, cast("Any", hub))
    call = Call(kind, kind, kind)
    seat = Seat(0, call, "sum" if kind == "all_reduce" else "", 0, np.dtype(np.uint32), 4096, WORLD, 8192, WORLD)
    group, last = (-1, -1), "all_reduce" if kind == "all_reduce" else "group_end"

    def action() -> None:
        engine.enqueue(stream, lambda: [((*group, 0), seat)], None)

    number, place, begun = 0, "the beginning", stream.sequence
    while place is not None:
        place = interrupted(action, number)
        count = bindings.calls.count(last)
        where = f"place {number}: {place}"
        assert bindings.calls.count("group_start") == (count if kind == "all_to_all" else 0), where
        assert stream.sequence - begun == count, where
        assert engine._numbers.get(group, 0) == engine._num_calls == count, where  # pyright: ignore[reportPrivateUsage]
        number += 1
    engine.close()
    limit = time.monotonic() + 20
    while len(hub.told) < bindings.calls.count(last) and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(hub.told) == bindings.calls.count(last)
    assert number > 20


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where signals may come")
@pytest.mark.parametrize("records", [False, True], ids=["no graphs", "graphs"])
def test_a_communicator_that_ctrl_c_left_half_closed_is_closed_again(records: bool) -> None:
    """NCCL frees it once: without that, what waits on the device waits for ever."""
    number, place = 0, "the beginning"
    while place is not None:
        bindings = _Bindings()
        engine = NcclEngine(Nccl(bindings, handle=id), [0], [Device.host()], ["comm"], WORLD, cast("Any", _Hub()))
        if records:
            engine.recorded()
        try:
            place = interrupted(engine.close, number)
        except RuntimeError:  # `threading` itself loses a lock where Ctrl-C comes amid the start of a thread
            place = "threading"
        engine.close()
        limit = time.monotonic() + 20
        while not bindings.calls.count("comm_abort") and time.monotonic() < limit:
            time.sleep(0.001)
        assert bindings.calls.count("comm_abort") == 1, f"place {number}: {place}"
        number += 1
    assert number > 10


def test_a_graph_of_a_broken_communicator_fails_when_it_is_launched():
    ranks = on_gpus()
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    streams = [device.new_stream() for device in ranks.devices]
    graphs = [ranks.ranks[i].all_reduce(x[i]).graph_on(streams[i]) for i in range(WORLD)]
    ranks.run(*(graph.launch() for graph in graphs))
    ranks.ranks[1].abort("enough")
    with pytest.raises(CollectiveError, match="enough on rank 1"):  # which says that rank 0 has heard of it
        ranks.ranks[0].barrier().sync_on(streams[0])
    with pytest.raises(CollectiveError, match="enough on rank 1"):
        graphs[0].launch().sync_on(streams[0])


@pytest.mark.parametrize("how", ["aborts", "closes", "calls something else", "sends a message"])
def test_launches_of_graphs_end_where_another_rank(how: str):
    """The hub does not know of them, and NCCL's abort ends the calls of one rank alone: so each rank has to be told."""
    ranks = on_gpus(limit_s=1.0)
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    streams = [device.new_stream() for device in ranks.devices]
    graphs = [ranks.ranks[i].all_reduce(x[i]).graph_on(streams[i]) for i in range(WORLD)]
    launches = [graph.launch().bind(stream) for graph, stream in zip(graphs, streams, strict=True)]
    ranks.run(*(rank.barrier() for rank in ranks.ranks))  # the hub has been told of all calls
    for other in (0, 2):
        launches[other]()
    rank = ranks.ranks[1]
    if how == "aborts":
        rank.abort("enough")
    elif how == "closes":
        rank.close()
    else:
        call = rank.barrier() if how == "calls something else" else rank.send(x[1], to=2)
        with pytest.raises(CollectiveError, match=r"on rank 1 waited 1 s: rank"):
            call.sync_on(streams[1])
    for other in (0, 2):
        with pytest.raises(CollectiveError, match="rank 1"):
            synchronize(streams[other])


@pytest.mark.parametrize("nested", [False, True], ids=["a graph", "a graph in a graph"])
def test_a_launch_fails_where_another_rank_has_recorded_something_else(nested: bool):
    """NCCL moves something all the same: the launch waits for the hub's word about the recorded calls."""
    ranks = on_gpus()
    x = ranks.put([np.full(4, i, np.float32) for i in range(WORLD)])
    streams = [device.new_stream() for device in ranks.devices]
    graphs: list[CudaGraph[Any]] = []
    for i, rank in enumerate(ranks.ranks):
        graphs.append(rank.all_reduce(x[i], op="min" if i else "max").graph_on(streams[i]))
        if nested:
            graphs.append(graphs.pop().launch().graph_on(streams[i]))
    for error in ranks.run(*(graph.launch() for graph in graphs)):
        assert "called different things" in str(error)


def test_a_call_that_all_have_made_ends_where_a_rank_leaves_amid_it():
    ranks = on_gpus(limit_s=1.0)
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    streams = [device.new_stream() for device in ranks.devices]
    ranks.ranks[1]._engine._comms[1].ring.abort_rank(1)  # pyright: ignore  # as `close` does amid NCCL's work
    for i, rank in enumerate(ranks.ranks):
        rank.all_reduce(x[i]).bind(streams[i])()
    synchronize(streams[1])  # its call ended, and the hub knows that all ranks have made it
    ranks.ranks[1].close()
    for other in (0, 2):
        with pytest.raises(CollectiveError, match="rank 1 is gone"):
            synchronize(streams[other])


def synchronize(stream: Stream) -> None:
    """Wait for a stream, and raise its error. It may hang where the runtime is wrong: then the test fails instead."""
    errors: list[Exception | None] = []
    thread = threading.Thread(target=lambda: errors.append(outcome(stream.synchronize)), daemon=True)
    thread.start()
    thread.join(20)
    assert errors, "the stream never ends"
    if errors[0] is not None:
        raise errors[0]


@pytest.mark.parametrize("nested", [False, True], ids=["a graph", "a graph in a graph"])
def test_a_communicator_is_closed_while_graphs_hold_its_calls(nested: bool):
    """NCCL frees it when the last graph is gone: until then nobody waits, and from then on `close` does."""
    ranks = on_gpus()
    comms: list[Comm] = [comm for rank in ranks.ranks for comm in rank._engine._comms.values()]  # pyright: ignore
    x = ranks.put([np.ones(4, np.float32)] * WORLD)
    streams = [device.new_stream() for device in ranks.devices]
    graphs = [ranks.ranks[i].all_reduce(x[i]).graph_on(streams[i]) for i in range(WORLD)]
    if nested:
        outer = [graph.launch().graph_on(stream) for graph, stream in zip(graphs, streams, strict=True)]
        for graph in graphs:
            graph.close()
        graphs = outer
    ranks.run(*(graph.launch() for graph in graphs))
    for stream in streams:
        stream.synchronize()
    graphs[0].close()
    for rank in ranks.ranks:
        rank.close()
    assert [comm.freed.is_set() for comm in comms] == [True] + [False] * (WORLD - 1)
    with pytest.raises(CollectiveError, match="closed"):
        graphs[1].launch().sync_on(streams[1])
    for graph in graphs:
        graph.close()
    for device in ranks.devices:
        device.new_stream().synchronize()
        device.collect()
    assert all(comm.freed.wait(60) for comm in comms)


def test_the_multiprocessors_of_gpus_collectives_are_nccls_configuration():
    fake = FakeNccl()
    nccl = Nccl(fake, handle=lambda stream: stream)
    rank = NcclEngine.join(0, 1, Communicator.unique_id(), Device.host(), 5, nccl, 8)
    rank.close()
    (config,) = fake.configs
    assert (config.max_ctas, config.cga_cluster_size) == (8, 0)
    for wrong in (0, 33):
        with pytest.raises(ArgumentError, match="max_ctas: expected 1 to 32"):
            Communicator.of([Device.host()], max_ctas=wrong)


@pytest.mark.parametrize("answers", [True, False], ids=["NCCL tells", "NCCL refuses the question"])
def test_a_broken_link_of_gpus_is_named(answers: bool, monkeypatch: pytest.MonkeyPatch):
    ranks = on_gpus(limit_s=1000)
    ranks.run(*(rank.barrier() for rank in ranks.ranks))
    (comm,) = ranks.ranks[1]._engine._comms.values()  # pyright: ignore
    comm.failure = 6
    if not answers:

        def refuse(nccl: FakeNccl, asked: object) -> int:
            if asked is comm:
                raise NCCLError("remote process exited")
            return 0

        monkeypatch.setattr(FakeNccl, "comm_get_async_error", refuse)
    with pytest.raises(CollectiveError, match="NCCL on rank 1 says: remote process exited"):
        ranks.ranks[1].barrier().sync_on(ranks.devices[1].new_stream())
    with pytest.raises(CollectiveError, match="remote process exited"):
        ranks.ranks[1].barrier().sync_on(ranks.devices[1].new_stream())
    stream = ranks.devices[0].new_stream()
    barrier = ranks.ranks[0].barrier().bind(stream)
    # The call raises, if this rank knows of the error by now. Else NCCL waits for rank 1, and has no error of its own.
    error = outcome(barrier) or outcome(lambda: synchronize(stream))
    assert "NCCL on rank 1 says: remote process exited" in str(error)
    for rank in ranks.ranks:
        rank.close()


def test_what_gpus_cannot_reduce_is_refused_and_still_moved():
    ranks = on_gpus()
    parts = [np.arange(5, dtype=np.int16) + 300 * i for i in range(WORLD)]
    x, into = ranks.put(parts), ranks.put([np.zeros(5 * WORLD, np.int16)] * WORLD)
    with pytest.raises(ArgumentError, match="GPUs reduce no elements of int16"):
        ranks.ranks[0].all_reduce(x[0])
    ranks.run(*(rank.all_gather(x[i], into[i]) for i, rank in enumerate(ranks.ranks)))
    for got in ranks.get(into):
        np.testing.assert_array_equal(got, np.concatenate(parts))
    for rank in ranks.ranks:
        rank.close()


@pytest.mark.parametrize(("asked", "there"), [("", "0"), ("1", "1")])
def test_sums_within_nvswitches_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch, asked: str, there: str):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", asked)
    for name in ("nccl", "nccl.bindings", "nccl.bindings.nccl"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    load_nccl()
    assert os.environ["NCCL_NVLS_ENABLE"] == there


def test_without_nccl_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nccl", None)
    monkeypatch.delitem(sys.modules, "nccl.bindings", raising=False)
    monkeypatch.delitem(sys.modules, "nccl.bindings.nccl", raising=False)
    with pytest.raises(LaunchError, match=r"pip install 'cutile\[distributed\]'"):
        load_nccl()


@given(st.data())
def test_the_log_agrees_on_what_all_have_called(data: st.DataObject) -> None:
    """Ranks tell of the same calls in batches of any size; one of them may call something else at some place."""
    groups: list[Group] = [ALL, (0, 1), (2, 0)]
    calls = data.draw(st.lists(st.tuples(st.sampled_from(groups), st.sampled_from("ab")), max_size=12))
    log, agreed = CallLog(3), dict.fromkeys(groups, 0)
    of_rank = [
        [(group, Call("", form, form), "") for group, form in calls if rank in log.members(group)] for rank in range(3)
    ]
    wrong = data.draw(st.none() | st.sampled_from([rank for rank in range(3) if of_rank[rank]] or [None]))
    for rank in range(3):
        of_rank[rank] = [
            (group, call, f"failure of {rank}" if data.draw(st.integers(0, 3)) == 0 else "")
            for group, call, _ in of_rank[rank]
        ]
    place = 0
    if wrong is not None:
        place = data.draw(st.integers(0, len(of_rank[wrong]) - 1))
        of_rank[wrong][place] = (of_rank[wrong][place][0], Call("", "other", "other"), "")
    expected = {group: sum(group == each for each, _ in calls) for group in groups}
    if wrong is not None:
        group = of_rank[wrong][place][0]
        expected[group] = sum(group == each for each, *_ in of_rank[wrong][:place])
    dispute: Meeting[None] | None = None
    told, failures = [0] * 3, list[tuple[Group, int, str]]()
    while dispute is None and any(told[rank] < len(of_rank[rank]) for rank in range(3)):
        rank = data.draw(st.sampled_from([rank for rank in range(3) if told[rank] < len(of_rank[rank])]))
        count = data.draw(st.integers(1, len(of_rank[rank]) - told[rank]))
        runs = [(*call, len(list(run))) for call, run in groupby(of_rank[rank][told[rank] : told[rank] + count])]
        agreement = log.add(rank, runs, 1.0)
        told[rank] += count
        failures += agreement.failures
        agreed |= agreement.counts
        dispute = agreement.dispute
        assert all(agreed[group] <= expected[group] for group in groups)
    assert (dispute is None) == (wrong is None)
    expected_failures = set[tuple[Group, int, int]]()
    for group in groups:
        told_of = [[why for each, _, why in of_rank[rank] if each == group] for rank in log.members(group)]
        for number, whys in enumerate(list(zip(*told_of, strict=False))[: agreed[group]]):
            failed = [rank for rank, why in zip(log.members(group), whys, strict=True) if why]
            expected_failures |= {(group, number, failed[0])} if failed else set()
    assert len(failures) == len(expected_failures)
    for group, number, rank in expected_failures:
        (why,) = (why for *call, why in failures if call == [group, number])
        assert f"failed on rank {rank}: " in why
    if dispute is None:
        assert agreed == expected
        assert log.oldest() is None
        assert not log.waiting()
    else:
        assert "other" in {arrival.call.form for arrival in dispute.arrivals.values()}


def test_elements_of_the_other_byte_order_are_moved_and_not_reduced():
    swapped = np.dtype(np.float32).newbyteorder()
    assert element_type(swapped, False) == (1, 4)  # four bytes
    with pytest.raises(ArgumentError, match="GPUs reduce no elements of"):
        element_type(swapped, True)
