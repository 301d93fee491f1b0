"""Calls: what each kind of callable means, from operations to classes of users."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from typing import Any

from cutile.frontend import elsewhere
from cutile.frontend.calls import call, handler_of
from cutile.frontend.closures import Closure
from cutile.frontend.constant_calls import NOT_CONSTANT, computed, wrapped_by_cache
from cutile.frontend.frame import Frame
from cutile.frontend.inline import inline, inline_closure
from cutile.frontend.names import compile_time
from cutile.frontend.operators import PYTHON, binary, comparison, unary
from cutile.frontend.records import construct
from cutile.frontend.structure import field_names
from cutile.frontend.values import BoundFunction, Record, describe, is_tile

_FOLDED = {each for each in vars(math).values() if callable(each)}
"""Functions of Python that are computed now, on numbers."""

OPERATORS = {function: kind for kind, function in PYTHON.items() if kind not in (ast.In, ast.NotIn)}
"""The functions of the module `operator`."""

_HOST = ("cutile.host.", "cuda_async.")
"""The modules whose functions make operations."""


def invoke(
    frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST, written: bool = False
) -> Any:
    """Call `function`, whatever it is.

    `written`: `node` is the call as it is written, and not one that makes it.
    """
    named = isinstance(node, ast.Call) and written
    call_node: Any = node
    name = ast.unparse(call_node.func) if named else getattr(function, "__name__", repr(function))
    handler = handler_of(function)
    if handler is not None:
        return call(frame, handler, name, args, kwargs)
    if isinstance(function, Closure):
        return inline_closure(frame, function, node, args, kwargs)
    if isinstance(function, types.FunctionType):
        if (function.__module__ or "").startswith(_HOST):  # text run with exec() may have none
            remedy = elsewhere.for_function(function)
            frame.type_error(
                f"{name} is called on the host, and not in a kernel",
                node,
                remedy or "Call it before the launch, and pass what it yields as an argument.",
            )
        library = elsewhere.library_of(function)
        if library is not None:
            frame.type_error(
                f"{name} is a function of {library}'s, which a kernel cannot call",
                node,
                elsewhere.for_function(function) or "It computes with cutile's own operations.",
            )
        result = computed(frame, function, args, kwargs, node)
        return inline(frame, function, node, args, kwargs) if result is NOT_CONSTANT else result
    if isinstance(function, BoundFunction):
        return invoke(frame, function.function, [function.owner, *args], kwargs, node)
    part: Any = function
    if isinstance(function, functools.partial):
        return _invoke_partial(frame, part, name, args, kwargs, node)
    inner = wrapped_by_cache(function)
    if inner is not None:
        result = computed(frame, function, args, kwargs, node)
        if result is NOT_CONSTANT:  # what is not constant, no cache holds
            frame.captures.read(function, "$.__wrapped__", inner)
            return invoke(frame, inner, args, kwargs, node)
        return result
    operator = OPERATORS.get(function) if isinstance(function, types.BuiltinFunctionType) else None
    if operator is not None:
        return _operate(frame, operator, name, args, kwargs)
    if isinstance(function, types.MethodType):
        owner = compile_time(function.__self__, name, frame.captures)
        return invoke(frame, function.__func__, [owner, *args], kwargs, node)
    if isinstance(function, type) and field_names(function) is not None:
        return construct(frame, function, args, kwargs, node)
    record: Any = function
    called = inspect.getattr_static(record.kind, "__call__", None) if isinstance(record, Record) else None
    if isinstance(called, types.FunctionType):
        frame.captures.attribute(record.kind, "__call__")
        return invoke(frame, called, [function, *args], kwargs, node)
    if hasattr(function, "__wrapped_kernel__"):
        frame.type_error(f"{name} is a kernel; a kernel cannot call a kernel", node, "Call a plain function instead.")
    if _is_folded(function):
        return _fold(frame, function, name, args, kwargs)
    if isinstance(function, type):
        frame.type_error(
            f"{name} is a class, and a kernel cannot make instances of it",
            node,
            elsewhere.for_function(function)
            or "Kernels make tiles, tuples, named tuples and dataclasses: decorate it with @dataclass(frozen=True).",
        )
    what = name  # the type of a NumPy function says nothing
    if not callable(function):
        what = f"{name} ({describe(function)})" if named else describe(function)
    if isinstance(inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
        frame.type_error(
            f"{what} is an object of {type(function).__name__}, whose attributes may change",
            node,
            "Decorate the class with @dataclass(frozen=True): its __call__ is compiled then.",
        )
    frame.type_error(
        f"{what} cannot be called in a kernel",
        node,
        (f"It is a tuple: {name}[axis]." if isinstance(function, tuple) else elsewhere.for_function(function))
        or "A kernel may call cutile's operations and plain Python functions, which are compiled with it.",
    )


def _operate(frame: Frame, kind: type[ast.AST], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A function of the module `operator`: what its operator means."""
    count = 1 if issubclass(kind, ast.unaryop) else 2
    if kwargs or len(args) != count:
        frame.type_error(
            f"{name} takes {count} argument{'s' if count > 1 else ''}, got {len(args) + len(kwargs)}",
            remedy="Give them by position.",
        )
    if kind in (ast.Is, ast.IsNot) or issubclass(kind, ast.cmpop):
        return comparison(frame, kind, *args)
    return unary(frame, kind, *args) if count == 1 else binary(frame, kind, *args)


def _invoke_partial(
    frame: Frame, part: functools.partial[Any], name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST
) -> Any:
    captures = frame.captures
    captures.read(part.keywords, "len($)", len(part.keywords))
    first = [compile_time(each, name, captures) for each in part.args]
    named = {
        key: compile_time(captures.read(part.keywords, f"$[{key!r}]", each), key, captures)
        for key, each in part.keywords.items()
    }
    return invoke(frame, part.func, [*first, *args], {**named, **kwargs}, node)


def _is_folded(function: Any) -> bool:
    try:
        return function in _FOLDED
    except TypeError:
        return False


def _fold(frame: Frame, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A function of the module `math`, on numbers that are known now."""
    for value in (*args, *kwargs.values()):
        if is_tile(value):
            ours = getattr(function, "__name__", "")
            frame.type_error(
                f"{name} of {describe(value)}: it is computed when the kernel is compiled",
                remedy=f"Use the operation of the language on tiles and scalars, such as ct.{ours or 'exp'}.",
            )
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, ArithmeticError) as error:
        frame.type_error(f"{name}: {error}", remedy="It is computed now, by Python, which refuses the arguments.")
