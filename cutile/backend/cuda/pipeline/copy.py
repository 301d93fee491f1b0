"""Copies of tile IR that passes change on the way."""

from __future__ import annotations

from cutile.ir.builder import Builder
from cutile.ir.core import Block, Function, Op, Value


class Copy:
    """Copies a function; a subclass says what becomes of some operations. `_map` leads from values to those of the
    copy."""

    def __init__(self) -> None:
        self._builder = Builder(Block())
        self._map: dict[Value, Value] = {}

    def function(self, source: Function) -> Function:
        """The copy."""
        body = self._block(source.body)
        return Function(source.name, body, source.source, source.file, source.stage, dict(source.facts))

    def _value(self, value: Value) -> Value:
        copy = Value(value.type, value.name)
        self._map[value] = copy
        return copy

    def _block(self, block: Block) -> Block:
        with self._builder.block(*map(self._value, block.arguments)) as copy:
            for op in block.operations:
                self._operation(op)
        return copy

    def _operation(self, op: Op) -> None:
        regions = [self._block(nested) for nested in op.regions]
        self._builder.location = op.location
        copy = self._builder.add(op.copy_with([self._map[value] for value in op.operands], regions, ()))
        for old, new in zip(op.results, copy.results, strict=True):
            new.name = old.name
            self._map[old] = new
