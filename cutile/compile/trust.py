"""Whose folder is it.

Machine code is run only from where nobody but its user, and root, can have put it.

Every folder on the way counts, and every symbolic link: who may rename one of them may put another in its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_LINKS = 40
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

    Or a folder.
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
        if links > MOST_LINKS:
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
