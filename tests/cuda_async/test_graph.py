"""Graphs: recorded once, replayed on any stream; operands belong to the graph; every step may fail."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from functools import partial
from typing import Any

import pytest

from cuda_async import (
    ContextError,
    CudaGraph,
    Device,
    DeviceOp,
    DriverError,
    ExecutionContext,
    LaunchError,
    NotReadyError,
    OwnershipError,
    ReentrancyError,
    Storage,
    Stream,
    UnrunOperationWarning,
    value,
    with_context,
    zip,
)
from cuda_async.foreign import ForeignStorage
from cuda_async.graph import Module, Scope
from cuda_async.testing import SimDriver, wait_all_idle
from cuda_async.trace import trace_of
from tests.cuda_async.work import Affine, Call, CopyTo, Read, allocate, words
from tests.support.interrupts import interleaved

pytestmark = pytest.mark.filterwarnings(f"ignore::{UnrunOperationWarning.__module__}.UnrunOperationWarning")


@pytest.fixture
def storage(device: Device) -> Storage:
    return words(1, count=300).sync()


def first(storage: Storage) -> int:
    (number,) = set(Read(storage).sync().tolist())
    return number


def test_capture_records_and_does_not_run(stream: Stream, storage: Storage) -> None:
    graph = Affine(storage, 3, 1).then(lambda s: Affine(s, 2, 0)).graph_on(stream)
    assert graph.nodes == 2
    assert graph.stream is stream
    assert first(storage) == 1
    graph.launch().sync_on(stream)
    assert first(storage) == 8
    for _ in range(10):
        graph.launch().sync()  # on other streams
    expected = 8
    for _ in range(10):
        expected = 2 * (3 * expected + 1) % 2**32
    assert first(storage) == expected


def test_output_is_there_once_and_has_no_data_before_the_first_launch(device: Device, stream: Stream) -> None:
    graph = words(5, count=8).then(lambda s: Affine(s, 2, 1)).graph_on(stream)
    output = graph.take_output()
    assert output is not None
    assert graph.take_output() is None
    with pytest.raises(NotReadyError, match=r"test_graph\.py:\d+ has not been launched"):
        Read(output).sync()
    graph.launch().sync()
    assert first(output) == 11
    graph.launch().sync()
    assert first(output) == 11  # an uploaded constant is uploaded again


def test_graph_on_the_default_policy(device: Device, storage: Storage) -> None:
    graph = Affine(storage, 2, 0).graph()
    graph.launch().sync()
    assert first(storage) == 2
    assert graph.stream.device is device


def test_update_and_launch(device: Device, stream: Stream) -> None:
    """The token loop: a new input is copied in, the graph is launched, its output read."""
    source, target = words(0, count=64).sync(), words(0, count=64).sync()
    graph = CopyTo(target, source).then(lambda pair: Affine(pair[0], 3, 1)).graph_on(stream)
    for token in range(20):
        fresh = words(token, count=64).sync()
        handles = graph.update(CopyTo(source, fresh))
        assert handles[0] is source
        graph.launch().sync_on(stream)
        assert first(target) == 3 * token + 1


@pytest.mark.parametrize("seed", range(15))
def test_launches_on_other_streams_wait_for_updates_and_launches(seed: int) -> None:
    device = Device.from_driver(SimDriver(seed))
    streams = [device.new_stream() for _ in range(3)]
    source, target = words(0, count=64).sync_on(streams[0]), words(0, count=64).sync_on(streams[0])
    inputs = [words(n, count=64).sync_on(streams[1]) for n in range(6)]
    graph = CopyTo(target, source).then(lambda pair: Affine(pair[0], 3, 1)).graph_on(streams[0])
    for number, fresh in enumerate(inputs):
        graph.update(CopyTo(source, fresh))
        result = graph.launch().then(lambda _: Read(target)).sync_on(streams[number % 3])
        assert set(result.tolist()) == {3 * number + 1}


def test_operands_are_read_by_others_and_written_through_update_only(stream: Stream, storage: Storage) -> None:
    graph = Affine(storage, 2, 0).graph_on(stream)
    assert first(storage) == 1
    with pytest.raises(OwnershipError, match=r"graph captured at .*test_graph\.py.*graph\.update\(\)"):
        Affine(storage, 1, 1).sync()
    with pytest.raises(OwnershipError, match="graph"):
        value(1).then(lambda _: Affine(storage, 1, 1)).sync()
    graph.update(Affine(storage, 1, 4))
    graph.launch().sync()
    assert first(storage) == 10
    graph.close()
    Affine(storage, 1, 1).sync()
    assert first(storage) == 11


def test_capture_of_what_is_lent(stream: Stream, storage: Storage) -> None:
    held = Affine(storage, 2, 0)
    with pytest.raises(OwnershipError):
        value(1).then(lambda _: Affine(storage, 1, 1)).graph_on(stream)
    held.sync()
    Affine(storage, 1, 1).graph_on(stream).close()


def test_a_closed_graph(stream: Stream, storage: Storage) -> None:
    with Affine(storage, 2, 0).graph_on(stream) as graph:
        op = graph.launch()
        graph.launch().sync()
    assert graph.closed
    for use in (op.sync, graph.launch, lambda: graph.update(value(1))):
        with pytest.raises(ContextError, match="was closed"):
            use()
    assert first(storage) == 2


def test_a_closed_graph_lets_go_of_an_output_that_nobody_took(sim_device: Device, sim: SimDriver) -> None:
    """The output is freed even if the graph is kept; a later `take_output` raises."""
    stream = sim_device.new_stream()
    graph = words(1, count=64).then(lambda s: Affine(s, 2, 0)).graph_on(stream)
    graph.launch().sync_on(stream)
    assert sim.memory_info().used > 0
    graph.close()
    gc.collect()
    wait_all_idle(sim_device)
    assert sim.memory_info().used == sim.pinned_bytes == 0
    with pytest.raises(ContextError, match="was closed"):
        graph.take_output()


def test_an_output_that_was_taken_outlives_its_graph(sim_device: Device) -> None:
    stream = sim_device.new_stream()
    with words(1, count=64).then(lambda s: Affine(s, 2, 0)).graph_on(stream) as graph:
        output = graph.take_output()
        graph.launch().sync_on(stream)
    assert graph.take_output() is None
    assert output is not None
    assert set(Read(output).sync_on(stream).tolist()) == {2}


def test_operands_live_as_long_as_the_graph(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    graph = words(1, count=64).then(lambda s: Affine(s, 2, 0)).map(lambda _: None).graph_on(stream)
    wait_all_idle(sim_device)
    assert sim.memory_info().used > 0
    sim.automatic = False
    future = graph.launch().into_future()
    future.start()
    graph.close()
    del graph
    gc.collect()
    sim_device.collect()
    assert sim.memory_info().used > 0  # a launch is in flight
    sim.automatic = True
    future.sync()
    del future
    wait_all_idle(sim_device)
    wait_all_idle(sim_device)
    assert sim.memory_info().used == sim.pinned_bytes == 0
    assert sim.graphs == 0


@pytest.mark.parametrize("what", ["host function", "copy to the host", "inside"])
def test_what_a_graph_cannot_hold(stream: Stream, storage: Storage, what: str) -> None:
    op: DeviceOp[Any] = Call(lambda: None)
    if what == "copy to the host":
        op = Read(storage)
    elif what == "inside":
        op = zip(Affine(storage, 1, 0), value(1).then(lambda _: Call(lambda: None)))
    with pytest.raises(LaunchError, match="cannot be part of a graph"):
        op.graph_on(stream)
    assert Affine(storage, 2, 0).then(Read).sync_on(stream)[0] == 2  # everything is given back


def test_shared_operations_in_and_out_of_a_graph(device: Device, stream: Stream, storage: Storage) -> None:
    inside = Affine(storage, 2, 0).shared()
    graph = zip(inside.clone(), inside.clone()).graph_on(stream)
    assert graph.nodes == 1
    with pytest.raises(NotReadyError, match="captured in a graph"):
        inside.clone().sync()
    graph.launch().sync()
    assert first(storage) == 2
    graph.close()
    outside = words(3, count=300).shared()
    source = outside.clone().sync()
    copy = outside.clone().then(lambda s: CopyTo(storage, s)).graph_on(stream)
    copy.launch().sync()
    assert first(storage) == first(source) == 3


# -- scope -----------------------------------------------------------------------------------------


def test_scope_records_and_returns_handles(stream: Stream, storage: Storage) -> None:
    seen: list[Any] = []

    def record(scope: Scope) -> None:
        seen.append(scope.record(value(42)))
        seen.append(len(scope.record(value("hello"))))
        assert scope.record(Affine(storage, 3, 1)) is storage
        scope.record(Affine(storage, 2, 0))  # the lease of the one before has ended

    graph = CudaGraph.scope(stream, record)
    assert seen == [42, 5]
    assert graph.nodes == 2
    assert first(storage) == 1
    graph.launch().sync_on(stream)
    assert first(storage) == 8


def test_an_empty_scope_launches(stream: Stream) -> None:
    graph = CudaGraph.scope(stream, lambda scope: None)
    for _ in range(10):
        graph.launch().sync_on(stream)


def test_scope_as_a_block(stream: Stream, storage: Storage) -> None:
    with CudaGraph.scope(stream) as scope:
        scope.record(Affine(storage, 2, 0))
        with pytest.raises(ContextError, match="no graph"):
            _ = scope.graph
    scope.graph.launch().sync()
    assert first(storage) == 2
    with pytest.raises(ContextError, match="not open"):
        scope.record(value(1))


@pytest.mark.parametrize("how", ["sync", "sync_on", "capture stream"])
def test_nested_execution_in_a_scope_is_rejected(device: Device, stream: Stream, how: str) -> None:
    other = device.new_stream()

    def record(scope: Scope) -> None:
        op = value(1)
        _ = op.sync() if how == "sync" else op.sync_on(other if how == "sync_on" else stream)

    with pytest.raises(ReentrancyError, match=r"inside a graph scope, .* write scope\.record\(operation\)"):
        CudaGraph.scope(stream, record)
    assert value(1).sync_on(stream) == 1


def test_scope_refuses_what_allocates(stream: Stream, storage: Storage) -> None:
    def record(scope: Scope) -> None:
        with pytest.raises(TypeError, match=r"no graph node.*before the scope"):
            scope.record(words(1))
        with pytest.raises(TypeError, match="no graph node"):
            scope.record(Affine(storage, 2, 0).then(value))
        with pytest.raises(TypeError, match="expected an operation, got int"):
            scope.record(3)  # pyright: ignore[reportArgumentType]

        class Sneaky(DeviceOp[Storage]):
            graph_node = True

            def execute(self, context: Any) -> Storage:
                return context.allocate(64)

        with pytest.raises(LaunchError, match="allocates cannot be recorded"):
            scope.record(Sneaky())

    CudaGraph.scope(stream, record).launch().sync_on(stream)


def test_an_error_in_a_scope_leaves_the_stream_usable(device: Device, stream: Stream, storage: Storage) -> None:
    class MyError(Exception):
        pass

    def record(scope: Scope) -> None:
        scope.record(Affine(storage, 2, 0))
        raise MyError("test error")

    with pytest.raises(MyError, match="test error"):
        CudaGraph.scope(stream, record)
    assert Affine(storage, 3, 0).then(Read).sync_on(stream)[0] == 3


def test_two_threads_capture_at_once(device: Device) -> None:
    start = threading.Barrier(2)
    results: list[int] = []

    def work(number: int) -> None:
        stream = device.new_stream()
        storage = words(number, count=64).sync_on(stream)
        start.wait()
        for _ in range(20):
            with Affine(storage, 1, 1).graph_on(stream) as graph:
                graph.launch().sync_on(stream)
        results.append(int(Read(storage).sync_on(stream)[0]))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [20, 120]


# -- failures --------------------------------------------------------------------------------------

STEPS = ["create_stream", "begin_run", "begin_capture", "launch", "allocate", "end_capture", "instantiate", "upload"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("form", ["graph_on", "scope"])
def test_every_step_of_a_capture_may_fail(sim_device: Device, sim: SimDriver, step: str, form: str) -> None:
    stream = sim_device.new_stream()
    storage = words(1, count=64).sync_on(stream)
    wait_all_idle(sim_device)
    used = sim.memory_info().used
    error = DriverError(1, "SIM_FAULT", step)
    sim.fail(step, error=error)

    def capture() -> None:
        if form == "graph_on":
            Affine(storage, 2, 0).then(lambda s: allocate(64)).graph_on(stream)
            return
        with CudaGraph.scope(stream) as scope:
            scope.record(Affine(storage, 2, 0))
            if step == "allocate":
                raise error

    with pytest.raises(DriverError) as caught:
        capture()
    assert caught.value is error
    error.__traceback__ = None
    del caught
    wait_all_idle(sim_device)
    wait_all_idle(sim_device)
    assert sim.memory_info().used == used
    assert sim.graphs == 0
    assert Affine(storage, 3, 1).then(Read).sync_on(stream)[0] == 4
    with Affine(storage, 2, 0).graph_on(stream) as graph:
        graph.launch().sync_on(stream)
    assert first(storage) == 8


def test_the_operations_error_goes_before_the_captures(sim_device: Device, sim: SimDriver) -> None:
    def fail(_: object) -> Any:
        raise KeyError("mine")

    sim.fail("end_capture")
    with pytest.raises(KeyError, match="mine"):
        value(1).map(fail).graph_on(sim_device.new_stream())


def test_a_failing_launch_spoils_the_outputs(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    storage = words(1, count=64).sync_on(stream)
    graph = Affine(storage, 2, 0).graph_on(stream)
    sim.fail("run:launch", error=RuntimeError("in the kernel"))
    with pytest.raises(RuntimeError, match="in the kernel"):
        graph.launch().sync()
    with pytest.raises(RuntimeError, match="in the kernel"):
        Read(storage).sync()


@pytest.mark.parametrize("step", ["begin_run", "record", "wait_event", "launch_graph"])
def test_outputs_hold_no_data_where_the_first_launch_was_refused(sim_device: Device, sim: SimDriver, step: str) -> None:
    graph = words(7, count=4).graph_on(sim_device.new_stream())
    output, stream = graph.take_output(), sim_device.new_stream()  # another stream: it has to wait for the graph's
    assert output is not None
    sim.fail(step)
    with pytest.raises(DriverError):
        graph.launch().sync_on(stream)
    with pytest.raises(NotReadyError, match="has not been launched"):
        Read(output).sync_on(stream)
    graph.launch().sync_on(stream)
    assert set(Read(output).sync_on(stream).tolist()) == {7}


def test_a_failing_update_is_raised(stream: Stream, storage: Storage) -> None:
    graph = Affine(storage, 2, 0).graph_on(stream)

    def fail(_: object) -> Any:
        raise KeyError("update")

    with pytest.raises(KeyError):
        graph.update(Affine(storage, 1, 1).map(fail))
    graph.launch().sync()
    assert first(storage) == 4


@pytest.mark.parametrize("seed", range(10))
def test_bound_launches_are_ordered_like_others(seed: int) -> None:
    device = Device.from_driver(SimDriver(seed))
    home, other, third = (device.new_stream() for _ in range(3))
    storage = words(1, count=8).sync_on(home)
    with Affine(storage, 3, 1).graph_on(home) as graph:
        replay = graph.launch().bind(other)
        assert replay.stream is other
        expected = 1
        for _ in range(5):
            graph.update(Affine(storage, 2, 0))
            replay()
            graph.launch().sync_on(third)
            replay()
            expected *= 2
            for _ in range(3):
                expected = 3 * expected + 1
        assert set(Read(storage).sync_on(third).tolist()) == {expected}


def test_a_bound_launch_goes_on_after_a_failure(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    storage = words(1, count=8).sync_on(stream)
    with Affine(storage, 2, 0).graph_on(stream) as graph:
        replay = graph.launch().bind(stream)
        sim.fail("launch_graph")
        with pytest.raises(DriverError, match="injected fault"):
            replay()
        replay()
        stream.synchronize()
        assert set(Read(storage).sync_on(stream).tolist()) == {2}
    with pytest.raises(ContextError, match="was closed"):
        replay()


def test_a_bound_launch_keeps_what_it_uses_until_the_device_is_done(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    storage = words(1, count=8).sync_on(stream)
    sim.automatic = False
    graph = CopyTo(storage, words(7, count=8).sync_on(stream)).graph_on(stream)
    graph.launch().bind(stream)()
    graph.close()
    del graph
    gc.collect()
    sim_device.collect()
    sim.automatic = True
    assert set(Read(storage).sync_on(stream).tolist()) == {7}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
def test_another_thread_closes_the_graph_amid_a_launch() -> None:
    """The launch is refused, or done with all that it uses; wherever the threads change."""
    number, place, outcomes = 0, "the beginning", set[int]()
    while place is not None:
        sim = SimDriver(1)
        device = Device.from_driver(sim)
        stream, home = device.new_stream(), device.new_stream()
        storage = words(1, count=8).sync_on(home)
        source = words(7, count=8).sync_on(home)
        sim.automatic = False
        graph = CopyTo(storage, source).graph_on(home)
        launch = graph.launch().bind(stream)
        del source
        raised = False

        def this() -> None:
            nonlocal raised
            try:
                launch()  # noqa: B023
            except ContextError:
                raised = True

        place = interleaved(this, number, graph.close)
        graph.close()
        gc.collect()
        device.collect()
        assert sim.graphs == (not raised), f"{number}: {place}"
        sim.automatic = True
        assert Read(storage).sync_on(home).tolist() == [1 if raised else 7] * 8, f"{number}: {place}"
        outcomes.add(raised)
        number += 1
    assert outcomes == {True, False}


def reading(storage: Storage, context: ExecutionContext) -> DeviceOp[None]:
    storage.use(context.stream, write=False)
    return value(None)


def test_a_closed_graph_lets_go_of_other_libraries_memory(sim_device: Device) -> None:
    class Owner:
        """An object of another library."""

    stream, owner = sim_device.new_stream(), Owner()
    seen = weakref.ref(owner)
    lent = ForeignStorage(sim_device, owner, lambda: None)
    graph = with_context(partial(reading, lent)).graph_on(stream)
    graph.launch().sync_on(stream)
    del lent, owner
    gc.collect()
    assert seen() is not None
    graph.close()
    stream.synchronize()
    gc.collect()
    wait_all_idle(sim_device)
    assert seen() is None


@pytest.mark.parametrize("first_launched", ["inner", "outer"])
def test_a_graph_launched_by_a_graph(device: Device, stream: Stream, first_launched: str) -> None:
    """Outputs hold no data until either of the two is launched."""
    inner = words(5, count=8).then(lambda s: Affine(s, 2, 1)).graph_on(stream)
    output = inner.take_output()
    assert output is not None
    outer = inner.launch().then(lambda _: words(0, count=8)).then(lambda fresh: CopyTo(fresh, output)).graph_on(stream)
    copied = outer.take_output()
    assert copied is not None
    for storage in (output, copied[0]):
        with pytest.raises(NotReadyError, match="has not been launched"):
            Read(storage).sync_on(stream)
    if first_launched == "inner":
        inner.launch().sync_on(stream)
        assert first(output) == 11
        with pytest.raises(NotReadyError, match="has not been launched"):
            Read(copied[0]).sync_on(stream)
    outer.launch().sync_on(stream)
    assert (first(copied[0]), first(output)) == (11, 11)


def test_a_trace_of_a_launch_leaves_the_outputs_without_data(device: Device, stream: Stream) -> None:
    graph = words(5, count=8).graph_on(stream)
    output = graph.take_output()
    assert output is not None
    trace_of(graph.launch, device)
    with pytest.raises(NotReadyError, match="has not been launched"):
        Read(output).sync_on(stream)


def test_binding_a_launch_uses_it_up(device: Device, stream: Stream, storage: Storage) -> None:
    with Affine(storage, 2, 0).graph_on(stream) as graph:
        op = graph.launch()
        op.bind(stream)
        with pytest.raises(OwnershipError, match="bound to a stream"):
            op.sync_on(stream)
        elsewhere = Device.from_driver(SimDriver(seed=2)).new_stream()
        with pytest.raises(ContextError, match="belongs to"):
            graph.launch().bind(elsewhere)


def test_a_graph_of_another_device(sim_device: Device) -> None:
    other = Device.from_driver(SimDriver(ordinal=1))
    graph = Affine(words(1).sync(), 2, 0).graph()
    with pytest.raises(ContextError, match="belongs to sim:0, the launch to sim:1"):
        graph.launch().sync_on(other.new_stream())


def test_a_module_runs_by_a_graph(device: Device, stream: Stream) -> None:
    class Scale(Module[int, int]):
        def __init__(self) -> None:
            self._input = words(0, count=16).sync()
            self._output = words(0, count=16).sync()
            self._graph = CopyTo(self._output, self._input).then(lambda p: Affine(p[0], 7, 0)).graph_on(stream)

        def forward(self, input: int) -> int:
            self._graph.update(CopyTo(self._input, words(input, count=16).sync()))
            self._graph.launch().sync_on(stream)
            return first(self._output)

    model = Scale()
    assert [model(n) for n in range(5)] == [0, 7, 14, 21, 28]
