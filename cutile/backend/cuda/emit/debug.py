"""Prints and assertions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import REPORT
from cutile.backend.cuda.emit.generic import offset
from cutile.backend.cuda.ops import FailUnless
from cutile.backend.gpu.emitter import Call, quoted
from cutile.ops import debug

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def say(op: debug.Print, kernel: Kernel) -> Call:
    """`say(x, y)`."""
    facts = op.attributes  # `sources` are the layouts of tiles, None for scalars
    values = [
        f"({quoted(spec)}, {kernel.dtype(value.tile.dtype)}, {kernel.layout(name) if name else None})"
        for spec, value, name in zip(op.specs, op.values, facts["sources"], strict=True)
    ]
    listed = f"({', '.join(values)}{',' * (len(values) == 1)})"
    place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
    function = kernel.bind("say", "debug.say", quoted(tuple(op.pieces)), listed, *place)
    return Call(function, tuple(map(kernel.use, op.values)))


def fail_unless(op: FailUnless, kernel: Kernel) -> Call:
    """`fail_unless(condition, report, block_0, block_1, block_2, k)`."""
    dtypes = "".join(f"{kernel.dtype(each.tile.dtype)}, " for each in op.numbers[3:])  # behind the block's index
    function = kernel.bind(
        "fail_unless",
        "debug.fail_unless",
        str(op.site),
        f"({dtypes.rstrip() if dtypes.count(',') == 1 else dtypes.rstrip(', ')})",
        *([f"speaker={op.thread}"] if op.thread else []),
        *([] if op.flag is None else [f"flag={offset(op.flag, kernel)}"]),
    )
    condition, *numbers = map(kernel.use, (op.condition, *op.numbers))
    return Call(function, (condition, REPORT, *numbers))


EMITTERS = {debug.Print: say, FailUnless: fail_unless}
