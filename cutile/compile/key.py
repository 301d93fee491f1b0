"""The cache key: a SHA-256 digest of all that determines text and machine code.

    the program as IR after the neutral passes (helpers inlined, captured values in it, dtypes, layouts, generics)
    the source lines and the file name, which generated code quotes
    compile options, target, the backend's and toolchain's versions, and cutile's own source text

Never Python's `hash()`, which changes from process to process.

Another version of cutile may emit other code, so its source text counts. Reading all sources takes a tenth of a second.
So their digest is kept in the cache folder, with a fingerprint of the files: their paths, sizes and times. A process
whose files have the same fingerprint takes the kept digest.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from cutile import config
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.store import DiskStore, digest_of, disk_store
from cutile.ir.core import Function
from cutile.ir.text import print_function

SETTLED_NS = 2_000_000_000
"""Nanoseconds for which a file must be unchanged before its times are relied on. The coarsest clock of a file system
ticks every two seconds, and a file may be written twice within a tick."""

_NOTE = re.compile(r"([0-9a-f]{64})\n([0-9a-f]{64})\n")
"""A kept digest: the fingerprint, then the digest."""


@functools.cache
def own_digest() -> str:
    """The digest of cutile's own source text, for this process: 64 hexadecimal digits."""
    settings = config.load()
    store = disk_store(settings.cache_directory) if settings.disk_cache else None
    return source_digest(Path(__file__).parents[1], store)


def source_digest(root: Path, store: DiskStore | None) -> str:
    """The digest of every Python file below a folder: of their paths and their text.

    Args:
        root: the folder of a package.
        store: where digests are kept between processes; None to read every file.
    """
    if store is None:
        return _digest(root)
    name = f"sources-{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}"  # installations share a cache folder
    fingerprint, newest = _fingerprint(root)
    note = _NOTE.fullmatch(store.recall(name))
    if note is not None and note[1] == fingerprint:
        return note[2]
    digest = _digest(root)
    # A file that changed while it was read, or a moment ago, may change again without a change of its size and times.
    if newest + SETTLED_NS < time.time_ns() and _fingerprint(root)[0] == fingerprint:
        store.remember(name, f"{fingerprint}\n{digest}\n")
    return digest


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for place, file in _sources(root):
        digest.update(os.fsencode(place) + b"\0")
        digest.update(Path(file).read_bytes() + b"\0")
    return digest.hexdigest()


def _fingerprint(root: Path) -> tuple[str, int]:
    """A fingerprint of the files below a folder, and the time of their last change.

    The time is in nanoseconds since 1970.
    """
    digest, newest = hashlib.sha256(), 0
    for place, file in _sources(root):
        status = file.stat()
        # `st_ctime`, of the inode, changes with the text even where a program sets `st_mtime` back, as some do.
        digest.update(os.fsencode(place) + f"\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
        newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
    return digest.hexdigest(), newest


def _sources(root: Path, place: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The Python files below a folder with their paths in it, in a fixed order."""
    with os.scandir(root / place) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{place}/{entry.name}" if place else entry.name
        if entry.name.endswith(".py"):
            yield path, entry
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(root, path)


def cache_key(function: Function, options: CompileOptions, target: Target, version: str) -> str:
    """The key of a kernel: 64 hexadecimal digits.

    Args:
        function: the IR after the target-neutral passes.
        options: the compile options.
        target: the target.
        version: the backend's `version()`.
    """
    lines = "\n".join(f"{number} {text}" for number, text in sorted(function.source.items()))
    parts = print_function(function), function.file, lines, repr(options), repr(target), version, own_digest()
    return digest_of(part.encode(errors="surrogateescape") for part in parts)  # a path may have bytes that are no UTF-8
