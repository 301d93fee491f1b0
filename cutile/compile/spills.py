"""Kernels whose tiles do not fit into registers.

Another choice where the compiler made it, else a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from cuda_async.locks import new_lock
from cutile.backend.interface import CompileOptions
from cutile.frontend.source import FunctionSource


class SpillWarning(UserWarning):
    """A compiled kernel spills: values of its tiles wait in memory, which is slow.

    Once for each specialisation of a kernel, at its line, with the bytes of a thread that spill and what helps. Leave
    it out with `warnings.filterwarnings("ignore", category=cutile.SpillWarning)`, or make it an error with "error".
    """


_said: set[str] = set()
_lock = new_lock()


def otherwise(facts: Mapping[str, Any], options: CompileOptions) -> int | None:
    """How many warps to try if a kernel spills with the compiler's number; or None."""
    asked = facts.get("more_warps")
    return asked if asked and facts.get("spills") and options.num_worker_warps is None else None


def warn_of_spills(
    source: FunctionSource, facts: Mapping[str, Any], options: CompileOptions, arch: str, key: str, types: str
) -> None:
    """Say once of each specialisation of a kernel that it spills, and what to do.

    Args:
        source: the kernel's.
        facts: of its `Executable`.
        options: it was compiled with.
        arch: the architecture.
        key: the cache key, which tells specialisations apart.
        types: the parameters' types, for people.
    """
    spills = int(facts.get("spills", 0))
    if not spills:
        return
    with _lock:
        if key in _said:
            return
        _said.add(key)
    place = source.locate(source.tree)
    text = (
        f"kernel {source.name!r} ({types}): its tiles do not fit into the {facts.get('registers')} registers of each "
        f"of {facts.get('threads')} threads on {arch}; {spills} bytes of each thread's are kept in memory, which is "
        f"slow. Use {'; or '.join(_remedies(facts, options))}."
    )
    warnings.warn_explicit(text, SpillWarning, place.file or "<kernel>", place.line)


def _remedies(facts: Mapping[str, Any], options: CompileOptions) -> list[str]:
    """What would leave a thread fewer values to hold."""
    remedies = ["smaller tiles"]
    warps, products = int(facts.get("warps", 0)), sum(row[0] == "products" for row in facts.get("plan", ()))
    if options.num_worker_warps is not None:
        remedies.append(f"more than num_worker_warps={options.num_worker_warps}, or none given")
    elif warps and "computing" not in facts:  # specialised warps are as many as the tile has rows for
        remedies.append(f"more warps, which share a tile ({warps} here): CompileOptions(num_worker_warps={2 * warps})")
    if options.occupancy is not None:
        remedies.append(f"less than occupancy={options.occupancy}, or none given")
    if products > 1:
        remedies.append(f"fewer accumulators at a time ({products} products here)")
    return remedies
