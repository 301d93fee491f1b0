"""Branches that are decided when the kernel runs.

Both sides are compiled, and their variables merged. A variable that has the same type on both sides becomes a result of
the `if`. A variable of two types, or of one side alone, has no value afterwards: a later use of it is an error. A side
that leaves by `break`, `continue` or `return` counts only for the variables that are read where it goes.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cutile.dtypes import bool_, f32, i32, i64
from cutile.errors import KernelTypeError
from cutile.frontend.flow import Exit, Flag, Flow
from cutile.frontend.frame import RETURNED, Frame, is_undefined
from cutile.frontend.operators import is_number, materialize, truth
from cutile.frontend.plain_numbers import (
    Interval,
    adapted,
    interval_of,
    is_weak,
    is_whole,
    narrows,
    of_weak,
    weak,
    whole_dtype,
)
from cutile.frontend.structure import leaves, refill, same_constant, same_structure
from cutile.frontend.tensor_parts import Form, joined_form, like, parts_of, tensor_of
from cutile.frontend.values import FAULTY, Faulty, ListItems, Undefined, describe, is_tile
from cutile.ir import Block, Constant, If, TileType, Value
from cutile.ops.arith import Not, Or

_VALUE = " value"  # the name under which an expression's value is merged; with the blank it is no variable's


@dataclass
class _Side:
    """One side of a branch, compiled."""

    block: Block
    variables: dict[str, Any]
    places: dict[str, ast.AST]
    flow: Flow
    yields: list[Value] = field(default_factory=list[Value])

    def needs(self, name: str, frame: Frame) -> bool:
        """Whether the variable's value on this side is needed after the branch."""
        if name == RETURNED:
            return Exit.RETURN in self.flow.taken
        if self.flow.falls or Exit.SKIP_ELSE in self.flow.taken:
            return True  # a path that skips an `else` goes on after it
        loop = frame.loop
        if loop is None or not {Exit.BREAK, Exit.CONTINUE} & self.flow.taken.keys():
            return False
        return loop.carried is None or name in loop.carried


def _compile_side(frame: Frame, action: Callable[[], Any]) -> _Side:
    """Compile one side in a block of its own; the frame is as before afterwards."""
    before = frame.variables, frame.places, frame.flow
    frame.variables, frame.places, frame.flow = dict(frame.variables), dict(frame.places), Flow()
    try:
        with frame.builder.block() as block, frame.dynamic():
            value = action()
        frame.variables[_VALUE] = value
        return _Side(block, frame.variables, frame.places, frame.flow)
    finally:
        frame.variables, frame.places, frame.flow = before


class _Merge:
    """The two sides of a branch, and the results of the `if` that joins them."""

    def __init__(self, frame: Frame, condition: Value, sides: tuple[_Side, _Side], node: ast.AST) -> None:
        self.frame = frame
        self.condition = condition
        self.sides = sides
        self.node = node
        self.phis: list[tuple[TileType, str, tuple[Any, Any]]] = []  # type, name, and the value on each side

    def variables(self) -> dict[str, Any]:
        """The variables after the branch; a `_Phi` stands for a result of the `if`."""
        left, right = self.sides
        merged: dict[str, Any] = {}
        for name in {**left.variables, **right.variables}:
            a, b = left.variables.get(name, _ABSENT), right.variables.get(name, _ABSENT)
            if a is b:
                merged[name] = a  # the same value on both sides, perhaps not the value before the branch
                continue
            needs = left.needs(name, self.frame), right.needs(name, self.frame)
            if needs == (True, True):
                merged[name] = self._needed_by_both(name, a, b)
            elif needs[0]:
                merged[name] = self._needed_by_one(name, a, 0)
            elif needs[1]:
                merged[name] = self._needed_by_one(name, b, 1)
            else:
                merged[name] = Undefined(f"no path from line {self._line} comes here with a value")
        return merged

    @property
    def _line(self) -> int:
        return self.frame.locate(self.node).line

    def _places(self, name: str) -> tuple[Any, ...]:
        places: list[Any] = []
        for what, side in (("on one path", self.sides[0]), ("on the other", self.sides[1])):
            node = side.places.get(name)
            if node is not None:
                places.append((what, self.frame.locate(node)))
        return tuple(places)

    def _needed_by_both(self, name: str, a: Any, b: Any) -> Any:
        """A variable whose values on both sides are needed."""
        if isinstance(a, Faulty) or isinstance(b, Faulty):
            return FAULTY
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            loop = self.frame.loop
            # The loop needs a value of each variable that it carries, whether or not a path assigns it.
            if loop is not None and loop.carried is not None and name in loop.carried:
                return self._hidden(name, a, b)
            if (a is _ABSENT or b is _ABSENT) and not (isinstance(a, Undefined) and isinstance(b, Undefined)):
                why = f"only one branch of the `{_word(self.node)}` in line {self._line} assigns it"
                return Undefined(why, places=tuple(("it is assigned here", place) for _, place in self._places(name)))
            # The undefined one of the two. `_ABSENT` comes last: it has no reason to report.
            return b if a is _ABSENT or not isinstance(a, Undefined) else a
        return self._joined(name, a, b)

    def _joined(self, name: str, a: Any, b: Any) -> Any:
        """Two values of one variable as one."""
        if not same_structure(a, b):
            return self._conflict(name, a, b)
        mark = len(self.phis)
        parts: list[Any] = []
        for x, y in zip(leaves(a), leaves(b), strict=True):
            if same_constant(x, y):
                parts.append(x)
                continue
            form = joined_form(x, y)
            if form is not None:
                parts.append(self._tensor(name, form, x, y))
                continue
            common = self._common(x, y)
            if common is None:
                self._forget(mark)  # the phis of the leaves before this one
                return self._conflict(name, a, b)
            parts.append(self._phi(name, common, x, y))
        joined = refill(a, iter(parts))
        if isinstance(joined, ListItems) and isinstance(b, ListItems):
            joined.holders |= b.holders  # it may be either list
        return joined

    def _hidden(self, name: str, a: Any, b: Any) -> Any:
        """A variable that a loop carries, and that has no value on some side.

        The loop carries the value of the sides that have one. Where a side without a value goes on, a use is an error.
        A side with a value of two types that leaves goes on with the next iteration, or after the loop, which reports
        it (`LoopState.conflicts`).

        Raises:
            PassOn: a side has the value that an inner loop could pass on.
        """
        pair = [each.hidden if is_undefined(each, name) else each for each in (a, b)]
        if pair[0] is None or pair[1] is None:
            joined = self._needed_by_one(name, pair[1], 1) if pair[0] is None else self._needed_by_one(name, pair[0], 0)
        else:
            joined = self._joined(name, *pair)
        sides = [(value, side) for value, side in zip((a, b), self.sides, strict=True) if isinstance(value, Undefined)]
        for value, side in sides:
            if value.conflict and self.frame.loop is not None:
                self.frame.loop.conflicts |= {(exit, name): value for exit in side.flow.taken}
        for value, side in sides:
            if side.flow.falls or Exit.SKIP_ELSE in side.flow.taken:
                return dataclasses.replace(value, hidden=joined)
        return joined

    def _needed_by_one(self, name: str, value: Any, side: int) -> Any:
        """A variable whose value on one side alone is needed."""
        if isinstance(value, Undefined | Faulty) or value is self.frame.variables.get(name):
            return value
        parts: list[Any] = []
        for leaf in leaves(value):
            if not is_tile(leaf):
                parts.append(leaf)
            else:
                pair = (leaf, None) if side == 0 else (None, leaf)
                parts.append(self._phi(name, leaf.tile, *pair))
        return refill(value, iter(parts))

    def _conflict(self, name: str, a: Any, b: Any) -> Any:
        """A variable of two types, whose use is an error.

        An expression's value and a function's result are used at once: their error is raised here.
        """
        kinds = f"it is {describe(a)} on one path, {describe(b)} on the other"
        if describe(a) == describe(b):
            kinds = f"it is one {describe(a)} on one path, and another on the other"
        if name == RETURNED:
            (_, here), (_, there) = self._places(name)
            raise KernelTypeError(
                f"{self.frame.source.name}() returns different types: {describe(a)} here, {describe(b)} elsewhere",
                here,
                "Every return must give the same dtype and shape.",
                (("it also returns", there),),
            )
        if name == _VALUE and describe(a) == describe(b):  # such as two functions
            raise KernelTypeError(
                f"this expression is one {describe(a)} or another, as is decided when the kernel runs",
                self.frame.locate(self.node),
                "What is chosen then are tiles, numbers, and tensors that are read: choose between the results.",
            )
        if name == _VALUE:
            raise KernelTypeError(
                f"this expression has different types in the two branches: {describe(a)} and {describe(b)}",
                self.frame.locate(self.node),
                "Both branches must give the same dtype and shape; convert, reshape or broadcast one.",
            )
        return Undefined(kinds, conflict=True, places=self._places(name))

    def _forget(self, mark: int) -> None:
        del self.phis[mark:]
        for side in self.sides:
            del side.yields[mark:]

    def _phi(self, name: str, common: TileType, x: Any, y: Any) -> _Phi:
        """A new result of the `if`, whose values on the sides are `x` and `y`.

        None is a value that nothing reads: zeros take its place.
        """
        builder = self.frame.builder
        for value, side in zip((x, y), self.sides, strict=True):
            if is_tile(value):
                with builder.within(side.block):
                    value = adapted(self.frame, value, common.dtype)
            else:
                with builder.within(side.block):
                    if value is None:
                        value = self.frame.emit(zeros(common))
                    else:
                        with self.frame.errors_at(name, side.places):
                            value = materialize(self.frame, value, common.dtype, common.shape)
            side.yields.append(value)
        self.phis.append((common, "" if name in (_VALUE, RETURNED) else name, (x, y)))
        return _Phi(len(self.phis) - 1)

    def _tensor(self, name: str, form: Form, x: Any, y: Any) -> _TensorPhi:
        """Two tensors as one, with a result of the `if` for each of its parts."""
        parts: list[list[Value]] = []
        for tensor, side in zip((x, y), self.sides, strict=True):
            with self.frame.builder.within(side.block):
                parts.append(parts_of(self.frame, tensor.value, form))
        phis = [self._phi(_VALUE, type, one, other) for type, one, other in zip(form.types(), *parts, strict=True)]
        return _TensorPhi(tuple(phis), form, x, "" if name in (_VALUE, RETURNED) else name)

    def flow(self, guarding: dict[Exit, Flag]) -> Flow:
        """Where control goes after the branch.

        Args:
            guarding: the flags whose negation is the condition, for `guarded`: they are false where the first side
                runs, so that an exit of the second side keeps its flag.
        """
        left, right = (side.flow for side in self.sides)
        merged = Flow(left.falls or right.falls)
        exits = left.taken.keys() | right.taken.keys()
        if not merged.falls and len(exits) == 1:
            merged.taken = dict.fromkeys(exits, True)
            return merged
        for exit in Exit:
            a, b = left.taken.get(exit), right.taken.get(exit)
            if a is None and b is None:
                continue
            if a is True and b is True:
                merged.taken[exit] = True
            elif a is None and b is not None and b is guarding.get(exit):
                merged.taken[exit] = b
            elif a is True and b is None:
                merged.taken[exit] = self.condition
            elif a is None and b is True:
                merged.taken[exit] = self.frame.emit(Not(x=self.condition))
            else:
                phi: Any = self._phi(_VALUE, TileType(bool_), a or False, b or False)
                merged.taken[exit] = phi
        return merged

    def emit(self, merged: dict[str, Any], flow: Flow) -> dict[str, Any]:
        """Build the `if`, and put its results in the place of phis.

        Nothing is built if there are no phis and each side's block has no operation but its yield.
        """
        frame, builder = self.frame, self.frame.builder
        for side in self.sides:
            with builder.within(side.block):
                builder.yield_(*side.yields)
        results: Sequence[Value] = ()
        if self.phis or any(len(side.block.operations) > 1 for side in self.sides):
            then, orelse = (side.block for side in self.sides)
            results = builder.add(If(condition=self.condition, then=then, orelse=orelse)).results
            for value, (_, name, sides) in zip(results, self.phis, strict=True):
                value.name = name
                self._mark_weak(value, [each for each in sides if each is not None])
                frame.compilation.bare.note_choice(self.condition, sides, value)
        flow.taken = {exit: results[flag.at] if isinstance(flag, _Phi) else flag for exit, flag in flow.taken.items()}
        return {name: self._resolved(value, results) for name, value in merged.items()}

    def _resolved(self, value: Any, results: Sequence[Value]) -> Any:
        """A merged value with the results of the `if` where phis stood for them."""
        if isinstance(value, Undefined):
            if value.hidden is None:
                return value
            return dataclasses.replace(value, hidden=self._resolved(value.hidden, results))
        parts = leaves(value)
        if not any(isinstance(leaf, _Phi | _TensorPhi) for leaf in parts):
            return value  # itself: a list or an iterator is known by its identity
        return refill(value, iter([self._leaf(leaf, results) for leaf in parts]))

    def _leaf(self, leaf: Any, results: Sequence[Value]) -> Any:
        if isinstance(leaf, _TensorPhi):
            tensor = tensor_of(self.frame, leaf.form, [results[phi.at] for phi in leaf.phis], leaf.name)
            return like(leaf.template, tensor)
        return results[leaf.at] if isinstance(leaf, _Phi) else leaf

    def _common(self, x: Any, y: Any) -> TileType | None:
        """The common type of two leaves; None where there is none.

        Two weak whole numbers have the type that holds both. Beside a strong scalar a weak one takes its type, unless
        it may not fit (`narrows`).
        """
        frame = self.frame
        if is_whole(frame, x) and is_whole(frame, y):
            return TileType(whole_dtype(interval_of(frame, x).join(interval_of(frame, y))))
        for plain, other in ((x, y), (y, x)):
            if is_tile(plain) and is_whole(frame, plain) and is_tile(other) and other.tile in WHOLE:
                return None if narrows(frame, plain, other.tile.dtype) else other.tile
        return _common(x, y)

    def _mark_weak(self, value: Value, sides: list[Any]) -> None:
        """Note that a result is weak, if each side that gives a value gives a weak one."""
        frame = self.frame
        if all(is_whole(frame, each) for each in sides) and value.tile in WHOLE:
            weak(frame, value, functools.reduce(Interval.join, (interval_of(frame, each) for each in sides)))
        elif all(is_weak(frame, each) and not isinstance(each, bool) for each in sides):
            of_weak(frame, value)


WHOLE = (TileType(i32), TileType(i64))
"""The types of weak whole numbers (`plain_numbers.py`)."""


@dataclass(frozen=True)
class _Phi:
    """Stands for the result `at` of the `if` that is being made."""

    at: int


@dataclass(frozen=True)
class _TensorPhi:
    """Stands for a tensor or partition whose parts are results of the `if`."""

    phis: tuple[_Phi, ...]
    form: Form
    template: Any
    name: str


_ABSENT = Undefined("it is assigned nowhere before")


def _word(node: ast.AST) -> str:
    return "match" if isinstance(node, ast.Match) else "if"


def zeros(type: TileType) -> Constant:
    """A tile in the place of a value that nothing reads, or that is faulty."""
    value: bool | int | float = {"bool": False, "float": 0.0}.get(type.dtype.kind, 0)
    return Constant(value=value, dtype=type.dtype, shape=type.shape)


def _common(x: Any, y: Any) -> TileType | None:
    """The common type of two leaves that are not both whole numbers; None without one.

    It is the tile's type if one is a tile.
    """
    if is_tile(x) and is_tile(y):
        return x.tile if x.tile == y.tile else None
    if is_tile(x) or is_tile(y):
        tile, number = (x, y) if is_tile(x) else (y, x)
        return tile.tile if is_number(number) and _fits(number, tile.tile) else None
    if not is_number(x) or not is_number(y):
        return None
    if isinstance(x, bool) != isinstance(y, bool):
        return None  # Python's 1 and True are equal, but a kernel's have different dtypes
    return TileType(bool_ if isinstance(x, bool) else f32)


def _fits(number: Any, tile: TileType) -> bool:
    """Whether a compile-time number may stand for a tile of this type."""
    kind = tile.dtype.kind
    return kind == "float" or (isinstance(number, bool) if kind == "bool" else isinstance(number, int))


def branch(
    frame: Frame,
    condition: Any,
    then: Callable[[], Any],
    orelse: Callable[[], Any],
    node: ast.AST,
    guarding: dict[Exit, Flag] | None = None,
) -> Any:
    """Compile `then` or `orelse`, or both where run time decides.

    Args:
        condition: a bool, or a bool scalar.
        node: the syntax of the branch, for errors.
        guarding: see `_Merge.flow`.

    Returns:
        The value of the action that is taken; of both, merged.
    """
    if isinstance(condition, bool):
        return then() if condition else orelse()
    sides = _compile_side(frame, then), _compile_side(frame, orelse)
    merge = _Merge(frame, condition, sides, node)
    merged = merge.variables()
    flow = merge.flow(guarding or {})
    results = merge.emit(merged, flow)
    value = results.pop(_VALUE, None)
    places = {**sides[1].places, **sides[0].places}
    frame.variables.update(results)
    frame.places.update({name: places[name] for name in results if name in places})
    frame.flow = flow
    return value


def guarded(
    frame: Frame, action: Callable[[], Any], node: ast.AST, otherwise: Mapping[str, Any] = types.MappingProxyType({})
) -> None:
    """Compile `action` for the paths that fall through to here.

    `otherwise` has the values of variables on the other paths, where they differ.
    """
    flow = frame.flow
    if not flow.falls:
        frame.variables.update(otherwise)
        return
    if not flow.taken:
        action()
        return
    # None of the flags is True: an exit that every path takes leaves none that falls through.
    flags = cast("list[Value]", list(flow.taken.values()))
    remaining = frame.emit(Not(x=exited(frame, flags)))
    paths = dict(flow.taken)

    def skip() -> None:
        frame.variables.update(otherwise)
        frame.flow = Flow(False, dict(paths))

    branch(frame, remaining, action, skip, node, guarding=paths)


def exited(frame: Frame, flags: Sequence[Value]) -> Value:
    """Whether any of the flags is set."""
    result = flags[0]
    for flag in flags[1:]:
        result = frame.emit(Or(x=result, y=flag))
    return result


def if_statement(frame: Frame, node: ast.If) -> None:
    """`if`: decided now for a constant condition, else a branch.

    It yields what either side assigns.
    """
    condition = truth(frame, frame.evaluate(node.test), node.test)
    branch(frame, condition, lambda: frame.execute(node.body), lambda: frame.execute(node.orelse), node)


def if_expression(frame: Frame, node: ast.IfExp) -> Any:
    """`a if condition else b`: one side for a constant condition, else both."""
    condition = truth(frame, frame.evaluate(node.test), node.test)
    return branch(frame, condition, lambda: frame.evaluate(node.body), lambda: frame.evaluate(node.orelse), node)
