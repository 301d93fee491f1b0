"""Reductions and scans along axes, also by a Python function of scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from cutile.dtypes import bool_, f32, i32
from cutile.frontend.derived import Language, Term, composed, require_kind, value_of, wide
from cutile.frontend.expect import axes_of, axis_of, constant_int, flag_of, marker_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, is_number, materialize, require_computed
from cutile.frontend.plain_numbers import adapted, narrows, require_fit
from cutile.frontend.registry import OPERATIONS, Handler, method, operation
from cutile.frontend.values import describe, is_tile, items_of
from cutile.ir import Block, Builder, Constant, Effect, If, Op, TileType, Value, Yield
from cutile.language import markers
from cutile.language.declare import FLOATS
from cutile.ops import arith
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.reduce import Fold, Folding, ReduceExtreme, ReduceMax, ReduceMin, ReduceProd, ReduceSum, Scan
from cutile.ops.shape import Reshape


def _reduced_along(
    frame: Frame, tile: Value, axes: tuple[int, ...], keepdims: bool, step: Callable[[Value, int], Value]
) -> Value:
    """A tile reduced along axes: the last first, so that others keep their numbers."""
    shape = tile.tile.shape
    for axis in reversed(axes):
        tile = step(tile, axis)
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return frame.emit(Reshape(x=tile, shape=kept)) if keepdims and axes else tile


def _register() -> None:
    """Register the reductions by operations: sums and products, then extremes."""
    for op in (ReduceSum, ReduceProd):

        def reduction(frame: Frame, x: Any, axis: Any = None, keepdims: Any = False, *, op: Any = op) -> Any:
            tile = tile_of(frame, x, op.name)
            axes = axes_of(frame, axis, len(tile.tile.shape), op.name)
            keep = flag_of(frame, keepdims, f"{op.name}: keepdims")
            dtype = tile.tile.dtype
            # f16 and bf16 are added up in f32. Along several axes the tile is converted here, to be rounded once.
            widened = len(axes) > 1 and dtype.is_float and dtype.bits < 32
            wide = frame.emit(Convert(x=tile, dtype=f32)) if widened else tile
            result = _reduced_along(frame, wide, axes, keep, lambda x, axis: frame.emit(op(x=x, axis=axis)))
            return frame.emit(Convert(x=result, dtype=dtype)) if widened else result

        OPERATIONS[op.name] = reduction
    for op in (ReduceMax, ReduceMin):

        def extreme(
            frame: Frame,
            x: Any,
            axis: Any = None,
            nan: Any = False,
            keepdims: Any = False,
            *,
            op: type[ReduceExtreme] = op,
        ) -> Any:
            tile = tile_of(frame, x, op.name)
            propagates = marker_of(frame, nan, markers.nan, op.name) is markers.nan.ENABLED
            propagates = propagates and tile.tile.dtype.is_float
            axes = axes_of(frame, axis, len(tile.tile.shape), op.name)
            keep = flag_of(frame, keepdims, f"{op.name}: keepdims")
            return _reduced_along(
                frame, tile, axes, keep, lambda x, axis: frame.emit(op(x=x, axis=axis, nan=propagates))
            )

        OPERATIONS[op.name] = extreme


_register()


def _any_or_all(frame: Frame, x: Any, axis: Any, keepdims: Any, what: str) -> Any:
    """`x.any()` and `x.all()`: the largest and the least of the flags, as 0 and 1."""
    ct, op = Language(frame), "reduce_max" if what == "any" else "reduce_min"
    axes_of(frame, axis, len(x.tile.shape), f".{what}")  # so that an error names the method
    flags = Term(frame, x) if x.tile.dtype.is_bool else Term(frame, x) != ct.term(0, x.tile.dtype)
    return value_of(getattr(ct, op)(flags.astype(i32), axis, keepdims=keepdims) == 1)


@method(Value, "any")
def _any(frame: Frame, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    return _any_or_all(frame, x, axis, keepdims, "any")


@method(Value, "all")
def _all(frame: Frame, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    return _any_or_all(frame, x, axis, keepdims, "all")


def _floats(ct: Language, x: Any, what: str) -> Term:
    """A tile of floats; those of 16 bits in f32."""
    return wide(Term(ct.frame, require_kind(ct.frame, tile_of(ct.frame, value_of(x), what), FLOATS, what)))


def _count(ct: Language, x: Term, axis: Any, what: str) -> int:
    """The number of elements that become one."""
    return math.prod(x.shape[each] for each in axes_of(ct.frame, value_of(axis), len(x.shape), what))


@composed
def mean(ct: Language, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    floats = _floats(ct, x, "mean")
    average = ct.reduce_sum(floats, axis, keepdims) / float(_count(ct, floats, axis, "mean"))
    return average.astype(x.dtype if isinstance(x, Term) else floats.dtype)


@composed
def var(ct: Language, x: Any, axis: Any = None, keepdims: Any = False, ddof: Any = 0) -> Any:
    floats = _floats(ct, x, "var")
    count = _count(ct, floats, axis, "var")
    divisor = count - constant_int(ct.frame, value_of(ddof), "var: ddof")
    if divisor < 1:
        ct.frame.type_error(f"var of {count} element(s) with ddof={ddof}", remedy="There are more elements than ddof.")
    # Squares of distances from the mean lose no precision where the mean is large. That takes two passes over the tile,
    # but no second load.
    distances = floats - ct.reduce_sum(floats, axis, keepdims=True) / float(count)
    # The distances add up to the rounding error of the mean, whose effect is subtracted (the corrected two-pass sum).
    rest = ct.reduce_sum(distances, axis, keepdims)
    spread = (ct.reduce_sum(distances * distances, axis, keepdims) - rest * rest / float(count)) / float(divisor)
    return spread.astype(x.dtype if isinstance(x, Term) else floats.dtype)


@operation
def reduce(frame: Frame, x: Any, axis: Any, identity: Any, function: Any, keepdims: Any = False) -> Any:
    keep = flag_of(frame, keepdims, "reduce: keepdims")
    tiles, identities = _operands(frame, "reduce", x, identity)
    shape = tiles[0].tile.shape
    axes = axes_of(frame, axis, len(shape), "reduce")
    for place in reversed(range(len(axes))):
        together = isinstance(x, tuple)
        tiles = _folded(frame, Fold, tiles, axes[place], identities, function, together, axes[place + 1 :])
    if keep and axes:
        kept = tuple(1 if each in axes else extent for each, extent in enumerate(shape))
        tiles = [frame.emit(Reshape(x=tile, shape=kept)) for tile in tiles]
    return tuple(tiles) if isinstance(x, tuple) else tiles[0]


@operation
def scan(frame: Frame, x: Any, axis: Any, reverse: Any, identity: Any, function: Any) -> Any:
    backward = marker_of(frame, reverse, markers.reverse, "scan") is markers.reverse.REVERSE
    tiles, identities = _operands(frame, "scan", x, identity)
    where = axis_of(frame, axis, len(tiles[0].tile.shape), "scan")
    together = isinstance(x, tuple)
    tiles = _folded(frame, Scan, tiles, where, identities, function, together, reverse=backward)
    return tuple(tiles) if together else tiles[0]


def _running(frame: Frame, tile: Value, axis: Any, backward: bool, identity: Any, op: type[Op], what: str) -> Value:
    """Running results of an operation on two elements."""

    def step(frame: Frame, a: Any, b: Any) -> Any:
        nan = {"nan": True} if op is arith.Max and a.tile.dtype.is_float else {}
        return frame.emit(op(x=a, y=b, **nan))

    step.in_front_end = True  # type: ignore[attr-defined]  # `_body` calls it with the frame
    where = axis_of(frame, axis, len(tile.tile.shape), what)
    return _folded(frame, Scan, [tile], where, (identity,), step, False, reverse=backward)[0]


_IDENTITIES: dict[type[Op], int] = {arith.Add: 0, arith.Mul: 1}
"""The identity of each operation; of Max it is the lowest number of the dtype."""


def _running_by(name: str, op: type[Op]) -> Handler:
    """A handler that computes running results of an operation."""

    def running(frame: Frame, x: Any, axis: Any, reverse: Any = False) -> Any:
        tile = tile_of(frame, x, name)
        dtype = tile.tile.dtype
        require_computed(frame, name, tile)
        if dtype.is_bool:
            frame.type_error(f"{name}: expected numbers, got {tile.type}", remedy="Convert it: x.astype(ct.i32).")
        lowest = float("-inf") if dtype.is_float else dtype.min
        identity = _IDENTITIES.get(op, lowest)
        # Sums and products of f16 and bf16 run in f32. A maximum is one of its operands: it is not rounded.
        widened = dtype.is_float and dtype.bits < 32 and op is not arith.Max
        wide = frame.emit(Convert(x=tile, dtype=f32)) if widened else tile
        total = _running(frame, wide, axis, flag_of(frame, reverse, f"{name}: reverse"), identity, op, name)
        return frame.emit(Convert(x=total, dtype=dtype)) if widened else total

    return running


@operation
def scan_sum(frame: Frame, x: Any, axis: Any, reverse: Any = markers.reverse.FORWARD, identity: Any = 0) -> Any:
    backward = marker_of(frame, reverse, markers.reverse, "scan_sum") is markers.reverse.REVERSE
    if not is_number(identity) or identity != 0:
        frame.type_error(
            f"scan_sum: the identity of a sum is 0, got {describe(identity)}",
            remedy="Add what it should begin with to the result.",
        )
    return _running_by("scan_sum", arith.Add)(frame, x, axis, backward)


OPERATIONS["cumsum"] = _running_by("cumsum", arith.Add)
OPERATIONS["cumprod"] = _running_by("cumprod", arith.Mul)
OPERATIONS["cummax"] = _running_by("cummax", arith.Max)


def _operands(frame: Frame, name: str, x: Any, identity: Any) -> tuple[list[Value], tuple[Any, ...]]:
    """The tiles to fold together, brought to one shape, and the identity of each."""
    together = isinstance(x, tuple)
    tiles = [tile_of(frame, each, name) for each in (items_of(x) if together else (x,))]
    if not tiles:
        frame.type_error(f"{name} of no tiles", remedy="Give it a tile, or a tuple of at least one.")
    shape = broadcast_shape(frame, [tile.tile.shape for tile in tiles], name)
    tiles = [broadcast_to(frame, tile, shape) for tile in tiles]
    identities = items_of(identity) if isinstance(identity, tuple) else (identity,)
    if len(identities) != len(tiles) or not all(map(is_number, identities)):
        frame.type_error(
            f"{name}: expected {len(tiles)} constant number(s) for the identity, got {describe(identity)}",
            remedy="Give the number that changes nothing, such as 0 for a sum; for several tiles a tuple of them.",
        )
    for number, tile in zip(identities, tiles, strict=True):
        _check_identity(frame, name, number, tile)
    return tiles, identities


def _folded(
    frame: Frame,
    op: type[Folding],
    tiles: list[Value],
    axis: int,
    identities: tuple[Any, ...],
    function: Any,
    together: bool,
    dropped: tuple[int, ...] = (),
    **attributes: Any,
) -> list[Value]:
    """Tiles of one shape folded together along an axis.

    `together`: whether the function takes and returns tuples, of one scalar for each tile.
    `dropped` has the later axes, along which the tiles were folded already.
    """
    shape = tiles[0].tile.shape
    body, outside = _body(frame, op.name, [tile.tile.with_shape(()) for tile in tiles], function, together)
    captured = [_captured_tile(frame, op.name, value, shape, axis, dropped) for value in outside]
    count = len(tiles)
    if captured:
        # The captured tiles are folded with the others, and so is a flag: True for an element, False for an identity.
        # An identity has no elements of the captured tiles.
        flags = frame.emit(Constant(value=True, dtype=bool_, shape=shape))
        tiles = [*tiles, *captured, flags]
        zeros = (False if each.tile.dtype.is_bool else 0 for each in captured)
        identities = (*identities, *zeros, False)
    fold = frame.builder.add(op(tiles=tuple(tiles), axis=axis, identities=identities, body=body, **attributes))
    return list(fold.results[:count])


def _captured_tile(
    frame: Frame, name: str, value: Value, shape: tuple[int, ...], axis: int, dropped: tuple[int, ...]
) -> Value:
    """A tile or scalar that a function reads, as a tile of the shape that is folded."""
    extents = value.tile.shape
    if extents:
        rank = len(shape) + len(dropped)
        whole = (1,) * (rank - len(extents)) + extents
        if len(whole) > rank or any(whole[each] != 1 for each in (axis, *dropped)):
            frame.type_error(
                f"{name}: the function reads {describe(value)}, which changes along the axis {axis}",
                remedy="Its extent there must be 1, as in tile[:, None]; or fold it together with the others, "
                "as a tuple of tiles.",
            )
        left = tuple(extent for each, extent in enumerate(whole) if each not in dropped)
        value = value if left == extents else frame.emit(Reshape(x=value, shape=left))
        broadcast_shape(frame, [left, shape], name)
    return broadcast_to(frame, value, shape)


def _check_identity(frame: Frame, name: str, number: Any, tile: Value) -> None:
    dtype = tile.tile.dtype
    if isinstance(number, float) and not dtype.is_float:
        frame.type_error(f"{name}: the identity {number!r} is no number of {dtype}", remedy=f"The tile is {tile.type}.")
    if not dtype.is_bool:  # of a tile of bools, the identity may be 0 or 1
        require_fit(frame, number, dtype)


def _body(
    frame: Frame, name: str, scalars: Sequence[Any], function: Any, together: bool
) -> tuple[Block, tuple[Value, ...]]:
    """The function as a block of element-wise operations; branches become selections.

    Returns the block, and the kernel's values that it reads. `_with_outside` says which arguments the block has then.
    """
    arguments = [Value(scalar, stem) for stem in ("a", "b") for scalar in scalars]
    count = len(scalars)
    first, second = tuple(arguments[:count]), tuple(arguments[count:])
    sides: list[Any] = [first, second] if together else [first[0], second[0]]
    places: dict[Value, Value] = {}  # the scalar that stands for a tile of the kernel

    def element(tile: Value) -> Value:
        if tile not in places:
            places[tile] = Value(tile.tile.with_shape(()), tile.name)
        return places[tile]

    with frame.builder.block(*arguments) as written, frame.compilation.by_element(element):
        of_ours = getattr(function, "in_front_end", False)
        result = function(frame, *sides) if of_ours else frame.invoke(function, *sides, node=frame.node)
        results = items_of(result) if isinstance(result, tuple) else (result,)
        if len(results) != count:
            frame.type_error(
                f"{name}: the function must return {count} value(s), got {describe(result)}",
                remedy="It takes what is folded so far and the next element, and returns the two as one.",
            )
        values: list[Any] = []
        for value, scalar in zip(results, scalars, strict=True):
            if is_number(value):
                value = materialize(frame, value, scalar.dtype)
            elif not narrows(frame, value, scalar.dtype):  # else it is refused below
                value = adapted(frame, value, scalar.dtype)
            values.append(value)
        for value, expected in zip(values, scalars, strict=True):
            if not is_tile(value) or value.type != expected:
                frame.type_error(
                    f"{name}: the function must return {expected}, got {describe(value)}",
                    remedy="What it returns takes the place of its first argument.",
                )
        frame.builder.yield_(*values)
    free = list(dict.fromkeys(_free(written, {*written.arguments})))
    if not free:
        return _without_branches(frame, name, written), ()
    tiles = {place: tile for tile, place in places.items()}
    return _with_outside(frame, name, written, free), tuple(tiles.get(value, value) for value in free)


def _free(block: Block, inside: set[Value]) -> Iterator[Value]:
    """The values that a block uses and does not define."""
    for op in block.operations:
        yield from (value for value in op.operands if value not in inside)
        for region in op.regions:
            yield from _free(region, inside | {*region.arguments})
        inside.update(op.results)


def _without_branches(frame: Frame, name: str, block: Block) -> Block:
    """The block without branches: both sides are computed, and one is selected."""
    copies: dict[Value, Value] = {}
    for value in block.arguments:
        copies[value] = Value(value.type, value.name)
    builder = Builder(Block([copies[value] for value in block.arguments]))
    _flatten(frame, name, block, builder, copies)
    builder.yield_(*[copies[value] for value in block.terminator.operands])
    return builder.current


def _with_outside(frame: Frame, name: str, block: Block, free: Sequence[Value]) -> Block:
    """`_without_branches`, of a function that reads the values `free`.

    The arguments of either side are followed by these values and a flag. A side whose flag is False is an identity: the
    result is the other side.
    """
    for value in free:
        if not is_tile(value) or not value.tile.is_scalar:
            _refuse_outside(frame, name, value)
    flag = TileType(bool_)
    count = len(block.arguments) // 2
    sides: list[list[Value]] = []
    for stem, own in (("a", block.arguments[:count]), ("b", block.arguments[count:])):
        copied = [Value(value.type, value.name) for value in own]
        sides.append([*copied, *(Value(value.type, value.name) for value in free), Value(flag, f"{stem}_there")])
    builder = Builder(Block([*sides[0], *sides[1]]))
    one_there, other_there = sides[0][-1], sides[1][-1]
    copies = dict(zip(block.arguments, (*sides[0][:count], *sides[1][:count]), strict=True))
    read = [
        builder.value(Select(condition=one_there, x=mine, y=theirs))
        for mine, theirs in zip(sides[0][count:-1], sides[1][count:-1], strict=True)
    ]
    copies.update(zip(free, read, strict=True))
    _flatten(frame, name, block, builder, copies)
    results = [
        builder.value(
            Select(
                condition=one_there,
                x=builder.value(Select(condition=other_there, x=copies[value], y=one)),
                y=other,
            )
        )
        for value, one, other in zip(block.terminator.operands, sides[0][:count], sides[1][:count], strict=True)
    ]
    builder.yield_(*results, *read, builder.value(arith.Or(x=one_there, y=other_there)))
    return builder.current


def _refuse_outside(frame: Frame, name: str, value: Value) -> NoReturn:
    what = describe(value) if is_tile(value) else repr(value.name)
    frame.type_error(
        f"{name}: the function reads {what} from outside",
        remedy="It may use its arguments, constants, and the kernel's scalars and tiles by their names.",
    )


def _flatten(frame: Frame, name: str, block: Block, builder: Builder, copies: dict[Value, Value]) -> None:
    """Copy a block's operations without branches; `copies` has the copy of each value."""
    for op in block.operations:
        if isinstance(op, Yield):
            return
        for value in op.operands:
            if value not in copies:
                _refuse_outside(frame, name, value)
        builder.location = op.location
        if isinstance(op, If):
            for side in (op.then, op.orelse):
                _flatten(frame, name, side, builder, copies)
            pairs = zip(op.results, op.then.terminator.operands, op.orelse.terminator.operands, strict=True)
            for result, first, other in pairs:
                if first not in copies or other not in copies:
                    _refuse_outside(frame, name, first if first not in copies else other)
                copies[result] = builder.value(Select(condition=copies[op.condition], x=copies[first], y=copies[other]))
            continue
        if op.regions or op.effect is not Effect.NONE or not _is_scalar(op):
            frame.type_error(
                f"{name}: {op.name} is not possible in a function that folds",
                remedy="It may compute with its scalars, and choose between them; no loops, loads or tiles.",
            )
        made = builder.add(op.copy_with([copies[value] for value in op.operands], (), ()))
        copies.update(zip(op.results, made.results, strict=True))


def _is_scalar(op: Op) -> bool:
    return bool(op.results) and all(is_tile(value) and value.tile.is_scalar for value in op.results)
