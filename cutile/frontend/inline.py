"""Calls of plain Python functions.

Their bodies are compiled in place, in a frame of their own.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

from cutile.errors import KernelSyntaxError, Location
from cutile.frontend.closures import Closure
from cutile.frontend.frame import Frame
from cutile.frontend.jumps import returned
from cutile.frontend.names import compile_time
from cutile.frontend.report import Suppressed
from cutile.frontend.source import FunctionSource, take_source
from cutile.frontend.values import Keywords

MAX_DEPTH = 16
"""How deep a function may call itself; each call is compiled in place."""

_sources: weakref.WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, FunctionSource]]
_sources = weakref.WeakKeyDictionary()


def source_of(function: types.FunctionType) -> FunctionSource:
    """The source of a helper, read when its code is first met."""
    known = _sources.get(function)
    if known is None or known[0] is not function.__code__:
        known = _sources[function] = (function.__code__, take_source(function, imported=True))
    return known[1]


def inline(frame: Frame, function: types.FunctionType, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compile the body of a function here; what it returns.

    Raises:
        KernelSyntaxError: it calls itself (through others, too), or has no source.
        KernelTypeError: the arguments do not fit its signature.
    """
    return _run(entered(frame, function, node, args, kwargs))


def entered(
    frame: Frame, function: types.FunctionType, node: ast.AST, args: list[Any], kwargs: dict[str, Any]
) -> Frame:
    """The frame of a function, its parameters bound. Raises as `inline` does."""
    _refuse_endless(frame, function, function.__name__, node)
    frame.captures.read(function, "$.__code__", function.__code__)
    source = source_of(function)

    def default(parameter: inspect.Parameter) -> Any:
        """What the function has by default.

        It is a value from outside, which may be replaced.
        """
        of = (
            "$.__defaults__"
            if parameter.kind is not parameter.KEYWORD_ONLY
            else f"$.__kwdefaults__[{parameter.name!r}]"
        )
        frame.captures.read(
            function, of, parameter.default if parameter.kind is parameter.KEYWORD_ONLY else function.__defaults__
        )
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
    return _run(inner)


def _refuse_endless(frame: Frame, function: Any, name: str, node: ast.AST) -> None:
    """Refuse recursion that no constant ends."""
    depths = [depth for each, depth in frame.active if each is function]
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
            _once(frame.locate(node)),
            "End it by a constant sooner, or write a loop.",
        )


def _once(place: Location) -> Location:
    """The place of a call, without the calls of the same function that led there."""
    caller = place.caller
    while caller is not None and caller.function == place.function:
        caller = caller.caller
    return dataclasses.replace(place, caller=caller)


def own_signature(function: types.FunctionType) -> inspect.Signature:
    """What the code of a function takes, whatever it says that it wraps."""
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

    `default` gives those of parameters that the call leaves out.
    """
    try:
        variables: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        frame.type_error(
            f"{name}(): {error}", node, f"It takes {signature.replace(return_annotation=inspect.Signature.empty)}."
        )
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            variables[parameter.name] = Keywords(variables.get(parameter.name, {}))
        elif parameter.name not in variables:
            variables[parameter.name] = () if parameter.kind is parameter.VAR_POSITIONAL else default(parameter)
    return variables


def _run(inner: Frame) -> Any:
    found = inner.report.found
    inner.execute(inner.body)
    if inner.report.found > found:
        raise Suppressed("the function has errors of its own", inner.caller)
    return returned(inner)
