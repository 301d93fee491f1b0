"""Forks, exits, signals: in processes of their own, each with a limit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cuda_async import ContextError
from cuda_async.locks import Gate, start_thread

ROOT = Path(__file__).parents[2]
LIMIT_S = 500

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    prelude = """
        import asyncio, gc, os, signal, sys, threading, time
        import cuda_async
        from cuda_async import *
        from tests.cuda_async.work import *
    """
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(prelude) + textwrap.dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def expect(script: str, output: str) -> None:
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == output
    assert "Exception" not in done.stderr, done.stderr


FORKED = """
    import warnings
    warnings.filterwarnings("ignore", category=DeprecationWarning)   # of fork in a process with threads

    def rounds(number):
        streams = [Device.host().new_stream() for _ in range(3)]
        storage = words(number, count=300).sync_on(streams[0])
        expected = number
        for step in range(1000):
            Affine(storage, 3, step).sync_on(streams[step % 3])
            expected = (3 * expected + step) % 2**32
        assert set(Read(storage).sync_on(streams[0]).tolist()) == {expected}

    def everything():
        threads = [threading.Thread(target=rounds, args=(n,)) for n in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]

    def in_child(work):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


@needs_fork
@pytest.mark.slow
def test_two_threads_for_a_thousand_rounds_and_again_after_a_fork() -> None:
    expect(
        FORKED
        + """
    with Device.host():
        everything()
        in_child(everything)
        everything()
    print("done")
    """,
        "done",
    )


@needs_fork
def test_a_fork_while_work_is_in_flight() -> None:
    expect(
        FORKED
        + """
    gate = threading.Event()
    device = Device.host()
    stream = device.new_stream()
    storage = words(3, count=8).sync_on(stream)
    with device:
        future = Call(lambda: gate.wait(30)).into_future()
    future.start()
    stream.call(lambda: gate.wait(30))
    event = device.new_event()
    event.record(stream)

    def child():
        # New threads; the parent's work is the parent's; memory is a copy.
        try:
            event.synchronize()
        except ContextError as error:
            assert "forked while the work was in flight" in str(error)
        else:
            raise AssertionError("the event should have been lost")
        assert set(Affine(storage, 2, 0).then(Read).sync_on(stream).tolist()) == {6}
        rounds(1)

    in_child(child)
    gate.set()
    future.sync()
    assert set(Read(storage).sync_on(stream).tolist()) == {3}
    print("done")
    """,
        "done",
    )


@needs_fork
def test_a_fork_while_another_thread_submits() -> None:
    """The child's threads get the numbers of the parent's, and are inside no submission."""
    expect(
        FORKED
        + """
    begun, gate = threading.Event(), threading.Event()

    def submit():
        with Device.host():
            value(1).then(lambda _: (begun.set(), gate.wait(30), value(2))[-1]).sync()

    def several():
        failures, together = [], threading.Barrier(8)  # none gets the number of one that has ended

        def run():
            try:
                together.wait(30)
                assert words(1, count=4).then(Read).sync_on(Device.host().new_stream()).tolist() == [1] * 4
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]

    def inside():
        from cuda_async.errors import ReentrancyError

        try:
            value(1).sync()
        except ReentrancyError:
            return
        raise AssertionError("the thread that forked is inside a submission in the child, too")

    other = threading.Thread(target=submit)
    other.start()
    begun.wait(30)
    in_child(several)
    value(1).then(lambda _: (in_child(inside), value(2))[-1]).sync()
    gate.set()
    other.join()
    print("done")
    """,
        "done",
    )


def test_a_gate_stays_open() -> None:
    gate = Gate()
    assert not gate.is_open
    assert not gate.wait(0.001)
    gate.open()
    for _ in range(2):
        gate.open()
        assert gate.wait(0.001)
        assert gate.is_open


def test_a_thread_that_the_system_refuses_is_no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = threading.Thread()

    def refuse(text: str) -> None:
        def start() -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(thread, "start", start)

    refuse("can't start new thread")
    with pytest.raises(RuntimeError, match="can't start new thread") as caught:
        start_thread(thread)
    assert type(caught.value) is RuntimeError
    refuse("can't create new thread at interpreter shutdown")
    with pytest.raises(ContextError, match="the interpreter is exiting"):
        start_thread(thread)


@pytest.fixture
def _patient_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit waits long enough for its work, on a busy machine too: the usual 5 s are over on a tenth of a core."""
    monkeypatch.setenv("CUDA_ASYNC_EXIT_LIMIT_S", str(LIMIT_S))


@pytest.mark.usefixtures("_patient_exit")
def test_exit_with_work_in_flight_waits_for_it() -> None:
    expect(
        """
    with Device.host():
        future = Call(lambda: (time.sleep(0.2), print("finished", flush=True))).into_future()
    future.start()
    """,
        "finished",
    )


def test_exit_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ASYNC_EXIT_LIMIT_S", "0.2")
    expect(
        """
    with Device.host():
        future = Call(lambda: threading.Event().wait()).into_future()
    future.start()
    print("leaving")
    """,
        "leaving",
    )


def test_after_exit_began_operations_raise_and_finalizers_do_nothing() -> None:
    expect(
        """
    import atexit

    def very_late():   # registered before the pool's own handler, so called after it
        try:
            value(1).sync_on(stream)
        except ContextError as error:
            print("refused:", "exiting" in str(error))

    atexit.register(very_late)
    stream = Device.host().new_stream()
    kept = words(1, count=100).sync_on(stream)
    """,
        "refused: True",
    )


def test_unrun_operations_at_exit_do_not_warn() -> None:
    done = run(
        """
    storage = words(1).sync_on(Device.host().new_stream())
    op = Affine(storage, 2, 0)
    sys.modules["keeps it until the end"] = op
    """
    )
    assert done.returncode == 0
    assert done.stderr == ""


@needs_fork
@pytest.mark.parametrize("where", ["sync", "stream", "event"])
def test_ctrl_c_ends_a_wait_and_leases_stay(where: str) -> None:
    expect(
        f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    where = {where!r}
    gate = threading.Event()
    device = Device.host()
    stream = device.new_stream()
    storage = words(1, count=8).sync_on(stream)
    blocked = threading.Event()
    """
        """
    def block():
        blocked.set()
        gate.wait(30)

    def interrupt():
        blocked.wait(30)
        main = threading.main_thread().ident
        while sys._current_frames()[main].f_code.co_name != "wait":   # the driver's wait
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        if where == "sync":
            Call(block).then(lambda _: Affine(storage, 2, 0)).sync_on(stream)
        else:
            stream.call(block)
            if where == "stream":
                stream.synchronize()
            else:
                event = device.new_event()
                event.record(stream)
                event.synchronize()
    except KeyboardInterrupt:
        print("interrupted")
    if where == "sync":
        try:
            Read(storage)
        except OwnershipError:
            print("still lent")
        gate.set()
        stream.synchronize()
        while any(lease.active for lease in storage.leases):
            time.sleep(0.001)
        print(Read(storage).sync_on(stream)[0])
    gate.set()
    """,
        "interrupted\nstill lent\n2" if where == "sync" else "interrupted",
    )


def test_importing_touches_no_cuda_binding_and_starts_no_thread() -> None:
    expect(
        """
    import threading
    value(1)
    print([name for name in sys.modules if name.split(".")[0] in ("cuda", "numba", "cutile")], threading.active_count())
    """,
        "[] 1",
    )


def test_late_operations_raise_and_nothing_hangs_or_prints() -> None:
    """In an `atexit` handler behind ours, and in finalizers while modules are taken apart."""
    done = run(
        """
    import atexit

    class Late:
        def __del__(self, ContextError=ContextError, print=print):
            try:
                self.op.sync()
            except ContextError as error:
                print("refused")

    def very_late():
        for _ in range(4):
            try:
                words(1).sync_on(stream)
            except ContextError:
                print("refused")
        stream.synchronize

    atexit.register(very_late)
    stream = Device.host().new_stream()
    kept = words(1, count=100).sync_on(stream)
    late = Late()
    late.op = Affine(kept, 1, 1)
    sys.modules["keeps it until the end"] = late
    """
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.split() == ["refused"] * 5


@pytest.mark.usefixtures("_patient_exit")
def test_kernels_in_flight_at_exit_finish_with_their_helpers() -> None:
    expect(
        """
    stream = Device.host().new_stream()
    storages = [words(1, count=100_000).sync_on(stream) for _ in range(3)]
    with Device.host():
        futures = [Affine(s, 1, 1).into_future() for s in storages[1:]]
    stream.call(lambda: time.sleep(0.1))
    for _ in range(20):
        launch_affine(stream, storages[0].address, 100_000, 1, 1, grain=64)
    stream.call(lambda: print(words_at(storages[0].address, 1)[0], flush=True))
    for future in futures:
        future.start()
    """,
        "21",
    )
