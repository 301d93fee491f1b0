"""Calls: the handler of a function, a bound method or a builtin, and its call."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any

from cutile.dtypes import is_dtype
from cutile.errors import KernelError
from cutile.frontend import builtins, elsewhere, records, sequences
from cutile.frontend.derived import derive
from cutile.frontend.families import (
    arith,
    atomic,
    bound,
    cast,
    compare,
    create,
    debug,
    element,
    grid,
    mapped,
    matmul,
    memory,
    partition,
    pointer,
    reduce,
    shape,
    token,
    variable,
    view,
)
from cutile.frontend.frame import Frame
from cutile.frontend.operators import is_number, materialize
from cutile.frontend.registry import BUILTINS, FOLDED, METHODS, OPERATIONS, Handler
from cutile.frontend.values import Method, describe, is_tile, plain
from cutile.ir.core import Value
from cutile.language.declare import DECLARED
from cutile.ops.cast import Convert

FAMILIES = (
    arith, atomic, bound, cast, compare, create, debug, element, grid, mapped, matmul, memory, partition, pointer,
    reduce, shape, token, variable, view, builtins, records, sequences,
)  # fmt: skip
"""Importing them registers their handlers."""

# A handler that stands in a family's file is for what does not follow from the declaration.
OPERATIONS.update({name: derive(each) for name, each in DECLARED.items() if each.takes and name not in OPERATIONS})


def handler_of(function: Any) -> Handler | None:
    """The handler of an operation, a bound method or a builtin.

    None for anything else.
    """
    if isinstance(function, Method):
        for owner in type(function.owner).__mro__:
            found = METHODS.get((owner, function.name))
            if found is not None:
                return functools.partial(_call_method, found, function)
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
    try:
        inspect.signature(handler).bind(frame, method.owner, *args, **kwargs)
    except TypeError as error:
        frame.type_error(f".{method.name}: {error}", remedy="Its parameters are in docs/reference/language.md.")
    return handler(frame, method.owner, *args, **kwargs)


def _as_dtype(dtype: Any, frame: Frame, x: Any) -> Value:
    """`f32(x)`: a scalar or tile of that dtype."""
    if isinstance(x, float) and dtype.is_integer:
        name = dtype.__name__
        rounded = f"ct.{name}(int({x!r})) towards zero, or ct.{name}(round({x!r}))"
        frame.type_error(
            f"{dtype.name}({x!r}): {dtype.name} holds whole numbers",
            remedy=f"Write ct.{name}({int(x)})." if x.is_integer() else f"Say how it is rounded: {rounded}.",
        )
    if is_number(x):
        return materialize(frame, bool(x) if dtype.is_bool else x, dtype)
    if not is_tile(x):
        remedy = f"Write {dtype.name}(x) of a number, a scalar or a tile x."
        frame.type_error(f"{dtype.name}: expected a tile or a number, got {describe(x)}", remedy=remedy)
    return x if x.tile.dtype is dtype else frame.emit(Convert(x=x, dtype=dtype))


def call(frame: Frame, handler: Handler, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a handler; arguments that do not fit its signature are the user's error.

    A component of an index is an integer to all of them; what takes it for an index gets it in a tuple.
    """
    args, kwargs = [plain(each) for each in args], {key: plain(each) for key, each in kwargs.items()}
    signature = _signature(handler)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{name}: {_first(signature, error, kwargs)}", remedy=_remedy(signature, name, args, kwargs))
    if handler not in (*BUILTINS.values(), *FOLDED.values()):
        return handler(frame, *args, **kwargs)
    try:
        return handler(frame, *args, **kwargs)
    except KernelError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:  # Python's own function, of constants
        frame.type_error(f"{name}(): {error}", remedy="It is computed now, by Python, which refuses these arguments.")


def _first(signature: inspect.Signature, error: TypeError, kwargs: dict[str, Any]) -> str:
    """What is wrong: Python reports a missing argument before a misspelt name."""
    unknown = _unknown(signature, kwargs)
    return f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)


def _unknown(signature: inspect.Signature, kwargs: dict[str, Any]) -> list[str]:
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    return [] if takes_any else [key for key in kwargs if key not in signature.parameters]


def _remedy(signature: inspect.Signature, name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """What to write where arguments do not fit.

    What another library's arguments are here, and the parameters.
    """
    strange = [key for key in kwargs if key not in signature.parameters and key in elsewhere.ARGUMENTS]
    if strange:
        return f"{elsewhere.ARGUMENTS[strange[0]]} It takes {_described(signature)}."
    unknown = _unknown(signature, kwargs)
    if unknown:
        near = difflib.get_close_matches(unknown[0], list(signature.parameters), n=1)
        return f"{f'Did you mean {near[0]!r}? ' if near else ''}It takes {_described(signature)}."
    last = next(reversed(signature.parameters), "")
    spread = args[len(signature.parameters) - 1 :]
    if last in ("shape", "axes", "index") and len(spread) > 1 and not any(isinstance(each, tuple) for each in spread):
        texts = ", ".join(str(each) if isinstance(each, int) else "..." for each in spread)
        return f"It takes {_described(signature)}: write the {last} as a tuple, ({texts})."
    if name.rpartition(".")[2] in ("get_tile_block_id", "get_num_tile_blocks") and len(args) == 1:
        axis = args[0] if isinstance(args[0], int) else "axis"
        return f"It takes no arguments, and gives all axes: {name}()[{axis}]."
    return f"It takes {_described(signature)}." if signature.parameters else "It takes no arguments."


def _signature(handler: Handler) -> inspect.Signature:
    """What a user may pass: all but the frame, and the owner of a method."""
    hidden = 1
    if isinstance(handler, functools.partial):
        handler, hidden = handler.args[0] if handler.func is _call_method else handler.func, 2
    return _shown(handler, hidden)


@functools.cache
def _shown(handler: Handler, hidden: int) -> inspect.Signature:
    parameters = list(inspect.signature(handler).parameters.values())[hidden:]
    return inspect.Signature([each for each in parameters if each.name != "op"])


def _described(signature: inspect.Signature) -> str:
    names = [
        f"{each.name}={each.default!r}" if each.default is not each.empty else str(each.replace(annotation=each.empty))
        for each in signature.parameters.values()
    ]
    return f"({', '.join(names)})"
