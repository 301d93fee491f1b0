"""The report of a failed assertion: its number, its tile block, its operands.

A kernel writes them to its launch's report, memory that the host reads once the launch is over. The fact `failures` has
the assertions by their numbers.

word 0      0; 1 while a thread writes the rest; 2 when it is written
word 1      the assertion's number
words 2-4   the tile block's index
words 8-    the numbers, two words each
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cutile.errors import KernelAssertionError
from cutile.ir import Constant, Op, Value
from cutile.ops.arith import And
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne
from cutile.ops.debug import failure_text

SITE, BLOCK, NUMBERS = 1, 2, 8
"""The words of a report at which the assertion's number, the index and the numbers begin."""
MAX_NUMBERS = 4
REPORT_BYTES = 4 * (NUMBERS + 2 * MAX_NUMBERS)
WRITING, WRITTEN = 1, 2
"""Word 0 while a thread writes the report, and when it is written."""

_COMPARISONS = (Eq, Ne, Lt, Le, Gt, Ge)


def subjects(condition: Value, definitions: Mapping[Value, Op]) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """The names of the integers that a condition compares, and the integers.

    Of `0 <= k and k < n` these are k and n, in this order. Numbers that stand in the kernel's text are left out.
    """
    compared: list[Value] = []
    pending, seen = [condition], {condition}
    while pending:
        op = definitions.get(pending.pop(0))  # from the front: in the order of the text
        if isinstance(op, And):
            parts = [part for part in dict.fromkeys((op.x, op.y)) if part not in seen]
            pending += parts
            seen.update(parts)
        elif isinstance(op, _COMPARISONS):
            compared += [each for each in (op.x, op.y) if _is_told(each, definitions)]
    values = tuple(dict.fromkeys(compared))[:MAX_NUMBERS]
    # Two integers under an `and`: a check of an index, whose sides may have no names.
    checked = len(values) == 2 and isinstance(definitions.get(condition), And)
    unnamed = ("index", "count") if checked else tuple(f"number {i}" for i, _ in enumerate(values))
    return tuple(_name(each, definitions) or name for each, name in zip(values, unnamed, strict=True)), values


def _name(value: Value, definitions: Mapping[Value, Op]) -> str:
    """The name of a value, or of one that was widened for the comparison."""
    op = definitions.get(value)
    return op.x.name if isinstance(op, Convert) and not value.name else value.name


def _is_told(value: Value, definitions: Mapping[Value, Op]) -> bool:
    tile = value.tile
    return tile.is_scalar and tile.dtype.is_integer and not isinstance(definitions.get(value), Constant)


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
    told = ", ".join(f"{name} = {number}" for name, number in zip(names, numbers, strict=True))
    whole = failure_text(message, (kernel, file, line, text), block)
    return KernelAssertionError(f"{whole}\n    with {told}" if told else whole)
