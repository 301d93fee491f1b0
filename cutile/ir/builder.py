"""`Builder`: the only way to make operations.

It checks operands, infers result types, and appends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from cutile.dtypes import DTypeLike, i32
from cutile.errors import Location
from cutile.ir.constant import Constant
from cutile.ir.control import If, Yield
from cutile.ir.core import Block, Op, Value


class Builder:
    """Appends operations to a block; nested blocks are opened with `block`."""

    def __init__(self, body: Block) -> None:
        self._blocks = [body]
        self._floors = [0]
        self.location: Location | None = None

    @property
    def current(self) -> Block:
        """The block being appended to."""
        return self._blocks[-1]

    @property
    def open_blocks(self) -> tuple[Block, ...]:
        """The blocks being built whose values may be used here, outermost first."""
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
        """Check and append `op`; its results come into being here.

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
        """An `If` whose blocks two functions fill; its results.

        Each returns what its block yields, if anything. Without one, a block is empty. The location stays what it was.
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
        """A constant; a convenience that every pass needs."""
        return self.value(Constant(value=value, dtype=dtype, shape=shape))
