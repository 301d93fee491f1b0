"""Calls of plain Python functions: their bodies are compiled in place, in a frame of their own."""

from __future__ import annotations

import ast
import inspect
import types
import weakref
from typing import Any

from cutile.errors import KernelSyntaxError
from cutile.frontend.closures import Closure
from cutile.frontend.frame import Frame
from cutile.frontend.jumps import returned
from cutile.frontend.report import Suppressed
from cutile.frontend.source import FunctionSource, take_source

_sources: weakref.WeakKeyDictionary[types.FunctionType, FunctionSource] = weakref.WeakKeyDictionary()


def source_of(function: types.FunctionType) -> FunctionSource:
    """The source of a helper, read when it is first met."""
    if function not in _sources:
        _sources[function] = take_source(function)
    return _sources[function]


def inline(frame: Frame, function: types.FunctionType, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compile the body of a function here; what it returns.

    Raises:
        KernelSyntaxError: it calls itself (through others, too), or has no source.
        KernelTypeError: the arguments do not fit its signature.
    """
    _refuse_recursion(frame, function, function.__name__, node)
    variables = _bind(frame, inspect.signature(function), function.__name__, node, args, kwargs)
    source = source_of(function)
    inner = Frame(
        function=function,
        source=source,
        body=source.tree.body,
        compilation=frame.compilation,
        variables=variables,
        caller=frame.locate(node),
        active=(*frame.active, function),
        dynamic_depth=frame.dynamic_depth,
    )
    return _run(inner)


def inline_closure(frame: Frame, function: Closure, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`inline`, for a function or lambda that was defined inside a kernel."""
    _refuse_recursion(frame, function.node, function.name, node)
    variables = _bind(frame, function.signature, function.name, node, args, kwargs)
    home = function.frame
    inner = Frame(
        function=home.function,
        source=home.source,
        body=function.body,
        compilation=frame.compilation,
        variables=variables,
        caller=frame.locate(node),
        outer=home,
        active=(*frame.active, function.node),
        dynamic_depth=frame.dynamic_depth,
    )
    return _run(inner)


def _refuse_recursion(frame: Frame, function: Any, name: str, node: ast.AST) -> None:
    if any(each is function for each in frame.active):
        raise KernelSyntaxError(
            f"{name!r} calls itself, and recursion is not compiled",
            frame.locate(node),
            "Write a loop.",
        )


def _bind(
    frame: Frame, signature: inspect.Signature, name: str, node: ast.AST, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The function's variables at its start."""
    for each in signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            frame.type_error(
                f"{name}() takes **{each.name}, and a kernel has no dicts", node, "Name each keyword parameter."
            )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(
            f"{name}(): {error}", node, f"It takes {signature.replace(return_annotation=inspect.Signature.empty)}."
        )
    bound.apply_defaults()
    return dict(bound.arguments)


def _run(inner: Frame) -> Any:
    found = inner.report.found
    inner.execute(inner.body)
    if inner.report.found > found:
        raise Suppressed("the function has errors of its own", inner.caller)
    return returned(inner)
