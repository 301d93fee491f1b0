"""Padding that counts: elements past a tensor's edge that change a reduction.

A load gives zeros, or another number, past the edges of its tensor. Zeros do not change a sum of loaded elements. But
if the kernel subtracts a mean first, the padding is no longer zero, and changes the sum. So a loaded tile carries a
mask of its padding here, and tiles computed from it inherit the mask. A reduction, scan or product runs a second time
with its identity in place of padding. Both results must agree. Results that depend on no element of a tensor are
exempt: a row past a tensor's last one has only padding, and constants that a mask has put there.

Zeros do not change a sum, but they change a mean: a sum over a tile with padding must not be divided by the number of
the tile's elements.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutile.backend.reference.interpret import Walker
from cutile.errors import Location, PaddingWarning
from cutile.ir import Effect, Op, TileType, Value
from cutile.ops.arith import Add, And, Div, Max, Min, Mul, Or, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.matmul import Mma
from cutile.ops.reduce import Fold, Folding, Reduce, ReduceMax, ReduceMin, ReduceProd, ReduceSum, Scan
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.sort import Sort, TakeAlongAxis, TopK

__all__ = ("Padded", "Padding", "Replaced", "Summed")

Array = np.ndarray[Any, Any]

_MOVES = (Broadcast, Cat, Extract, Permute, Reshape)
"""Operations that move elements and compute nothing."""


_SUMS = (Add, Sub, Max, Min, Mul, Or, And)
"""Operations by which a loop over tiles folds elements, each in its own place of a tile."""


@dataclass(frozen=True)
class Padded:
    """Which elements of a tile are padding, or are computed from padding.

    Attributes:
        mask: true for these elements.
        tensors: the names of the tensors that were loaded.
        constant: true for the elements that depend on no tensor, such as those that a mask has replaced.
    """

    mask: Array
    tensors: frozenset[str]
    constant: Array


@dataclass(frozen=True)
class Summed:
    """A sum of elements, some of which are padding.

    Attributes:
        count: how many elements were added up, padding included.
        mixed: whether one sum has both elements of a tensor and padding.
        tensors: the names of the tensors that were loaded.
    """

    count: int
    mixed: bool
    tensors: frozenset[str]


class Padding:
    """Follows padding through one launch."""

    def __init__(self) -> None:
        self._of: dict[int, Padded] = {}  # by the value's `id`, which no other value gets while `_alive` holds it
        self._sums: dict[int, Summed] = {}  # likewise
        self._elements: set[int] = set()  # likewise: the values that depend on elements of memory
        self._lanes: dict[int, frozenset[str]] = {}  # likewise: the tensors with an element in each place of a tile
        self._alive: list[Value] = []
        self._warned: set[tuple[str, int, int]] = set()

    def enter(self) -> None:
        """Forget the values of the previous tile block."""
        self._of.clear()
        self._sums.clear()
        self._elements.clear()
        self._lanes.clear()
        self._alive.clear()

    def loaded(self, op: Op, tensor: str, outside: Array) -> None:
        """Note the elements of a loaded tile that lie outside of the tensor."""
        self._lanes[id(op.results[0])] = frozenset({tensor})
        if outside.any():
            self._note(op.results[0], Padded(outside, frozenset({tensor}), np.zeros_like(outside)))

    def after(self, op: Op, walker: Walker) -> None:
        """Follow padding through an operation that has run; warn if it changes a result."""
        if op.effect_of is not Effect.NONE or any(id(each) in self._elements for each in op.operands):
            self._elements.update(map(id, op.results))
            self._alive += op.results
        if op.effect_of is not Effect.NONE or not op.results:
            return
        self._follow_lanes(op)
        if not self._of:
            return
        self._follow_sums(op, walker)
        operands = {value: self._of[id(value)] for value in op.operands if id(value) in self._of}
        if not operands:
            return
        names = frozenset[str]().union(*(each.tensors for each in operands.values()))
        if isinstance(op, ReduceSum):
            self._add_up(op, operands[op.x], names)
        for result, mask in zip(op.results, self._masks(op, operands, walker, names), strict=True):
            if mask is not None and mask.any():
                self._note(result, Padded(mask, names, self._constant_elements(op, result, walker) & ~mask))

    def _follow_lanes(self, op: Op) -> None:
        """Note the tensors whose elements a result has, each in its own place.

        Sums that a loop carries are such results. That of a broadcast is not: one element is in many places.
        """
        names = frozenset[str]().union(*(self._lanes.get(id(operand), ()) for operand in op.operands))
        moves = isinstance(op, _MOVES) and not isinstance(op, Broadcast)
        if names and (moves or _is_by_element(op)):
            self._lanes.update((id(result), names) for result in op.results)

    def _constant_elements(self, op: Op, result: Value, walker: Walker) -> Array:
        """The elements of a result that depend on no tensor."""
        shape = result.tile.shape
        if not isinstance(op, (Select, *_MOVES)) and any(each.tile.shape != shape for each in op.operands):
            return np.zeros(shape, np.bool_)
        marks: dict[Value, Array] = {}
        for operand in _moved(op):
            padded = self._of.get(id(operand))
            unpadded = np.full(operand.tile.shape, id(operand) not in self._elements)
            marks[operand] = unpadded if padded is None else padded.constant
        if isinstance(op, Select):
            condition, x, y = (marks[each] for each in op.operands)
            choice: Array = walker.values[op.condition]
            return condition & np.where(choice, x, y)
        if isinstance(op, _MOVES):
            moved = {each: mark.astype(each.tile.dtype.numpy) for each, mark in marks.items()}
            return _results_with(op, walker, moved)[0].astype(np.bool_)
        return np.logical_and.reduce(list(marks.values()))

    def _add_up(self, op: ReduceSum, padded: Padded, names: frozenset[str]) -> None:
        """Note how many elements a sum has."""
        before = self._sums.get(id(op.x), Summed(1, False, names))
        mixed = bool((padded.mask.any(axis=op.axis) & ~padded.mask.all(axis=op.axis)).any())
        count = before.count * op.x.tile.shape[op.axis]
        self._sums[id(op.result)] = Summed(count, before.mixed or mixed, names)
        self._alive.append(op.result)

    def _follow_sums(self, op: Op, walker: Walker) -> None:
        """Follow sums to their divisions; warn of means that count padding."""
        total = self._sums.get(id(op.operands[0])) if op.operands else None
        if total is None:
            return
        if isinstance(op, Div) and total.mixed and bool((walker.values[op.y] == total.count).all()):
            tensors = " and ".join(map(repr, sorted(total.tensors)))
            self._warn(
                op,
                f"{op.name}: padding counts: elements past the edge of {tensors} are among the {total.count} that "
                "this mean counts; they add zeros to the sum.",
                "Divide the sum by how many elements there are: x.shape[axis] of a row that one tile holds, else "
                "ct.reduce_sum(part.inside(index).astype(ct.f32), axis).",
            )
        elif isinstance(op, Convert | Reshape | Broadcast):
            self._sums[id(op.result)] = total
            self._alive.append(op.result)
        elif isinstance(op, ReduceSum) and id(op.x) not in self._of:
            count = total.count * op.x.tile.shape[op.axis]
            self._sums[id(op.result)] = Summed(count, total.mixed, total.tensors)
            self._alive.append(op.result)

    def _note(self, value: Value, padded: Padded) -> None:
        self._of[id(value)] = padded
        self._alive.append(value)

    def _masks(
        self, op: Op, operands: Mapping[Value, Padded], walker: Walker, names: frozenset[str]
    ) -> Sequence[Array | None]:
        """The masks of the results; None where padding ends."""
        if isinstance(op, Reduce | Fold):
            mask = _any_padding(operands)
            nothing = _without_elements(mask, op.axis, operands)
            self._compare(op, ~nothing, operands, walker, names)
            return [nothing & mask.any(axis=op.axis)] * len(op.results)
        if isinstance(op, Scan):
            mask = _any_padding(operands)
            nothing = _without_elements(mask, op.axis, operands) & mask.any(axis=op.axis)
            mask = mask | np.expand_dims(nothing, op.axis)
            self._compare(op, ~mask, operands, walker, names)
            return [mask] * len(op.results)
        if isinstance(op, Mma):
            real, padded = _products_of_elements(op, operands, walker)
            self._compare(op, real, {each: operands[each] for each in (op.a, op.b) if each in operands}, walker, names)
            return [padded]
        if isinstance(op, Sort | TopK):
            return self._in_order(op, operands[op.x], walker)
        if isinstance(op, TakeAlongAxis):
            none = np.zeros(op.results[0].tile.shape, np.bool_)
            moved = _results_with(op, walker, {op.x: operands[op.x].mask})[0] if op.x in operands else none
            return [moved | (operands[op.places].mask if op.places in operands else none)]
        if isinstance(op, Select):
            none = np.zeros(op.results[0].tile.shape, np.bool_)
            condition, x, y = (operands[each].mask if each in operands else none for each in op.operands)
            choice: Array = walker.values[op.condition]
            return [condition | (choice & x) | (~choice & y)]
        if isinstance(op, _MOVES):
            none = {each: np.zeros(each.tile.shape, np.bool_) for each in _moved(op)}
            masks = none | {each: operands[each].mask for each in none if each in operands}
            marks = {each: mask.astype(each.tile.dtype.numpy) for each, mask in masks.items()}
            return [array.astype(np.bool_) for array in _results_with(op, walker, marks)]
        if not _is_by_element(op):
            return [None] * len(op.results)
        mask = _any_padding(operands)
        return [mask & ~self._unchanged(op, operands, walker) if isinstance(op, _SUMS) else mask] * len(op.results)

    def _unchanged(
        self, op: Add | Sub | Max | Min | Mul | Or | And, operands: Mapping[Value, Padded], walker: Walker
    ) -> Array:
        """Where padding leaves a sum of the same tensor's elements as it was.

        A loop over tiles adds up elements in each place of a tile, and its last tile adds padding to some of the sums.
        Where the padding changes nothing, these are still sums of elements.
        """
        unchanged = np.zeros(op.result.tile.shape, np.bool_)
        # Either operand may be the sum; of a difference, only the left one.
        for padding, total in ((op.y, op.x), (op.x, op.y))[: 1 if isinstance(op, Sub) else 2]:
            padded = operands.get(padding)
            if padded is None or not padded.tensors <= self._lanes.get(id(total), frozenset()):
                continue
            before, after = walker.values[total], walker.values[op.result]
            same = (before == after) | ((before != before) & (after != after))
            unchanged |= padded.mask & same & (~operands[total].mask if total in operands else True)
        return unchanged

    def _in_order(self, op: Sort | TopK, padded: Padded, walker: Walker) -> Sequence[Array]:
        """The masks of the sorted elements and of their places.

        Warn where padding comes before an element of the tensor.
        """
        _, places = _results_with(op, walker, {})
        mask = np.take_along_axis(padded.mask, places, op.axis)
        if (np.maximum.accumulate(mask, op.axis) & ~mask).any():
            last = "NEG_INF" if isinstance(op, TopK) or op.descending else "POS_INF"
            self._warn(
                op,
                f"{op.name}: padding counts: {int(padded.mask.sum())} elements past the edge of "
                f"{' and '.join(map(repr, sorted(padded.tensors)))} are put in order here, some of them before the "
                "tensor's own.",
                f"Have them come last: load with padding=ct.padding.{last}, or sort as many columns as there are.",
            )
        return [mask, mask]

    def _compare(
        self, op: Op, real: Array, operands: Mapping[Value, Padded], walker: Walker, names: frozenset[str]
    ) -> None:
        """Warn where results differ after padding is replaced by identities."""
        if not operands or not real.any():
            return
        # NumPy rounds sums and products by the order in which their operands lie in memory, so both runs read copies.
        copies = {value: walker.values[value].copy() for value in operands}
        masked = {value: array.copy() for value, array in copies.items()}
        for value, padded in operands.items():
            masked[value][padded.mask] = _identity(op, value)
        with np.errstate(all="ignore"):
            masked_results = _results_with(op, walker, masked)
            results = _results_with(op, walker, copies)
        for got, expected in zip(results, masked_results, strict=True):
            both_nan = (got != got) & (expected != expected)
            differs = np.asarray(real & ~((got == expected) | both_nan))
            if differs.any():
                place = int(differs.argmax())  # a flat index, since a result may have no axes
                self._warn_of_fold(op, operands, names, got.ravel()[place], expected.ravel()[place])
                return

    def _warn_of_fold(
        self, op: Op, operands: Mapping[Value, Padded], names: frozenset[str], got: Any, expected: Any
    ) -> None:
        count = max(int(padded.mask.sum()) for padded in operands.values())
        tensors = " and ".join(map(repr, sorted(names)))
        identity = _identity(op, next(iter(operands)))
        self._warn(
            op,
            f"{op.name}: padding counts: {count} elements past the edge of {tensors} are among what is folded here, "
            f"and are not {identity} any more: the result is {got}, and without them {expected}.",
            f"Mask them first: ct.select(part.inside(index), tile, {identity}), where part.load(index) loaded the tile "
            "(of a Mut: y.inside()).",
        )

    def _warn(self, op: Op, fault: str, remedy: str) -> None:
        """Warn once for each place in the kernel."""
        where: Location | None = op.location
        key = (where.file, where.line, where.column) if where is not None else ("", 0, 0)
        if key in self._warned:
            return
        self._warned.add(key)
        source_line = f"\n{where.show()}" if where is not None else ""
        warnings.warn_explicit(f"{fault}{source_line}\n{remedy}", PaddingWarning, key[0], key[1])


def _results_with(op: Op, walker: Walker, replaced: Mapping[Value, Array]) -> Sequence[Array]:
    """The results of an operation with other operands."""
    return walker.with_values(Replaced(walker.values, replaced)).operation(op)


class Replaced(dict[Value, Array]):
    """The values of a block, some of them replaced by others."""

    def __init__(self, values: Mapping[Value, Array], replaced: Mapping[Value, Array]) -> None:
        super().__init__(replaced)
        self._values = values

    def __missing__(self, value: Value) -> Array:
        return self._values[value]


def _any_padding(operands: Mapping[Value, Padded]) -> Array:
    """Where at least one of several tiles of one shape has padding."""
    first, *others = (each.mask for each in operands.values())
    for mask in others:
        first = first | mask
    return first


def _moved(op: Op) -> Sequence[Value]:
    """The operands whose elements an operation passes on, so without indices."""
    return [op.x] if isinstance(op, Extract) else op.operands


def _without_elements(mask: Array, axis: int, operands: Mapping[Value, Padded]) -> Array:
    """Where all elements along an axis are padding, or depend on no tensor."""
    constant = np.logical_and.reduce([each.constant for each in operands.values()])
    return np.asarray((mask | constant).all(axis=axis))


def _is_by_element(op: Op) -> bool:
    """Whether all operands and results have one shape."""
    return len({value.type.shape for value in (*op.operands, *op.results) if isinstance(value.type, TileType)}) == 1


def _products_of_elements(op: Mma, operands: Mapping[Value, Padded], walker: Walker) -> tuple[Array, Array]:
    """Masks of a product: elements with a term free of padding; others with padding.

    Zeros that a mask has put in place of padding are no terms: they add nothing, whatever they are multiplied by.
    """
    masks: list[Array] = []
    terms: list[Array] = []
    for value in (op.a, op.b):
        none = np.zeros(value.tile.shape, np.bool_)
        padded = operands.get(value)
        zeros = none if padded is None else padded.constant & (walker.values[value] == 0)
        masks.append((none if padded is None else padded.mask).astype(np.float32))
        terms.append((~zeros).astype(np.float32))
    real = (terms[0] - masks[0]) @ (terms[1] - masks[1]) > 0
    padding = masks[0] @ terms[1] + terms[0] @ masks[1] > 0
    return np.asarray(real), np.asarray(padding & ~real)


def _identity(op: Op, value: Value) -> Any:
    """The number that changes no result where it replaces an operand's element."""
    if isinstance(op, Folding):
        return op.identities[op.tiles.index(value)]
    if isinstance(op, ReduceMax | ReduceMin):
        dtype = value.tile.dtype
        if dtype.kind == "float":
            return float("-inf") if isinstance(op, ReduceMax) else float("inf")
        return dtype.min if isinstance(op, ReduceMax) else dtype.max
    return 1 if isinstance(op, ReduceProd) else 0
