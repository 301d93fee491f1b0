"""`Choice`: the fastest configuration that a search has found, and its file.

    <cache folder>/tune/choices/<first 2 digits>/<digest>.json
        {"cutile.tune.choice": 1, "kernel": "gemm", "config": {"BK": 64}, "median_ms": 0.41, "tried": 8, "key": ...}

The digest covers the kernel's IR, generics and compile options, its arguments' dtypes and layouts, the key, the
configurations, the device and the toolchain. Its first digits are a folder, so that no folder has too many files.

A file that cannot be read counts as missing. An error while writing is ignored: the next process searches again. Files
need not be trusted, since `load` returns one of the caller's configurations.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutile import config as settings
from cutile.compile import store
from cutile.compile.folders import make_private
from cutile.launch.searching import Configuration
from cutile.tune.table import Tuned

__all__ = ("Choice", "digest_of", "load", "save")

FORMAT = 1
"""Version of the file's format. Files of another version count as missing."""


@dataclass(frozen=True)
class Choice:
    """The configuration that a search has found to be the fastest.

    Attributes:
        kernel: the kernel's name.
        configuration: the winner.
        key: the device, and each tensor's dtype and extents, as text.
        median_ms: milliseconds of the winner; None if the file has null there.
        tried: the number of configurations that were tried.
        tuned: the table of all trials; None where the choice was read from disk.
    """

    kernel: str
    configuration: Configuration
    key: str
    median_ms: float | None
    tried: int
    tuned: Tuned | None = None

    def __repr__(self) -> str:
        label = ", ".join(f"{name}={value}" for name, value in self.configuration.label.items())
        time = "" if self.median_ms is None else f", {self.median_ms:.4g} ms"
        origin = "kept on disk" if self.tuned is None else f"the fastest of {self.tried}"
        return f"<{self.kernel} with {label}{time}, {origin}, for {self.key}>"


def digest_of(parts: Sequence[str]) -> str:
    """The name of a choice on disk: a digest of all that it depends on."""
    return store.digest_of(part.encode() for part in (str(FORMAT), *parts))


def _folder() -> Path | None:
    options = settings.load()
    return store.cache_folder(options.cache_directory) if options.disk_cache else None


def _path(digest: str) -> Path | None:
    folder = _folder()
    return None if folder is None else folder / "tune" / "choices" / digest[:2] / f"{digest}.json"


def load(digest: str, kernel: str, key: str, configurations: Sequence[Configuration]) -> Choice | None:
    """Read a choice; None if there is no file, or its winner is none of these."""
    path = _path(digest)
    if path is None:
        return None
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields["cutile.tune.choice"] != FORMAT:
            return None
        label = _as_json(fields["config"])
        winner = next(item for item in configurations if _as_json(item.label) == label)
        median_ms = fields["median_ms"]
        return Choice(kernel, winner, key, None if median_ms is None else float(median_ms), int(fields["tried"]))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, OverflowError, RecursionError):
        return None  # OverflowError: a number that no float holds, or `Infinity`. RecursionError: lists of lists


def save(digest: str, choice: Choice) -> None:
    """Write a choice to disk, atomically: it appears whole or not at all."""
    path = _path(digest)
    if path is None:
        return
    record = {
        "cutile.tune.choice": FORMAT,
        "kernel": choice.kernel,
        "config": dict(choice.configuration.label),
        "median_ms": choice.median_ms,
        "tried": choice.tried,
        "key": choice.key,
    }
    # A name that no other process and no other thread writes to: the process's number, and 32 random bits.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with suppress(OSError):  # the next process searches again
        make_private(path.parent)
        try:
            temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise  # to `suppress`


def _as_json(label: Any) -> str:
    """A label as text in which tuples and lists are alike, as they are in a file."""
    return json.dumps(dict(label), sort_keys=True)
