"""Matrix products, and the ring of operands that a loop of products may run ahead with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.memory import arguments, view
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops import StageCommit, StagedMma, StageTile, StageWait
from cutile.dtypes import DTypeLike, f64
from cutile.ops import matmul

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def _capability(dtype: DTypeLike, kernel: Kernel) -> tuple[str, ...]:
    """The architecture's, where the instructions depend on it."""
    varies = dtype.kind == "storage" or dtype is f64
    return (f"capability={kernel.capability}",) if varies and kernel.capability > (8, 0) else ()


def mma(op: matmul.Mma, kernel: Kernel) -> Call:
    """`mma(a, b, acc)`."""
    facts = op.attributes
    left, right = facts["source"]
    made = kernel.bind(
        "mma",
        "matmul.mma",
        kernel.dtype(op.a.tile.dtype),
        kernel.dtype(op.b.tile.dtype),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(left),
        kernel.layout(right),
        kernel.layout(facts["layout"]),
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
        *_capability(op.a.tile.dtype, kernel),
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


def stage_tile(op: StageTile, kernel: Kernel) -> Call:
    """`stage_x(x, x_extent_0, i, k, k)`: the last argument is the turn."""
    facts = op.attributes
    numbers = ("axis", "slots", "slot_bytes", "offset", "pitch")
    made = kernel.bind(
        f"stage_{op.x.name}",
        "stage.stage_tile",
        view(op.x.tensor, kernel),
        kernel.layout(facts["layout"]),
        *(f"{each}={facts[each] + facts['place'] if each == 'offset' else facts[each]}" for each in numbers),
    )
    return Call(made, (*arguments(op.x, op.index, kernel), kernel.use(op.turn)))


def stage_commit(op: StageCommit, kernel: Kernel) -> Call:
    """`commit()`."""
    return Call(kernel.bind("commit", "stage.commit"), ())


def stage_wait(op: StageWait, kernel: Kernel) -> Call:
    """`wait_1()`: at most one group is still under way."""
    return Call(kernel.bind(f"wait_{op.pending}", "stage.wait", str(op.pending)), ())


def staged_mma(op: StagedMma, kernel: Kernel) -> Call:
    """`mma(acc, k)`."""
    facts = op.attributes
    made = kernel.bind(
        "mma",
        "matmul.staged_mma",
        kernel.dtype(op.dtype),
        kernel.dtype(op.other),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(facts["layout"]),
        f"depth={op.depth}",
        f"slots={facts['slots']}",
        f"offset={facts['offset']}",
        f"swaps={op.swaps}",
        *(("rounds=True",) if op.rounds else ()),
        *_capability(op.dtype, kernel),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.turn)))


EMITTERS = {
    matmul.Mma: mma,
    StageTile: stage_tile,
    StageCommit: stage_commit,
    StageWait: stage_wait,
    StagedMma: staged_mma,
}
