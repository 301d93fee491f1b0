"""Elements by address, where a mask is set; a transposed copy by vector registers."""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import Emit, cgutils, define, intrinsic, ir, ternary, types, unary


def at(builder: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def size_of(kind: Any) -> int:
    """The bytes of an LLVM number type."""
    return {"float": 4, "double": 8}.get(str(kind)) or kind.width // 8


def masked(builder: Any, mask: Any, other: Any, make: Any) -> Any:
    """The value of `make()` where the mask is set, else `other`.

    The instructions that `make` appends run where the mask is set only.
    """
    before = builder.block
    with builder.if_then(mask):
        value = make()
        inside = builder.block  # where `make` left off, which may be another block than it began in
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
"""`load_at`, atomic: what follows in the program happens after the load."""


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
"""`store_at`, atomic: what precedes in the program happens before the store."""


def _address(builder: Any, arguments: list[Any]) -> Any:
    return builder.ptrtoint(arguments[0], ir.IntType(64))


def _address_type(pointer: Any) -> Any:
    return types.uint64 if isinstance(pointer, types.CPointer) else None


address_of = unary(define("address_of", _address), _address_type)
"""A pointer's address, as an integer."""


@intrinsic
def elements_at(_context: Any, address: Any, kind: Any) -> Any:
    """`elements_at(address, f32)[i]`: the `i`-th element from an address on."""
    result = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(types.int64, kind), codegen


SIDE = 16
"""Rows and columns of the square that is transposed in registers: `ROWS` of `lowering/loop_nests.py`."""

_INT, _WORD = ir.IntType(32), ir.IntType(64)


def _interleaved(builder: Any, x: Any, y: Any, half: int) -> Any:
    """The elements of one half of two vectors, one of each in turn."""
    count = x.type.count
    first = half * count // 2
    lanes = [lane for at in range(first, first + count // 2) for lane in (at, at + count)]
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INT, count), lanes))


def _square(builder: Any, strip: Any, source: Any, stride: Any, step: Any) -> None:
    """Transpose a square, in four rounds.

    Each round interleaves every vector of the first half with the one at the same place in the second half.
    """
    element = source.type.pointee
    vector = ir.VectorType(element, SIDE)
    align = size_of(element)
    vectors: list[Any] = []
    for column in range(SIDE):
        place = builder.gep(source, [builder.mul(stride, ir.Constant(_WORD, column))])
        vectors.append(builder.load(builder.bitcast(place, vector.as_pointer()), align=align))
    for _ in range(SIDE.bit_length() - 1):
        pairs = zip(vectors[: SIDE // 2], vectors[SIDE // 2 :], strict=True)
        vectors = [_interleaved(builder, x, y, half) for x, y in pairs for half in (0, 1)]
    for row, value in enumerate(vectors):
        place = builder.gep(strip, [builder.mul(step, ir.Constant(_WORD, row))])
        builder.store(value, builder.bitcast(place, vector.as_pointer()), align=align)


def _copy_rest(module: Any, pointer: Any) -> Any:
    """A function that copies the rest of a strip, element by element.

    It is not inlined, and optimised for size: LLVM would else take as long for these loops as for all others.
    """
    symbol = f"tile.copy_rest.{pointer.pointee}"
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, pointer, *[_WORD] * 5]), symbol)
    function.linkage = "internal"
    for attribute in ("noinline", "minsize"):
        function.attributes.add(attribute)
    strip, source, stride, rows, first, columns, step = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    with cgutils.for_range(builder, columns, start=first) as column, cgutils.for_range(builder, rows) as row:
        place = builder.add(builder.mul(column.index, stride), row.index)
        value = builder.load(builder.gep(source, [place]))
        place = builder.add(builder.mul(row.index, step), column.index)
        builder.store(value, builder.gep(strip, [place]))
    builder.ret_void()
    return function


def _copy(builder: Any, values: list[Any]) -> None:
    strip, x, at, stride, rows, columns, step = values
    side = ir.Constant(_WORD, SIDE)
    source = builder.gep(x, [at])
    is_whole = builder.icmp_signed("==", rows, side)
    squares = builder.select(is_whole, builder.sdiv(columns, side), ir.Constant(_WORD, 0))
    with cgutils.for_range(builder, squares) as loop:
        first = builder.mul(loop.index, side)
        _square(builder, builder.gep(strip, [first]), builder.gep(source, [builder.mul(first, stride)]), stride, step)
    rest = builder.mul(squares, side)
    with builder.if_then(builder.icmp_signed("<", rest, columns)):
        function = _copy_rest(builder.module, x.type)
        builder.call(function, [strip, source, stride, rows, rest, columns, step])


@intrinsic
def copy_transposed(_context: Any, strip: Any, x: Any, at: Any, stride: Any, rows: Any, columns: Any, step: Any) -> Any:
    """`strip[row * step + column] = x[at + column * stride + row]`.

    There are at most `SIDE` rows.
    """
    numbers: tuple[Any, ...] = tuple(map(types.unliteral, (at, stride, rows, columns, step)))
    if strip != x or not isinstance(x, types.CPointer) or any(each != types.int64 for each in numbers):
        return None

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        _copy(builder, list(values))
        return context.get_dummy_value()

    return types.void(strip, x, *numbers), codegen
