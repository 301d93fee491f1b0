"""The report of a failed assertion: its number, its tile block, its operands.

A kernel writes them to its launch's report, memory that the host reads once the launch is over. The fact `failures` has
the assertions by their numbers.

word 0      0; 1 while a thread writes the rest; 2 when it is written
word 1      the assertion's number
words 2-4   the tile block's index
words 8-    the numbers, two words each
"""

import struct
from collections.abc import Sequence
from typing import Any

from cutile.errors import KernelAssertionError
from cutile.ops.debug import MAX_NUMBERS, failure_text

SITE, BLOCK, NUMBERS = 1, 2, 8
"""The words of a report at which the assertion's number, the index and the numbers begin."""
REPORT_BYTES = 4 * (NUMBERS + 2 * MAX_NUMBERS)
WRITING, WRITTEN = 1, 2
"""Word 0 while a thread writes the report, and when it is written."""


def failure(sites: Sequence[Any], report: bytes) -> KernelAssertionError:
    """The exception for a report that was written.

    Args:
        sites: of each assertion its message, its place and the names of its numbers: the fact `failures`.
        report: the bytes.
    """
    (site,) = struct.unpack_from("=I", report, 4 * SITE)
    block = struct.unpack_from("=3i", report, 4 * BLOCK)
    message, (kernel, file, line, text), names = sites[site]
    numbers = struct.unpack_from(f"={len(names)}q", report, 4 * NUMBERS)
    return KernelAssertionError(failure_text(message, (kernel, file, line, text), block, names, numbers))
