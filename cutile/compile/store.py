"""The disk cache: one folder per compiled kernel, named by its key.

    <folder>/v1/<2 digits>/<key>/image       machine code (`nvdisasm` reads a cubin as it lies there)
                                 source.py   the generated file
                                 meta.json   entry, parameters, facts, and the image's digest

An entry appears whole or not at all: it is written aside and renamed. Failures never fail a launch: an unwritable
folder warns once, a damaged entry counts as missing and is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from cutile.backend.interface import Executable, Parameter, ParameterKind, Target, TensorMap
from cutile.dtypes import BY_NAME

FORMAT = "v1"
DEFAULT_CAPACITY = 2 * 2**30
EVICT_EVERY = 64


class CacheWarning(UserWarning):
    """The disk cache cannot be used; kernels are compiled again in every process."""


class DiskStore:
    """Compiled kernels on disk.

    Args:
        folder: where; the platform's cache folder by default.
        capacity: bytes; above it, the entries read longest ago are removed.
    """

    def __init__(self, folder: Path | None = None, capacity: int = DEFAULT_CAPACITY) -> None:
        self.folder = (folder or Path(platformdirs.user_cache_dir("cutile", appauthor=False))) / FORMAT
        self._capacity = capacity
        self._warned = False
        self._puts = 0
        self._lock = threading.Lock()

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def get(self, key: str) -> Executable | None:
        """The entry of this key, or None."""
        path = self._path(key)
        try:
            meta = json.loads((path / "meta.json").read_text())
            image = (path / "image").read_bytes()
            if hashlib.sha256(image).hexdigest() != meta["digest"]:
                raise ValueError("the image is damaged")
            found = _decode(meta, image, (path / "source.py").read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(path, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):  # a cache that may only be read still serves
            os.utime(path)  # read now: the last to be removed
        return found

    def put(self, key: str, executable: Executable) -> None:
        """Keep an entry; warn once if that fails."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
            try:
                (aside / "image").write_bytes(executable.image)
                (aside / "source.py").write_text(executable.source)
                (aside / "meta.json").write_text(json.dumps(_encode(executable), indent=1))
                os.rename(aside, path)
            except OSError:
                shutil.rmtree(aside, ignore_errors=True)
                if not path.exists():  # else another process was faster, with the same content
                    raise
            self._puts += 1
            if self._puts % EVICT_EVERY == 1:  # sizing the folder takes longer than writing an entry
                self._evict()
        except OSError as error:
            with self._lock:
                if self._warned:
                    return
                self._warned = True
            warnings.warn(
                f"compiled kernels cannot be kept in {self.folder} ({error}); set CUTILE_CACHE_DIR to a writable "
                "folder, or CUTILE_DISK_CACHE=0 to do without",
                CacheWarning,
                stacklevel=2,
            )

    def entries(self) -> Iterator[Path]:
        """The folder of every entry."""
        for shard in self.folder.glob("[0-9a-f][0-9a-f]"):
            yield from (each for each in shard.iterdir() if not each.name.startswith("."))

    def clear(self) -> None:
        """Remove every entry."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _evict(self) -> None:
        sized = [(path, sum(each.stat().st_size for each in path.iterdir())) for path in self.entries()]
        total = sum(size for _, size in sized)
        if total <= self._capacity:
            return
        for path, size in sorted(sized, key=lambda each: each[0].stat().st_mtime):
            shutil.rmtree(path, ignore_errors=True)
            total -= size
            if total <= self._capacity:
                return


def _encode(executable: Executable) -> dict[str, Any]:
    target = executable.target
    return {
        "target": [target.backend, target.arch, target.units],
        "entry": executable.entry,
        "parameters": [_parameter(each) for each in executable.parameters],
        "facts": dict(executable.facts),
        "log": executable.log,
        "digest": hashlib.sha256(executable.image).hexdigest(),
    }


def _parameter(parameter: Parameter) -> list[Any]:
    form = parameter.map
    plain = [parameter.name, parameter.kind, parameter.argument, parameter.axis, parameter.dtype.name]
    return plain if form is None else [*plain, dataclasses.asdict(form)]


def _read_parameter(
    name: str, kind: ParameterKind, argument: int, axis: int, dtype: str, form: dict[str, Any] | None = None
) -> Parameter:
    if form is None:
        return Parameter(name, kind, argument, axis, BY_NAME[dtype])
    made = TensorMap(tuple(form["box"]), form["swizzle"], tuple(form["order"]), form["rounded"])
    return Parameter(name, kind, argument, axis, BY_NAME[dtype], made)


def _decode(meta: dict[str, Any], image: bytes, source: str) -> Executable:
    parameters = tuple(_read_parameter(*each) for each in meta["parameters"])
    return Executable(Target(*meta["target"]), image, meta["entry"], parameters, meta["facts"], source, meta["log"])
