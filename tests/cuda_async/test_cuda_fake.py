"""Streams, events and contexts of CUDA on a fake of its bindings: no GPU is needed."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs the extra cuda")

from cuda_async import ContextError, DeviceLostError, DriverError
from cuda_async.driver.cuda import context, host_functions
from cuda_async.driver.cuda.api import cu, error_of
from cuda_async.driver.pool import WorkerPool, worker_pool
from tests.cuda_async.fake_cuda import FakeCuda, FakeDevice
from tests.support.interrupts import interrupted


def fork(monkeypatch: pytest.MonkeyPatch, *devices: FakeDevice) -> None:
    """Become the child of a fork, as CUDA sees it."""
    monkeypatch.setattr(context, "_forked", True)
    for device in devices:
        device.context.close()


@pytest.mark.parametrize("handle", [0, 5])
def test_the_child_of_a_fork_asks_about_work_of_its_parent(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions never raise: the work is over for the child, and has failed."""
    fake = FakeCuda(monkeypatch)
    device = FakeDevice(0)
    stream, event = device.stream(handle), device.event()
    stream.record(event)
    fork(monkeypatch, device)
    fake.calls.clear()
    assert stream.query()
    assert event.query()
    assert isinstance(event.failure(), ContextError)
    assert "spawn" in str(event.failure())
    event.close()
    stream.free(64)
    assert not fake.calls, "the driver must not be called in the child"
    with pytest.raises(ContextError, match="spawn"):
        stream.record(event)


@pytest.mark.parametrize("handle", [0, 1, 2, 5])
def test_output_is_written_by_the_device_that_prints(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default stream is that of the current context, which is another device's here."""
    fake = FakeCuda(monkeypatch, current=0)
    device = FakeDevice(1)
    stream = device.stream(handle)
    stream.expect_output()
    fake.calls.clear()
    assert stream.query()
    assert fake.of("cuStreamSynchronize") == [(1, (handle,))]
    if stream.ambient:
        assert fake.of("cuStreamQuery") == [(1, (handle,))]
    assert fake.stack == [0]


def test_a_graph_in_a_capture_has_its_checks_called_at_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They belong to the graph that is captured, and not to the run around the capture."""
    fake = FakeCuda(monkeypatch)
    stream = FakeDevice(0).stream()
    calls: list[str] = []

    def captured(name: str, *inner: Any) -> Any:
        stream.begin_capture()
        for graph in inner:
            stream.launch_graph(graph)
        stream.check_behind(lambda: calls.append(name))
        graph = stream.end_capture()
        graph.instantiate()
        return graph

    inner = captured("inner")
    outer = captured("outer", inner, inner)
    assert not stream.errors.checks
    # A capture refuses `cuGraphLaunch`: the inner graph is a node, and the second one comes behind the first.
    (_, first), (_, second) = fake.of("cuGraphAddChildGraphNode")
    (_, (_, nodes, *_)), _ = fake.of("cuStreamUpdateCaptureDependencies")
    assert (first[1], second[1]) == ([], nodes)
    assert first[3] == second[3] == inner.graph
    for _ in range(2):
        stream.begin_run()
        stream.launch_graph(outer)
        end = FakeDevice(0).event()
        stream.record(end)
        stream.followed()
        stream.end_run()
        assert end.query()
    assert calls == ["inner", "outer"] * 2


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("handle", [0, 5])
def test_early_launches(handle: int, always: bool, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a graph, and all of a kernel that says so."""
    fake = FakeCuda(monkeypatch, current=0)
    device = FakeDevice(0)
    stream, function, one = device.stream(handle), device.early_function(7, always=always), (1, 1, 1)
    launcher = stream.launcher(function, one, 0)

    def launch() -> None:
        if quick:
            launcher(stream, 1, 64)
        else:
            stream.launch_function(function, one, one, 0, 64)

    launch()
    assert len(fake.of("cuLaunchKernelEx")) == always
    if handle:  # a default stream captures nothing
        stream.begin_capture()
        launch()
        assert len(fake.of("cuLaunchKernelEx")) == always + 1
        stream.end_capture()
    stream.prepare_launch(function, one, one, 0, 64)()
    launch()
    assert len(fake.of("cuLaunchKernelEx")) + len(fake.of("cuLaunchKernel")) == 3 + bool(handle)
    assert len(fake.of("cuLaunchKernel")) == (0 if always else 3)


@pytest.mark.parametrize("handle", [0, 5])
def test_a_prepared_launch_keeps_its_function(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller may drop the function; the module is unloaded with the last launch that can come."""
    fake = FakeCuda(monkeypatch, current=0)
    device = FakeDevice(0)
    stream = device.stream(handle)
    one = (1, 1, 1)
    launch = stream.launcher(device.function(7, module=70), one, 0)
    go = stream.prepare_launch(device.function(8, module=80), one, one, 0, 64)
    gc.collect()
    for _ in range(2):
        stream.begin_single()  # unloads modules that nobody has
        launch(stream, 3, 64)
        go()
    assert not fake.of("cuModuleUnload")
    assert [arguments[0] for _, arguments in fake.of("cuLaunchKernel")] == [7, 8] * 2
    del launch, go
    gc.collect()
    device.collect()
    assert sorted(fake.of("cuModuleUnload")) == [(0, (70,)), (0, (80,))]


_ENTERING = ("cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxSetCurrent")


@pytest.mark.parametrize("current", [None, 0, 1])
@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("behind", [*_ENTERING, "cuCtxPopCurrent", "cuStreamWaitEvent"])
def test_ctrl_c_behind_a_call_of_the_driver_leaves_the_context(
    behind: str, ordinal: int, current: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has the context that it had; but device 0's may stay where there was none."""
    fake = FakeCuda(monkeypatch, current)
    device = FakeDevice(ordinal)
    stream, event = device.stream(), device.event()

    def run() -> None:
        stream.begin_run()
        try:
            stream.wait_event(event)
        finally:
            stream.end_run()

    before = [0] if current is None and ordinal == 0 else [] if current is None else [current]
    for action in (run, lambda: stream.wait_event(event)):
        fake.interrupted = behind
        with suppress(KeyboardInterrupt):
            action()
        fake.interrupted = ""
        assert fake.stack in (before, [] if current is None else before)
        assert not context._current.stack  # pyright: ignore[reportPrivateUsage]
        run()
        assert fake.of("cuStreamWaitEvent")[-1][0] == ordinal
        assert fake.stack == before


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where signals may come")
def test_ctrl_c_while_a_stream_is_entered_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each place, but the first of a function that leaves: nothing of it has run then."""
    fake = FakeCuda(monkeypatch, current=0)
    stream = FakeDevice(1).stream()

    def run() -> None:
        stream.enter()
        stream.leave()

    place, number = "", 0
    while place is not None:
        place = interrupted(run, number)
        number += 1
        if place is None or not place.endswith("leave"):
            assert fake.stack == [0], place
            assert not context._current.stack, place  # pyright: ignore[reportPrivateUsage]
            assert not stream._entered, place
        fake.stack[1:] = context._current.stack[:] = stream._entered[:] = []  # pyright: ignore[reportPrivateUsage]
        context._current.top = None  # pyright: ignore[reportPrivateUsage]
    assert number > 5


def test_a_device_is_lost_by_errors_that_the_process_does_not_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    lost = {code.name for code in cu.CUresult if isinstance(error_of(code, "cuLaunchKernel"), DeviceLostError)}
    assert {"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_CONTEXT_IS_DESTROYED"} <= lost
    for code in cu.CUresult:
        words = " ".join((code.__doc__ or "").split())  # the driver's reference; bindings before CUDA 13 lack it
        if "process must be terminated" in words or "context cannot be used" in words:
            assert code.name in lost, words


@pytest.mark.parametrize("name", ["CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_MPS_CLIENT_TERMINATED"])
def test_a_device_that_another_process_has_is_not_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later try may get it; a client that its server has ended gets nothing any more."""
    FakeCuda(monkeypatch)
    error = error_of(getattr(cu.CUresult, name), "cuDevicePrimaryCtxRetain")
    assert isinstance(error, DeviceLostError) is (name == "CUDA_ERROR_MPS_CLIENT_TERMINATED")
    assert ("nvidia-smi -c DEFAULT" in str(error)) is (name == "CUDA_ERROR_DEVICE_UNAVAILABLE")


@pytest.mark.parametrize("how", ["refused", "interrupted"])
@pytest.mark.parametrize("call", ["cuStreamWaitValue32", "cuStreamWriteValue32"])
def test_a_stream_waits_for_no_function_whose_enqueueing_failed(
    call: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCuda(monkeypatch, current=0)
    device = FakeDevice(0)
    stream = device.stream()
    called = threading.Event()
    setattr(fake, how, call)
    with pytest.raises(KeyboardInterrupt if how == "interrupted" else DriverError):
        stream.call(called.set)
    word = fake.of("cuStreamWaitValue32")[0][1][1]
    assert ctypes.c_uint32.from_address(word).value == 1  # what the stream waits for
    stream.call(called.set)
    assert called.wait(60)
    assert fake.of("cuStreamWaitValue32")[1][1][1] != word  # the stream may set it back at any time


def test_a_function_that_was_called_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, current=0)
    stream = FakeDevice(0).stream()
    called = threading.Event()

    class Function:
        def __call__(self) -> None:
            called.set()

    function = Function()
    seen = weakref.ref(function)
    stream.call(function)
    del function
    assert called.wait(60)
    limit = time.monotonic() + 60
    while seen() is not None and time.monotonic() < limit:
        worker_pool().put(lambda: None)  # a worker drops its last task when the next one comes
    assert seen() is None


def test_a_function_whose_turn_comes_at_exit_is_not_called_and_waiters_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool refused it, the thread ended with a traceback, and the stream waited for ever."""
    fake = FakeCuda(monkeypatch, current=0)
    device = FakeDevice(0)
    stream, end = device.stream(), device.event()
    pool = WorkerPool(1)
    pool.close(0)
    monkeypatch.setattr(host_functions, "worker_pool", lambda: pool)
    stream.call(lambda: pytest.fail("it was called"))
    stream.record(end)
    word = ctypes.c_uint32.from_address(fake.of("cuStreamWaitValue32")[0][1][1])
    limit = time.monotonic() + 10
    while word.value == 0 and time.monotonic() < limit:
        time.sleep(0.001)
    assert word.value == 1
    assert "the interpreter is exiting" in str(end.failure())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where signals may come")
def test_ctrl_c_leaves_no_function_that_no_stream_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came behind the entry's way into the queue: the stream went on, and the function was called at any time."""
    fake = FakeCuda(monkeypatch, current=0)
    functions, stream = FakeDevice(0).host_functions, FakeDevice(0).stream()
    monkeypatch.setattr(functions, "_thread", threading.current_thread())  # nobody calls them but this test
    number, place, calls = 0, "the beginning", 0
    while place is not None:
        fake.calls.clear()
        words: list[int] = []

        def function(words: list[int] = words) -> None:
            ((_, (_, address, *_)),) = fake.of("cuStreamWaitValue32")
            words.append(ctypes.c_uint32.from_address(address).value)

        place = interrupted(lambda function=function: functions.enqueue(stream, function), number)
        while not functions._new.empty():  # pyright: ignore[reportPrivateUsage]
            functions._call(functions._new.get())  # pyright: ignore[reportPrivateUsage]
        assert words in ([], [0]), f"{place}: the stream did not wait for the function"
        calls += len(words)
        for _, (_, address, *_) in fake.of("cuStreamWaitValue32"):
            assert ctypes.c_uint32.from_address(address).value == 1, f"{place}: the stream waits for ever"
            ctypes.c_uint32.from_address(address).value = 0  # as the stream does behind the word
        number += 1
    assert number > 10
    assert calls  # the last one, which nothing interrupts


class _Interrupted(deque[int]):
    """Words that a signal's handler takes between two calls."""

    def __init__(self, words: Iterable[int], handler: Callable[[], object]) -> None:
        super().__init__(words)
        self._handler: Callable[[], object] | None = handler

    def __len__(self) -> int:
        length = super().__len__()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler()
        return length


def test_a_handler_takes_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch, current=0)
    functions, stream = FakeDevice(0).host_functions, FakeDevice(0).stream()
    called, memory = [threading.Event(), threading.Event()], ctypes.c_uint32(0)
    monkeypatch.setattr(
        functions, "_words", _Interrupted([ctypes.addressof(memory)], lambda: functions.enqueue(stream, called[0].set))
    )
    functions.enqueue(stream, called[1].set)
    assert all(event.wait(60) for event in called)
    handlers_word, word = (arguments[1] for _, arguments in fake.of("cuStreamWaitValue32"))
    assert handlers_word == ctypes.addressof(memory) != word
