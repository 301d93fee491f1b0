"""Calls of operations, methods, builtins, plain functions and classes of users."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from typing import Any, NoReturn

from cutile.conversion import short, wider
from cutile.dtypes import is_dtype
from cutile.errors import KernelError, closest
from cutile.frontend import builtins, elsewhere, structure
from cutile.frontend.captures import compile_time
from cutile.frontend.constant_calls import (
    NOT_CONSTANT,
    as_constant,
    computed,
    is_constant,
    is_method_of_constant,
    wrapped_by_cache,
)
from cutile.frontend.derived import derive
from cutile.frontend.families import (
    atomic,
    bound,
    cast,
    create,
    debug,
    element,
    elementwise,
    grid,
    mapped,
    matmul,
    memory,
    partition,
    pointer,
    reduce,
    shape,
    shared_mut,
    sort,
    view,
)
from cutile.frontend.frame import Frame
from cutile.frontend.inline import Closure, inline, inline_closure
from cutile.frontend.operators import PYTHON_OPERATORS, binary, comparison, is_number, materialize, unary
from cutile.frontend.plain_numbers import Interval
from cutile.frontend.registry import BUILTINS, FOLDED, METHODS, OPERATIONS, Handler
from cutile.frontend.structure import construct, field_names
from cutile.frontend.values import BoundFunction, Method, Record, describe, is_tile, plain, to_tile
from cutile.ir.core import Value
from cutile.language.declare import DECLARED
from cutile.ops.cast import Convert

FAMILIES = (
    atomic, bound, cast, create, debug, element, elementwise, grid, mapped, matmul, memory, partition, pointer, reduce,
    shape, shared_mut, sort, view, builtins, structure,
)  # fmt: skip
"""Importing them registers their handlers."""

# A handler in a family's file comes first: it is for what does not follow from the declaration.
OPERATIONS.update({name: derive(op) for name, op in DECLARED.items() if op.takes and name not in OPERATIONS})


def handler_of(function: Any) -> Handler | None:
    """The handler of an operation, a method, a dtype or a builtin, or None."""
    if isinstance(function, Method):
        for owner in type(function.owner).__mro__:
            handler = METHODS.get((owner, function.name))
            if handler is not None:
                return functools.partial(_call_method, handler, function)
        return None
    if is_dtype(function):
        return functools.partial(_as_dtype, function)
    marker = getattr(function, "__cutile__", None)
    if marker is not None:
        return OPERATIONS.get(marker)
    try:
        return BUILTINS.get(function) or FOLDED.get(function)
    except TypeError:  # an unhashable object is no builtin
        return None


def _call_method(handler: Handler, method: Method, frame: Frame, *args: Any, **kwargs: Any) -> Any:
    return handler(frame, method.owner, *args, **kwargs)


def _as_dtype(dtype: Any, frame: Frame, x: Any) -> Value:
    """`f32(x)`: a scalar or tile of that dtype."""
    if isinstance(x, float) and dtype.is_integer:
        name = dtype.__name__
        rounded = f"ct.{name}(int({x!r})) towards zero, or ct.{name}(round({x!r}))"
        remedy = f"Write ct.{name}({int(x)})." if x.is_integer() else f"Say how it is rounded: {rounded}."
        if not math.isfinite(x):
            remedy = "Infinities and NaN are floats alone, such as ct.f32(x)."
        frame.type_error(f"{dtype.name}({x!r}): {dtype.name} holds whole numbers", remedy=remedy)
    if is_number(x) and dtype.is_integer and not Interval(int(x), int(x)).fits(dtype):
        held = Interval.of(dtype)
        wide = wider(int(x))
        frame.type_error(
            f"the number {short(x)} does not fit {dtype.name} ({held.low} to {held.high})",
            remedy="No integer dtype holds it." if wide is None else f"Give a wider dtype, such as ct.{wide.name}.",
        )
    if is_number(x):
        return materialize(frame, bool(x) if dtype.is_bool else x, dtype)
    if not is_tile(x):
        remedy = f"Write {dtype.name}(x) of a number, a scalar or a tile x."
        frame.type_error(f"{dtype.name}: expected a tile or a number, got {describe(x)}", remedy=remedy)
    return x if x.tile.dtype is dtype else frame.emit(Convert(x=x, dtype=dtype))


def call(frame: Frame, handler: Handler, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a handler; arguments that do not fit its signature are the user's error.

    An argument that is a component of an index becomes an integer. Within a tuple it stays a component, for the
    handlers that tell components from integers.
    """
    args, kwargs = [plain(value) for value in args], {key: plain(value) for key, value in kwargs.items()}
    signature = _signature(handler)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(
            f"{name}: {_binding_error(signature, error, kwargs)}",
            remedy=_remedy(signature, name, args, kwargs, handler),
        )
    if handler not in (*BUILTINS.values(), *FOLDED.values()):
        return handler(frame, *args, **kwargs)
    try:
        return handler(frame, *args, **kwargs)
    except KernelError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:  # the handler called Python's own function, of constants
        _refuse_of_front_end(frame, name, args, kwargs)
        frame.type_error(f"{name}(): {error}", remedy="It is computed now, by Python, which refuses these arguments.")


def _refuse_of_front_end(frame: Frame, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse arguments of the front end's classes, which Python's message would name."""
    for value in (*args, *kwargs.values()):
        if not is_constant(value):
            cause = next((leaf for leaf in structure.leaves(value) if not is_constant(leaf)), value)
            frame.type_error(f"{name}(): expected constants, got {describe(cause)}", remedy=to_tile(cause))


def _binding_error(signature: inspect.Signature, error: TypeError, kwargs: dict[str, Any]) -> str:
    """The error to report where arguments do not fit.

    A misspelt name comes first. Python would report the argument that is missing because of it.
    """
    unknown = _unknown(signature, kwargs)
    return f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)


def _unknown(signature: inspect.Signature, kwargs: dict[str, Any]) -> list[str]:
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    return [] if takes_any else [key for key in kwargs if key not in signature.parameters]


def _remedy(signature: inspect.Signature, name: str, args: list[Any], kwargs: dict[str, Any], handler: Handler) -> str:
    """The remedy where arguments do not fit; names of other libraries come first."""
    foreign = [key for key in kwargs if key not in signature.parameters and key in elsewhere.ARGUMENTS]
    if foreign and handler not in (*BUILTINS.values(), *FOLDED.values()):
        return f"{elsewhere.ARGUMENTS[foreign[0]]} It takes {_described(signature)}."
    unknown = _unknown(signature, kwargs)
    if unknown:
        near = closest(unknown[0], list(signature.parameters))
        return f"{f'Did you mean {near[0]!r}? ' if near else ''}It takes {_described(signature)}."
    if name.rpartition(".")[2] == "cat" and len(args) > len(signature.parameters):
        return f"More than two tiles are a tuple: {name}((x, y, z), axis)."
    last = next(reversed(signature.parameters), "")
    extents = args[len(signature.parameters) - 1 :]  # in place of one tuple, as NumPy takes them
    if last in ("shape", "axes", "index") and len(extents) > 1 and not any(isinstance(x, tuple) for x in extents):
        texts = ", ".join(str(extent) if isinstance(extent, int) else "..." for extent in extents)
        return f"It takes {_described(signature)}: write the {last} as a tuple, ({texts})."
    if name.rpartition(".")[2] in ("get_tile_block_id", "get_num_tile_blocks") and len(args) == 1:
        axis = args[0] if isinstance(args[0], int) else "axis"
        return f"It takes no arguments, and gives all axes: {name}()[{axis}]."
    if name.rpartition(".")[2] == "store" and list(signature.parameters) == ["value"]:
        by_index = "y.partition_mut(shape).store(tile, index)"
        return f"It writes this block's own tile, and takes (value). By an index: {by_index}."
    return f"It takes {_described(signature)}." if signature.parameters else "It takes no arguments."


def _signature(handler: Handler) -> inspect.Signature:
    """The parameters of a user's call: without the frame, and the owner of a method."""
    hidden = 1  # parameters that are not the user's: the frame
    if isinstance(handler, functools.partial):  # of `handler_of`: also the owner of a method, or the dtype
        handler, hidden = handler.args[0] if handler.func is _call_method else handler.func, 2
    return _visible_signature(handler, hidden)


@functools.cache
def _visible_signature(handler: Handler, hidden: int) -> inspect.Signature:
    parameters = list(inspect.signature(handler).parameters.values())[hidden:]
    # `op` is not the user's: handlers that are registered in a loop bind the loop's variable by it.
    return inspect.Signature([parameter for parameter in parameters if parameter.name != "op"])


def _described(signature: inspect.Signature) -> str:
    texts = [
        f"{x.name}={x.default!r}" if x.default is not x.empty else str(x.replace(annotation=x.empty))
        for x in signature.parameters.values()
    ]
    return f"({', '.join(texts)})"


_MATH = {function for function in vars(math).values() if callable(function)}
"""Functions of the module `math`, which are computed when the kernel is compiled."""

OPERATORS = {function: kind for kind, function in PYTHON_OPERATORS.items() if kind not in (ast.In, ast.NotIn)}
"""The functions of the module `operator`, with the syntax of each. `contains` is not among them: it takes its operands
the other way round than `in`."""

_HOST = ("cutile.host.", "cuda_async.")
"""Modules of functions that are called on the host."""


def invoke(
    frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST, written: bool = False
) -> Any:
    """Call `function`, whatever it is.

    `written`: whether `node` is this call itself, so that its text is the name for errors. `ct.reduce(t, 0, 0, f)`
    calls `f` with its own node.
    """
    named = isinstance(node, ast.Call) and written
    call_node: Any = node  # pyright does not narrow it by `named`
    name = ast.unparse(call_node.func) if named else getattr(function, "__name__", repr(function))
    # The order counts: an operation of the language is also a FunctionType, and a closure or partial is callable.
    handler = handler_of(function)
    if handler is not None:
        return call(frame, handler, name, args, kwargs)
    if isinstance(function, Closure):
        return inline_closure(frame, function, node, args, kwargs)
    if isinstance(function, types.FunctionType):
        _require_for_kernels(frame, function, name, node)
        result = computed(frame, function, args, kwargs, node)
        return inline(frame, function, node, args, kwargs) if result is NOT_CONSTANT else result
    if isinstance(function, BoundFunction):
        return invoke(frame, function.function, [function.owner, *args], kwargs, node)
    partial: Any = function  # without the type arguments, which `isinstance` would leave unknown
    if isinstance(function, functools.partial):
        return _invoke_partial(frame, partial, name, args, kwargs, node)
    inner = wrapped_by_cache(function)
    if inner is not None:
        result = computed(frame, function, args, kwargs, node)
        if result is NOT_CONSTANT:  # a cache is of no use to tiles: the function within is compiled
            frame.captures.read(function, "$.__wrapped__", inner)
            return invoke(frame, inner, args, kwargs, node)
        return result
    if is_method_of_constant(function):
        return _method_of_constant(frame, function, name, args, kwargs)
    operator = OPERATORS.get(function) if isinstance(function, types.BuiltinFunctionType) else None
    if operator is not None:
        return _call_operator(frame, operator, name, args, kwargs)
    if isinstance(function, types.MethodType):
        if elsewhere.library_of(function) is not None:
            _refuse(frame, function, name, named, node)
        owner = compile_time(function.__self__, name, frame.captures)
        return invoke(frame, function.__func__, [owner, *args], kwargs, node)
    if isinstance(function, type) and field_names(function) is not None:
        return construct(frame, function, args, kwargs, node)
    record: Any = function
    called = inspect.getattr_static(record.kind, "__call__", None) if isinstance(record, Record) else None
    if isinstance(called, types.FunctionType):
        frame.captures.attribute(record.kind, "__call__")
        return invoke(frame, called, [function, *args], kwargs, node)
    if not hasattr(function, "__wrapped_kernel__") and _is_math(function):
        return _call_math(frame, function, name, args, kwargs)
    _refuse(frame, function, name, named, node)


def _require_for_kernels(frame: Frame, function: types.FunctionType, name: str, node: ast.AST) -> None:
    """Report a function of the host's, or of a library."""
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


def _refuse(frame: Frame, function: Any, name: str, named: bool, node: ast.AST) -> NoReturn:
    """Report what a kernel cannot call.

    `named`: whether `name` is the text that the user calls.
    """
    if hasattr(function, "__wrapped_kernel__"):
        frame.type_error(f"{name} is a kernel; a kernel cannot call a kernel", node, "Call a plain function instead.")
    if isinstance(function, type):
        kinds = "Kernels make tiles, tuples, named tuples and dataclasses"
        frame.type_error(
            f"{name} is a class, and a kernel cannot make instances of it",
            node,
            elsewhere.for_function(function)
            or (
                f"{kinds}."
                if function.__module__ == "builtins"
                else f"{kinds}: decorate it with @dataclass(frozen=True)."
            ),
        )
    what = name  # the type of a NumPy function says nothing
    if not callable(function):
        what = f"{name} ({describe(function)})" if named else describe(function)
    kind: Any = type(function)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(inspect.getattr_static(kind, "__call__", None), types.FunctionType):
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


def _call_operator(frame: Frame, kind: type[ast.AST], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
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
    frame: Frame, partial: functools.partial[Any], name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST
) -> Any:
    captures = frame.captures
    first = [compile_time(value, name, captures) for value in partial.args]
    named = {key: compile_time(value, key, captures) for key, value in captures.items(partial.keywords).items()}
    return invoke(frame, partial.func, [*first, *args], {**named, **kwargs}, node)


def _method_of_constant(frame: Frame, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A method of a string or number, such as `"relu6".startswith`: computed now."""
    for value in (*args, *kwargs.values()):
        if not is_constant(value):
            text = isinstance(function.__self__, str)
            frame.type_error(
                f"{name}: expected constants, got {describe(value)}",
                remedy="print(f'{x}') formats values; other text has to be known when the kernel is compiled."
                if text
                else "Python computes it when the kernel is compiled.",
            )
    try:
        return as_constant(function(*args, **kwargs))
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        frame.type_error(f"{name}(): {error}", remedy="It is computed now, by Python, which refuses these arguments.")


def _is_math(function: Any) -> bool:
    try:
        return function in _MATH
    except TypeError:
        return False


def _call_math(frame: Frame, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
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
        _refuse_of_front_end(frame, name, args, kwargs)
        frame.type_error(f"{name}: {error}", remedy="It is computed now, by Python, which refuses the arguments.")
