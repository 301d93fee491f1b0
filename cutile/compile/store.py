"""The disk cache: one folder per compiled kernel, named by its key.

    <folder>/v2/<2 digits>/<key>/image       machine code (`nvdisasm` reads a cubin as it lies there)
                                 source.py   the generated file
                                 meta.json   the digest of everything; entry, parameters, facts
    <folder>/v2/sources-<16 digits>          the digest of a copy of cutile (`key.py`)
    <folder>/v2/new/...                      entries that are being written, or removed (`folders.py`)

An entry appears whole or not at all: it is written in another folder and renamed. Failures never fail a launch: an
unwritable folder warns once, a damaged entry counts as missing, and is replaced by the next compilation. A folder that
another user can write is not used, since machine code from it would run (`folders.py`).

An entry is plain data, read strictly and never evaluated. The first line of `meta.json` has a digest of the key, the
image, the generated text, and all lines after it. An entry with another digest is damaged.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from cuda_async.locks import new_lock
from cutile.backend.interface import Executable, Parameter, ParameterKind, Target
from cutile.compile.folders import Temporaries, distrust, is_trusted, make_private, size_of
from cutile.dtypes import BY_NAME

IMAGE, SOURCE, META = "image", "source.py", "meta.json"
FILES = (IMAGE, SOURCE, META)

T = TypeVar("T")


class DamagedEntryError(ValueError):
    """Files that are no entry, or differ from those that were written."""


def encode(key: str, executable: Executable) -> dict[str, bytes]:
    """The files of an entry, by their names."""
    target = executable.target
    fields = {
        "target": [target.backend, target.arch, target.units],
        "entry": executable.entry,
        "parameters": [_parameter(each) for each in executable.parameters],
        "facts": dict(executable.facts),
        "log": executable.log,
    }
    source = executable.source.encode()
    body = json.dumps(fields, indent=1).removeprefix("{\n").encode()  # the digest's line takes the place of the brace
    head = _head(key, executable.image, source, body)
    return {IMAGE: executable.image, SOURCE: source, META: head + body}


def decode(key: str, files: Mapping[str, bytes]) -> Executable:
    """The executable that was encoded under a key.

    Raises:
        DamagedEntryError: the files differ from those that were written.
    """
    image, source, meta = (files[name] for name in FILES)
    head, end, body = meta.partition(b"\n")
    if head + end != _head(key, image, source, body):
        raise DamagedEntryError("the digest is another one")
    try:
        fields: dict[str, Any] = json.loads(b"{" + body)
        backend, arch, units = _listed(fields["target"])
        return Executable(
            Target(_checked(backend, str), _checked(arch, str), _checked(units, int)),
            image,
            _checked(fields["entry"], str),
            tuple(_read_parameter(*_listed(each)) for each in _listed(fields["parameters"])),
            _mapped(fields["facts"]),
            source.decode(),
            _checked(fields["log"], str),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedEntryError(f"no entry: {error}") from error


def read_fields(meta: bytes) -> dict[str, Any]:
    """The fields of `meta.json`, unchecked. Raises ValueError if it is no JSON."""
    return json.loads(meta)


def digest_of(parts: Iterable[bytes]) -> str:
    """The SHA-256 digest of several parts in order: 64 hexadecimal digits.

    >>> digest_of([b"ab", b"c"]) == digest_of([b"a", b"bc"])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # tells where a part ends
        digest.update(part)
    return digest.hexdigest()


def _head(key: str, *parts: bytes) -> bytes:
    """The first line of `meta.json`."""
    return f'{{"digest": "{digest_of([key.encode(), *parts])}",\n'.encode()


def _parameter(parameter: Parameter) -> list[Any]:
    fields = [parameter.name, parameter.kind, parameter.argument, parameter.axis, parameter.dtype.name]
    return fields if parameter.map is None else [*fields, list(parameter.map)]


def _read_parameter(name: Any, kind: Any, argument: Any, axis: Any, dtype: Any, map: Any = None) -> Parameter:
    kind, map = _one_of(kind, ParameterKind), None if map is None else _plain(_listed(map))
    return Parameter(_checked(name, str), kind, _checked(argument, int), _checked(axis, int), BY_NAME[dtype], map)


def _checked(value: Any, kind: type[T]) -> T:
    if type(value) is not (get_origin(kind) or kind):  # a bool is no int here
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _listed(value: Any) -> list[Any]:
    return _checked(value, list[Any])


def _mapped(value: Any) -> dict[str, Any]:
    return _checked(value, dict[str, Any])


def _plain(value: Any) -> Any:
    """Numbers, texts and lists of them, with tuples in place of the lists."""
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, bool | int | float | str):
        raise TypeError(f"{value!r:.80} is no plain data")
    return value


def _one_of(value: Any, choices: Any) -> Any:
    if value not in get_args(choices):
        raise ValueError(f"{value!r:.80} is none of {get_args(choices)}")
    return value


FORMAT = "v2"
DEFAULT_CAPACITY = 2 * 2**30  # bytes
EVICT_EVERY = 64  # writes between two checks of the size of all entries
ATTEMPTS = 3
"""Attempts to write an entry: between two steps another process may remove the folder that the next step needs."""


class CacheWarning(UserWarning):
    """The disk cache cannot be used; kernels are compiled again in every process."""


class Entry(NamedTuple):
    """An entry on disk: its folder, its bytes, its last use in seconds since 1970."""

    path: Path
    nbytes: int
    used: float


def cache_folder(named: Path | None) -> Path:
    """The cache folder: `named`, of `Config.cache_directory`; else the platform's."""
    if named is not None:
        return named
    import platformdirs  # here: each import delays a first launch, and the environment often names the folder

    return Path(platformdirs.user_cache_dir("cutile", appauthor=False))


class DiskStore:
    """Compiled kernels on disk.

    Args:
        folder: the folder; the platform's cache folder by default.
        capacity: bytes of all entries; above this, those that were read longest ago are removed.
    """

    def __init__(self, folder: Path | None = None, capacity: int = DEFAULT_CAPACITY) -> None:
        self.base = cache_folder(folder)
        self.folder = self.base / FORMAT
        self._temporaries = Temporaries(self.folder / "new")
        self._capacity = capacity
        self._warned: set[str] = set()
        self._puts = 0
        self._swept = False
        self._lock = new_lock()

    def refusal(self) -> str | None:
        """Why this folder is not used, with the remedy; None if it is used."""
        return distrust(self.base, self.folder)

    def get(self, key: str) -> Executable | None:
        """The entry of this key, or None."""
        if not self._may_be_used():
            return None
        if not self._swept:
            self._swept = True  # once in a process: it reads a folder
            self._temporaries.sweep()
        path = self._path(key)
        entry = _read(key, path)
        if entry is not None:
            with suppress(OSError):  # a cache that may only be read still serves
                os.utime(path)  # used now: `_evict` removes it last
        return entry

    def put(self, key: str, executable: Executable) -> None:
        """Keep an entry; warn once if that fails."""
        if not self._may_be_used():
            return
        try:
            make_private(self._temporaries.folder)
            if not self._may_be_used():  # another user may have made the folder meanwhile
                return
            self._temporaries.sweep()
            self._write(key, encode(key, executable))
            self._puts += 1
            if self._puts % EVICT_EVERY == 1:  # sizing the folder takes longer than writing an entry
                self._evict()
        except OSError as error:
            remedy = "set CUTILE_CACHE_DIR to a writable folder, or CUTILE_DISK_CACHE=0 to do without"
            self._warn("written", f"compiled kernels cannot be kept in {self.folder} ({error}); {remedy}")

    def recall(self, name: str) -> str:
        """The note that `remember` wrote; empty if there is none that can be trusted."""
        if self.refusal() is not None:
            return ""
        try:
            return _read_file(self.folder / name).decode("ascii", "replace")
        except (OSError, DamagedEntryError):
            return ""

    def remember(self, name: str, text: str) -> None:
        """Write a short note, if that is possible.

        Errors are ignored: without the note, its reader does some work again. If several processes write, the last note
        stays. A note appears whole or not at all.
        """
        if self.refusal() is not None:
            return
        aside = self._temporaries.fresh()
        with suppress(OSError):
            make_private(self._temporaries.folder)
            if self.refusal() is None:  # another user may have made the folder meanwhile
                _write_file(aside, text.encode("ascii"))
                os.replace(aside, self.folder / name)
        with suppress(OSError):
            self._temporaries.discard(aside)

    def entries(self) -> Iterator[Path]:
        """The folder of every entry."""
        yield from self.folder.glob("[0-9a-f][0-9a-f]/*")

    def listing(self) -> list[Entry]:
        """Every entry, of other versions of this format too.

        Entries that disappear meanwhile are left out.
        """
        return [*self._entries()]

    def clear(self) -> None:
        """Remove every entry."""
        for folder in self._formats():
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _may_be_used(self) -> bool:
        refusal = self.refusal()
        if refusal is None:
            return True
        self._warn("trusted", f"compiled kernels are not taken from {self.folder}, and none are kept there: {refusal}")
        return False

    def _warn(self, kind: str, text: str) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=3)

    def _write(self, key: str, files: dict[str, bytes]) -> None:
        """Write an entry, unless a whole one is there."""
        path = self._path(key)
        for attempt in range(ATTEMPTS):
            aside = self._temporaries.fresh()
            try:
                make_private(path.parent)
                make_private(aside)
                for name, data in files.items():
                    _write_file(aside / name, data)
                try:
                    os.rename(aside, path)
                except OSError:
                    if _read(key, path) is not None:  # another process was faster
                        return
                    with suppress(FileNotFoundError):
                        self._temporaries.discard(path)  # a damaged entry, over which no folder is renamed
                    os.rename(aside, path)
                return
            except OSError:
                if attempt + 1 == ATTEMPTS:
                    raise
            finally:
                with suppress(OSError):
                    self._temporaries.discard(aside)  # there is one if writing failed

    def _formats(self) -> Iterator[Path]:
        """The folders of all versions of this format, which share the capacity."""
        yield from self.base.glob("v[0-9]*")

    def _entries(self) -> Iterator[Entry]:
        for folder in self._formats():
            for path in folder.glob("[0-9a-f][0-9a-f]/*"):
                with suppress(OSError):
                    yield Entry(path, size_of(path), os.lstat(path).st_mtime)

    def _evict(self) -> None:
        entries = self.listing()
        total = sum(each.nbytes for each in entries) + self._temporaries.nbytes()
        for path, nbytes, _ in sorted(entries, key=lambda each: each.used):
            if total <= self._capacity:
                return
            with suppress(OSError):
                self._temporaries.discard(path)
            total -= nbytes  # also where it failed: most often another process has removed it


@functools.cache
def disk_store(folder: Path | None) -> DiskStore:
    """The disk cache in a folder: one object for each, so that it warns once."""
    return DiskStore(folder)


def _read(key: str, path: Path) -> Executable | None:
    """The entry of a key in a folder, if a trusted user wrote it; else None."""
    try:
        for folder in (path.parent, path):
            status = os.lstat(folder)
            if not stat.S_ISDIR(status.st_mode) or not is_trusted(status):
                return None
        return decode(key, {name: _read_file(path / name) for name in FILES})
    except (OSError, DamagedEntryError):
        return None


# O_NOFOLLOW: a symbolic link in the place of a file is refused. O_NONBLOCK: opening a pipe there does not wait.
# O_BINARY: Windows would translate line ends. A system without one of the flags lacks the danger, too.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def _read_file(path: Path) -> bytes:
    with open(os.open(path, _READ), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not is_trusted(status):
            raise DamagedEntryError(f"{path} is another user's, or no file")
        return file.read()


def _write_file(path: Path, data: bytes) -> None:
    with open(os.open(path, _CREATE, 0o600), "wb") as file:
        file.write(data)
