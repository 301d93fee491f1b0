"""Folders of a cache: whose they are, and which of them are still being written.

Machine code is run only from where nobody but its user, and root, can have put it. Every folder on the way counts, and
every symbolic link: who may rename one of them may put another in its place.

Folders that are being written, or removed, have names that say who does it:

    <folder>/<place>-<process>-<start>-<token>

`place` is a digest of the machine, its boot and its processes' namespace, `start` says when the process began, so that
a number that was given again is not taken for it. What a process that has ended left is removed by the next process.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_LINKS = 40
"""Symbolic links that are followed on the way to a folder, as many as Linux follows."""


def make_private(folder: Path) -> None:
    """Make a folder, and missing ones above it, for this user alone (mode 0700).

    Raises:
        OSError: it cannot be made.
    """
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not path.is_dir():
                    raise


def distrust(base: Path, folder: Path) -> str | None:
    """Why what lies in a folder is not to be run, with the remedy.

    None where it may be, or does not exist.

    Args:
        base: what the user, or the platform, named.
        folder: the folder in it, which nobody else may write.
    """
    if not hasattr(os, "geteuid"):  # Windows: folders of users are protected by lists, not by modes
        return None
    own, named = os.path.realpath(folder), os.path.realpath(base)
    try:
        for path, status in _way(folder):
            place = os.fspath(path)
            why = _writers(status, sticky=place != own, strict=place in (own, named))
            if why is not None:
                return f"{path} {why}"
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # there is nothing to read
    except OSError as error:
        return str(error)
    return None


def is_trusted(status: os.stat_result) -> bool:
    """Whether only the user and root can have written a file in a trusted folder.

    The same is asked of a folder.
    """
    return not hasattr(os, "geteuid") or _writers(status, sticky=False, strict=True) is None


def _way(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and symbolic link on the way to a folder, with its status."""
    absolute = Path.cwd() / folder
    here = Path(absolute.anchor)
    yield here, os.lstat(here)
    left = list(reversed(absolute.parts[1:]))
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            here = here.parent
            continue
        status = os.lstat(here / part)
        yield here / part, status
        if not stat.S_ISLNK(status.st_mode):
            here = here / part
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(folder))
        target = Path(os.readlink(here / part))
        if target.is_absolute():
            here = Path(target.anchor)
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _writers(status: os.stat_result, *, sticky: bool, strict: bool) -> str | None:
    """Who else could have written something; None where nobody could.

    Args:
        status: of a folder, a file or a link.
        sticky: whether the sticky bit, with which only its owner renames what lies there, makes up for the mode.
        strict: whether groups of one person count like any other.
    """
    if status.st_uid not in (os.geteuid(), 0) and (strict or status.st_uid not in _unmapped()):
        return f"belongs to another user ({status.st_uid}); set CUTILE_CACHE_DIR to a folder of your own"
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return None
    by_group = status.st_mode & stat.S_IWGRP and (strict or not _is_own_group(status.st_gid))
    if not by_group and not status.st_mode & stat.S_IWOTH:
        return None
    who = "others" if status.st_mode & stat.S_IWOTH else f"its group ({status.st_gid})"
    mode = stat.S_IMODE(status.st_mode)
    return f"may be written by {who} (mode {mode:04o}); `chmod go-w` it, or set CUTILE_CACHE_DIR to another folder"


def _is_own_group(group: int) -> bool:
    """Whether a group has no member but the user or root.

    Many systems make one for each user, and let it write.
    """
    if group == 0:
        return True
    import grp  # not on Windows
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def _unmapped() -> tuple[int, ...]:
    """What stands for root where a container shows only some users.

    The owner of what is above the user's folders.
    """
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return ()  # all users are shown, and this one is a user like any other
        return (int(Path("/proc/sys/kernel/overflowuid").read_text()),)
    except (OSError, ValueError):
        return ()


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
