"""The way out of generated code: a call of a function in this process, given by its address and four numbers."""

from __future__ import annotations

from typing import Any

from cutile.backend.cpu.intrinsics._seam import intrinsic, ir, types


@intrinsic
def notify(_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """`notify(function, a, b, c, d)`: call the C function at an address."""
    given: tuple[Any, ...] = tuple(map(types.unliteral, (function, a, b, c, d)))
    if not all(isinstance(each, types.Integer) for each in given):
        return None

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        address, *numbers = values
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 4)
        builder.call(builder.inttoptr(address, kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(*(types.int64 if each == types.int64 else types.uint64 for each in given)), codegen
