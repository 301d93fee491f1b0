"""Integers of a kernel as sums of multiples of symbols.

A sum also has a rest, which lies between two constants. A symbol is a tile block's index, a number that an atomic
addition gave, or a number that is the same in all tile blocks. Symbols show by how much an index differs between tile
blocks; see `shared_accesses.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutile.frontend.plain_numbers import Interval
from cutile.ir import Constant, For, Function, If, Op, TileType, Value, While
from cutile.ops.arith import Add, DivCeil, FloorDiv, Max, Min, Mod, Mul, Neg, Sub
from cutile.ops.atomic import AtomicRmw
from cutile.ops.bound import Assumption
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Select
from cutile.ops.create import Iota
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import TensorDim
from cutile.ops.shape import Broadcast, Reshape

Symbol = tuple[Any, ...]
"""("block", axis), ("grid stride", axis, loop), ("claim", counter), or ("same", key).

"claim" is a number that an atomic addition to a counter gave, "same" a number that is the same in all tile blocks.
A "grid stride" is the variable of a grid-stride loop: a loop from the block's index on, in steps of the number of
blocks. `loop` is the id of the operation.
"""


@dataclass(frozen=True)
class Form:
    """A sum of multiples of symbols, and of a rest from `low` to `high`.

    Attributes:
        terms: each symbol with its factor, which is not 0.
        narrow: whether a product in it was computed in 32 bits, where it may wrap.
        moved: whether a reshape or broadcast moved lanes, so that a mask of the lanes before says nothing of them.
    """

    terms: tuple[tuple[Symbol, int], ...] = ()
    low: int = 0
    high: int = 0
    narrow: bool = False
    moved: bool = False

    @property
    def constant(self) -> int | None:
        """The number, where it is one."""
        return self.low if not self.terms and self.low == self.high else None

    def plus(self, other: Form) -> Form:
        """The sum."""
        factors = dict(self.terms)
        for symbol, factor in other.terms:
            factors[symbol] = factors.get(symbol, 0) + factor
        # Sorted, so that equal sums are equal forms; by text, since symbols are tuples of unlike items.
        terms = tuple(sorted(((s, f) for s, f in factors.items() if f), key=repr))
        narrow, moved = self.narrow or other.narrow, self.moved or other.moved
        return Form(terms, self.low + other.low, self.high + other.high, narrow, moved)

    def times(self, factor: int) -> Form:
        """A multiple."""
        low, high = sorted((self.low * factor, self.high * factor))
        terms = tuple((symbol, each * factor) for symbol, each in self.terms if factor)
        return Form(terms, low, high, self.narrow, self.moved)

    def up_to(self, count: int) -> Form:
        """`count` elements from this one on."""
        return replace(self, high=self.high + count - 1)


MAX_LEAVES = 64
"""Leaves of a key (`_same_everywhere`). In a chain of `a = a + (a - b)` each link doubles them."""


class Forms:
    """The forms of a kernel's integers.

    Args:
        function: the kernel as written.
        weak: the intervals of weak scalars, which cannot wrap.
        counter: gives the name of the counter from which an update takes a number that nobody else gets; None for other
            updates.
    """

    def __init__(
        self,
        function: Function,
        weak: Mapping[Value, Interval | None],
        counter: Callable[[AtomicRmw], str | None],
    ) -> None:
        self._function = function
        self._weak = weak
        self._counter = counter
        operations = list(function.walk())
        self._made_by = {value: op for op in operations for value in op.results}
        self._loops = {op.induction: op for op in operations if isinstance(op, For)}
        self._carried = dict(_carried(operations))
        self._forms: dict[Value, Form | None] = {}
        self._same: dict[Value, Any] = {}
        self._grid_stride_loops: dict[int, For] = {}

    def of(self, value: Value) -> Form | None:
        """The form of a tile's or scalar's elements; None where nothing is known."""
        if value not in self._forms:
            self._forms[value] = None  # for a value that depends on itself through a loop, and is met again here
            self._forms[value] = self._find(value)
        return self._forms[value]

    def _find(self, value: Value) -> Form | None:
        if not isinstance(value.type, TileType) or not value.type.dtype.is_integer:
            return None
        if value in self._loops:
            return self._induction(self._loops[value])
        if value in self._carried:
            forms = [self.of(each) for each in self._carried[value] if each is not value]
            return forms[0] if forms and all(each == forms[0] for each in forms) else None
        op = self._made_by.get(value)
        form = None if op is None else self._result_form(op, value)
        if form is not None:
            return form
        key = self._same_everywhere(value)
        return None if key is None else Form(((("same", key), 1),))

    def _result_form(self, op: Op, value: Value) -> Form | None:
        """The form of an operation's result."""
        match op:
            case Constant():
                return Form((), int(op.value), int(op.value))
            case Iota():
                return Form((), 0, op.length - 1)
            case TileBlockId():
                return Form(((("block", op.axis), 1),))
            case AtomicRmw():
                counter = self._counter(op)
                return None if counter is None else Form(((("claim", counter), 1),))
            case Convert():
                return self._narrowed(value, self.of(op.x))
            case Assumption():
                return self.of(op.x)
            case Reshape() | Broadcast():
                form = self.of(op.x)
                return form if form is None or op.x.tile.is_scalar else replace(form, moved=True)
            case Add() | Sub() | Mul() | Neg():
                return self._narrowed(value, self._arithmetic(op))
            case _:
                return None

    def _arithmetic(self, op: Add | Sub | Mul | Neg) -> Form | None:
        """A sum, or a multiple by a constant."""
        x = self.of(op.x)
        if isinstance(op, Neg):
            return None if x is None else x.times(-1)
        y = self.of(op.y)
        if isinstance(op, Mul):
            for form, factor in ((x, y), (y, x)):
                if factor is not None and factor.constant == 0:
                    return factor
                if form is not None and factor is not None and factor.constant is not None:
                    return form.times(factor.constant)
            return None
        return None if x is None or y is None else x.plus(y.times(-1) if isinstance(op, Sub) else y)

    def _narrowed(self, value: Value, form: Form | None) -> Form | None:
        """A form of a value that may wrap: `narrow` in 32 bits, None in fewer."""
        if form is None or value in self._weak or value.tile.dtype.bits > 32:
            return form
        if value.tile.dtype.bits < 32 and form.terms:
            return None
        return replace(form, narrow=form.narrow or any(abs(factor) > 1 for _, factor in form.terms))

    def _induction(self, loop: For) -> Form | None:
        """The form of a loop's variable.

        It is known if the loop takes every n-th tile from the block's own on, or if its range has a constant length.
        """
        start, stop = self.of(loop.start), self.of(loop.stop)
        step = self._peeled(loop.step)
        if start is not None and isinstance(step, NumTileBlocks):
            own: Symbol = ("block", step.axis)
            if dict(start.terms).get(own) == 1 and start.low == start.high:
                rest = tuple((symbol, factor) for symbol, factor in start.terms if symbol != own)
                # The variable differs from the block's index by a multiple of the number of blocks.
                self._grid_stride_loops[id(loop)] = loop
                return replace(start, terms=(*rest, (("grid stride", step.axis, id(loop)), 1)))
        by = self.of(loop.step)
        if start is None or stop is None or by is None or by.constant is None or by.constant < 1:
            return None
        if start.terms != stop.terms or start.low != start.high or stop.low != stop.high:
            return None
        return start.up_to(max(stop.low - start.low, 1))

    def upper_bound(self, symbol: Symbol) -> str | None:
        """A bound that a symbol stays below, as Python over the kernel's parameters.

        None where the launch cannot tell.
        """
        if symbol[0] == "block":
            return f"grid[{symbol[1]}]"
        if symbol[0] != "grid stride":
            return None
        loop = self._grid_stride_loops[symbol[2]]
        stop, step = (self._made_by.get(value) for value in (loop.stop, loop.step))
        guarded = isinstance(stop, Select) and isinstance(step, Select) and stop.condition is step.condition
        # `for_loops.py` makes a loop stop where it starts if its step is 0. The bound is the stop before that guard.
        return _text(self._same_everywhere(stop.y if guarded and isinstance(stop, Select) else loop.stop))

    def _peeled(self, value: Value) -> Op | None:
        """The operation that made a value, before conversions and guards of steps."""
        op = self._made_by.get(value)
        while isinstance(op, Convert | Assumption | Select):
            if isinstance(op, Select):  # the guard of a loop's step: 1 in place of 0 (`for_loops.py`)
                guard = self._made_by.get(op.condition)
                if not isinstance(guard, Eq) or guard.x is not op.y:
                    return op
            op = self._made_by.get(op.y if isinstance(op, Select) else op.x)
        return op

    def _same_everywhere(self, value: Value) -> Any:
        """A key of a number that is the same in all tile blocks, all the time.

        None for any other number, and for one of more than `MAX_LEAVES`.
        """
        if value not in self._same:
            key = self._new_key(value)
            self._same[value] = key if _leaves(key) <= MAX_LEAVES else None
        return self._same[value]

    def _new_key(self, value: Value) -> Any:
        if value in self._function.parameters:
            return value.name if isinstance(value.type, TileType) else None
        op = self._made_by.get(value)
        match op:
            case Constant():
                return ("constant", op.value)
            case TensorDim():
                return ("extent", op.x.name, op.axis) if op.x in self._function.parameters else None
            case NumTileBlocks():
                return ("blocks", op.axis)
            case Convert() | Assumption():
                return self._same_everywhere(op.x)
            case Add() | Sub() | Mul() | FloorDiv() | DivCeil() | Mod() | Min() | Max():
                x, y = self._same_everywhere(op.x), self._same_everywhere(op.y)
                return None if x is None or y is None else (op.name, x, y)
            case _:
                return None


def _leaves(key: Any) -> int:
    """How many parameters, extents and constants a key is made of."""
    operation = isinstance(key, tuple) and key[0] not in ("constant", "extent", "blocks")
    return _leaves(key[1]) + _leaves(key[2]) if operation else 1  # pyright: ignore[reportUnknownArgumentType]


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "floor_div": "//", "mod": "%"}


def _text(key: Any) -> str | None:
    """A number that is the same in all tile blocks, as Python over the parameters."""
    if key is None or isinstance(key, str):
        return key
    match key:
        case ("constant", number):
            return str(number)
        case ("extent", name, axis):
            return f"{name}.shape[{axis}]"
        case ("blocks", axis):
            return f"grid[{axis}]"
        case (operation, x, y):
            first, second = _text(x), _text(y)
            if first is None or second is None:
                return None
            if operation in ("min", "max"):
                return f"{operation}({first}, {second})"
            return f"({first} {_OPERATORS[operation]} {second})" if operation in _OPERATORS else None
        case _:
            return None


def _carried(operations: Sequence[Op]) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Each value that a loop or branch passes on, with the values that it may have."""
    for op in operations:
        match op:
            case For():
                arguments, ends = [op.body.arguments[1:], op.results], op.body.terminator.operands
            case While():
                arguments = [op.condition.arguments, op.body.arguments, op.results]
                ends = op.body.terminator.operands
            case If():
                pairs = zip(op.results, op.then.terminator.operands, op.orelse.terminator.operands, strict=True)
                yield from ((result, (one, other)) for result, one, other in pairs)
                continue
            case _:
                continue
        for group in arguments:
            yield from zip(group, zip(op.carried, ends, strict=True), strict=True)
