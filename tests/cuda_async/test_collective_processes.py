"""Ranks in processes of their own: the same program in each, one that dies, one that leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_async import Device
from cuda_async.collective import Buffer, CollectiveError, Communicator
from cuda_async.collective.hub import Hub
from cuda_async.collective.processes import ProcessEngine
from cuda_async.collective.transport import Address, Link, Pages, connect, new_folder
from cuda_async.errors import ArgumentError
from tests.cuda_async.ranks import WORLD, joined

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os
import numpy as np
from cuda_async import Device
from cuda_async.collective import Buffer, CollectiveError, Communicator

rank = Communicator.join(limit_s=20)
with Device.host():
    for count in (5, 1 << 18):     # within a page, and more than the smallest file
        x = Buffer.put(np.arange(count) * (rank.rank + 1)).sync()
        got = rank.all_reduce(x).then(lambda buffer: buffer.get()).sync()
        assert (got == np.arange(count) * sum(range(1, rank.world + 1))).all()
    if os.environ.get("MESH"):
        from cutile.sharding import Mesh

        mesh, table = Mesh(rank), np.arange(20).reshape(5, 4)   # rows and columns that 3 ranks cannot share evenly
        for axis in (0, 1):
            x = mesh.shard(table, axis=axis).sync().reshard(1 - axis).sync()
            assert x.parts[0].shape[axis] == table.shape[axis] and x.shape == table.shape
            assert (x.to_numpy().sync() == table).all()
    if os.environ.get("DIES") == str(rank.rank):
        os._exit(9)
    try:
        rank.barrier().sync()
        print("passed")
    except CollectiveError as error:
        print(error)
"""


def run(world: int, **environment: str) -> tuple[list[str], list[int], float]:
    """What each rank printed, its exit status, and seconds from the start of the last to the end of all.

    None of them may leave a folder.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    begin = time.monotonic()
    texts = [process.communicate(timeout=500)[0] for process in processes]
    assert not folders_of(processes), "the folder of the ranks was not removed"
    return texts, [process.returncode for process in processes], time.monotonic() - begin


def folders_of(processes: Sequence[subprocess.Popen[str]]) -> list[Path]:
    """The folders that processes have made for ranks and that are still there."""
    parent = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())
    return [folder for process in processes for folder in parent.glob(f"cuda-async-{process.pid}-*")]


@pytest.mark.slow
def test_processes_that_a_launcher_started_add_up():
    """As `torchrun` does: its own store has the port that it tells them. They have a mesh as well."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        host, port = store.getsockname()
        texts, statuses, _ = run(3, MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="none", MESH="1")
    assert statuses == [0, 0, 0], texts
    assert texts == ["passed\n"] * 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="files have no such locks")
def test_the_folder_of_a_killed_process_is_removed_by_the_next_one():
    """A launcher that ends its processes by a signal leaves their files, which take memory."""
    program = (
        "from cuda_async.collective import Communicator; import sys; "
        "rank = Communicator.join(0, 1, Communicator.unique_id()); print('joined', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    Path(new_folder()).rmdir()
    assert folders_of([process]), "it lives"
    process.kill()
    process.communicate()
    assert folders_of([process])
    Path(new_folder()).rmdir()
    assert not folders_of([process])


@pytest.mark.slow
def test_the_first_process_that_dies_ends_the_others_calls_with_an_error():
    """The one with the hub. That of another rank: test_collective_gpus.py."""
    name = Communicator.unique_id()
    texts, statuses, seconds = run(2, DIES="0", CUDA_ASYNC_UNIQUE_ID=name)
    assert not os.path.exists(name.rpartition(":")[0]), "the folder of the ranks was not removed"
    assert statuses[0] == 9
    assert "rank 0 is gone" in texts[1]
    assert seconds < 15, "the others are told at once, not when their limit is over"


@pytest.mark.parametrize("order", [((0, 2), (1, 3)), ((1, 3), (0, 2))], ids=["0 first", "1 first"])
def test_ranks_that_disagree_about_their_number_do_not_wait(order: tuple[tuple[int, int], ...]):
    name = Communicator.unique_id()
    errors: list[str] = []

    def join(rank: int, world: int) -> None:
        try:
            Communicator.join(rank, world, name, limit_s=10)
        except CollectiveError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=join, args=pair) for pair in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all("rank 1 says that there are 3 ranks, rank 0 that there are 2" in error for error in errors)


@pytest.mark.parametrize("knock", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "somebody else"])
def test_whoever_connects_without_the_key_holds_nobody_up(knock: bytes):
    name = Communicator.unique_id("127.0.0.1")
    port = int(name.rpartition("#")[0].rpartition(":")[2])
    ranks: list[Communicator] = []
    errors: list[Exception] = []

    def join(rank: int) -> None:
        try:
            ranks.append(Communicator.join(rank, 2, name, limit_s=10))
        except CollectiveError as error:
            errors.append(error)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    threads[0].start()
    stranger = None
    while stranger is None:
        try:
            stranger = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
    with stranger:
        stranger.sendall(knock)
        threads[1].start()
        for thread in threads:
            thread.join()
    assert not errors
    assert [rank.world for rank in ranks] == [2, 2]
    for rank in ranks:
        rank.close()


MALFORMED_GREETINGS: list[tuple[bytes, str]] = [
    (b"[]", "got []"),
    (b"[1, 2]", "got [1, 2]"),
    (b"[1, 2, true, 0]", "got [1, 2, True, 0]"),
    (b'["1", 2, true]', "got ['1', 2, True]"),
    (b"[1.0, 2, true]", "got [1.0, 2, True]"),
    (b"[true, 2, true]", "got [True, 2, True]"),
    (b"[[1], 2, true]", "got [(1,), 2, True]"),
    (b'[{"rank": 1}, 2, true]', "got [{'rank': 1}, 2, True]"),
    (b"[2, 2, true]", "got [2, 2, True]"),
    (b"[-1, 2, true]", "got [-1, 2, True]"),
    (b"[1, 2, 1]", "got [1, 2, 1]"),
    (b"7", ""),
    (b"null", ""),
    (b'{"rank": 1}', ""),
    (b"not JSON", ""),
    (b"\xff\xfe", ""),
    (b"[" * 200_000, ""),
    (b'[{"call": 1}, 2, true]', ""),
    (b'[{"call": [1, 2, 3, 4]}, 2, true]', ""),
    (b'[{"map": [1]}, 2, true]', ""),
]
"""Greetings of a process with the key, and the words of the hub's answer; empty where it closes the connection."""


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_malformed_greeting_holds_nobody_up() -> None:
    name = Communicator.unique_id()
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(Communicator.join, 0, 2, name, limit_s=20)]
        for greeting, words in MALFORMED_GREETINGS:
            link = linked(name)
            link.recv()
            link.connection.send_bytes(greeting)
            assert link.poll(10), f"{greeting[:40]!r}: it waits for ever"
            if words:
                what, why = link.recv()
                assert what == "broken"
                assert "join: rank 0 expected the greeting [rank, world, can_write]" in why
                assert words in why
            else:
                with pytest.raises((EOFError, OSError)):
                    link.recv()
            link.close()
        ranks.append(pool.submit(Communicator.join, 1, 2, name, limit_s=20))
        joined = [rank.result() for rank in ranks]
    assert [rank.world for rank in joined] == [2, 2]
    for rank in joined:
        rank.close()


@pytest.mark.parametrize("message", [b"7", b"not JSON", b'[{"call": 1}]'], ids=["no list", "no JSON", "no call"])
def test_a_malformed_message_ends_the_calls_of_all(message: bytes) -> None:
    name = Communicator.unique_id()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(Communicator.join, 0, 2, name, device=Device.host(), limit_s=20)
        link = linked(name)
        link.recv()
        link.send(1, 2, True)
        link.recv()
        with future.result() as rank:
            link.connection.send_bytes(message)
            with pytest.raises(CollectiveError, match=r"rank 1 is gone \(it sent a malformed message of"):
                rank.barrier().sync()
    assert link.recv()[0] == "broken"
    link.close()


def test_a_process_without_a_launcher_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_ASYNC_UNIQUE_ID"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ArgumentError, match="RANK='': expected what a launcher of several processes sets"):
        Communicator.join()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=r"MASTER_PORT='': expected .* or MASTER_ADDR and MASTER_PORT"):
        Communicator.join()
    with pytest.raises(ArgumentError, match="join: expected a rank, the number of ranks and a unique_id, got 0, 2 and"):
        Communicator.join(0, 2)


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_a_port_that_is_none_is_refused(port: int):
    with pytest.raises(ArgumentError, match="unique_id: expected what"):
        Communicator.join(1, 2, f"tcp://127.0.0.1:{port}#{'0' * 32}", limit_s=0.1)


def test_a_rank_without_room_for_its_elements_fails_the_call_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call succeeds. Without the reservation a write to the mapped file would end the process."""

    def no_room(file: int, start: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ranks = joined(limit_s=20)
    with Device.host():
        buffers = ranks.put([np.arange(1 << 15, dtype=np.int32)] * WORLD)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", no_room, raising=False)
            failures = ranks.run(*(rank.all_reduce(x) for rank, x in zip(ranks.ranks, buffers, strict=True)))
        assert all(isinstance(failure, CollectiveError) for failure in failures), failures
        assert all("No space left on device for 131072 bytes; " in str(failure) for failure in failures)
        buffers = ranks.put([np.arange(1 << 15, dtype=np.int32)] * WORLD)
        ranks.run(*(rank.all_reduce(x) for rank, x in zip(ranks.ranks, buffers, strict=True)))
        assert [sums.tolist()[-1] for sums in ranks.get(buffers)] == [WORLD * ((1 << 15) - 1)] * WORLD
    for rank in ranks.ranks:
        rank.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves no room")
def test_files_of_elements_have_their_room(tmp_path: Path) -> None:
    pages = Pages(tmp_path, 0)
    for count in (1 << 16, 3 << 15, 1 << 16):
        name = pages.take(np.ones(count, np.uint8))
        assert (tmp_path / name).stat().st_blocks * 512 >= count  # st_blocks counts units of 512 bytes
        pages.give_back(name)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_process_that_listens_and_does_not_answer_is_waited_for_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = f"tcp://127.0.0.1:{listener.getsockname()[1]}#{'0' * 32}"
        with pytest.raises(CollectiveError, match="a process listens there, and has not answered within"):
            Communicator.join(1, 2, name, limit_s=0.2)


def test_ranks_of_another_job_are_told_of_their_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]

        def greet() -> None:
            with contextlib.suppress(AuthenticationError):
                Link(listener.accept()[0]).greet(bytes(16))

        other = pool.submit(greet)
        with pytest.raises(CollectiveError, match="the process that listens there has another key"):
            Communicator.join(1, 2, f"tcp://127.0.0.1:{port}#{'1' * 32}", limit_s=20)
        other.result()


def test_ranks_that_never_join_are_named():
    with pytest.raises(CollectiveError, match="ranks 1 and 2 did not join within"):
        Communicator.join(0, 3, Communicator.unique_id(), limit_s=0.3)


def linked(name: str) -> Link:
    """A link to the hub, as soon as it listens."""
    while True:
        with contextlib.suppress(OSError):
            return connect(Address.parse(name))
        time.sleep(0.01)


def test_a_process_too_many_is_told_so() -> None:
    name = Communicator.unique_id()
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(Communicator.join, 0, 2, name, limit_s=10)]
        link = linked(name)  # before all have joined; it tells its rank when they have
        ranks.append(pool.submit(Communicator.join, 1, 2, name, limit_s=10))
        joined = [rank.result() for rank in ranks]
    link.recv()
    link.send(1, 2, True)
    assert link.poll(10), "it waits for ever"
    assert link.recv() == ["broken", "all 2 ranks have joined; each process needs a rank of its own"]
    for rank in joined:
        rank.close()


@pytest.mark.parametrize("number", [1, 0], ids=["before all have joined", "as a second rank 0"])
def test_a_rank_that_dies_after_its_handshake_is_named(number: int) -> None:
    name = Communicator.unique_id()
    answers: list[str] = []

    def join(rank: int) -> None:
        try:
            with Communicator.join(rank, 3, name, device=Device.host(), limit_s=10) as joined:
                joined.barrier().sync()
        except CollectiveError as error:
            answers.append(str(error))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 2)]
    threads[0].start()
    link = linked(name)
    link.recv()
    link.send(number, 3, True)
    link.close()
    threads[1].start()
    for thread in threads:
        thread.join()
    words = "rank 1 is gone (its process ended)" if number else "rank 0 has joined twice"
    assert answers
    assert all(words in answer for answer in answers)


def test_the_hubs_own_rank_hears_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may end then, and the hub with it, before the other ranks have heard why."""
    told: list[tuple[str, int]] = []
    send = Hub._send

    def recording(hub: Hub, rank: int, *message: Any) -> None:
        told.append((message[0], rank))
        send(hub, rank, *message)

    monkeypatch.setattr(Hub, "_send", recording)
    name = Communicator.unique_id()

    def work(number: int) -> None:
        stream = Device.host().new_stream()
        with Communicator.join(number, 2, name, device=Device.host(), limit_s=60) as rank:
            x = Buffer.put(np.ones(3, np.float32)).sync_on(stream)
            rank.all_reduce(x).sync_on(stream)
            with pytest.raises(CollectiveError, match="called different things"):
                rank.all_reduce(x, op="max" if number else "sum").sync_on(stream)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    for what in ("go", "broken"):
        assert [rank for kind, rank in told if kind == what][:2] == [1, 0]


def test_a_result_that_has_come_stands_where_the_hub_ends_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may end as soon as it has its own result: the others' last word to its hub finds a broken pipe."""
    send = ProcessEngine._send

    def failing(engine: ProcessEngine, *message: Any) -> None:
        if message[0] == "done" and engine._rank == 1:
            raise BrokenPipeError(32, "Broken pipe")
        send(engine, *message)

    monkeypatch.setattr(ProcessEngine, "_send", failing)
    name = Communicator.unique_id()

    def work(number: int) -> list[float]:
        stream = Device.host().new_stream()
        with Communicator.join(number, 2, name, device=Device.host(), limit_s=60) as rank:
            x = Buffer.put(np.ones(3, np.float32)).sync_on(stream)
            return rank.all_reduce(x).sync_on(stream).get().sync_on(stream).tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [[2.0] * 3] * 2


def test_an_answer_of_a_late_hub_ends_no_thread() -> None:
    """The rank has given up, and its call has ended: what the hub says of the call then is too late."""
    ranks = joined()
    x = ranks.put([np.ones(3, np.float32)] * WORLD)
    engine: ProcessEngine = ranks.ranks[1]._engine  # pyright: ignore
    stream = ranks.devices[1].new_stream()
    ranks.ranks[1].all_reduce(x[1]).bind(stream)()
    limit = time.monotonic() + 20
    while not engine._waiting and time.monotonic() < limit:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.001)
    engine._break("rank 0 has not answered")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(CollectiveError, match="has not answered"):
        stream.synchronize()
    x[0].storage.fail(ValueError("the work before"))
    streams = {other: ranks.devices[other].new_stream() for other in (0, 2)}
    for other, stream in streams.items():
        ranks.ranks[other].all_reduce(x[other]).bind(stream)()
    for stream in streams.values():
        with pytest.raises((CollectiveError, ValueError), match="the work before"):
            stream.synchronize()
    engine._thread.join(0.2)  # pyright: ignore[reportPrivateUsage]
    assert engine._thread.is_alive()  # pyright: ignore[reportPrivateUsage]
    for rank in ranks.ranks:
        rank.close()
