"""Specialised warps: products by warp groups, and the registers of their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import fed
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.group import Blank, GroupMma, GroupWait, Opaque, Part, ZeroUnless

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def multiply(op: GroupMma, kernel: Kernel) -> Call:
    """`multiply(acc, counter)`."""
    made = kernel.bind(
        "multiply",
        "crosswise.multiply" if op.crosswise else "group.multiply",
        kernel.dtype(op.left_dtype),
        kernel.dtype(op.right_dtype),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(op.attributes["layout"]),
        fed(op, kernel),
        *([f"promoted={op.promoted}"] if op.promoted else []),
        *(["replaces=True"] if op.added else []),
        *(["exchanged=True"] if op.exchanged else []),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.counter), *map(kernel.use, op.added)))


def group_wait(op: GroupWait, kernel: Kernel) -> Call:
    """`finished(acc)`: all products are; `finished_but_1(acc)`: one may be under way."""
    name = f"finished_but_{op.pending}" if op.pending else "finished"
    groups = str(op.pending * op.groups)
    made = kernel.bind(name, "group.wait", kernel.dtype(op.acc.tile.dtype), str(kernel.count(op)), groups)
    return Call(made, (kernel.use(op.acc),))


def blank(op: Blank, kernel: Kernel) -> Call:
    """`blank()`."""
    return Call(kernel.bind("blank", "group.blank", kernel.dtype(op.dtype), str(kernel.count(op))), ())


def zero_unless(op: ZeroUnless, kernel: Kernel) -> Call:
    """`zero_unless(x, condition)`."""
    made = kernel.bind("zero_unless", "group.zero_unless", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x), kernel.use(op.condition)))


def opaque(op: Opaque, kernel: Kernel) -> Call:
    """`opaque(x)`."""
    made = kernel.bind("opaque", "group.opaque", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


def part(op: Part, kernel: Kernel) -> Call:
    """`part_1(acc)`."""
    facts = op.attributes
    layouts = kernel.layout(facts["source"]), kernel.layout(facts["layout"])
    made = kernel.bind(f"part_{op.part}", "group.part", kernel.dtype(op.x.tile.dtype), *layouts, str(op.part))
    return Call(made, (kernel.use(op.x),))


EMITTERS = {
    GroupMma: multiply,
    GroupWait: group_wait,
    Blank: blank,
    ZeroUnless: zero_unless,
    Opaque: opaque,
    Part: part,
}
