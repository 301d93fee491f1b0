"""What a GPU would not tell: races between tile blocks, reads of what nothing wrote, accesses outside of a tensor, and
identities of folds that are none (`identities.py`).

Blocks run one after the other here, but nothing orders them on a device. So it is a race when two blocks use an element
and one of them writes it, in whatever order they ran here. Every element remembers who wrote and who read it last, and
on which line.

Which elements an operation touches, it says itself: it is run a second time, a load over a tensor of element numbers, a
store of ones into a tensor of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker
from cutile.errors import Location, OutOfBoundsError, RaceError, UninitialisedReadError
from cutile.interpreter.identities import check_identity
from cutile.ir.core import Op, Value
from cutile.ir.effects import Effect
from cutile.ir.types import MutType, TensorType, TileType
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.reduce import Folding

Array = np.ndarray[Any, Any]
_NOBODY, _SEVERAL = 0, -1


@dataclass
class _Elements:
    """The history of a tensor's elements: who, as the number of a block plus 1, and where, as the number of a place."""

    shape: tuple[int, ...]
    written: Array  # whether anything ever wrote it
    writer: Array = field(init=False)
    wrote_at: Array = field(init=False)
    reader: Array = field(init=False)
    read_at: Array = field(init=False)

    def __post_init__(self) -> None:
        size = self.written.size
        self.writer, self.wrote_at, self.reader, self.read_at = (np.zeros(size, np.int32) for _ in range(4))

    def where(self, element: int) -> tuple[int, ...]:
        """The index of an element in the tensor."""
        return tuple(int(each) for each in np.unravel_index(element, self.shape))


class Watch:
    """Watches the memory of one launch.

    Args:
        arrays: the tensors, by the names of their parameters.
        written: for tensors of which not everything was ever written, what was; changed as the launch writes.
    """

    def __init__(self, arrays: Mapping[str, Array], written: Mapping[str, Array]) -> None:
        self._places: list[Location | None] = []
        self._block = 1
        self._index: Grid = (0, 0, 0)
        self._blocks: list[Grid] = [(0, 0, 0)]
        self._elements = {
            name: _Elements(array.shape, written[name] if name in written else np.ones(array.size, np.bool_))
            for name, array in arrays.items()
            if array.ndim
        }

    def enter(self, index: Grid) -> None:
        """The tile block at `index` begins."""
        self._index = index
        self._blocks.append(index)
        self._block = len(self._blocks) - 1

    def before(self, op: Op, walker: Walker) -> None:
        """Check an operation that is about to run.

        Raises:
            RaceError, UninitialisedReadError, OutOfBoundsError, IdentityError: with the places.
        """
        if isinstance(op, Folding):
            check_identity(op, walker)
        if op.effect_of is Effect.NONE or isinstance(op, CheckTile | CheckIndex):
            return  # a check touches no memory
        tensors = [each for each in op.operands if isinstance(each.type, TensorType | MutType)]
        for tensor in tensors:
            elements = self._elements.get(tensor.name)
            if elements is not None and op.effect_of in (Effect.READ, Effect.WRITE):
                self._access(op, tensor, elements, walker)

    def _access(self, op: Op, tensor: Value, elements: _Elements, walker: Walker) -> None:
        writes = op.effect_of is Effect.WRITE
        touched = _stored(op, tensor, elements, walker) if writes else _loaded(op, tensor, elements, walker)
        if not touched.size:
            raise OutOfBoundsError(
                f"this access of {tensor.name!r}, of shape {elements.shape}, lies outside of it altogether "
                f"(tile block {self._index})",
                op.location,
                "Compare the index with ct.num_tiles, or interpret(check=False) if reading padding is meant.",
            )
        if not writes and not elements.written[touched].all():
            first = touched[~elements.written[touched]][0]
            raise UninitialisedReadError(
                f"{tensor.name!r} is read at {elements.where(first)}, which nothing has written "
                f"(tile block {self._index})",
                op.location,
                "Fill the tensor first (api.zeros), or store before loading.",
            )
        self._race(op, tensor, elements, touched, elements.writer, elements.wrote_at, "written")
        if writes:
            self._race(op, tensor, elements, touched, elements.reader, elements.read_at, "read")
        self._remember(op, elements, touched, writes)

    def _race(
        self, op: Op, tensor: Value, elements: _Elements, touched: Array, who: Array, where: Array, did: str
    ) -> None:
        others = (who[touched] != _NOBODY) & (who[touched] != self._block)
        if others.any():
            element = int(touched[others][0])
            verb = "written" if op.effect_of is Effect.WRITE else "read"
            self._refuse(op, tensor, elements, element, verb, did, int(who[element]), int(where[element]))

    def _refuse(
        self, op: Op, tensor: Value, elements: _Elements, element: int, verb: str, did: str, who: int, where: int
    ) -> NoReturn:
        by = "another tile block" if who == _SEVERAL else f"tile block {self._blocks[who]}"
        place = self._places[where]
        there = f"\n{place.show()}" if place is not None else ""
        raise RaceError(
            f"{tensor.name!r} is {verb} at {elements.where(element)} by tile block {self._index}, "
            f"and was {did} by {by}; nothing orders the two on a device.\n"
            f"It was {did} here:{there}\nand is {verb} here:",
            op.location,
            "Let each element be written by one block, use atomics, or split the work into two launches.",
        )

    def _remember(self, op: Op, elements: _Elements, touched: Array, writes: bool) -> None:
        if not self._places or self._places[-1] != op.location:
            self._places.append(op.location)
        place = len(self._places) - 1
        if writes:
            elements.writer[touched] = self._block
            elements.wrote_at[touched] = place
            elements.written[touched] = True
        else:
            before = elements.reader[touched]
            alone = (before == _NOBODY) | (before == self._block)
            elements.reader[touched] = np.where(alone, self._block, _SEVERAL)
            elements.read_at[touched] = place


class _Instead(dict[Value, Array]):
    """The values of a block, some of them replaced."""

    def __init__(self, values: Mapping[Value, Array], replaced: Mapping[Value, Array]) -> None:
        super().__init__(replaced)
        self._values = values

    def __missing__(self, value: Value) -> Array:
        return self._values[value]


def _loaded(op: Op, tensor: Value, elements: _Elements, walker: Walker) -> Array:
    """The elements that a load takes. Padding shows as no number of an element: they count from 1."""
    numbers = np.arange(1, elements.written.size + 1, dtype=np.float64).reshape(elements.shape)
    (found, *_) = walker.with_values(_Instead(walker.values, {tensor: numbers})).operation(op)
    taken = np.asarray(found, np.float64).ravel()
    return taken[np.isfinite(taken) & (taken >= 1)].astype(np.int64) - 1


def _stored(op: Op, tensor: Value, elements: _Elements, walker: Walker) -> Array:
    """The elements that a store writes."""
    marks = np.zeros(elements.shape, np.float64)
    ones = {
        value: np.ones(value.type.shape, np.float64)
        for name, _, value in op.operand_fields()
        if name == "value" and isinstance(value.type, TileType)
    }
    walker.with_values(_Instead(walker.values, {tensor: marks, **ones})).operation(op)
    return np.flatnonzero(marks)
