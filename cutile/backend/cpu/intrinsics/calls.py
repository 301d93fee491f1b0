"""Calls of functions of this process by address: the BLAS's, prints, assertions."""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import cgutils, intrinsic, ir, types

__all__ = (
    "gemm",
    "notify",
)

_INT = ir.IntType(32)
"""The BLAS's integers; extents and steps that do not fit never come here (`lowering/matmul.py`)."""


def _stored(builder: Any, value: Any) -> Any:
    """A pointer to `value`: Fortran takes everything by reference."""
    slot = cgutils.alloca_once(builder, value.type)
    builder.store(value, slot)
    return slot


def _int(builder: Any, value: Any) -> Any:
    return _stored(builder, builder.trunc(value, _INT))


def _transposition(builder: Any, flag: Any) -> Any:
    char = ir.IntType(8)
    yes = builder.icmp_signed("!=", flag, ir.Constant(flag.type, 0))
    return _stored(builder, builder.select(yes, ir.Constant(char, ord("T")), ir.Constant(char, ord("N"))))


def _call(builder: Any, values: list[Any]) -> None:
    """Call the BLAS, which is column-major, for a row-major `c = a @ b + beta * c`.

    Our rows are its columns. So it computes the transposed product from the transposed operands, `b` first.
    """
    address, rows, cols, depth, a, a_at, a_step, a_flag, b, b_at, b_step, b_flag, c, c_at, c_step, beta = values
    element = beta.type
    zero = ir.Constant(rows.type, 0)
    # The BLAS refuses extents below 0, which a tile past its tensor's edge would have.
    has_elements = builder.and_(builder.icmp_signed(">", rows, zero), builder.icmp_signed(">", cols, zero))
    with builder.if_then(has_elements):
        arguments = [
            _transposition(builder, b_flag),
            _transposition(builder, a_flag),
            _int(builder, cols),
            _int(builder, rows),
            _int(builder, depth),
            _stored(builder, ir.Constant(element, 1.0)),
            builder.gep(b, [b_at]),
            _int(builder, b_step),
            builder.gep(a, [a_at]),
            _int(builder, a_step),
            _stored(builder, beta),
            builder.gep(c, [c_at]),
            _int(builder, c_step),
        ]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
        builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


@intrinsic
def gemm(
    _context: Any,
    address: Any,
    rows: Any,
    cols: Any,
    depth: Any,
    a: Any,
    a_at: Any,
    a_step: Any,
    a_transposed: Any,
    b: Any,
    b_at: Any,
    b_step: Any,
    b_transposed: Any,
    c: Any,
    c_at: Any,
    c_step: Any,
    beta: Any,
) -> Any:
    """The BLAS's `?gemm` at an address; the offsets and steps are in elements."""
    operands = (a, a_at, a_step, a_transposed, b, b_at, b_step, b_transposed, c, c_at, c_step)
    kinds = (address, rows, cols, depth, *operands, beta)
    signature = types.void(*map(types.unliteral, kinds))

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        _call(builder, list(values))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def notify(_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """`notify(function, a, b, c, d)`: call the C function at an address."""
    kinds: tuple[Any, ...] = tuple(map(types.unliteral, (function, a, b, c, d)))
    if not all(isinstance(each, types.Integer) for each in kinds):
        return None

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        address, *numbers = values
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 4)
        builder.call(builder.inttoptr(address, kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(*(types.int64 if each == types.int64 else types.uint64 for each in kinds)), codegen
