"""Emitters of operations on tiles in registers.

They are elementwise operations, changes of shape and layout, reductions and sorts.

`kernel.py` writes constants: it decides which of them get a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.cuda.ops import ClusterArrive, ClusterReduce, ConvertLayout
from cutile.backend.gpu.emitter import Call, Expression, Intrinsic
from cutile.errors import IRError
from cutile.ir import Constant, Op
from cutile.ops import OPS, arith, cast, compare, create, grid, math, reduce, rounding, shape, sort
from cutile.ops.elementwise import Binary, Unary
from cutile.ops.registry import family

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def function(op: Op, kernel: Kernel) -> Call:
    """`exp(x)`, `pow(x, y)`."""
    return _bound(op, op.name, kernel)


def flushing(op: math.Flushing, kernel: Kernel) -> Call:
    """`exp2(x)`, `exp2_ftz(x)`."""
    return _bound(op, f"{op.name}{'_ftz' * op.ftz}", kernel)


def _bound(op: Op, name: str, kernel: Kernel) -> Call:
    """The call of the function `name` of `intrinsics/math.py`."""
    dtype = kernel.dtype(op.result.tile.dtype)
    bound = kernel.bind(name, "math.function", f'"{name}"', dtype, str(kernel.count(op)))
    return Call(bound, tuple(map(kernel.use, op.operands)))


# Every operation of the family is a function of libdevice: `LIBDEVICE` in `intrinsics/math.py` has their names.
_MATH = {op: flushing if issubclass(op, math.Flushing) else function for op in OPS.values() if family(op) == "math"}


Reshaping = shape.Broadcast | shape.Reshape | shape.Permute | ConvertLayout


def reshaping(op: Reshaping, kernel: Kernel) -> Expression:
    """`broadcast(x)` and others, by the attribute `how`; "keep" needs no code."""
    facts, dtype = op.attributes, kernel.dtype(op.x.tile.dtype)
    how, x = facts["how"], kernel.use(op.x)
    if how == "keep":
        return x
    if how == "splat":
        return Call(kernel.bind("splat", "shape.splat", dtype, str(kernel.count(op))), (x,))
    if how == "first":
        return Call(kernel.bind("first", "shape.first", dtype, str(kernel.source_layout(op).registers)), (x,))
    layouts = (kernel.layout(facts["source"]), kernel.layout(facts["layout"]))
    if how == "repeat":
        return Call(kernel.bind("broadcast", "shape.broadcast", dtype, *layouts), (x,))
    if how == "take":
        return Call(kernel.bind("rearrange", "shape.rearrange", dtype, *layouts), (x,))
    if how == "exchange":
        return Call(kernel.bind("exchange", "quads.exchange", dtype, *layouts), (x,))
    if how in ("move", "swizzle"):
        place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
        return Call(kernel.bind(how, f"shape.{how}", dtype, *layouts, *place), (x,))
    raise IRError(f"{op.name}: cuda knows no {how!r}")


MOVED = ("dtype", "source", "layout")
"""Facts that the factories of moves between threads take."""

_SHAPE: dict[type[Op], Callable[[Any, Any], Expression]] = {
    **dict.fromkeys((shape.Broadcast, shape.Reshape, shape.Permute, ConvertLayout), reshaping),
    shape.Cat: emitter(Intrinsic("shape.cat", (*MOVED, "axis=", "offset=", "fence="))),
    shape.Extract: emitter(Intrinsic("shape.extract", (*MOVED, "offset=", "fence="))),
}


ARITHMETIC = ("name", "dtype", "count")
"""Facts that the factories of arithmetic and comparisons take."""


def _arithmetic(*bases: type[Op]) -> list[type[Op]]:
    """The operations of the family that derive from one of these classes."""
    return [op for op in OPS.values() if family(op) == "arith" and issubclass(op, bases)]


INTRINSICS: dict[type[Op], Intrinsic] = {
    # `BINARY` and `UNARY` in `intrinsics/arith.py` have a row for each operation.
    **dict.fromkeys(_arithmetic(Binary), Intrinsic("arith.binary", ARITHMETIC, stem="{name}")),
    **dict.fromkeys(_arithmetic(Unary, arith.Not), Intrinsic("arith.unary", ARITHMETIC, stem="{name}")),
    arith.Fma: Intrinsic("arith.fma", ("dtype", "count")),
    **dict.fromkeys(
        (compare.Eq, compare.Ne, compare.Lt, compare.Le, compare.Gt, compare.Ge),
        Intrinsic("compare.compare", ARITHMETIC, stem="{name}"),
    ),
    compare.Select: Intrinsic("compare.select", ("result", "count")),
    create.Iota: Intrinsic("create.iota", ("dtype", "layout"), omit=("length",)),
    # The block's number is divided by the extents of later axes, so the extent of the first axis is not needed.
    grid.TileBlockId: Intrinsic("grid.tile_block_id", ("axis",), stem="tile_block_id_{axis}", call=GRID_NAMES[1:]),
}


def extreme(op: arith.Min | arith.Max, kernel: Kernel) -> Call:
    """The call of a minimum or maximum, such as `max_nan(x, y)` or `min_ftz(x, y)`."""
    name = f"{op.name}{'_nan' * op.nan}{'_ftz' * op.ftz}"
    dtype = kernel.dtype(op.result.tile.dtype)
    function = kernel.bind(name, "arith.binary", f'"{name}"', dtype, str(kernel.count(op)))
    return Call(function, tuple(map(kernel.use, op.operands)))


def rounded(op: rounding.Rounded, kernel: Kernel) -> Call:
    """The call of arithmetic with a rounding mode, such as `add_zero(x, y)`."""
    stem = f"{op.exact_name}_{op.rounding}{'_ftz' * op.ftz}"
    dtype = kernel.dtype(op.result.tile.dtype)
    facts = (f'"{op.exact_name}"', f'"{op.rounding}"', str(op.ftz), dtype, str(kernel.count(op)))
    return Call(kernel.bind(stem, "rounding.rounded", *facts), tuple(map(kernel.use, op.operands)))


def convert(op: cast.Convert, kernel: Kernel) -> Call:
    """The call of a conversion, such as `to_f16(x)`."""
    source, target = op.x.tile.dtype, op.dtype
    arguments = [kernel.dtype(source), kernel.dtype(target), str(kernel.count(op))]
    if op.rounding is not None:
        arguments.append(f'"{op.rounding}"')
    capability = kernel.capability
    # 8.0 is the factory's default. Only conversions from or to storage types differ between GPUs.
    if "storage" in (source.kind, target.kind) and capability > (8, 0):
        arguments.append(f"capability={capability}")
    function = kernel.bind(f"to_{op.dtype.name}", "cast.convert", *arguments)
    return Call(function, (kernel.use(op.x),))


def bitcast(op: cast.Bitcast, kernel: Kernel) -> Call:
    """The call of a bitcast, such as `as_u32(x)`."""
    source, target = kernel.dtype(op.x.tile.dtype), kernel.dtype(op.dtype)
    function = kernel.bind(f"as_{op.dtype.name}", "cast.bitcast", source, target, str(kernel.count(op)))
    return Call(function, (kernel.use(op.x),))


# Reductions and sorts along an axis, and elements by their places along it.


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
        *(["in_lanes=True"] if facts.get("in_lanes") else []),
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
    from cutile.backend.cuda.emit.kernel import EMITTERS  # here, since that file imports this one's emitters

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
"""Facts that the factories of operations along an axis take, if these use shared memory."""


EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    **_MATH,
    **_SHAPE,
    **{op: emitter(intrinsic) for op, intrinsic in INTRINSICS.items()},
    **dict.fromkeys((arith.Min, arith.Max), extreme),
    **dict.fromkeys(
        (
            rounding.RoundedAdd,
            rounding.RoundedSub,
            rounding.RoundedMul,
            rounding.RoundedDiv,
            rounding.RoundedFma,
            rounding.RoundedSqrt,
            rounding.RoundedTanh,
        ),
        rounded,
    ),
    cast.Convert: convert,
    cast.Bitcast: bitcast,
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
