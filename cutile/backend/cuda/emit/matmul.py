"""Matrix products, and tiles in stages of shared memory, which loops run ahead with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.memory import arguments, view
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops import StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait
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


def _place(facts: dict[str, Any], stage: tuple[int, int, int]) -> tuple[str, ...]:
    """Where the stages are, as keywords."""
    first, stages, stage_bytes = stage
    return f"stages={stages}", f"stage_bytes={stage_bytes}", f"offset={facts['offset'] + first}"


def stage_tile(op: StageTile, kernel: Kernel) -> Call:
    """`stage_x(x, x_extent_0, i, k, k)`: the last argument is the turn."""
    facts = op.attributes
    axis, width = facts["vector"]
    made = kernel.bind(
        f"stage_{op.x.name or 'view'}",
        "stage.stage_tile",
        view(op.x.tensor, kernel),
        kernel.layout(facts["layout"]),
        f"axis={axis}",
        f"width={width}",
        f"strides={op.strides!r}",
        *_place(facts, op.stage),
        *((f"steps={op.steps!r}",) if op.steps and op.steps != op.shape else ()),
        *((f"limited={op.limited!r}",) if op.limited else ()),
    )
    return Call(made, (*arguments(op.x, op.index, kernel), kernel.use(op.turn)))


def stage_read(op: StageRead, kernel: Kernel) -> Call:
    """`read_stage(k)`."""
    facts = op.attributes
    layout = kernel.layout(facts["layout"])
    made = kernel.bind(
        "read_stage",
        "stage.stage_read",
        kernel.dtype(op.dtype),
        layout,
        f"axis={facts['vector'][0]}",
        f"strides={op.strides!r}",
        *_place(facts, op.stage),
    )
    return Call(made, (kernel.use(op.turn),))


def stage_put(op: StagePut, kernel: Kernel) -> Call:
    """`put(tile, k)`."""
    facts = op.attributes
    made = kernel.bind(
        "put",
        "matmul.stage_put",
        kernel.dtype(op.dtype),
        kernel.dtype(op.other),
        kernel.layout(facts["source"]),
        kernel.layout(facts["accumulator"]),
        f"right={op.right}",
        f"depth={op.value.tile.shape[0 if op.right else 1]}",
        f"swaps={op.swaps}",
        *_place(facts, op.stage),
    )
    return Call(made, (kernel.use(op.value), kernel.use(op.turn)))


def stage_commit(op: StageCommit, kernel: Kernel) -> Call:
    """`commit()`."""
    return Call(kernel.bind("commit", "stage.commit"), ())


def stage_wait(op: StageWait, kernel: Kernel) -> Call:
    """`wait_1()`: at most one group is still under way."""
    alone = () if op.meet else ("meet=False",)
    return Call(kernel.bind(f"wait_{op.pending}", "stage.wait", str(op.pending), *alone), ())


def _moved(stage: tuple[int, int, int], offset: int) -> tuple[int, int, int]:
    return (stage[0] + offset, *stage[1:])


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
        f"left={_moved(op.left, facts['offset'])}",
        f"right={_moved(op.right, facts['offset'])}",
        f"swaps={op.swaps}",
        *(("rounds=True",) if op.rounds else ()),
        *_capability(op.dtype, kernel),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.turn)))


EMITTERS = {
    matmul.Mma: mma,
    StageTile: stage_tile,
    StageRead: stage_read,
    StagePut: stage_put,
    StageCommit: stage_commit,
    StageWait: stage_wait,
    StagedMma: staged_mma,
}
