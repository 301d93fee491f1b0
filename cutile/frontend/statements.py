"""Statements: one function per kind of syntax, dispatched by the node's type.

An `assert` is decided now for a constant condition, else at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from cutile.errors import KernelError, KernelSyntaxError
from cutile.frontend import operators
from cutile.frontend.branches import branch, guarded, if_statement
from cutile.frontend.expressions import evaluate
from cutile.frontend.families.debug import constant_text, require
from cutile.frontend.flow import Flow, assigned, changed_in_place, imported
from cutile.frontend.for_loops import for_loop, while_loop
from cutile.frontend.frame import Frame
from cutile.frontend.inline import define, with_statement
from cutile.frontend.logic import changed, conjunction, is_cheap, settled
from cutile.frontend.operators import truth
from cutile.frontend.registry import FOLDED
from cutile.frontend.simple_statements import assign, break_statement, continue_statement, refuse, return_statement
from cutile.frontend.structure import children, compared_items, field_names, own_in_place
from cutile.frontend.values import FAULTY, ListItems, MutRef, Record, Table, describe, is_tile, items_of, plain
from cutile.ir import Effect, Value
from cutile.ops.arith import And, Not, Or

# `match`: patterns are decided now. Only a scalar is compared with a constant when the kernel runs.

_CLASSES = (bool, int, float, str, tuple, list)
"""Python's own classes in patterns; `int(k)` matches what `isinstance(..., int)` accepts."""


def match_statement(frame: Frame, node: ast.Match) -> None:
    """`match subject:` with its cases in order."""
    subject = frame.evaluate(node.subject)
    _case(frame, node, subject, 0)


def _case(
    frame: Frame, node: ast.Match, subject: Any, position: int, excluded: frozenset[bool | None] = frozenset()
) -> None:
    """Compile a case and those after it.

    Args:
        frame: the function with the statement.
        node: the statement.
        subject: the value that is matched.
        position: the number of the case, from 0.
        excluded: the ones of True and False that a bool scalar no longer can be: an earlier case matched them.
    """
    if position == len(node.cases):
        return
    case = node.cases[position]
    with frame.at(case.pattern):
        condition, names = _Pattern(frame).match(case.pattern, subject)
    if condition is False:
        _case(frame, node, subject, position + 1, excluded)
        return
    if isinstance(case.pattern, ast.MatchSingleton) and is_tile(condition):
        if (not case.pattern.value) in excluded:
            condition = True  # an earlier case matched the other value, so that only this one is left
        elif case.guard is None:
            excluded |= {case.pattern.value}
    passed: dict[str, Any] = {}  # the variables where the guard holds
    if case.guard is None:
        pass
    elif condition is True:
        _bind(frame, names)  # where the guard fails they stay bound, as in Python
        condition = truth(frame, frame.evaluate(case.guard), case.guard)
        names = {}
    else:
        condition, passed = _guarded(frame, node, case.guard, condition, names)
        names = {}

    def body() -> None:
        _bind(frame, names)
        frame.variables.update(passed)
        frame.execute(case.body)

    branch(frame, condition, body, lambda: _case(frame, node, subject, position + 1, excluded), node)


def _guarded(
    frame: Frame, node: ast.Match, guard: ast.expr, matches: Value, names: dict[str, tuple[Any, ast.AST]]
) -> tuple[Any, dict[str, Any]]:
    """Compile a guard whose pattern is decided at run time.

    The guard is computed where the pattern matches. Afterwards the frame's variables are those of the next cases: there
    the names are bound if the pattern matched.

    Returns:
        Whether the pattern matches and the guard holds, and the variables if they do.
    """
    before, places = dict(frame.variables), dict(frame.places)
    with frame.builder.block() as block, frame.dynamic():
        _bind(frame, names)
        bound = dict(frame.variables)
        holds = settled(frame, block, truth(frame, frame.evaluate(guard), guard))
    passed, hoisted = dict(frame.variables), is_cheap(block)
    if not hoisted and changed(frame, bound):
        frame.syntax_error(
            guard,
            "an assignment (:=) in a guard whose pattern is decided at run time is not compiled in a kernel",
            "Assign on a line of its own, before the `match` or in the case.",
        )
    frame.variables, frame.places = before, places
    if isinstance(holds, bool):
        if hoisted:  # variables that the guard assigns need its operations
            frame.builder.current.operations.extend(block.operations)
        condition = matches if holds else False
    else:
        condition = conjunction(frame, matches, block, holds)

    def keep() -> None:
        _bind(frame, names)
        frame.variables.update(passed)

    branch(frame, matches, keep, lambda: None, node)
    return condition, passed


def _bind(frame: Frame, names: dict[str, tuple[Any, ast.AST]]) -> None:
    for name, (value, place) in names.items():
        if isinstance(value, ListItems):
            value.holders.add((id(frame), name))
        frame.variables[name] = value
        frame.places[name] = place


def _all(frame: Frame, conditions: Sequence[Any]) -> Any:
    """Whether every condition holds."""
    result: Any = True
    for condition in conditions:
        if condition is False or result is False:
            return False
        if condition is not True:
            result = condition if result is True else frame.emit(And(x=result, y=condition))
    return result


def is_singleton(frame: Frame, subject: Any, value: bool | None, node: ast.AST) -> Any:
    """Whether `case True:`, `case False:` or `case None:` matches.

    The answer is a bool or a bool scalar. As in Python, 1 is not True. A bool scalar counts as True or False itself.
    """
    if not is_tile(subject):
        return subject is value
    if value is None or not subject.tile.dtype.is_bool:
        return False
    _require_scalar(frame, subject, node)
    return subject if value else frame.emit(Not(x=subject))


def _require_scalar(frame: Frame, subject: Value, node: ast.AST) -> None:
    if not subject.tile.is_scalar:
        frame.type_error(
            f"a pattern compares a scalar or a constant, got a tile of shape {subject.tile.shape}",
            node,
            "Use ct.select(tile == value, a, b) to choose element by element.",
        )


class _Pattern:
    """One pattern against one value: whether it matches, and the names it binds."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.names: dict[str, tuple[Any, ast.AST]] = {}

    def match(self, pattern: ast.pattern, subject: Any) -> tuple[Any, dict[str, tuple[Any, ast.AST]]]:
        """Whether the pattern matches, a bool or bool scalar, and the names it binds."""
        return self._matches(pattern, subject), self.names

    def _matches(self, pattern: ast.pattern, subject: Any) -> Any:
        match pattern:
            case ast.MatchValue():
                return self._equals(pattern, subject)
            case ast.MatchSingleton():
                return is_singleton(self.frame, subject, pattern.value, pattern)
            case ast.MatchAs():
                matches = True if pattern.pattern is None else self._matches(pattern.pattern, subject)
                if pattern.name is not None:
                    self.names[pattern.name] = subject, pattern
                return matches
            case ast.MatchOr():
                return self._either(pattern, subject)
            case ast.MatchSequence():
                return self._sequence(pattern, subject)
            case ast.MatchClass():
                return self._class(pattern, subject)
            case ast.MatchMapping():
                self.frame.syntax_error(
                    pattern,
                    "a mapping pattern is not compiled in a kernel",
                    "Match the dict's items: match (d['a'], d['b']).",
                )
            case _:
                self.frame.syntax_error(
                    pattern, "this pattern is not compiled in a kernel", "Match constants or tuples."
                )

    def _equals(self, pattern: ast.MatchValue, subject: Any) -> Any:
        frame = self.frame
        value, subject = plain(frame.evaluate(pattern.value)), plain(subject)
        if is_tile(subject):
            _require_scalar(frame, subject, pattern)
            if not operators.is_tile_or_number(value):
                return False
            return operators.comparison(frame, ast.Eq, subject, value)
        if compared_items(subject) is not None:
            return operators.comparison(frame, ast.Eq, subject, value)
        return not is_tile(value) and bool(subject == value)

    def _either(self, pattern: ast.MatchOr, subject: Any) -> Any:
        """`case a | b:`; only an alternative that is decided now may bind names."""
        result: Any = False
        for alternative in pattern.patterns:
            inner = _Pattern(self.frame)
            matches = inner._matches(alternative, subject)
            if matches is True and result is False:
                self.names.update(inner.names)
                return True
            if matches is False:
                continue
            if inner.names:
                self.frame.syntax_error(
                    alternative, "alternatives that are decided at run time bind names", "Write one case for each."
                )
            if matches is True:
                return True
            result = matches if result is False else self.frame.emit(Or(x=result, y=matches))
        return result

    def _sequence(self, pattern: ast.MatchSequence, subject: Any) -> Any:
        """`case a, *b, c:`, which matches tuples."""
        items = children(subject) if isinstance(subject, tuple) else None
        if items is None:
            return False
        stars = [at for at, each in enumerate(pattern.patterns) if isinstance(each, ast.MatchStar)]
        if not stars:
            if len(items) != len(pattern.patterns):
                return False
            return _all(
                self.frame, [self._matches(each, item) for each, item in zip(pattern.patterns, items, strict=True)]
            )
        at = stars[0]
        after = len(pattern.patterns) - at - 1
        if len(items) < at + after:
            return False
        starred = pattern.patterns[at]
        assert isinstance(starred, ast.MatchStar)
        if starred.name is not None:
            self.names[starred.name] = ListItems(items[at : len(items) - after]), starred
        pairs = [*zip(pattern.patterns[:at], items, strict=False)]
        pairs += zip(pattern.patterns[at + 1 :], items[len(items) - after :], strict=True)
        return _all(self.frame, [self._matches(each, item) for each, item in pairs])

    def _class(self, pattern: ast.MatchClass, subject: Any) -> Any:
        """`case Point(x, y=0):` for the user's classes, `case int(k):` for Python's."""
        frame = self.frame
        kind = frame.evaluate(pattern.cls)
        if kind in _CLASSES:
            if not FOLDED[isinstance](frame, plain(subject), kind):
                return False
            return all(self._matches(each, subject) for each in pattern.patterns[:1])
        names = field_names(kind) if isinstance(kind, type) else None
        if names is None:
            frame.type_error(
                f"{describe(kind)} is no class that a kernel can match",
                pattern.cls,
                "Match dataclasses, named tuples, or int, float, bool, str, tuple and list.",
            )
        owner = subject.kind if isinstance(subject, Record) else type(subject)
        if not issubclass(owner, kind):
            return False
        items = dict(zip(field_names(owner) or (), children(subject) or (), strict=True))
        positional = getattr(kind, "__match_args__", names)
        if len(pattern.patterns) > len(positional):
            frame.type_error(
                f"{kind.__name__} has {len(positional)} fields, the pattern {len(pattern.patterns)}",
                pattern,
                f"Its fields are {', '.join(positional)}.",
            )
        fields = [
            *zip(positional, pattern.patterns, strict=False),
            *zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True),
        ]
        conditions: list[Any] = []
        for name, part in fields:
            if name not in items:
                frame.type_error(f"{kind.__name__} has no field {name!r}", part, f"Its fields are {', '.join(names)}.")
            conditions.append(self._matches(part, items[name]))
        return _all(frame, conditions)


def assert_statement(frame: Frame, node: ast.Assert) -> None:
    """`assert condition, message`: decided now if constant, else at run time."""
    condition = frame.evaluate(node.test)
    count = len(frame.builder.current.operations)
    message = frame.evaluate(node.msg) if node.msg is not None else None
    if is_tile(condition):
        # Python computes the message only where the condition is false. A kernel always does, which must not show.
        if any(op.effect is not Effect.NONE for op in frame.builder.current.operations[count:]):
            frame.type_error(
                "assert: the message accesses memory, where it would do so even if the condition holds",
                node.msg,
                "Assign the value to a variable before the assert, and show the variable.",
            )
        require(frame, condition, ast.unparse(node.test) if message is None else message, "assert")
    elif not truth(frame, condition, node.test):
        failed(frame, node.test, message)


def failed(frame: Frame, node: ast.AST, message: Any) -> None:
    """Refuse the kernel, whose assertion is false."""
    frame.type_error(
        f"the assertion is false{constant_text(message)}",
        node,
        "It is decided when the kernel is compiled, by its generics and the types of its arguments.",
    )


def execute(frame: Frame, body: Sequence[ast.stmt]) -> None:
    """Compile statements in order, until control does not reach the next one.

    A statement that fails is reported. The variables that it assigns are faulty from there on, and the next statements
    are compiled.
    """
    for position, node in enumerate(body):
        if not frame.flow.falls:
            return
        if frame.flow.taken:
            guarded(frame, lambda: execute(frame, body[position:]), node)  # noqa: B023 (called at once)
            return
        before, count = dict(frame.variables), frame.report.added
        try:
            with frame.at(node):
                _execute(frame, node)
        except (KernelError, RecursionError) as error:
            # Too deep a nesting is reported at a statement of the function's own body: there the stack has room again.
            if isinstance(error, RecursionError) and body is not frame.body:
                raise
            frame.report.add(error if isinstance(error, KernelError) else _nested_too_deeply(frame, node))
            frame.variables = before | dict.fromkeys((*assigned([node]), *imported(node)), FAULTY)
            frame.flow = Flow()  # the statement may have jumped, but the next ones are compiled for their errors
        if frame.report.added != count:
            _forget_changed(frame, node)


def _forget_changed(frame: Frame, node: ast.stmt) -> None:
    """Make values faulty that a refused statement would change in place.

    Otherwise later statements would be compiled with the old values, and report errors that follow from them.
    """
    for name in changed_in_place(node):
        value = frame.variables.get(name)
        if isinstance(value, Table) or children(value) is not None:
            frame.variables[name] = FAULTY


def _nested_too_deeply(frame: Frame, node: ast.stmt) -> KernelError:
    """The error where Python's stack ends; each level of syntax takes frames."""
    return KernelSyntaxError(
        "this statement is nested too deeply to be compiled",
        frame.locate(node),
        "Assign parts of a long expression to names, and put parts of a long `elif` or `match` into functions.",
    )


def _execute(frame: Frame, node: ast.stmt) -> None:
    visit = STATEMENTS.get(type(node))
    if visit is None:
        refuse(frame, node)
    visit(frame, node)


def _assignment(frame: Frame, node: ast.Assign) -> None:
    value = evaluate(frame, node.value)
    for target in node.targets:
        assign(frame, target, value)


def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(frame, node.target, evaluate(frame, node.value))


def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    if not isinstance(node.target, ast.Name):
        assign(frame, node.target, None)
        return
    old = frame.name(ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node.target))
    if isinstance(old, MutRef):
        name, operator = node.target.id, operators.SPELLING[type(node.op)]
        remedy = f"Write {name}.store({name}.load() {operator} ...): the tile is loaded, and stored again."
        frame.type_error(f"{operator}=: cannot use a {describe(old)}", node.target, remedy)
    right = evaluate(frame, node.value)
    if isinstance(old, ListItems) and isinstance(node.op, ast.Add) and isinstance(right, tuple):
        right = ListItems(items_of(right))  # `+=` of a list takes the items of any sequence
    value = own_in_place(frame, type(node.op), old, right)
    if value is NotImplemented:
        value = operators.binary(frame, type(node.op), old, right)
    if isinstance(old, ListItems) and isinstance(value, tuple):
        name, operator = node.target.id, operators.SPELLING[type(node.op)]
        if len(old.holders) > 1:
            frame.type_error(
                f"{operator}=: {name!r} is not the only name of this list, and Python changes it for all of them",
                node.target,
                f"Lists do not change in kernels: write {name} = {name} {operator} ..., and return it from a function.",
            )
        value = ListItems(items_of(value))
    assign(frame, node.target, value)


def _expression(frame: Frame, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and (isinstance(node.value.value, str) or node.value.value is ...):
        return  # a docstring, or a string used as a comment
    evaluate(frame, node.value)


def _pass(frame: Frame, node: ast.Pass) -> None:
    del frame, node


STATEMENTS: dict[type[ast.stmt], Callable[[Frame, Any], None]] = {
    ast.Assign: _assignment,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.Pass: _pass,
    ast.If: if_statement,
    ast.For: for_loop,
    ast.While: while_loop,
    ast.Match: match_statement,
    ast.Break: break_statement,
    ast.Continue: continue_statement,
    ast.Return: return_statement,
    ast.FunctionDef: define,
    ast.Assert: assert_statement,
    ast.With: with_statement,
}
