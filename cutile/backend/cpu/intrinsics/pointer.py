"""Elements by address. Nothing is touched where the mask is not set."""

from __future__ import annotations

from typing import Any

from cutile.backend.cpu.intrinsics._seam import Emit, define, intrinsic, ir, ternary, types, unary


def at(builder: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def size_of(kind: Any) -> int:
    """The bytes of an LLVM number type."""
    return {"float": 4, "double": 8}.get(str(kind)) or kind.width // 8


def masked(builder: Any, mask: Any, other: Any, make: Any) -> Any:
    """What `make()` appends and gives where the mask is set, else `other`."""
    before = builder.block
    with builder.if_then(mask):
        value = make()
        inside = builder.block
    merged = builder.phi(other.type)
    merged.add_incoming(other, before)
    merged.add_incoming(value, inside)
    return merged


def _load(atomic: bool) -> Emit:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        address, mask, pad = arguments
        size = size_of(pad.type)

        def make() -> Any:
            place = at(builder, address, pad.type)
            return builder.load_atomic(place, "acquire", size) if atomic else builder.load(place, align=size)

        return masked(builder, mask, pad, make)

    return emit


def _loaded(address: Any, mask: Any, pad: Any) -> Any:
    return pad if address == types.uint64 and mask == types.boolean else None


load_at = ternary(define("load_at", _load(atomic=False)), _loaded)
"""`load_at(address, mask, pad)`: the element, of the type of `pad`; `pad` where the mask is not set."""
load_at_acquire = ternary(define("load_at_acquire", _load(atomic=True)), _loaded)
"""`load_at`, atomic: what comes after it in the program happens after it."""


def _store(builder: Any, values: list[Any], atomic: bool) -> None:
    address, mask, value = values
    size = size_of(value.type)
    with builder.if_then(mask):
        place = at(builder, address, value.type)
        if atomic:
            builder.store_atomic(value, place, "release", size)
        else:
            builder.store(value, place, align=size)


def _storing(atomic: bool) -> Any:
    def typing(_context: Any, address: Any, mask: Any, value: Any) -> Any:
        kinds: tuple[Any, ...] = tuple(map(types.unliteral, (address, mask, value)))
        if kinds[:2] != (types.uint64, types.boolean):
            return None

        def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            _store(builder, list(values), atomic)
            return context.get_dummy_value()

        return types.void(*kinds), codegen

    return intrinsic(typing)


store_at = _storing(atomic=False)
"""`store_at(address, mask, value)`: write the element where the mask is set."""
store_at_release = _storing(atomic=True)
"""`store_at`, atomic: it happens after what comes before it in the program."""


def _address(builder: Any, arguments: list[Any]) -> Any:
    return builder.ptrtoint(arguments[0], ir.IntType(64))


def _address_type(pointer: Any) -> Any:
    return types.uint64 if isinstance(pointer, types.CPointer) else None


address_of = unary(define("address_of", _address), _address_type)
"""The address of what a pointer leads to."""


@intrinsic
def elements_at(_context: Any, address: Any, kind: Any) -> Any:
    """`elements_at(address, f32)[i]`: the `i`-th element from an address on."""
    result = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(types.int64, kind), codegen
