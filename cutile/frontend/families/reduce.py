"""Calls that go along an axis.

Reductions and scans, also by a Python function of scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from cutile.frontend.expect import axis_of, marker_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import is_number, materialize
from cutile.frontend.registry import OPERATIONS, operation
from cutile.frontend.values import describe, is_tile, items_of
from cutile.ir.builder import Builder
from cutile.ir.control import If, Yield
from cutile.ir.core import Block, Effect, Op, Value
from cutile.language import markers
from cutile.ops import arith
from cutile.ops.compare import Select
from cutile.ops.reduce import Fold, Folding, ReduceExtreme, ReduceMax, ReduceMin, ReduceProd, ReduceSum, Scan


def _register() -> None:
    for op in (ReduceSum, ReduceProd):

        def reduction(frame: Frame, x: Any, axis: Any, *, op: Any = op) -> Any:
            tile = tile_of(frame, x, op.name)
            return frame.emit(op(x=tile, axis=axis_of(frame, axis, len(tile.tile.shape), op.name)))

        OPERATIONS[op.name] = reduction
    for op in (ReduceMax, ReduceMin):

        def extreme(frame: Frame, x: Any, axis: Any, nan: Any = False, *, op: type[ReduceExtreme] = op) -> Any:
            tile = tile_of(frame, x, op.name)
            propagates = marker_of(frame, nan, markers.nan, op.name) is markers.nan.ENABLED
            where = axis_of(frame, axis, len(tile.tile.shape), op.name)
            return frame.emit(op(x=tile, axis=where, nan=propagates and tile.tile.dtype.is_float))

        OPERATIONS[op.name] = extreme


_register()


def _plus(frame: Frame, a: Any, b: Any) -> Any:
    return frame.emit(arith.Add(x=a, y=b))


@operation
def reduce(frame: Frame, x: Any, axis: Any, identity: Any, function: Any) -> Any:
    return _folded(frame, Fold, x, axis, identity, function)


@operation
def scan(frame: Frame, x: Any, axis: Any, reverse: Any, identity: Any, function: Any) -> Any:
    backward = marker_of(frame, reverse, markers.reverse, "scan") is markers.reverse.REVERSE
    return _folded(frame, Scan, x, axis, identity, function, reverse=backward)


@operation
def scan_sum(frame: Frame, x: Any, axis: Any, reverse: Any = markers.reverse.FORWARD, identity: Any = 0) -> Any:
    backward = marker_of(frame, reverse, markers.reverse, "scan_sum") is markers.reverse.REVERSE
    if not is_number(identity) or identity != 0:
        frame.type_error(
            f"scan_sum: the identity of a sum is 0, got {describe(identity)}",
            remedy="Add what it should begin with to the result.",
        )
    return _folded(frame, Scan, x, axis, 0, _plus, reverse=backward)


def _folded(frame: Frame, op: type[Folding], x: Any, axis: Any, identity: Any, function: Any, **attributes: Any) -> Any:
    """One tile, or a tuple of them that are folded together."""
    name = op.name
    together = isinstance(x, tuple)
    tiles = [tile_of(frame, each, name) for each in (items_of(x) if together else (x,))]
    identities = items_of(identity) if isinstance(identity, tuple) else (identity,)
    if len(identities) != len(tiles) or not all(map(is_number, identities)):
        frame.type_error(
            f"{name}: expected {len(tiles)} constant number(s) for the identity, got {describe(identity)}",
            remedy="Give the number that changes nothing, such as 0 for a sum; for several tiles a tuple of them.",
        )
    for number, tile in zip(identities, tiles, strict=True):
        _check_identity(frame, name, number, tile)
    where = axis_of(frame, axis, len(tiles[0].tile.shape), name) if tiles else 0
    body = _body(frame, name, [tile.tile.with_shape(()) for tile in tiles], function, together)
    made = frame.builder.add(op(tiles=tuple(tiles), axis=where, identities=identities, body=body, **attributes))
    return tuple(made.results) if together else made.result


def _check_identity(frame: Frame, name: str, number: Any, tile: Value) -> None:
    dtype = tile.tile.dtype
    if isinstance(number, float) and not dtype.is_float:
        frame.type_error(f"{name}: the identity {number!r} is no number of {dtype}", remedy=f"The tile is {tile.type}.")


def _body(frame: Frame, name: str, scalars: Sequence[Any], function: Any, together: bool) -> Block:
    """The function as a block of element-wise operations: branches become selections."""
    arguments = [Value(scalar, stem) for stem in ("a", "b") for scalar in scalars]
    count = len(scalars)
    first, second = tuple(arguments[:count]), tuple(arguments[count:])
    given: list[Any] = [first, second] if together else [first[0], second[0]]
    with frame.builder.block(*arguments) as written:
        result = function(frame, *given) if function is _plus else frame.invoke(function, *given, node=frame.node)
        results = items_of(result) if isinstance(result, tuple) else (result,)
        if len(results) != count:
            frame.type_error(
                f"{name}: the function must return {count} value(s), got {describe(result)}",
                remedy="It takes what is folded so far and the next element, and returns the two as one.",
            )
        values = [
            materialize(frame, value, scalar.dtype) if is_number(value) else value
            for value, scalar in zip(results, scalars, strict=True)
        ]
        for value, expected in zip(values, scalars, strict=True):
            if not is_tile(value) or value.type != expected:
                frame.type_error(
                    f"{name}: the function must return {expected}, got {describe(value)}",
                    remedy="What it returns takes the place of its first argument.",
                )
        frame.builder.yield_(*values)
    return _flat(frame, name, written)


def _flat(frame: Frame, name: str, block: Block) -> Block:
    """The block without branches: both sides are computed, and one is selected."""
    copies: dict[Value, Value] = {}
    for value in block.arguments:
        copies[value] = Value(value.type, value.name)
    builder = Builder(Block([copies[value] for value in block.arguments]))
    _flatten(frame, name, block, builder, copies)
    builder.yield_(*[copies[value] for value in block.terminator.operands])
    return builder.current


def _refuse_outside(frame: Frame, name: str, value: Value) -> NoReturn:
    what = describe(value) if is_tile(value) else repr(value.name)
    frame.type_error(
        f"{name}: the function reads {what} from outside, which is known only at run time",
        remedy="It may use its arguments and constants alone; fold a further tile with this one.",
    )


def _flatten(frame: Frame, name: str, block: Block, builder: Builder, copies: dict[Value, Value]) -> None:
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
