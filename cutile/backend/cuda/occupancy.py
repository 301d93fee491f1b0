"""Thread blocks of a compiled kernel per multiprocessor, and what limits them.

CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", has the limits; the rule is that of the
occupancy calculator: registers are handed out to warps in units of 256, and a warp's are those of one of the four parts
of a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutile.backend.cuda.budget import SYSTEM_BYTES
from cutile.backend.cuda.target import Architecture

_RESIDENT: dict[tuple[int, int], tuple[int, int]] = {
    (8, 0): (2048, 32),
    (8, 6): (1536, 16),
    (8, 7): (1536, 16),
    (8, 9): (1536, 24),
    (9, 0): (2048, 32),
    (10, 0): (2048, 32),
    (10, 3): (2048, 32),
    (11, 0): (1536, 24),
    (12, 0): (1536, 24),
    (12, 1): (1536, 24),
}
"""Threads and thread blocks of a multiprocessor, by compute capability."""
PARTS = 4
"""Of a multiprocessor, each with a quarter of the registers."""
REGISTER_UNIT = 256
"""Registers that a warp is given at a time."""


@dataclass(frozen=True)
class Resident:
    """Thread blocks that a multiprocessor holds at once.

    Attributes:
        blocks: how many.
        limit: what there would have to be more of: "registers", "shared memory", "threads", "thread blocks", or
            several of these.
    """

    blocks: int
    limit: str


def resident_blocks(arch: Architecture, threads: int, registers: int, shared_bytes: int) -> Resident | None:
    """The thread blocks that a multiprocessor holds.

    None for an architecture whose limits are not known here.

    Args:
        arch: the architecture.
        threads: of a thread block.
        registers: of a thread.
        shared_bytes: of a thread block.

    Example:
        >>> from cutile.backend.cuda.target import architecture
        >>> resident_blocks(architecture("sm_90a"), 256, 128, 70_000)
        Resident(blocks=2, limit='registers')
    """
    limits = _RESIDENT.get((arch.major, arch.minor))
    if limits is None:
        return None
    most_threads, most_blocks = limits
    warps = -(-threads // 32)
    warp_registers = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by = {
        "registers": arch.registers // PARTS // warp_registers * PARTS // warps,
        "shared memory": (arch.shared_bytes + SYSTEM_BYTES) // (shared_bytes + SYSTEM_BYTES),
        "threads": most_threads // (warps * 32),
        "thread blocks": most_blocks,
    }
    blocks = min(by.values())
    return Resident(blocks, " and ".join(name for name, most in by.items() if most == blocks))
