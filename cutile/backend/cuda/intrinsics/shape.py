"""The same elements in other registers, or in other threads' registers.

Elements that change threads go through shared memory.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

from cutile.backend.cuda.exchange import Exchange, exchange_of
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    SHARED,
    barrier,
    from_shared,
    i32c,
    memory_type,
    pointer,
    shared,
    shared_element,
    to_memory,
)
from cutile.backend.cuda.intrinsics.memory import join, split, vector_type
from cutile.backend.gpu.layout import Layout, register_map
from cutile.backend.gpu.layout_assignment import extended
from cutile.dtypes import DTypeLike, i32


@cache
def take(dtype: DTypeLike, n: int, registers: tuple[int, ...]) -> Any:
    """`f(x)`: a permutation or a repetition of registers.

    Register `i` of the result is register `registers[i]` of `x`.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        return pack(b, [elements[each] for each in registers], len(registers))

    return intrinsic("take", frag(dtype, len(registers)), [frag(dtype, n)], generate)


@cache
def broadcast(dtype: DTypeLike, source: Layout, target: Layout) -> Any:
    """`f(x)`: a tile of `source` repeated along some axes of `target`.

    `source` is `target` with these axes collapsed.
    """
    registers = {offset: register for register, offset in enumerate(source.offsets)}
    repeats = tuple(a == 1 < e for a, e in zip(source.shape, target.shape, strict=True))  # of each axis
    origins = [tuple(0 if r else o for o, r in zip(each, repeats, strict=True)) for each in target.offsets]
    return take(dtype, source.registers, tuple(registers[origin] for origin in origins))


@cache
def rearrange(dtype: DTypeLike, source: Layout, target: Layout) -> Any:
    """`f(x)`: a tile of `source` in the order of `target`.

    No element changes its thread.
    """
    registers = register_map(source, target)
    if registers is None:
        raise ValueError(f"elements move between threads from {source} to {target}")
    return take(dtype, source.registers, registers)


@cache
def splat(dtype: DTypeLike, n: int) -> Any:
    """`f(x)`: every element is the scalar `x`."""
    return intrinsic("splat", frag(dtype, n), [frag(dtype, 0)], lambda b, values: pack(b, values * max(n, 1), n))


@cache
def first(dtype: DTypeLike, n: int) -> Any:
    """`f(x)`: the scalar in a tile of one element."""
    return intrinsic("first", frag(dtype, 0), [frag(dtype, n)], lambda b, values: unpack(b, values[0], n)[0])


@cache
def synchronize() -> Any:
    """`f()`: all threads of the block arrive, and see each other's stores."""
    return intrinsic("synchronize", None, [], lambda b, _: barrier(b))  # the lowered IR says between which accesses


def flat_index(b: Any, at: Coordinates, register: int, strides: Sequence[int]) -> Any:
    """The number of a register's element in a tile with these strides (in elements)."""
    index: Any = None
    for axis, stride in enumerate(strides):
        part = b.mul(at.element(register, axis), i32c(stride))
        index = part if index is None else b.add(index, part)
    return i32c(0) if index is None else index


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tile."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def write_tile(
    b: Any, dtype: DTypeLike, layout: Layout, elements: Sequence[Any], strides: Sequence[int], offset: int
) -> None:
    """Write a tile to shared memory, by strides in elements, from a byte on.

    Threads that hold the same element write the same value.
    """
    for register, element in enumerate(elements):
        at = Coordinates(b, layout)
        inside = at.inside(register)
        with b.if_then(inside) if inside is not None else nullcontext():
            at.enter()  # coordinates that are computed in this branch do not dominate the next register's
            place = shared_element(b, memory_type(dtype), flat_index(b, at, register, strides), offset)
            b.store(to_memory(b, dtype, element), place)


def _read_tile(b: Any, dtype: DTypeLike, layout: Layout, strides: Sequence[int], first: Any, offset: int) -> list[Any]:
    """Read a tile's elements from shared memory; number `first` is the first one."""
    at = Coordinates(b, layout)
    elements: list[Any] = []
    for register in range(layout.registers):
        inside = at.inside(register)
        where = b.add(flat_index(b, at, register, strides), first)
        if inside is not None:  # past the tile's edge: read any element
            where = b.select(inside, where, i32c(0))
        elements.append(from_shared(b, dtype, shared_element(b, memory_type(dtype), where, offset)))
    return elements


@cache
def cat(dtype: DTypeLike, x: Layout, y: Layout, target: Layout, axis: int, offset: int, fence: bool) -> Any:
    """`f(x, y)`: two tiles side by side along `axis`, through shared memory.

    The result is in the registers of `target`. If `target` repeats the layout that `x` and `y` share, no element moves.
    """
    strides = row_major(target.shape)
    border = x.shape[axis] * strides[axis] * dtype.bits // 8  # bytes to the first element of `y`

    def generate(b: Any, values: list[Any]) -> Any:
        if x == y and extended(x, target.shape) == target:
            tiles = [dict(zip(x.offsets, unpack(b, value, x.registers), strict=True)) for value in values]
            elements: list[Any] = []
            for coordinate in target.offsets:
                number, along = divmod(coordinate[axis], x.shape[axis])  # the tile's number, the coordinate in it
                elements.append(tiles[number][*coordinate[:axis], along, *coordinate[axis + 1 :]])
            return pack(b, elements, target.registers)
        if fence:
            barrier(b)  # others may still use the memory
        write_tile(b, dtype, x, unpack(b, values[0], x.registers), strides, offset)
        write_tile(b, dtype, y, unpack(b, values[1], y.registers), strides, offset + border)
        barrier(b)  # all have written before anyone reads
        return pack(b, _read_tile(b, dtype, target, strides, i32c(0), offset), target.registers)

    arguments = [frag(dtype, x.registers), frag(dtype, y.registers)]
    return intrinsic("cat", frag(dtype, target.registers), arguments, generate)


@cache
def extract(dtype: DTypeLike, source: Layout, target: Layout, offset: int, fence: bool) -> Any:
    """`f(x, *index)`: the part of a tile at an index, in the shape of `target`.

    The index counts such parts. An index outside is clamped to the nearest part.
    """
    strides = row_major(source.shape)

    def generate(b: Any, values: list[Any]) -> Any:
        tile, *index = values
        if fence:
            barrier(b)  # others may still use the memory
        write_tile(b, dtype, source, unpack(b, tile, source.registers), strides, offset)
        barrier(b)  # all have written before anyone reads
        first = i32c(0)
        for at, extent, part, stride in zip(index, source.shape, target.shape, strides, strict=True):
            first = b.add(first, b.mul(clamp(b, at, extent // part - 1), i32c(part * stride)))
        return pack(b, _read_tile(b, dtype, target, strides, first, offset), target.registers)

    arguments = [frag(dtype, source.registers), *[frag(i32, 0)] * source.rank]
    return intrinsic("extract", frag(dtype, target.registers), arguments, generate)


def clamp(b: Any, index: Any, last: int) -> Any:
    """An i32 value, moved into the range from 0 to `last`."""
    index = b.select(b.icmp_signed("<", index, i32c(0)), i32c(0), index)
    return b.select(b.icmp_signed(">", index, i32c(last)), i32c(last), index)


@cache
def move(dtype: DTypeLike, source: Layout, target: Layout, offset: int, fence: bool) -> Any:
    """`f(x)`: a tile of `source` in the registers of `target`.

    If the shapes differ, elements correspond by their row-major numbers.

    Args:
        offset: where in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        if fence:
            barrier(b)  # others may still use the memory
        write_tile(b, dtype, source, unpack(b, values[0], source.registers), row_major(source.shape), offset)
        barrier(b)  # all have written before anyone reads
        elements = _read_tile(b, dtype, target, row_major(target.shape), i32c(0), offset)
        return pack(b, elements, target.registers)

    return intrinsic("move", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)


class _Places:
    """The places of this thread's elements in an exchange (`exchange.py`), in bytes."""

    def __init__(self, b: Any, exchange: Exchange, layout: Layout, offset: int) -> None:
        self._b, self._exchange, self._layout, self._offset = b, exchange, layout, offset
        self.at = Coordinates(b, layout)
        self._first = self._of([self.at.thread_part(axis) for axis in range(layout.rank)])
        bases = (*layout.lane, *layout.warp)
        self._thread_bits = 0  # the bits of a place that depend on the thread's number
        for basis in bases:
            self._thread_bits |= exchange.place(basis) * exchange.size

    def _of(self, where: Sequence[Any]) -> Any:
        """The place of the element at these coordinates, without `offset`."""
        b, exchange = self._b, self._exchange
        row: Any = i32c(0)
        for coordinate, stride in zip(where, exchange.strides, strict=True):
            if stride:
                row = b.add(row, b.mul(coordinate, i32c(stride)))
        column = where[exchange.axis]
        if exchange.mask:
            flips = b.and_(b.lshr(row, i32c(exchange.shift)), i32c(exchange.mask))
            column = b.xor(column, b.mul(flips, i32c(exchange.chunk)))
        return b.mul(b.add(b.mul(row, i32c(exchange.pitch)), column), i32c(exchange.size))

    def pointer(self, register: int, kind: Any) -> Any:
        """A pointer to a register's element; the next registers' elements lie behind it."""
        b, exchange = self._b, self._exchange
        if exchange.is_linear:
            # The place is linear over F2: the XOR of the thread's part and the register's. Where their bits do not
            # overlap, the XOR is a sum with a constant, which becomes part of the instruction.
            step = exchange.place(self._layout.offsets[register]) * exchange.size
            overlap = step & self._thread_bits
            where = b.xor(self._first, i32c(overlap)) if overlap else self._first
            where = b.add(where, i32c(self._offset + step - overlap))
        else:
            where = self._of([self.at.element(register, axis) for axis in range(self._layout.rank)])
            where = b.add(where, i32c(self._offset))
        return pointer(b, shared(b, where), kind, SHARED)


@cache
def swizzle(dtype: DTypeLike, source: Layout, target: Layout, offset: int, fence: bool) -> Any:
    """`f(x)`: a tile of `source` in the registers of `target`.

    It goes through shared memory in wide accesses, spread over the banks; see `exchange.py`.

    Args:
        offset: where in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    exchange = exchange_of(dtype, source, target)
    write, read = exchange.widths  # elements of one access

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], source.registers)
        if fence:
            barrier(b)  # others may still use the memory
        places = _Places(b, exchange, source, offset)
        for first in range(0, source.registers, write):
            bits = join(b, dtype, elements[first : first + write])
            places.at.enter()
            inside = places.at.inside(first)  # one for the whole access, since the width divides the tile's extent
            # threads with the same element write the same value
            with b.if_then(inside) if inside is not None else nullcontext():
                places.at.enter()
                b.store(bits, places.pointer(first, bits.type)).align = dtype.bits * write // 8
        barrier(b)  # all have written before anyone reads
        places = _Places(b, exchange, target, offset)
        results: list[Any] = []
        kind = vector_type(dtype, read)
        for first in range(0, target.registers, read):
            where = places.pointer(first, kind)
            inside = places.at.inside(first)
            if inside is not None:  # past the tile's edge: read any element
                where = b.select(inside, where, pointer(b, shared(b, offset), kind, SHARED))
            if read == 1:
                results.append(from_shared(b, dtype, where))
                continue
            vector = b.load(where)
            vector.align = dtype.bits * read // 8
            results += split(b, dtype, vector, read)
        return pack(b, results, target.registers)

    return intrinsic("swizzle", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
