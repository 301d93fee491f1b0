"""Kernels whose tiles do not fit into registers: another choice where the compiler made it, else a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from cuda_async.locks import new_lock
from cutile.backend.interface import CompileOptions
from cutile.frontend.source import FunctionSource


class SpillWarning(UserWarning):
    """A kernel was compiled in which values of tiles wait in memory, for want of registers: it is slow."""


_said: set[tuple[str, str, str]] = set()
_lock = new_lock()


def otherwise(facts: Mapping[str, Any], options: CompileOptions) -> int | None:
    """How many warps to try in place of those that the compiler chose, with which the kernel spills; None for none."""
    asked = facts.get("more_warps")
    return asked if asked and facts.get("spills") and options.num_worker_warps is None else None


def warn_of_spills(source: FunctionSource, facts: Mapping[str, Any], options: CompileOptions, arch: str) -> None:
    """Say once of each kernel and architecture that it spills, and what to do."""
    spills = int(facts.get("spills", 0))
    if not spills:
        return
    place = source.locate(source.tree)
    key = (source.name, f"{place.file}:{place.line}", arch)
    with _lock:
        if key in _said:
            return
        _said.add(key)
    remedies = ["smaller tiles"]
    if options.num_worker_warps is not None:
        remedies.append(f"more than num_worker_warps={options.num_worker_warps}, or none given")
    if options.occupancy is not None:
        remedies.append(f"less than occupancy={options.occupancy}, or none given")
    text = (
        f"kernel {source.name!r}: its tiles do not fit into the {facts.get('registers')} registers of each of "
        f"{facts.get('threads')} threads on {arch}; {spills} bytes of each thread's are kept in memory, which is slow. "
        f"Use {'; or '.join(remedies)}."
    )
    warnings.warn_explicit(text, SpillWarning, place.file or "<kernel>", place.line)
