"""`with` over a generator that `contextlib.contextmanager` has wrapped.

A context manager of the user's.

What stands before its `yield` is compiled before the block, the rest behind it. Nothing in a kernel raises, so
`finally` around the `yield` means the same as no `finally`.
"""

from __future__ import annotations

import ast
import contextlib
import types
from typing import Any

from cutile.frontend.assign import assign
from cutile.frontend.frame import Frame
from cutile.frontend.inline import entered
from cutile.frontend.syntax import refuse

_MAKER = contextlib.contextmanager(lambda: iter(())).__code__
_WHAT = "Write a function with one `yield`, and decorate it with @contextlib.contextmanager."


def with_statement(frame: Frame, node: ast.With) -> None:
    """`with manager(...) as name:`."""
    _enter(frame, node, 0)


def _enter(frame: Frame, node: ast.With, position: int) -> None:
    if position == len(node.items):
        frame.execute(node.body)
        return
    item = node.items[position]
    call = item.context_expr
    function = frame.evaluate(call.func) if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or getattr(function, "__code__", None) is not _MAKER:
        refuse(frame, call, "a context manager other than a generator of the user's", _WHAT)
    if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        refuse(frame, call, "a context manager's call with * or **", "Write the arguments out.")
    generator = _generator(frame, function)
    args = [frame.evaluate(each) for each in call.args]
    kwargs = {str(each.arg): frame.evaluate(each.value) for each in call.keywords}
    inner = entered(frame, generator, call, args, kwargs)
    before, value, after = _parts(inner)
    inner.execute(before)
    yielded = None if value is None else inner.evaluate(value)
    if item.optional_vars is not None:
        assign(frame, item.optional_vars, yielded)
    _enter(frame, node, position + 1)
    if after and (not frame.flow.falls or frame.flow.taken):
        frame.syntax_error(
            node,
            "this block is left by return, break or continue, and its context manager has more to do behind it",
            "Let the block end, and leave behind it.",
        )
    inner.execute(after)


def _generator(frame: Frame, function: Any) -> types.FunctionType:
    """What `contextmanager` has wrapped."""
    wrapped = frame.captures.read(function, "$.__wrapped__", function.__wrapped__)
    if not isinstance(wrapped, types.FunctionType):
        frame.type_error("a context manager must be a plain generator function", remedy=_WHAT)
    return wrapped


def _parts(inner: Frame) -> tuple[list[ast.stmt], ast.expr | None, list[ast.stmt]]:
    """The statements before the `yield`, what it yields, and those behind it."""
    body = list(inner.body)
    for k, statement in enumerate(body):
        if isinstance(statement, ast.Try) and not statement.handlers and not statement.orelse:
            body[k : k + 1] = [*statement.body, *statement.finalbody]
    places = [k for k, each in enumerate(body) if any(isinstance(node, ast.Yield) for node in ast.walk(each))]
    place = places[0] if len(places) == 1 else None
    statement = None if place is None else body[place]
    if place is None or not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Yield):
        inner.syntax_error(
            inner.source.tree,
            "a context manager that does not have one `yield` as a statement of its own is not compiled",
            _WHAT,
        )
    return body[:place], statement.value.value, body[place + 1 :]
