"""`Scope`: appends scalar operations to the block that is being written.

It folds index arithmetic, and shares repeated values.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from cutile.backend.cpu.stage import INDEX, Larger, Smaller
from cutile.dtypes import DTypeLike, i64
from cutile.ir import Block, Builder, Constant, For, If, Op, Value
from cutile.ops.arith import Add, And, Mul, Sub
from cutile.ops.cast import Convert


class Scope:
    """A builder that knows the values of the open blocks, and computes none twice.

    Attributes:
        builder: where operations go.
        masked: whether reads from tensors check their indices.
        exposed: tensors that the kernel also reaches by address.
        views: tensors at addresses that may lie in memory which the kernel writes.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.masked = True
        self.exposed: set[Value] = set()
        self.views: set[Value] = set()
        self._known: list[dict[Any, Value]] = [{}]
        self._constants: dict[Value, int] = {}

    def may_overlap(self, x: Value, y: Value) -> bool:
        """Whether two different tensors may share memory."""
        either = self.views | self.exposed
        return x is not y and x in either and y in either and (x in self.views or y in self.views)

    def recall(self, key: Any) -> Value | None:
        """The value computed for `key` in a block that is still open."""
        for known in reversed(self._known):
            if key in known:
                return known[key]
        return None

    def remember(self, key: Any, value: Value) -> Value:
        """Keep a value for the rest of this block."""
        self._known[-1][key] = value
        return value

    def forget(self) -> None:
        """Forget the elements that were read, since memory has changed.

        Index arithmetic, whose keys start with a string, stays.
        """
        self._known[-1] = {key: value for key, value in self._known[-1].items() if isinstance(key[0], str)}

    def add(self, op: Op, name: str = "") -> Value:
        """Append an operation with one result."""
        return self.builder.value(op, name)

    def shared(self, key: Any, op: Op, name: str = "") -> Value:
        """Append an operation, unless an open block has its value under `key`."""
        value = self.recall(key)
        return value if value is not None else self.remember(key, self.add(op, name))

    def index(self, number: int) -> Value:
        """A constant index."""
        value = self.shared(("index", number), Constant(value=number, dtype=i64, shape=()))
        self._constants[value] = number
        return value

    def note(self, value: Value, number: int) -> None:
        """Remember that an integer scalar is a constant."""
        self._constants[value] = number

    def known(self, value: Value) -> int | None:
        """The number, where an index is a constant."""
        return self._constants.get(value)

    def plus(self, x: Value, y: Value, name: str = "") -> Value:
        """`x + y` of indices."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a + b)
        if a == 0 or b == 0:
            return y if a == 0 else x
        return self.shared(("+", x, y), Add(x, y), name)

    def minus(self, x: Value, y: Value, name: str = "") -> Value:
        """`x - y` of indices."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a - b)
        return x if b == 0 else self.shared(("-", x, y), Sub(x, y), name)

    def times(self, x: Value, y: Value, name: str = "") -> Value:
        """`x * y` of indices."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a * b)
        if a == 1 or b == 1:
            return y if a == 1 else x
        if a == 0 or b == 0:
            return self.index(0)
        return self.shared(("*", x, y), Mul(x, y), name)

    def smaller(self, x: Value, y: Value, name: str = "") -> Value:
        """The smaller of two indices."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(min(a, b))
        return x if x is y else self.shared(("min", x, y), Smaller(x, y), name)

    def larger(self, x: Value, y: Value, name: str = "") -> Value:
        """The larger of two indices."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(max(a, b))
        return x if x is y else self.shared(("max", x, y), Larger(x, y), name)

    def as_index(self, value: Value) -> Value:
        """An integer scalar as an index."""
        if value.type == INDEX:
            return value
        if value in self._constants:
            return self.index(self._constants[value])
        return self.shared(("i64", value), Convert(value, dtype=i64), value.name)

    def cast(self, value: Value, dtype: DTypeLike) -> Value:
        """A scalar as another dtype."""
        if value.tile.dtype is dtype:
            return value
        return self.shared(("cast", value, dtype), Convert(value, dtype=dtype))

    def number(self, value: float, dtype: DTypeLike) -> Value:
        """A constant scalar."""
        # The key has the number's `repr`: 0.0 equals -0.0, and NaN does not equal itself.
        return self.shared(("number", repr(value), dtype), Constant(value=value, dtype=dtype, shape=()))

    def all_of(self, bits: Sequence[Value]) -> Value | None:
        """The conjunction; None for no bits."""
        total: Value | None = None
        for bit in bits:
            total = bit if total is None else self.shared(("&", total, bit), And(total, bit))
        return total

    @contextmanager
    def block(self, *arguments: Value) -> Generator[Block]:
        """Open a nested block."""
        self._known.append({})
        try:
            with self.builder.block(*arguments) as block:
                yield block
        finally:
            self._known.pop()

    @contextmanager
    def loop(self, count: Value, name: str, carried: Sequence[Value] = ()) -> Generator[Loop]:
        """A loop over `0 <= i < count`.

        Set its `yielded`, the values that an iteration passes on, before the `with` ends. It has `results` afterwards.
        """
        zero, one = self.index(0), self.index(1)
        loop = Loop(Value(INDEX, name), tuple(Value(value.type, value.name) for value in carried))
        with self.block(loop.index, *loop.arguments) as body:
            yield loop
            self.builder.yield_(*loop.yielded)
        op = self.builder.add(For(start=zero, stop=count, step=one, carried=tuple(carried), body=body))
        for result, first in zip(op.results, carried, strict=True):
            result.name = first.name
        loop.results = op.results

    def branch(self, condition: Value, then: Block, orelse: Block) -> tuple[Value, ...]:
        """An `If` of two finished blocks."""
        return self.builder.add(If(condition=condition, then=then, orelse=orelse)).results


class Loop:
    """A loop while it is written.

    Attributes:
        index: the number of the iteration.
        arguments: the carried values within the body.
        yielded: the values that the body passes on.
        results: the values behind the loop.
    """

    def __init__(self, index: Value, arguments: tuple[Value, ...]) -> None:
        self.index = index
        self.arguments = arguments
        self.yielded: tuple[Value, ...] = ()
        self.results: tuple[Value, ...] = ()
