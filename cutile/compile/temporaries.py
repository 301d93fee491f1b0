"""Folders that are being written, or removed, beside the entries of a cache.

Who does it stands in their names.

    <folder>/<place>-<process>-<start>-<token>

`place` is a digest of the machine, its boot and its processes' namespace, `start` says when the process began, so that
a number that was given again is not taken for it. What a process that has ended left is removed by whoever comes next.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STALE_S = 3600.0
"""Seconds after which a folder of another machine's process is left over: writing an entry takes milliseconds."""


class Temporaries:
    """The folders that are being written.

    Args:
        folder: where they are, in the file system of the entries.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fresh(self) -> Path:
        """A name that nobody else has, in this process's name."""
        pid = os.getpid()
        return self.folder / f"{_place()}-{pid}-{_start_of(pid) or 0}-{os.urandom(4).hex()}"

    def discard(self, path: Path) -> None:
        """Remove an entry or one of these.

        It is gone from its place at once, whatever it is.

        Raises:
            OSError: it cannot be moved.
        """
        aside = path
        if path.parent != self.folder:
            aside = self.fresh()
            os.rename(path, aside)
        _remove(aside)

    def sweep(self) -> None:
        """Remove what processes that have ended left behind."""
        for path in self._listed():
            if not _in_use(path):
                _remove(path)

    def nbytes(self) -> int:
        """Bytes in all of them."""
        return sum(size_of(path) for path in self._listed())

    def _listed(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from [self.folder / name for name in os.listdir(self.folder)]


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder; what disappears meanwhile counts nothing."""
    total = 0
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):
                total += file.stat(follow_symlinks=False).st_size
    return total


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _in_use(path: Path) -> bool:
    """Whether the process that writes it may still live."""
    try:
        place, pid, start, _ = path.name.split("-")
        number, began = int(pid), int(start)
    except ValueError:
        return _is_young(path)
    if place != _place() or os.name == "nt":  # of processes elsewhere only the time says something
        return _is_young(path)
    if began:
        return _start_of(number) == began
    try:
        os.kill(number, 0)  # asks whether there is such a process; on Windows it would end it
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_young(path: Path) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime < STALE_S
    except OSError:
        return False


@functools.cache
def _place() -> str:
    """Where the number of a process means that process.

    A machine since it started, a namespace.
    """
    import socket  # few processes write an entry, and each import delays every first launch

    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since the machine did.

    None where it has ended, or the system does not say.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # its name may hold anything
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):  # ended, and not yet waited for
        return None
    return int(fields[19])
