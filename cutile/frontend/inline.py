"""Functions that are compiled at their calls, each call in a frame of its own.

- Plain functions of Python.
- Functions and lambdas that are defined inside a kernel or helper. They see its variables as they are when called.
- Context managers: generators that `contextlib.contextmanager` has wrapped, in a `with`. The statements before the
  `yield` are compiled before the block, the others after it. Nothing in a kernel raises, so a `finally` around the
  `yield` makes no difference.

`may_store` reads the same bodies. It reads all their lines, also those that a constant condition leaves uncompiled.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cutile.errors import KernelError, KernelSyntaxError, Location
from cutile.frontend.captures import MISSING, compile_time, lookup
from cutile.frontend.frame import Frame, Suppressed
from cutile.frontend.simple_statements import assign, refuse, returned
from cutile.frontend.source import FunctionSource, take_source
from cutile.frontend.values import Described, Keywords, ListItems, hold_items


@dataclass(frozen=True, eq=False)
class Closure(Described):
    """A function or lambda that is defined in a kernel.

    Attributes:
        frame: of the definition; the function sees its variables.
    """

    name: str
    node: ast.FunctionDef | ast.Lambda
    frame: Frame
    signature: inspect.Signature

    @property
    def body(self) -> list[ast.stmt]:
        """The statements to compile at a call."""
        if isinstance(self.node, ast.FunctionDef):
            return self.node.body
        return [ast.copy_location(ast.Return(value=self.node.body), self.node.body)]

    @property
    def description(self) -> str:
        return f"function {self.name}{self.signature}"


def define(frame: Frame, node: ast.FunctionDef) -> None:
    """`def` inside a kernel."""
    if node.decorator_list:
        refuse(frame, node.decorator_list[0], "a decorator of a nested function", "Call the outer function yourself.")
    frame.variables[node.name] = Closure(node.name, node, frame, _signature(frame, node.args))
    frame.places[node.name] = node


def lambda_expression(frame: Frame, node: ast.Lambda) -> Closure:
    """`lambda` inside a kernel."""
    return Closure("<lambda>", node, frame, _signature(frame, node.args))


def _signature(frame: Frame, arguments: ast.arguments) -> inspect.Signature:
    """The parameters; defaults are evaluated at the definition, as in Python."""
    kinds = inspect.Parameter
    empty: Any = kinds.empty
    plain = [(each, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    plain += [(each, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    defaults: list[Any] = [frame.evaluate(each) for each in arguments.defaults]
    defaults = [empty] * (len(plain) - len(defaults)) + defaults
    parameters = [kinds(each.arg, kind, default=value) for (each, kind), value in zip(plain, defaults, strict=True)]
    if arguments.vararg is not None:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = empty if default is None else frame.evaluate(default)
        parameters.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=value))
    if arguments.kwarg is not None:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    hold_items((parameter.default for parameter in parameters), parameters)
    return inspect.Signature(parameters)


MAX_DEPTH = 16
"""Calls of a function within its own calls; each is compiled in place.

It bounds the compile time: a function that calls itself twice is compiled up to 2**16 times. It also keeps the compiler
far from CPython's limit of 1000 frames, at which a simple function calls itself some 60 deep. A call beyond it is an
error at the place of the call."""

# By function, with the code that the source belongs to: `function.__code__` may be assigned.
_sources: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, FunctionSource]]
_sources = weakref.WeakKeyDictionary()


def source_of(function: types.FunctionType) -> FunctionSource:
    """The source of a helper, read once for each code that the helper has."""
    entry = _sources.get(function)
    if entry is None or entry[0] is not function.__code__:
        entry = _sources[function] = (function.__code__, take_source(function, imported=True))
    return entry[1]


def inline(frame: Frame, function: types.FunctionType, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compile the body of a function here, and return its value.

    Raises:
        KernelSyntaxError: it calls itself (through others, too), or has no source.
        KernelTypeError: the arguments do not fit its signature.
    """
    return _compiled(entered(frame, function, node, args, kwargs))


def entered(
    frame: Frame, function: types.FunctionType, node: ast.AST, args: list[Any], kwargs: dict[str, Any]
) -> Frame:
    """The frame of a function, its parameters bound. Raises as `inline` does."""
    _refuse_endless(frame, function, function.__name__, node)
    frame.captures.read(function, "$.__code__", function.__code__)
    source = source_of(function)

    def default(parameter: inspect.Parameter) -> Any:
        """A parameter's default, noted as read: the user may replace it later."""
        if parameter.kind is parameter.KEYWORD_ONLY:
            frame.captures.read(function, f"$.__kwdefaults__[{parameter.name!r}]", parameter.default)
        else:
            frame.captures.read(function, "$.__defaults__", function.__defaults__)
        return compile_time(parameter.default, parameter.name, frame.captures)

    variables = _bind(frame, own_signature(function), function.__name__, node, args, kwargs, default)
    return Frame(
        function=function,
        source=source,
        body=source.tree.body,
        compilation=frame.compilation,
        variables=variables,
        caller=frame.locate(node),
        active=(*frame.active, (function, frame.dynamic_depth)),
        dynamic_depth=frame.dynamic_depth,
    )


def inline_closure(frame: Frame, function: Closure, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`inline`, for a function or lambda that was defined inside a kernel."""
    _refuse_endless(frame, function.node, function.name, node)
    variables = _bind(frame, function.signature, function.name, node, args, kwargs, lambda each: each.default)
    home = function.frame
    inner = Frame(
        function=home.function,
        source=home.source,
        body=function.body,
        compilation=frame.compilation,
        variables=variables,
        caller=frame.locate(node),
        outer=home,
        active=(*frame.active, (function.node, frame.dynamic_depth)),
        dynamic_depth=frame.dynamic_depth,
    )
    return _compiled(inner)


def _refuse_endless(frame: Frame, function: Any, name: str, node: ast.AST) -> None:
    """Refuse recursion that no compile-time condition ends."""
    depths = [depth for active, depth in frame.active if active is function]
    # `dynamic_depth` counts the conditions and loops around a place that only the running kernel decides. If this call
    # has more of them than the call before, the kernel decides on it, and the compiler would inline it without end.
    if depths and frame.dynamic_depth > depths[-1]:
        raise KernelSyntaxError(
            f"{name!r} calls itself under a condition or in a loop that is decided when the kernel runs",
            frame.locate(node),
            "Recursion is compiled where constants end it: n == 0 of a number n that each call makes smaller. Else "
            "write a loop.",
        )
    if len(depths) >= MAX_DEPTH:
        raise KernelSyntaxError(
            f"{name!r} calls itself {MAX_DEPTH} deep, and goes on",
            _without_recursion(frame.locate(node)),
            "End it by a constant sooner, or write a loop.",
        )


def _without_recursion(place: Location) -> Location:
    """The place of a recursive call, without the recursive calls that led to it.

    An error would show the same line once for each of them.
    """
    caller = place.caller
    while caller is not None and caller.function == place.function:
        caller = caller.caller
    return dataclasses.replace(place, caller=caller)


def own_signature(function: types.FunctionType) -> inspect.Signature:
    """The signature of a function's code: `inspect` would follow `__wrapped__`."""
    own = types.FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return inspect.signature(own)


def _bind(
    frame: Frame,
    signature: inspect.Signature,
    name: str,
    node: ast.AST,
    args: list[Any],
    kwargs: dict[str, Any],
    default: Callable[[inspect.Parameter], Any],
) -> dict[str, Any]:
    """The function's variables at its start.

    `default` gives the values of parameters that the call leaves out.
    """
    try:
        variables: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        frame.type_error(
            f"{name}(): {error}", node, f"It takes {signature.replace(return_annotation=inspect.Signature.empty)}."
        )
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords = variables[parameter.name] = Keywords(variables.get(parameter.name, {}))
            hold_items(keywords.items.values(), keywords)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            items = variables.setdefault(parameter.name, ())
            hold_items(items, items)
        elif parameter.name not in variables:
            variables[parameter.name] = default(parameter)
    for name, value in variables.items():
        if isinstance(value, ListItems):
            value.holders.add((id(variables), name))
    return variables


def _compiled(inner: Frame) -> Any:
    report = inner.report
    before = report.added, report.suppressed
    inner.execute(inner.body)
    if before != (report.added, report.suppressed):
        raise Suppressed("the function has errors of its own", inner.caller)
    return returned(inner)


def _nothing() -> Generator[None, None, None]:
    yield


_MANAGER_CODE = contextlib.contextmanager(_nothing).__code__  # all functions that `contextmanager` makes share it
_REMEDY = "Write a function with one `yield`, and decorate it with @contextlib.contextmanager."


def with_statement(frame: Frame, node: ast.With) -> None:
    """`with manager(...) as name:`."""
    _enter(frame, node, 0)


def _enter(frame: Frame, node: ast.With, position: int) -> None:
    """Compile the context managers from `position` on, with the block in them."""
    if position == len(node.items):
        frame.execute(node.body)
        return
    item = node.items[position]
    call = item.context_expr
    function = frame.evaluate(call.func) if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or getattr(function, "__code__", None) is not _MANAGER_CODE:
        refuse(frame, call, "a context manager other than a generator of the user's", _REMEDY)
    if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        refuse(frame, call, "a context manager's call with * or **", "Write the arguments out.")
    generator = _generator(frame, function)
    args = [frame.evaluate(each) for each in call.args]
    kwargs = {str(each.arg): frame.evaluate(each.value) for each in call.keywords}
    inner = entered(frame, generator, call, args, kwargs)
    before, value, after = _around_yield(inner)
    inner.execute(before)
    yielded = None if value is None else inner.evaluate(value)
    if item.optional_vars is not None:
        assign(frame, item.optional_vars, yielded)
    _enter(frame, node, position + 1)
    # `falls`: some path reaches the end of the block. `taken`: some path left the block before its end.
    if after and (not frame.flow.falls or frame.flow.taken):
        frame.syntax_error(
            node,
            "this block is left by return, break or continue, and its context manager has more to do behind it",
            "Let the block end, and leave behind it.",
        )
    inner.execute(after)


def _generator(frame: Frame, function: Any) -> types.FunctionType:
    """The generator function that `contextmanager` has wrapped."""
    wrapped = frame.captures.read(function, "$.__wrapped__", function.__wrapped__)
    if not isinstance(wrapped, types.FunctionType):
        frame.type_error("a context manager must be a plain generator function", remedy=_REMEDY)
    return wrapped


def _around_yield(inner: Frame) -> tuple[list[ast.stmt], ast.expr | None, list[ast.stmt]]:
    """The statements before the `yield`, its operand, and the statements after it."""
    body = list(_without_finally(inner.body))
    yielding = [k for k, item in enumerate(body) if any(isinstance(node, ast.Yield) for node in ast.walk(item))]
    position = yielding[0] if len(yielding) == 1 else None
    statement = None if position is None else body[position]
    if position is None or not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Yield):
        inner.syntax_error(
            inner.source.tree,
            "a context manager that does not have one `yield` as a statement of its own is not compiled",
            _REMEDY,
        )
    return body[:position], statement.value.value, body[position + 1 :]


def _without_finally(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements; a `try` that has only a `finally` is replaced by its own statements."""
    for statement in statements:
        if isinstance(statement, ast.Try) and not statement.handlers and not statement.orelse:
            yield from _without_finally([*statement.body, *statement.finalbody])
        else:
            yield statement


_EFFECT_NAMES = "store|scatter|atomic|print|assert|copy|write"
"""Matches parts of the names of operations that have an effect."""


def may_store(function: Callable[..., Any], source: FunctionSource) -> bool:
    """Whether the function, or one that it calls by name, has a line that stores."""
    return _may_store(function, source.tree, set())


def _may_store(function: Callable[..., Any], tree: ast.AST, seen: set[Any]) -> bool:
    seen.add(function)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if re.search(_EFFECT_NAMES, name):
            return True
        called = _meaning(function, node.func)
        if isinstance(called, types.FunctionType) and called not in seen and not hasattr(called, "__cutile__"):
            try:
                inner = source_of(called).tree
            except KernelError:  # it has no source: a kernel that calls it is refused when it is compiled
                continue
            if _may_store(called, inner, seen):
                return True
    return False


def _meaning(function: Callable[..., Any], node: ast.expr) -> Any:
    """The value of a name, or of a module's attribute, in the scope around a function."""
    if isinstance(node, ast.Name):
        return lookup(function, node.id)
    if isinstance(node, ast.Attribute):
        owner = _meaning(function, node.value)
        return getattr(owner, node.attr, MISSING) if isinstance(owner, types.ModuleType) else MISSING
    return MISSING
