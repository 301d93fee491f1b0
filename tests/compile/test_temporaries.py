"""What killed writers leave is removed by whoever comes next; what is being written stays."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutile.compile import folders
from cutile.compile.folders import STALE_S, Temporaries
from cutile.compile.store import DiskStore
from tests.compile.entries import EXECUTABLE, KEY

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say who lives")


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(folder: Path, place: str, pid: int, start: int) -> Path:
    """What a writer made, with a file of 1000 bytes in it."""
    path = folder / f"{place}-{pid}-{start}-abcd"
    path.mkdir(parents=True)
    (path / "image").write_bytes(b"x" * 1000)
    return path


def own() -> tuple[str, int, int]:
    place, pid, start, _ = Temporaries(Path()).fresh().name.split("-")
    return place, int(pid), int(start)


@needs_proc
def test_what_a_living_process_writes_stays(tmp_path: Path, ended: int) -> None:
    place, pid, start = own()
    alive = left_by(tmp_path, place, pid, start)
    for gone in (left_by(tmp_path, place, ended, start), left_by(tmp_path, place, pid, start + 1)):
        assert gone.exists()
    Temporaries(tmp_path).sweep()
    assert list(tmp_path.iterdir()) == [alive]


@needs_proc
def test_a_process_that_nobody_has_waited_for_has_ended(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    place, _, _ = own()
    stat = Path(f"/proc/{process.pid}/stat")
    start = int(stat.read_bytes().rpartition(b")")[2].split()[19])
    assert process.stdout is not None
    process.stdout.read()  # until its end of the pipe is closed
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    left_by(tmp_path, place, process.pid, start)
    Temporaries(tmp_path).sweep()
    assert list(tmp_path.iterdir()) == []
    process.communicate()


def test_where_no_system_says_when_a_process_began_its_number_counts(tmp_path: Path, ended: int) -> None:
    place, pid, _ = own()
    alive = left_by(tmp_path, place, pid, 0)
    left_by(tmp_path, place, ended, 0)
    Temporaries(tmp_path).sweep()
    assert list(tmp_path.iterdir()) == [alive]


@pytest.mark.parametrize("name", ["elsewhere-1-2-abcd", "no name of ours"])
def test_of_other_machines_age_counts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    Temporaries(tmp_path).sweep()
    assert path.exists()
    long_ago = time.time() - STALE_S - 1
    os.utime(path, (long_ago, long_ago))
    Temporaries(tmp_path).sweep()
    assert not path.exists()


@pytest.mark.parametrize("use", ["get", "put"])
def test_whoever_comes_next_removes_what_was_left(tmp_path: Path, ended: int, use: str) -> None:
    DiskStore(tmp_path).put(KEY, EXECUTABLE)
    place, _, _ = own()
    path = left_by(tmp_path / "v2" / "new", place, ended, 1)
    store = DiskStore(tmp_path)
    if use == "get":
        assert store.get(KEY) == EXECUTABLE
    else:
        store.put("cd" + KEY[2:], EXECUTABLE)
    assert not path.exists()


def test_what_is_being_written_counts_among_the_bytes(tmp_path: Path) -> None:
    big = DiskStore(tmp_path)
    big.put(KEY, EXECUTABLE)
    (entry,) = big.listing()
    store = DiskStore(tmp_path, capacity=2 * entry.nbytes + 999)  # enough for both, were nobody writing
    left_by(tmp_path / "v2" / "new", *own())
    os.utime(entry.path, (1, 1))
    store.put("cd" + KEY[2:], EXECUTABLE)
    assert [path.name for path in store.entries()] == ["cd" + KEY[2:]]


def test_what_an_earlier_format_left_is_removed_with_its_entries(tmp_path: Path) -> None:
    left = tmp_path / "v1" / "ab" / ".new-abc"
    left.mkdir(parents=True)
    (left / "image").write_bytes(b"x" * 10000)
    os.utime(left, (1, 1))
    store = DiskStore(tmp_path, capacity=5000)
    store.put(KEY, EXECUTABLE)
    assert not left.exists()
    assert store.get(KEY) == EXECUTABLE


def test_a_wait_that_is_broken_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the midst of writing: this process goes on, so that nobody else would remove it."""
    store = DiskStore(tmp_path)
    monkeypatch.setattr(folders, "_in_use", lambda path: True)  # pyright: ignore

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, EXECUTABLE)
    assert os.listdir(tmp_path / "v2" / "new") == []
