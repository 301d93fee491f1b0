"""Loops and branches. Variables that a body assigns become values carried by the structured operation.

A Python number that a loop changes takes the type that the body gives it: `m = float("-inf")` before a loop over
`m = max(m, row)` becomes a tile. To find that type the body is compiled once more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from cutile.dtypes import bool_, f32, i32
from cutile.errors import KernelTypeError
from cutile.frontend import operators
from cutile.frontend.assign import assign
from cutile.frontend.frame import NOT_RETURNED, Frame
from cutile.frontend.operators import is_number, materialize, truth, unify
from cutile.frontend.values import Range, Undefined, describe, is_tile, items_of
from cutile.ir.control import For, If, While
from cutile.ir.core import Block, Value
from cutile.ir.types import TileType

MAX_RETYPINGS = 4


# Variables as flat lists of leaves


def _is_leaf(value: Any) -> bool:
    return is_tile(value) or is_number(value)


def _leaves(value: Any) -> list[Any] | None:
    """The tiles and numbers in a variable's value; None if it holds anything else."""
    if _is_leaf(value):
        return [value]
    if isinstance(value, tuple):
        found: list[Any] = []
        for item in items_of(value):
            inner = _leaves(item)
            if inner is None:
                return None
            found.extend(inner)
        return found
    return None


def _rebuild(shape: Any, leaves: list[Any]) -> Any:
    """A value of the same structure as `shape`, with leaves taken from the front of `leaves`."""
    if _is_leaf(shape):
        return leaves.pop(0)
    return tuple(_rebuild(item, leaves) for item in shape)


def _assigned(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """The names that statements assign, with the first place of each."""
    found: dict[str, ast.AST] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.id, node)
    return found


@contextmanager
def _dynamic(frame: Frame) -> Any:
    frame.dynamic_depth += 1
    try:
        yield
    finally:
        frame.dynamic_depth -= 1


# Loops


class _Loop:
    """What `for` and `while` share: the carried variables, and finding their types."""

    def __init__(self, frame: Frame, node: ast.For | ast.While) -> None:
        self.frame = frame
        self.node = node
        self.assigned = _assigned(node.body)
        self.before = dict(frame.variables)
        self.names = [name for name in self.before if name in self.assigned and _leaves(self.before[name]) is not None]
        self.initial = [leaf for name in self.names for leaf in _leaves(self.before[name]) or []]
        self.owners = [name for name in self.names for _ in _leaves(self.before[name]) or []]
        self.types: list[TileType | None] = [leaf.tile if is_tile(leaf) else None for leaf in self.initial]
        self.fixed = [is_tile(leaf) for leaf in self.initial]

    def start(self) -> list[Value]:
        """The initial values as tiles, in the enclosing block."""
        made: list[Value] = []
        for position, leaf in enumerate(self.initial):
            if is_tile(leaf):
                made.append(leaf)
                continue
            wanted = self.types[position] or TileType(operators.default_dtype(leaf))
            self.types[position] = wanted
            made.append(materialize(self.frame, leaf, wanted.dtype, wanted.shape))
        return made

    def arguments(self) -> list[Value]:
        """Block arguments for the carried values."""
        return [Value(type or TileType(i32), name) for type, name in zip(self.types, self.owners, strict=True)]

    def bind(self, values: Sequence[Value]) -> None:
        """Let the variables mean `values`."""
        rest = list(values)
        for name in self.names:
            self.frame.variables[name] = _rebuild(self.before[name], rest)

    def finish(self) -> list[Value] | None:
        """The values at the end of the body; None if a number's type was guessed wrongly (`types` is then right)."""
        made: list[Value] = []
        retyped = False
        position = 0
        for name in self.names:
            count = len(_leaves(self.before[name]) or [])
            leaves = _leaves(self.frame.variables[name])
            if leaves is None or len(leaves) != count:
                raise self._changed(name, describe(self.before[name]), describe(self.frame.variables[name]))
            for leaf in leaves:
                wanted = self.types[position]
                assert wanted is not None
                if is_number(leaf):
                    made.append(materialize(self.frame, leaf, wanted.dtype, wanted.shape))
                elif leaf.tile == wanted:
                    made.append(leaf)
                elif self.fixed[position]:
                    raise self._changed(name, str(wanted), str(leaf.type))
                else:
                    self.types[position] = leaf.tile
                    retyped = True
                position += 1
        for name, place in self.assigned.items():
            old = self.before.get(name)
            if name in self.before and name not in self.names and not isinstance(old, Undefined):
                new = self.frame.variables[name]
                if new is not old and new != old:
                    raise KernelTypeError(
                        f"{name!r} is a {describe(old)} and cannot change in a loop", self.frame.locate(place)
                    )
        return None if retyped else made

    def _changed(self, name: str, before: str, after: str) -> KernelTypeError:
        return KernelTypeError(
            f"{name!r} changes its type in the loop: it is {before} before, {after} at the end of the body",
            self.frame.locate(self.assigned[name]),
            "A variable keeps its dtype and shape from one step to the next; convert, reshape or broadcast it.",
        )

    def attempts(self, build: Callable[[list[Value]], Any]) -> Any:
        """Build the loop, again while types of numbers are being found. `build` gives None to be tried again."""
        block = self.frame.builder.current
        for _ in range(MAX_RETYPINGS):
            length = len(block.operations)
            made = build(self.start())
            if made is not None:
                return made
            del block.operations[length:]
            self.frame.variables = dict(self.before)
        self.frame.type_error("the types of this loop's variables do not settle", self.node)

    def leave(self, results: Sequence[Value]) -> None:
        """After the loop: the carried variables are its results; what only the body defines is undefined."""
        inside = set(self.frame.variables)
        self.frame.variables = dict(self.before)
        self.bind(results)
        line = self.frame.locate(self.node).line
        for name in sorted(inside - self.before.keys()):
            self.frame.variables[name] = Undefined(f"only the loop in line {line} assigns it")


def for_loop(frame: Frame, node: ast.For) -> None:
    """`for i in range(...)`: a loop. `for x in <tuple>` (or `ct.static_range`): the body once per element."""
    if node.orelse:
        frame.syntax_error(node.orelse[0], "`else` of a loop is not compiled in a kernel", "Write it after the loop.")
    iterable = frame.evaluate(frame, node.iter)
    if isinstance(iterable, tuple):
        for item in items_of(iterable):
            assign(frame, node.target, item)
            frame.execute(frame, node.body)
            if frame.returned is not NOT_RETURNED:
                return
        return
    if not isinstance(iterable, Range):
        frame.type_error(
            f"cannot loop over {describe(iterable)}",
            node.iter,
            "Loop over range(...), ct.static_range(...) or a tuple.",
        )
    if not isinstance(node.target, ast.Name):
        frame.syntax_error(node.target, "the target of a loop over range must be a name", "Write `for i in range(n)`.")
    bounds = [iterable.start, iterable.stop, iterable.step]
    dtype = None if any(map(is_tile, bounds)) else i32
    start, stop, step = unify(frame, bounds, "range", dtype)
    if not start.tile.is_scalar or start.tile.dtype.kind not in ("int", "uint"):
        frame.type_error(f"range: the bounds must be integer scalars, got {start.type}", node.iter)
    loop = _Loop(frame, node)
    target = node.target.id

    def build(initial: list[Value]) -> For | None:
        induction = Value(start.type, target)
        arguments = loop.arguments()
        with frame.builder.block(induction, *arguments) as body, _dynamic(frame):
            loop.bind(arguments)
            frame.variables[target] = induction
            frame.execute(frame, node.body)
            values = loop.finish()
            if values is None:
                return None
            frame.builder.yield_(*values)
        made = For(start=start, stop=stop, step=step, carried=tuple(initial), body=body)
        frame.builder.add(made)
        return made

    made: For = loop.attempts(build)
    for value, name in zip(made.results, loop.owners, strict=True):
        value.name = name
    loop.leave(made.results)
    frame.variables[target] = Undefined("it is the variable of a loop that has ended")


def while_loop(frame: Frame, node: ast.While) -> None:
    """`while condition:` with a scalar condition."""
    if node.orelse:
        frame.syntax_error(node.orelse[0], "`else` of a loop is not compiled in a kernel", "Write it after the loop.")
    loop = _Loop(frame, node)

    def build(initial: list[Value]) -> While | None:
        tested = loop.arguments()
        with frame.builder.block(*tested) as condition, _dynamic(frame):
            loop.bind(tested)
            flag = truth(frame, frame.evaluate(frame, node.test), node.test)
            if flag is False:
                frame.type_error("the condition of this loop is always false", node.test, "Remove the loop.")
            if flag is True:
                frame.type_error("the condition of this loop is always true", node.test, "It would never end.")
            frame.builder.yield_(flag)
        arguments = loop.arguments()
        with frame.builder.block(*arguments) as body, _dynamic(frame):
            loop.bind(arguments)
            frame.execute(frame, node.body)
            values = loop.finish()
            if values is None:
                return None
            frame.builder.yield_(*values)
        made = While(carried=tuple(initial), condition=condition, body=body)
        frame.builder.add(made)
        return made

    made: While = loop.attempts(build)
    for value, name in zip(made.results, loop.owners, strict=True):
        value.name = name
    loop.leave(made.results)


# Branches


def if_statement(frame: Frame, node: ast.If) -> None:
    """`if`: decided now where the condition is constant, else a branch that yields what either side assigns."""
    condition = truth(frame, frame.evaluate(frame, node.test), node.test)
    if isinstance(condition, bool):
        frame.execute(frame, node.body if condition else node.orelse)
        return
    before = dict(frame.variables)
    blocks: list[Block] = []
    states: list[dict[str, Any]] = []
    for body in (node.body, node.orelse):
        frame.variables = dict(before)
        with frame.builder.block() as block, _dynamic(frame):
            frame.execute(frame, body)
        blocks.append(block)
        states.append(frame.variables)
    frame.variables = dict(before)
    names = [name for name in {**states[0], **states[1]} if states[0].get(name) is not states[1].get(name)]
    line = frame.locate(node).line
    merged: dict[str, tuple[Any, Any]] = {}
    for name in names:
        pair = states[0].get(name), states[1].get(name)
        if any(each is None or isinstance(each, Undefined) for each in pair):
            frame.variables[name] = Undefined(f"only one branch of the `if` in line {line} assigns it")
        else:
            merged[name] = (pair[0], pair[1])
    results = _join(frame, condition, blocks, merged, node)
    frame.variables.update(results)


def if_expression(frame: Frame, condition: Value, node: ast.IfExp) -> Any:
    """`a if condition else b` with a condition known only when the kernel runs."""
    blocks: list[Block] = []
    values: list[Any] = []
    for each in (node.body, node.orelse):
        with frame.builder.block() as block, _dynamic(frame):
            values.append(frame.evaluate(frame, each))
        blocks.append(block)
    return _join(frame, condition, blocks, {"": (values[0], values[1])}, node)[""]


def _join(
    frame: Frame, condition: Value, blocks: list[Block], merged: dict[str, tuple[Any, Any]], node: ast.AST
) -> dict[str, Any]:
    """Emit the `if` whose results are the merged variables; what each means afterwards."""
    yields: tuple[list[Value], list[Value]] = ([], [])
    known: dict[str, Any] = {}
    for name, (left, right) in merged.items():
        if not is_tile(left) and not is_tile(right) and type(left) is type(right) and left == right:
            known[name] = left
            continue
        a, b = _leaves(left), _leaves(right)
        if a is None or b is None or len(a) != len(b) or (isinstance(left, tuple) != isinstance(right, tuple)):
            raise _differ(frame, node, name, describe(left), describe(right))
        for x, y in zip(a, b, strict=True):
            wanted = _common(x, y)
            for value, block, out in ((x, blocks[0], yields[0]), (y, blocks[1], yields[1])):
                if is_number(value):
                    with frame.builder.within(block):
                        value = materialize(frame, value, wanted.dtype, wanted.shape)
                elif value.tile != wanted:
                    raise _differ(frame, node, name, describe(x), describe(y))
                out.append(value)
    for block, values in zip(blocks, yields, strict=True):
        with frame.builder.within(block):
            frame.builder.yield_(*values)
    made = frame.builder.add(If(condition=condition, then=blocks[0], orelse=blocks[1]))
    rest: list[Any] = list(made.results)
    results: dict[str, Any] = {}
    for name, (left, _) in merged.items():
        results[name] = known[name] if name in known else _rebuild(left, rest)
        if name and isinstance(results[name], Value):
            results[name].name = name
    return results


def _common(x: Any, y: Any) -> TileType:
    """The type that two leaves take: a tile's where there is one, else the wider of the numbers' defaults."""
    if is_tile(x):
        return x.tile
    if is_tile(y):
        return y.tile
    if isinstance(x, float) or isinstance(y, float):
        return TileType(f32)
    if isinstance(x, bool) and isinstance(y, bool):
        return TileType(bool_)
    return TileType(operators.default_dtype(max(int(x), int(y), key=abs)))


def _differ(frame: Frame, node: ast.AST, name: str, left: str, right: str) -> KernelTypeError:
    what = f"{name!r}" if name else "this expression"
    return KernelTypeError(
        f"{what} has different types in the two branches: {left} and {right}",
        frame.locate(node),
        "Both branches must give the same dtype and shape; convert, reshape or broadcast one.",
    )
