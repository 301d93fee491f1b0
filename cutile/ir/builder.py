"""`Builder` makes operations, `Rewriter` makes changed copies of functions.

Nothing else does. A builder checks operands, infers result types, and appends. A rewriter copies a function, operation
by operation, and lets a rule step in:

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Neg): return rewriter.builder.value(...)   # replace
        return KEEP                                                   # copy as it is

A rule sees each operation with its operands already mapped to the copy. Nested blocks are rewritten before their
operation. Operations that a rule builds have the location of the one that they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Literal

from cutile.dtypes import DTypeLike, i32
from cutile.errors import Location
from cutile.ir.constant import Constant
from cutile.ir.control import If, Yield
from cutile.ir.core import Block, Function, Op, Value

__all__ = (
    "Builder", "Copier", "ERASE", "KEEP", "Replacement", "Rewriter", "Rule", "rewrite",
)  # fmt: skip


class Builder:
    """Appends operations to a block; nested blocks are opened with `block`.

    Attributes:
        location: the user's line, for operations without a location of their own.
    """

    def __init__(self, body: Block) -> None:
        self._blocks = [body]
        self._floors = [0]  # positions in `_blocks`: the visible blocks begin at the last position (`isolated`)
        self.location: Location | None = None

    @property
    def current(self) -> Block:
        """The block being appended to."""
        return self._blocks[-1]

    @property
    def open_blocks(self) -> tuple[Block, ...]:
        """The unfinished blocks whose values may be used here, outermost first."""
        return tuple(self._blocks[self._floors[-1] :])

    @contextmanager
    def isolated(self) -> Generator[None]:
        """Blocks that are opened inside read nothing from outside."""
        self._floors.append(len(self._blocks))
        try:
            yield
        finally:
            self._floors.pop()

    def add(self, op: Op, name: str = "") -> Op:
        """Check and append `op`, and make its results.

        Raises:
            KernelTypeError: the operands do not fit.
        """
        op.check()
        op.results = tuple(Value(type, name) for type in op.infer())
        if op.location is None:
            op.location = self.location
        self.current.operations.append(op)
        return op

    def value(self, op: Op, name: str = "") -> Value:
        """`add`, and return the only result."""
        return self.add(op, name).result

    @contextmanager
    def block(self, *arguments: Value) -> Generator[Block]:
        """Open a nested block; operations go there until the `with` ends."""
        with self.within(Block(arguments)) as block:
            yield block

    @contextmanager
    def within(self, block: Block) -> Generator[Block]:
        """Append to `block` until the `with` ends."""
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def branch(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value] | None] | None = None,
        orelse: Callable[[], Sequence[Value] | None] | None = None,
    ) -> tuple[Value, ...]:
        """Append an `If` whose blocks two functions fill, and return its results.

        A function returns the values that its block yields, or None for no values. The block of a function that is left
        out has nothing but its yield. The `If` has the location of the call, whatever the functions set.
        """
        blocks: list[Block] = []
        location = self.location
        for fill in (then, orelse):
            with self.block() as block:
                values = fill() if fill is not None else None
                self.yield_(*(values or ()))
            blocks.append(block)
        self.location = location
        return self.add(If(condition=condition, then=blocks[0], orelse=blocks[1])).results

    def yield_(self, *values: Value) -> None:
        """End the current block."""
        self.add(Yield(values=values))

    def constant(self, value: Any, dtype: DTypeLike = i32, shape: tuple[int, ...] = ()) -> Value:
        """Append a constant."""
        return self.value(Constant(value=value, dtype=dtype, shape=shape))


KEEP: Final = "keep"
"""A rule's answer: copy the operation as it is."""
ERASE: Final = "erase"
"""A rule's answer: leave the operation out. Nothing may use its results."""
Replacement = Literal["keep", "erase"] | Value | Sequence[Value]
Rule = Callable[[Op, "Rewriter"], Replacement]


class Copier:
    """Copies IR, operation by operation; a subclass replaces some of them.

    Attributes:
        values: the copy's values, by those of the source. A value that is missing here is used by the copy as it is.
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
        """A copy of a value, which takes the value's place from here on."""
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
        self.builder.location = op.location  # for operations that a subclass adds after this one

    def copy_of(self, op: Op) -> Op:
        """The copy of an operation; its results take the place of the original's."""
        with self.builder.isolated() if op.isolated else nullcontext():
            regions = [self.block(nested) for nested in op.regions]
        operands = [self.values.get(value, value) for value in op.operands]
        return op.copy_with(operands, regions, [self.value(value) for value in op.results])


class Rewriter(Copier):
    """Copies a function through a rule.

    Attributes:
        original: the operation that the rule sees, as it stands in the source.
    """

    original: Op

    def __init__(self, rule: Rule, drop: Callable[[Op], bool] | None = None) -> None:
        super().__init__()
        self._rule = rule
        self._drop = drop

    def operation(self, op: Op) -> None:
        """Append an operation's copy, or the operations by which the rule replaces it."""
        if self._drop is not None and self._drop(op):
            return
        copy = self.copy_of(op)
        self.builder.location = op.location  # again: the copies of nested operations have set their own
        self.original = op
        replacement = self._rule(copy, self)
        if isinstance(replacement, str):  # KEEP or ERASE
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

    `drop` tells whether the copy leaves out an operation of the source. `rule` does not see such an operation.
    """
    return Rewriter(rule, drop).function(function)
