"""Reductions and sorts along an axis, and elements by their places along it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.cuda.ops import ClusterArrive, ClusterReduce
from cutile.backend.gpu.emitter import Call, Expression, Intrinsic
from cutile.ir import Constant, Op
from cutile.ops import reduce, sort

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def reduction(op: reduce.Reduce, kernel: Kernel) -> Call:
    """`reduce_max(x)`."""
    facts = op.attributes
    name = f"{op.name}_nan" if isinstance(op, reduce.ReduceExtreme) and op.nan else op.name
    function = kernel.bind(
        name,
        "reduce.reduce",
        f'"{name}"',
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(facts["source"]),
        f"axis={op.axis}",
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
    )
    return Call(function, (kernel.use(op.x),))


def across_cluster(op: ClusterReduce, kernel: Kernel) -> Call:
    """`cluster_reduce_max(x)`."""
    facts = op.attributes
    dtype, layout = kernel.dtype(op.x.tile.dtype), kernel.layout(facts["layout"])
    how = [f"offset={facts['offset']}", f"counter={facts['counter']}", *(["first=True"] if not op.number else [])]
    factory = "reduce.across_cluster"
    function = kernel.bind(f"cluster_{op.kind}", factory, f'"{op.kind}"', dtype, layout, str(op.blocks), *how)
    return Call(function, (kernel.use(op.x),))


def cluster_arrive(op: ClusterArrive, kernel: Kernel) -> Call:
    """`start()`."""
    barriers = f"({op.attributes['offset']}, {op.reductions}, 1)"
    return Call(kernel.bind("start", "pipeline.start", barriers, "cluster=True"), ())


def _tuple(items: Iterable[str]) -> str:
    """A tuple as the file writes it."""
    listed = list(items)
    return f"({', '.join(listed)}{',' * (len(listed) == 1)})"


def _function(op: reduce.Folding, kernel: Kernel) -> tuple[str, str]:
    """The steps of a function of scalars, and the slots of its results.

    A step is a scalar intrinsic, and the slots that it reads.
    """
    from cutile.backend.cuda.emit.kernel import EMITTERS  # which has this file's emitters: imported when called

    slots = {value: str(slot) for slot, value in enumerate(op.body.arguments)}
    steps: list[str] = []
    for inner in op.body.operations[:-1]:  # the last one yields
        for value in inner.operands:
            kernel.name(value, slots[value])  # so that the call's arguments are slots
        if isinstance(inner, Constant):
            steps.append(f"({kernel.scalar(inner)}, ())")
        else:
            call = EMITTERS[type(inner)](inner, kernel)
            steps.append(f"({call.function}, {_tuple(map(str, call.arguments))})")
        slots[inner.result] = str(len(slots))
    return _tuple(steps), _tuple(slots[value] for value in op.body.terminator.operands)


def folding(op: reduce.Folding, kernel: Kernel) -> Call:
    """`reduce_by(x)`, `scan_by(x, y)`."""
    facts = op.attributes
    numbers = zip(op.identities, op.tiles, strict=True)
    function = kernel.bind(
        f"{op.name}_by",
        "fold.scan" if isinstance(op, reduce.Scan) else "fold.fold",
        *_function(op, kernel),
        _tuple(kernel.dtype(value.tile.dtype) for value in op.tiles),
        _tuple(kernel.number(number, tile.tile.dtype) for number, tile in numbers),
        kernel.layout(facts["source"]),
        f"axis={op.axis}",
        *([f"reverse={op.reverse}"] if isinstance(op, reduce.Scan) else []),
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
    )
    return Call(function, tuple(map(kernel.use, op.operands)))


PLACED = ("axis=", "offset=", "fence=")

EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    **dict.fromkeys((reduce.ReduceSum, reduce.ReduceProd, reduce.ReduceMax, reduce.ReduceMin), reduction),
    **dict.fromkeys((reduce.Fold, reduce.Scan), folding),
    ClusterArrive: cluster_arrive,
    ClusterReduce: across_cluster,
    # Not "sort", which is the name of the module in the file.
    sort.Sort: emitter(
        Intrinsic(
            "sort.sort",
            ("dtype", "layout", "axis=", "descending=", "by_double=", "offset=", "fence="),
            stem="sort_along",
        )
    ),
    sort.TopK: emitter(Intrinsic("sort.top_k", ("dtype", "source", "layout", "axis=", "k=", "offset=", "fence="))),
    sort.TakeAlongAxis: emitter(Intrinsic("sort.take_along_axis", ("dtype", "source", "layout", *PLACED))),
}
