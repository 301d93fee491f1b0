"""Prints and assertions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call, quoted
from cutile.backend.cuda.ops import FailUnless
from cutile.ops import debug

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel

MARK = "\0"
"""Stands for the tile block's index while the text of a failure is made."""


def say(op: debug.Print, kernel: Kernel) -> Call:
    """`say(x, y)`."""
    facts = op.attributes
    values = [
        f"({quoted(spec)}, {kernel.dtype(value.tile.dtype)}, {kernel.layout(name) if name else None})"
        for spec, value, name in zip(op.specs, op.values, facts["sources"], strict=True)
    ]
    listed = f"({', '.join(values)}{',' * (len(values) == 1)})"
    place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
    made = kernel.bind("say", "debug.say", quoted(tuple(op.pieces)), listed, *place)
    return Call(made, tuple(map(kernel.use, op.values)))


def fail_unless(op: FailUnless, kernel: Kernel) -> Call:
    """`fail_unless(condition, block_0, block_1, block_2)`."""
    whole = debug.failure_text(op.message, op.where, (MARK,))
    head, tail = whole.split(f"({MARK})")
    made = kernel.bind(
        "fail_unless",
        "debug.fail_unless",
        quoted(head),
        quoted(tail),
        quoted(op.message),
        quoted(tuple(op.where)),
        *([f"speaker={op.thread}"] if op.thread else []),
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {debug.Print: say, FailUnless: fail_unless}
