"""`EagerBuilder`: runs operations as they are built; their results carry arrays."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker
from cutile.interpreter.watch import Watch
from cutile.ir.builder import Builder
from cutile.ir.core import Block, Op, Value
from cutile.ir.types import Type

Array = np.ndarray[Any, Any]


class EagerValue(Value):
    """A value that is known: it holds its array."""

    __slots__ = ("array",)

    def __init__(self, type: Type, array: Array, name: str = "") -> None:
        super().__init__(type, name)
        self.array = array


class _Arrays(MutableMapping[Value, Array]):
    """What the walker looks values up in.

    Those that hold their array, and those inside an operation's regions.
    """

    def __init__(self) -> None:
        self._inside: dict[Value, Array] = {}

    def __getitem__(self, value: Value) -> Array:
        return value.array if isinstance(value, EagerValue) else self._inside[value]

    def __setitem__(self, value: Value, array: Array) -> None:
        self._inside[value] = array

    def __delitem__(self, value: Value) -> None:
        del self._inside[value]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._inside)

    def __len__(self) -> int:
        return len(self._inside)


class EagerBuilder(Builder):
    """Builds for one tile block.

    Regions of operations are built as ever, and run with the operation.
    """

    def __init__(self, parameters: Block, index: Grid, grid: Grid, watch: Watch | None) -> None:
        super().__init__(parameters)
        self._walker = Walker(_Arrays(), index, grid)
        self._watch = watch

    def add(self, op: Op, name: str = "") -> Op:
        """Check `op` and run it.

        Raises:
            KernelTypeError: the operands do not fit.
        """
        if len(self.open_blocks) > 1:
            return super().add(op, name)
        op.check()
        types = op.infer()
        op.location = op.location or self.location
        if self._watch is not None:
            self._watch.before(op, self._walker)
        arrays = self._walker.operation(op)
        op.results = tuple(EagerValue(type, array, name) for type, array in zip(types, arrays, strict=True))
        if self._watch is not None:
            self._watch.after(op, self._walker)
        return op

    def reach(self, tensor: Value, index: Sequence[Value], mask: Value | None, what: str, *, every: bool) -> None:
        """Check the indices of an access of elements.

        Raises:
            OutOfBoundsError: none is in the tensor; or, where `every` one should be, one is not.
        """
        if self._watch is None or len(self.open_blocks) > 1:
            return
        values = self._walker.values
        wanted = None if mask is None else values[mask]
        places = [values[each] for each in index]
        self._watch.reach(tensor.name, values[tensor].shape, places, wanted, what, every=every, place=self.location)
