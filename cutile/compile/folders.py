"""Folders of a cache: who may write them, and which are still being written.

Machine code is run only from a folder that nobody but the user and root can have written. Every folder and every
symbolic link on its path counts: a user who may rename one of them may put another in its place.

A folder that is being written, or removed, has a name that identifies the process that does so:

    <folder>/<place>-<process>-<start>-<token>

`place` is a digest of the machine, its boot and its namespace of processes. `start` is the time when the process began:
a later process may have the same number. The next process removes the folders of processes that have ended.
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
"""The most symbolic links that are followed on the path of a folder, as many as Linux follows."""


def make_private(folder: Path) -> None:
    """Make a folder, and missing ones above it, for this user alone (mode 0700).

    Raises:
        OSError: it cannot be made.
    """
    # One by one: `mkdir(parents=True)` makes the parents for everybody.
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:  # another process was faster; else it is no folder
                if not path.is_dir():
                    raise


def distrust(base: Path, folder: Path) -> str | None:
    """Why machine code in a folder must not be run, with the remedy.

    None where it may be run, or where there is no folder.

    Args:
        base: the folder that the user, or the platform, named.
        folder: the folder in it, which nobody else may write.
    """
    if not hasattr(os, "geteuid"):  # Windows: access control lists protect the folders of users, not modes
        return None
    real_folder, real_base = os.path.realpath(folder), os.path.realpath(base)
    try:
        for path, status in _steps(folder):
            place = os.fspath(path)
            # A sticky folder such as /tmp may be above: others cannot rename our folder there. The cache folder itself
            # must not be one, since others could add entries to it.
            reason = _other_writers(status, sticky=place != real_folder, strict=place in (real_folder, real_base))
            if reason is not None:
                return f"{path} {reason}"
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # nothing can be read, and so nothing run
    except OSError as error:
        return str(error)
    return None


def is_trusted(status: os.stat_result) -> bool:
    """Whether only the user and root can have written a part of a trusted folder.

    The part is a file or a folder.
    """
    return not hasattr(os, "geteuid") or _other_writers(status, sticky=False, strict=True) is None


def _steps(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and symbolic link on a folder's path, with its status."""
    absolute = Path.cwd() / folder
    current = Path(absolute.anchor)
    yield current, os.lstat(current)
    parts = list(reversed(absolute.parts[1:]))  # the next one last
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            current = current.parent
            continue
        status = os.lstat(current / part)
        yield current / part, status
        if not stat.S_ISLNK(status.st_mode):
            current = current / part
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(folder))
        target = Path(os.readlink(current / part))
        if target.is_absolute():
            current = Path(target.anchor)
        parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _other_writers(status: os.stat_result, *, sticky: bool, strict: bool) -> str | None:
    """The other users who could have written a file or folder, as words; or None.

    Args:
        status: the status of a folder, a file or a link.
        sticky: whether a folder that others may write is accepted if it has the sticky bit: only owners rename there.
        strict: whether the user's own group, and the owner that `_unmapped` gives, count as others.
    """
    if status.st_uid not in (os.geteuid(), 0) and (strict or status.st_uid not in _unmapped()):
        return f"belongs to another user ({status.st_uid}); set CUTILE_CACHE_DIR to a folder of your own"
    # A link's mode says nothing: replacing it takes the right to write its folder.
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return None
    by_group = status.st_mode & stat.S_IWGRP and (strict or not _is_own_group(status.st_gid))
    if not by_group and not status.st_mode & stat.S_IWOTH:
        return None
    who = "others" if status.st_mode & stat.S_IWOTH else f"its group ({status.st_gid})"
    mode = stat.S_IMODE(status.st_mode)
    return f"may be written by {who} (mode {mode:04o}); `chmod go-w` it, or set CUTILE_CACHE_DIR to another folder"


def _is_own_group(group: int) -> bool:
    """Whether a group has no members but the user and root.

    Many systems make such a group for each user, and let it write the user's folders.
    """
    if group == 0:  # root's
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
    """The user that stands for root in a container with a namespace of users, if any.

    It owns the folders above the user's.
    """
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return ()  # all users are mapped: no namespace
        return (int(Path("/proc/sys/kernel/overflowuid").read_text()),)
    except (OSError, ValueError):
        return ()


STALE_S = 3600.0
"""Seconds after which a folder of another machine's process counts as abandoned. Entries take milliseconds to write."""


class Temporaries:
    """The folders that are being written.

    Args:
        folder: the folder that has them, in the file system of the entries, since they are renamed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fresh(self) -> Path:
        """A new path with this process in its name. Nothing is made."""
        pid = os.getpid()
        return self.folder / f"{_place()}-{pid}-{_start_of(pid) or 0}-{os.urandom(4).hex()}"

    def discard(self, path: Path) -> None:
        """Remove an entry, a temporary folder, or a file in their place.

        An entry is gone at once: it is renamed first, so that no reader finds a part of it.

        Raises:
            OSError: an entry cannot be renamed.
        """
        aside = path
        if path.parent != self.folder:  # an entry
            aside = self.fresh()
            os.rename(path, aside)
        _remove(aside)

    def sweep(self) -> None:
        """Remove the folders of processes that have ended."""
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
    """Bytes of the files in a folder; a file that disappears meanwhile counts 0."""
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
    """Whether the process that writes a temporary folder may still live."""
    try:
        place, pid_text, start_text, _ = path.name.split("-")
        pid, start = int(pid_text), int(start_text)
    except ValueError:
        return _is_young(path)
    if place != _place() or os.name == "nt":  # processes elsewhere cannot be looked for
        return _is_young(path)
    if start:  # 0 where the system does not say when a process began
        return _start_of(pid) == start
    try:
        os.kill(pid, 0)  # asks whether there is such a process; on Windows it would end it
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
    """A digest of the machine, its boot and its namespace of processes.

    Within these, a process's number identifies the process.
    """
    import socket  # few processes write an entry, and each import delays every first launch

    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since the machine's boot.

    None where the process has ended, or the system does not say.
    """
    try:
        # The fields after the process's name, which stands in brackets and may contain blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):  # ended, and not yet waited for
        return None
    return int(fields[19])  # `starttime`, field 22 of proc_pid_stat(5), of which the first two are cut off
