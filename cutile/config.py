"""Settings from the environment, and facts of the machine: cores, cache.

The CUTILE_* variables are one frozen record. No other module of the package reads the environment.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STAGES = ("ir", "passes", "lowered", "source", "plan", "log")
"""The stages of a compilation that have a text, in their order; `docs/reading_generated_code.md` describes them."""


@dataclass(frozen=True)
class Config:
    """Settings from the environment.

    Attributes:
        dump: stages to print when a kernel is compiled (`CUTILE_DUMP=ir,source`; `all` for every stage).
        dump_directory: write the stages into files here instead of printing (`CUTILE_DUMP_DIR`).
        cache_directory: where compiled kernels are kept (`CUTILE_CACHE_DIR`; None: the platform's cache folder).
        disk_cache: whether compiled kernels are kept at all (`CUTILE_DISK_CACHE=0` turns it off).
        verify: verify the IR after every pass. `CUTILE_VERIFY=0` turns it off; it is on without the variable, too.
        prove: run the target's models on each kernel that is compiled (`Backend.prove`); only with `CUTILE_VERIFY=1`.
        force_checks: check every access and every assumption in the kernel itself (`CUTILE_FORCE_CHECKS=1`).
        interpret: run kernels as plain Python (`CUTILE_INTERPRET=1`); read once, when cutile is imported: it is the
            default of a context variable (`launch/target.py`).
    """

    dump: tuple[str, ...] = ()
    dump_directory: Path | None = None
    cache_directory: Path | None = None
    disk_cache: bool = True
    verify: bool = True
    prove: bool = False
    force_checks: bool = False
    interpret: bool = False


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name, "")
    text = value.strip().lower()
    if text in ("", "1", "0", "true", "false", "on", "off", "yes", "no"):
        return default if text == "" else text in ("1", "true", "on", "yes")
    raise ValueError(f"{name}={value!r}: expected 0 or 1 (also false, off, no or true, on, yes)")


def _path(name: str) -> Path | None:
    text = os.environ.get(name, "").strip()
    return Path(text).expanduser() if text else None


def usable_cores() -> int:
    """The number of cores that this process may use, by its affinity if it has one.

    `cuda_async` counts in the same way. This file is a leaf of the import graph, and imports nothing of `cuda_async`.
    """
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


@cache
def last_cache_bytes() -> int:
    """Bytes of the last-level cache of the first core; 0 if the system does not tell.

    Other cores may share it.
    """
    largest = 0
    # The last level is the largest one. Most machines have equal caches for all cores.
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError):  # containers may hide these files
            text = path.read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
            if scale and text[:-1].isdecimal():
                largest = max(largest, int(text[:-1]) * scale)
    return largest


def load() -> Config:
    """Read the environment.

    Raises:
        ValueError: a variable has an invalid value; the message names the variable and the valid values.
    """
    words = tuple(word.strip() for word in os.environ.get("CUTILE_DUMP", "").split(",") if word.strip())
    unknown_words = [word for word in words if word not in (*STAGES, "all")]
    if unknown_words:
        raise ValueError(f"CUTILE_DUMP names no stage {unknown_words[0]!r}; there are {', '.join(STAGES)} and all")
    return Config(
        dump=STAGES if "all" in words else words,
        dump_directory=_path("CUTILE_DUMP_DIR"),
        cache_directory=_path("CUTILE_CACHE_DIR"),
        disk_cache=_flag("CUTILE_DISK_CACHE", True),
        verify=_flag("CUTILE_VERIFY", True),
        prove=_flag("CUTILE_VERIFY", False),
        force_checks=_flag("CUTILE_FORCE_CHECKS", False),
        interpret=_flag("CUTILE_INTERPRET", False),
    )
