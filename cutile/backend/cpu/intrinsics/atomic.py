"""Atomic updates of elements by address, by the processor's own instructions.

They are needed since tile blocks run on several threads.

Every update acquires and releases. That covers any ordering that a kernel asks for. It costs nothing more where updates
are full barriers anyway, as on x86. Each returns the element that was there before, or 0 where the mask is not set.
"""

from collections.abc import Callable
from typing import Any

from cutile.backend.cpu.intrinsics import cast
from cutile.backend.cpu.intrinsics._seam import Emit, define, intrinsic, ir, ternary, types
from cutile.backend.cpu.intrinsics.pointer import at, masked

__all__ = (
    "atomic_add",
    "atomic_addf",
    "atomic_addf_bf16",
    "atomic_addf_f16",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_umax",
    "atomic_umin",
    "atomic_xchg",
    "atomic_xor",
)

ORDER = "acq_rel"
_I16 = ir.IntType(16)


def _update(operation: str) -> Emit:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        address, mask, value = arguments
        zero = ir.Constant(value.type, None)

        def make() -> Any:
            return builder.atomic_rmw(operation, at(builder, address, value.type), value, ORDER)

        return masked(builder, mask, zero, make)

    return emit


def _result_type(address: Any, mask: Any, value: Any) -> Any:
    return value if address == types.uint64 and mask == types.boolean else None


def _intrinsic(name: str, operation: str) -> Any:
    return ternary(define(name, _update(operation)), _result_type)


atomic_add = _intrinsic("atomic_add", "add")
atomic_addf = _intrinsic("atomic_addf", "fadd")
atomic_and = _intrinsic("atomic_and", "and")
atomic_or = _intrinsic("atomic_or", "or")
atomic_xor = _intrinsic("atomic_xor", "xor")
atomic_max = _intrinsic("atomic_max", "max")
atomic_min = _intrinsic("atomic_min", "min")
atomic_umax = _intrinsic("atomic_umax", "umax")
atomic_umin = _intrinsic("atomic_umin", "umin")
atomic_xchg = _intrinsic("atomic_xchg", "xchg")


def _add_half(value_of: Callable[..., Any], bits_of: Callable[..., Any]) -> Emit:
    """An addition to a 16-bit float, by a loop of compare and swap.

    The sum is computed in f32. Its bits are written if the element is still the one that was read.
    """

    def emit(builder: Any, arguments: list[Any]) -> Any:
        address, mask, value = arguments

        def make() -> Any:
            place = at(builder, address, _I16)
            # "monotonic", in no order with other accesses: the exchange that succeeds orders them. 2: the alignment.
            first = builder.load_atomic(place, "monotonic", 2)
            start = builder.block
            loop, done = builder.append_basic_block("again"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            old = builder.phi(_I16)
            old.add_incoming(first, start)
            total = builder.fadd(value_of(builder, [old]), value)
            # "monotonic" where it fails: the kernel does not get the element that was read, and the loop tries again.
            exchange = builder.cmpxchg(place, old, bits_of(builder, [total]), ORDER, "monotonic")
            old.add_incoming(builder.extract_value(exchange, 0), builder.block)
            builder.cbranch(builder.extract_value(exchange, 1), done, loop)
            builder.position_at_end(done)
            return value_of(builder, [old])

        return masked(builder, mask, ir.Constant(value.type, 0.0), make)

    return emit


atomic_addf_f16 = ternary(define("atomic_addf_f16", _add_half(cast.f16_value_of, cast.f16_bits_of)), _result_type)
atomic_addf_bf16 = ternary(define("atomic_addf_bf16", _add_half(cast.bf16_value_of, cast.bf16_bits_of)), _result_type)


def _exchange(builder: Any, values: list[Any]) -> Any:
    address, mask, expected, value = values
    kind = value.type
    bits = ir.IntType({"float": 32, "double": 64}.get(str(kind)) or kind.width)  # LLVM compares integers only

    def make() -> Any:
        operands = [builder.bitcast(each, bits) for each in (expected, value)]
        # "acquire" where it fails: the kernel gets the element, and may read memory that its writer has released.
        exchange = builder.cmpxchg(at(builder, address, bits), *operands, ORDER, "acquire")
        return builder.bitcast(builder.extract_value(exchange, 0), kind)

    return masked(builder, mask, ir.Constant(kind, None), make)


_cas = define("atomic_cas", _exchange)


@intrinsic
def atomic_cas(_context: Any, address: Any, mask: Any, expected: Any, value: Any) -> Any:
    """`atomic_cas(address, mask, expected, value)`: compare and swap.

    It writes `value` where the element has the bits of `expected`.
    """
    kinds: tuple[Any, ...] = tuple(map(types.unliteral, (address, mask, expected, value)))
    if kinds[:2] != (types.uint64, types.boolean) or kinds[2] != kinds[3]:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _cas(builder, list(values))

    return kinds[3](*kinds), codegen
