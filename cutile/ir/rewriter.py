"""`Rewriter`: the only way to change IR.

It copies a function, operation by operation, and lets a rule step in.

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Neg): return rewriter.builder.value(...)   # replace
        return KEEP                                                   # copy as it is

A rule sees each operation with its operands already mapped to the copy. Nested blocks are rewritten before their
operation. Locations carry over to what a rule builds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, Literal

from cutile.ir.builder import Builder
from cutile.ir.core import Block, Function, Op, Value

KEEP: Final = "keep"
ERASE: Final = "erase"
Replacement = Literal["keep", "erase"] | Value | Sequence[Value]
Rule = Callable[[Op, "Rewriter"], Replacement]


class Copier:
    """Copies IR, operation by operation; a subclass says what becomes of some.

    Attributes:
        values: leads from values to those of the copy; others stay themselves.
        builder: appends to the copy.
    """

    def __init__(self, builder: Builder | None = None, values: dict[Value, Value] | None = None) -> None:
        self.builder = Builder(Block()) if builder is None else builder
        self.values: dict[Value, Value] = {} if values is None else values

    def function(self, source: Function) -> Function:
        """The copy of a function."""
        body = self.block(source.body)
        return Function(source.name, body, source.source, source.file, source.stage, dict(source.facts))

    def value(self, value: Value) -> Value:
        """A value like another one, which it stands for from here on."""
        copy = Value(value.type, value.name)
        self.values[value] = copy
        return copy

    def block(self, block: Block) -> Block:
        """The copy of a block."""
        with self.builder.block(*map(self.value, block.arguments)) as copy:
            for op in block.operations:
                self.operation(op)
        return copy

    def operation(self, op: Op) -> None:
        """Append the copy of an operation."""
        self.builder.current.operations.append(self.copy_of(op))
        self.builder.location = op.location

    def copy_of(self, op: Op) -> Op:
        """The copy of an operation, whose results stand for its own from here on."""
        with self.builder.isolated() if op.isolated else nullcontext():
            regions = [self.block(nested) for nested in op.regions]
        operands = [self.values.get(value, value) for value in op.operands]
        return op.copy_with(operands, regions, [self.value(value) for value in op.results])


class Rewriter(Copier):
    """Copies a function through a rule.

    Attributes:
        original: the operation that the rule is asked about, as the source has it.
    """

    original: Op

    def __init__(self, rule: Rule, drop: Callable[[Op], bool] | None = None) -> None:
        super().__init__()
        self._rule = rule
        self._drop = drop

    def operation(self, op: Op) -> None:
        """Append what the rule makes of an operation."""
        if self._drop is not None and self._drop(op):
            return
        copy = self.copy_of(op)
        self.builder.location = op.location
        self.original = op
        replacement = self._rule(copy, self)
        if isinstance(replacement, str):
            if replacement == KEEP:
                self.builder.current.operations.append(copy)
            return
        values = [replacement] if isinstance(replacement, Value) else list(replacement)
        for old, new in zip(op.results, values, strict=True):
            if old.name and not new.name:
                new.name = old.name
            self.values[old] = new


def rewrite(function: Function, rule: Rule, drop: Callable[[Op], bool] | None = None) -> Function:
    """A copy of `function` changed by `rule`.

    `drop` names operations of the original that are left out.
    """
    return Rewriter(rule, drop).function(function)
