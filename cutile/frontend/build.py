"""A kernel's source, its parameters' types and its generics' values, to tile IR."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cutile.dtypes import DTypeLike
from cutile.errors import KernelError
from cutile.frontend.calls import invoke
from cutile.frontend.captures import Captures, compile_time
from cutile.frontend.expressions import evaluate
from cutile.frontend.frame import Compilation, Frame, PassOn, TooMany
from cutile.frontend.parameters import Arranged, Given, Piece
from cutile.frontend.shared_accesses import check_shared
from cutile.frontend.source import FunctionSource
from cutile.frontend.statements import execute
from cutile.frontend.structure import made_of
from cutile.frontend.values import MappedRef, MutRef, PointerRef, SharedRef, TensorRef, is_tile
from cutile.ir import UNUSED, Block, Builder, Effect, Function, MutType, TensorType, Type, Value
from cutile.language.variable import DeviceVariable

NO_POINTERS: Mapping[str, DTypeLike] = types.MappingProxyType({})
NO_GROUPS: Mapping[str, Arranged] = types.MappingProxyType({})


@dataclass(frozen=True)
class Program:
    """A kernel as IR, with the outside names that were compiled in.

    Attributes:
        variables: the device's variables that it uses; their addresses are its last parameters, in this order.
    """

    function: Function
    captures: Captures
    variables: tuple[DeviceVariable, ...] = ()


def parameter(value: Value, pointers: Mapping[str, DTypeLike] = NO_POINTERS) -> Any:
    """The value of a parameter's name in the kernel.

    `pointers` has the dtype of the elements for each parameter that is a pointer.
    """
    match value.type:
        case MutType():
            return MutRef(value) if value.type.map is None else MappedRef(value)
        case TensorType():
            return TensorRef(value) if value.type.stable else SharedRef(value)
        case _ if value.name in pointers:
            return PointerRef(value, pointers[value.name])
        case _:
            return value


def meaning_of(arranged: Arranged, parts: Mapping[str, Any], name: str, captures: Captures) -> Any:
    """The value of an argument that is made of launch parameters and constants."""
    if isinstance(arranged, Piece):
        return parts[arranged.name]
    if isinstance(arranged, Given):
        return compile_time(arranged.value, name, captures)
    return made_of(arranged.kind, tuple(meaning_of(each, parts, name, captures) for each in arranged.items))


def build(
    function: Callable[..., Any],
    source: FunctionSource,
    parameters: Mapping[str, Type],
    generics: Mapping[str, Any],
    *,
    unsafe: bool = False,
    pointers: Mapping[str, DTypeLike] = NO_POINTERS,
    arrangement: Mapping[str, Arranged] = NO_GROUPS,
) -> Program:
    """Compile a kernel's source to IR.

    Args:
        function: the Python function, for the names around it.
        source: its source text, taken when it was decorated.
        parameters: the type of each launch parameter, in order.
        generics: the value of each compile-time parameter: a constant, or an element type.
        pointers: the parameters (addresses, u64) that are pointers, with the dtype of their elements.
        arrangement: the arguments that are groups of launch parameters, or constants.
        unsafe: whether the kernel may use raw pointers; the function's facts then say so.

    Raises:
        KernelSyntaxError, KernelNameError, KernelTypeError: with the place in the user's source.
    """
    passed_on: set[tuple[int, str]] = set()
    while True:  # This ends: each attempt adds a pair of a loop and a variable, and a kernel has finitely many.
        try:
            return _attempt(function, source, parameters, generics, pointers, arrangement, unsafe, passed_on)
        except PassOn as use:
            passed_on.add(use.key)


def _attempt(
    function: Callable[..., Any],
    source: FunctionSource,
    parameters: Mapping[str, Type],
    generics: Mapping[str, Any],
    pointers: Mapping[str, DTypeLike],
    arrangement: Mapping[str, Arranged],
    unsafe: bool,
    passed_on: set[tuple[int, str]],
) -> Program:
    """One compilation, in which loops also carry the variables in `passed_on`.

    Raises:
        PassOn: another variable has to be among them.
    """
    values = {name: Value(type, name) for name, type in parameters.items()}
    body = Block(tuple(values.values()))
    compilation = Compilation(
        builder=Builder(body),
        captures=Captures(),
        evaluate=evaluate,
        execute=execute,
        invoke=invoke,
        unsafe=unsafe,
        passed_on=passed_on,
    )
    frame = Frame(function=function, source=source, body=source.tree.body, compilation=compilation, is_entry=True)
    parts = {name: parameter(value, pointers) for name, value in values.items()}
    captures = compilation.captures
    frame.variables.update(parts)
    if arrangement:  # parts of groups have no names of their own in the kernel
        frame.variables = {name: meaning_of(each, parts, name, captures) for name, each in arrangement.items()}
    frame.variables.update({name: compile_time(each, name, captures) for name, each in generics.items()})
    with contextlib.suppress(TooMany):
        execute(frame, frame.body)
    if compilation.report.errors:
        raise KernelError.together(source.name, tuple(compilation.report.errors))
    _refuse_rebound(frame, body, parts)
    kernel = Function(source.name, body, source=dict(source.lines), file=source.file)
    if compilation.unused:
        kernel.facts[UNUSED] = tuple(compilation.unused)
    if unsafe:
        kernel.facts["unsafe"] = True
    else:
        check_shared(kernel, compilation.reached, compilation.weak)
    return Program(kernel, compilation.captures, tuple(compilation.variables))


def _refuse_rebound(frame: Frame, body: Block, parts: Mapping[str, Any]) -> None:
    """Refuse `y = tile` of a `Mut` parameter `y` that the kernel never accesses.

    Such an assignment gives the name to the tile, and the tensor stays as it was: `y.store(tile)` was meant.
    """
    accessed = {id(value) for op in body.walk() if op.effect > Effect.NONE for value in op.operands}
    for name, part in parts.items():
        if isinstance(part, MutRef) and is_tile(frame.variables.get(name)) and id(part.value) not in accessed:
            frame.type_error(
                f"{name!r} now names a tile, and nothing is stored into the Mut parameter of that name",
                frame.places[name],
                f"An assignment changes what a name means: write {name}.store(tile).",
            )
