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


class Rewriter:
    """Copies a function through a rule.

    `builder` appends to the copy at the place being rewritten.

    Attributes:
        original: the operation that the rule is asked about, as the source has it.
    """

    original: Op

    def __init__(self, function: Function, rule: Rule, drop: Callable[[Op], bool] | None = None) -> None:
        self._function = function
        self._rule = rule
        self._drop = drop
        self._map: dict[Value, Value] = {}
        self.builder = Builder(Block())

    def run(self) -> Function:
        """The changed copy."""
        source = self._function
        body = self._block(source.body)
        return Function(source.name, body, source.source, source.file, source.stage, dict(source.facts))

    def _copy_value(self, value: Value) -> Value:
        made = Value(value.type, value.name)
        self._map[value] = made
        return made

    def _block(self, block: Block) -> Block:
        with self.builder.block(*map(self._copy_value, block.arguments)) as copy:
            for op in block.operations:
                self._operation(op)
        return copy

    def _operation(self, op: Op) -> None:
        if self._drop is not None and self._drop(op):
            return
        with self.builder.isolated() if op.isolated else nullcontext():
            regions = [self._block(nested) for nested in op.regions]
        operands = [self._map[value] for value in op.operands]
        results = [Value(value.type, value.name) for value in op.results]
        copy = op.copy_with(operands, regions, results)
        self.builder.location = op.location
        self.original = op
        replacement = self._rule(copy, self)
        if isinstance(replacement, str):
            if replacement == KEEP:
                self.builder.current.operations.append(copy)
                self._map.update(zip(op.results, results, strict=True))
            return
        values = [replacement] if isinstance(replacement, Value) else list(replacement)
        for old, new in zip(op.results, values, strict=True):
            if old.name and not new.name:
                new.name = old.name
            self._map[old] = new


def rewrite(function: Function, rule: Rule, drop: Callable[[Op], bool] | None = None) -> Function:
    """A copy of `function` changed by `rule`.

    `drop` names operations of the original that are left out.
    """
    return Rewriter(function, rule, drop).run()
