"""Calls of plain Python functions: their bodies are compiled in place, in a frame of their own."""

from __future__ import annotations

import ast
import inspect
import types
import weakref
from typing import Any

from cutile.errors import KernelSyntaxError
from cutile.frontend.frame import NOT_RETURNED, Frame
from cutile.frontend.source import FunctionSource, take_source

_sources: weakref.WeakKeyDictionary[types.FunctionType, FunctionSource] = weakref.WeakKeyDictionary()


def source_of(function: types.FunctionType) -> FunctionSource:
    """The source of a helper, read when it is first met."""
    if function not in _sources:
        _sources[function] = take_source(function)
    return _sources[function]


def inline(frame: Frame, function: types.FunctionType, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compile the body of `function` here; what it returns.

    Raises:
        KernelSyntaxError: it calls itself (through others, too), or has no source.
        KernelTypeError: the arguments do not fit its signature.
    """
    if function in frame.active:
        raise KernelSyntaxError(
            f"{function.__name__!r} calls itself, and recursion is not compiled",
            frame.locate(node),
            "Write a loop.",
        )
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{function.__name__}(): {error}", node)
    bound.apply_defaults()
    inner = Frame(
        function=function,
        source=source_of(function),
        builder=frame.builder,
        captures=frame.captures,
        evaluate=frame.evaluate,
        execute=frame.execute,
        variables=dict(bound.arguments),
        caller=frame.locate(node),
        active=(*frame.active, function),
        unsafe=frame.unsafe,
    )
    inner.execute(inner, inner.source.tree.body)
    return None if inner.returned is NOT_RETURNED else inner.returned
