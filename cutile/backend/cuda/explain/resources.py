"""A kernel's plan with what the toolchain found.

Registers, spills, and how many thread blocks fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutile.backend.cuda.explain.plan import kilobytes
from cutile.backend.cuda.occupancy import resident_blocks
from cutile.backend.cuda.target import architecture
from cutile.backend.interface import Row, Target


def explain(facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
    """The rows of a kernel, from the facts of a `Source` or an `Executable`.

    The latter has the toolchain's facts, too.
    """
    arch = architecture(target.arch)
    shared, threads = int(facts["shared_bytes"]), int(facts["threads"])
    rows = [(str(heading), str(text)) for heading, text in facts["plan"]]
    reasons = [row for row in rows if row[0] == "why not better"]
    rows = [row for row in rows if row[0] != "why not better"]
    if "registers" in facts:
        rows.append(("registers", _registers(facts)))
        reasons += [("why not better", str(each)) for each in facts.get("remarks", ())]
    rows.append(("shared", f"{kilobytes(shared)} of {kilobytes(arch.shared_bytes)}"))
    if "registers" in facts:
        resident = resident_blocks(arch, threads, int(facts["registers"]), shared)
        if resident is not None:
            blocks = f"{resident.blocks} thread block{'' if resident.blocks == 1 else 's'}"
            rows.append(("residency", f"{blocks} on a multiprocessor, limited by {resident.limit}"))
    return (*rows, *(reasons or [("why not better", "no better plan was refused")]))


def _registers(facts: Mapping[str, Any]) -> str:
    spills, stack = int(facts["spills"]), int(facts["stack"])
    text = f"{facts['registers']} a thread"
    if spills:
        return f"{text}, {spills} bytes spilled: use smaller tiles or more warps"
    return f"{text}, no spills" + (f", {stack} bytes of stack" if stack else "")
