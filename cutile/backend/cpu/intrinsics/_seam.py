"""Numba and llvmlite as `Any`; functions of LLVM IR for generated code.

Neither library has types. The formulas are in the files of the families.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.ir as _ir
import numba.core.cgutils as _cgutils
import numba.core.types as _types
import numba.extending as _extending

ir: Any = _ir
types: Any = _types
cgutils: Any = _cgutils
intrinsic: Any = _extending.intrinsic

Emit = Callable[[Any, list[Any]], Any]
"""Given an IR builder and the argument values, append instructions and return the value."""


def define(name: str, emit: Emit) -> Callable[[Any, list[Any]], Any]:
    """An `Emit` that puts the instructions of `emit` into an inlined LLVM function.

    One copy per module however often it is called: LLVM text stays small, and its inliner does the rest.
    """

    def call(builder: Any, arguments: list[Any]) -> Any:
        module = builder.module
        kinds = [value.type for value in arguments]
        symbol = ".".join(["tile", name, *map(str, kinds)])
        function = module.globals.get(symbol)
        if function is None:
            # A function's type has its result's type, which only the body tells. So the body is written into a scratch
            # function first.
            scratch = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), "scratch")
            inner = ir.IRBuilder(scratch.append_basic_block())
            result = emit(inner, list(scratch.args)).type
            function = ir.Function(module, ir.FunctionType(result, kinds), symbol)
            function.linkage = "internal"
            function.attributes.add("alwaysinline")
            body = ir.IRBuilder(function.append_basic_block())
            body.ret(emit(body, list(function.args)))
        return builder.call(function, arguments)

    return call


def llvm(builder: Any, name: str, *arguments: Any) -> Any:
    """Call an LLVM intrinsic that is overloaded on the type of its arguments.

    `llvm(b, "sqrt", x)`.
    """
    kind = arguments[0].type
    suffix = {"half": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))
    signature = ir.FunctionType(kind, [kind] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{suffix}")
    return builder.call(function, arguments)


Result = Callable[..., Any]
"""Gives the result's Numba type for the arguments' types; None where these do not fit."""


def first_type(x: Any, *_: Any) -> Any:
    """The result has the first argument's type."""
    return x


def same_type(*arguments: Any) -> Any:
    """All arguments have one type, which is the result's."""
    return arguments[0] if all(each == arguments[0] for each in arguments) else None


def unary(emit: Emit, result: Result = first_type) -> Any:
    """A function of one value for generated code."""

    def typing(_context: Any, x: Any) -> Any:
        return _typed(emit, result, x)

    return intrinsic(typing)


def binary(emit: Emit, result: Result = first_type) -> Any:
    """A function of two values for generated code."""

    def typing(_context: Any, x: Any, y: Any) -> Any:
        return _typed(emit, result, x, y)

    return intrinsic(typing)


def ternary(emit: Emit, result: Result = first_type) -> Any:
    """A function of three values for generated code."""

    def typing(_context: Any, x: Any, y: Any, z: Any) -> Any:
        return _typed(emit, result, x, y, z)

    return intrinsic(typing)


def _typed(emit: Emit, result: Result, *arguments: Any) -> Any:
    arguments = tuple(types.unliteral(argument) for argument in arguments)
    kind = result(*arguments)
    if kind is None:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return emit(builder, list(values))

    return kind(*arguments), codegen
