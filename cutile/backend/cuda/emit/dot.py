"""Products by warpgroups, whose operands lie in any buffers or in registers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import places
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.dot import Dot, DotWait, WriteOperand
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel
    from cutile.ir.core import Value


def _place(buffer: Value, k_major: bool, kernel: Kernel) -> Call:
    (kind,) = buffer_types([buffer])
    panels = replace(Panels(*kind.panels), k_major=k_major)
    return kernel.place(kernel.panels(panels), *places(buffer, kernel))


def dot(op: Dot, kernel: Kernel) -> Call:
    """`begin_dot(counter, left, acc)`."""
    left = kernel.layout(op.attributes["source"]) if op.from_registers else _place(op.left, op.left_k_major, kernel)
    made = kernel.bind(
        "begin_dot",
        "dot.dot",
        kernel.dtype(op.left_dtype),
        kernel.dtype(op.right_dtype),
        kernel.dtype(op.acc_dtype),
        kernel.layout(op.attributes["layout"]),
        left,
        _place(op.right, op.right_k_major, kernel),
        f"depth={op.depth}",
        *(["fresh=True"] if op.fresh else []),
    )
    given = op.left if op.left_counter is None else op.left_counter
    acc = [] if op.acc is None else [kernel.use(op.acc)]
    return Call(made, (kernel.use(op.counter), kernel.use(given), *acc))


def write_operand(op: WriteOperand, kernel: Kernel) -> Call:
    """`write_operand(words)`."""
    (kind,) = buffer_types([op.buffer])
    layout, at = kernel.layout(op.attributes["layout"]), _place(op.buffer, Panels(*kind.panels).k_major, kernel)
    return Call(kernel.bind("write_operand", "written.write", layout, at), (kernel.use(op.words),))


def dot_wait(op: DotWait, kernel: Kernel) -> Call:
    """`finished(acc)`: this product is; `finished_but_1(acc)`: one that was begun later may be under way."""
    name = f"finished_but_{op.pending}" if op.pending else "finished"
    kept = [f"words={value.tile.size // int(kernel.facts['computing'])}" for value in op.left]
    count = str(kernel.count(op))
    made = kernel.bind(name, "dot.wait", kernel.dtype(op.acc.tile.dtype), count, str(op.pending), *kept)
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {
    Dot: dot,
    DotWait: dot_wait,
    WriteOperand: write_operand,
}
