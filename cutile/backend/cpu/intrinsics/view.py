"""Memory at an address that the kernel computes."""

from __future__ import annotations

from typing import Any

from cutile.backend.cpu.intrinsics._seam import intrinsic, types


@intrinsic
def elements_at(_context: Any, address: Any, kind: Any) -> Any:
    """`elements_at(address, f32)[i]`: the `i`-th element from an address on."""
    result = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(types.int64, kind), codegen
