"""Tiles between global memory and registers.

A tile wholly inside the tensor takes the fast path: wide accesses without a test. All threads of a block take the same
path. At the tensor's edge each element is tested. Outside the tensor a load yields the padding, a store writes nothing.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import POINTER, Coordinates, as_flag, both, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    GLOBAL,
    I8,
    I32,
    I64,
    REGISTERS,
    VOID,
    WORD_BYTES,
    asm,
    const,
    from_memory,
    from_register,
    i32c,
    ir,
    memory_type,
    merge,
    pointer,
    to_memory,
    to_register,
)
from cutile.backend.gpu.layout import Layout
from cutile.conversion import bits_of
from cutile.dtypes import DTypeLike, i32, i64, u16


@dataclass(frozen=True)
class View:
    """Compile-time facts of a tensor.

    Attributes:
        dtype: the element type.
        shape: the extents; None for one that each access gets as an argument.
        strides: in elements; None for one that each access gets as an argument.
    """

    dtype: DTypeLike
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    def arguments(self, limits: int = 0) -> list[Any]:
        """The Numba types of an access's arguments.

        In this order: the base, the dynamic extents, the dynamic strides, the tile's indices, and `limits` limits.
        """
        dynamic_shape = [frag(i32, 0) for each in self.shape if each is None]
        dynamic_strides = [frag(i64, 0) for each in self.strides if each is None]
        return [POINTER, *dynamic_shape, *dynamic_strides, *[frag(i32, 0)] * (len(self.shape) + limits)]


class Access:
    """The addresses and the tests of one access, as LLVM values.

    The tile at index `i` begins at the element `i * step`; without `steps`, the step is the tile's extent. On each axis
    in `limited` the tensor ends at a limit, if that is below its extent. `values` are in the order of `View.arguments`.
    """

    def __init__(
        self,
        b: Any,
        view: View,
        layout: Layout,
        values: Sequence[Any],
        steps: Sequence[int] | None = None,
        limited: Sequence[int] = (),
    ) -> None:
        self.b, self.view, self.layout = b, view, layout
        arguments = iter(values)
        base = next(arguments)
        self.extents = [i32c(each) if each is not None else next(arguments) for each in view.shape]
        self.strides = [const(I64, each) if each is not None else next(arguments) for each in view.strides]
        self.at = Coordinates(b, layout)
        self.origin: list[Any] = []
        interior: Any = None  # an i1: the whole tile is inside the tensor
        self.starts_inside: Any = None  # an i1: the tile's first index is at least 0 on every axis
        self.ends: list[Any] = []  # per axis, the end of the tile's part that is inside the tensor
        start: Any = None  # offset of this thread's first element, in elements
        indices = [next(arguments) for _ in layout.shape]
        for axis, limit in zip(limited, arguments, strict=True):
            self.extents[axis] = _smaller(b, self.extents[axis], limit)
        for axis, extent in enumerate(layout.shape):
            origin = b.mul(indices[axis], i32c(extent if steps is None else steps[axis]))
            self.origin.append(origin)
            not_before = b.icmp_signed(">=", origin, i32c(0))
            not_after = b.icmp_signed("<=", origin, b.sub(self.extents[axis], i32c(extent)))
            interior = both(b, both(b, interior, not_before), not_after)
            self.starts_inside = both(b, self.starts_inside, not_before)
            end = b.add(origin, i32c(extent))
            self.ends.append(_smaller(b, end, self.extents[axis]))
            first = b.sext(b.add(origin, self.at.thread_part(axis)), I64)
            offset = b.mul(first, self.strides[axis])
            start = offset if start is None else b.add(start, offset)
        self.interior = as_flag(interior)
        size = const(I64, view.dtype.bits // 8)
        space = ir.PointerType(I8, GLOBAL)
        base = b.addrspacecast(base, space)
        self.base = base if start is None else b.gep(base, [b.mul(start, size)])
        self._steps: dict[tuple[int, ...], Any] = {}
        self._tests: dict[tuple[int, int], Any] = {}

    def enter(self) -> None:
        """Forget values computed in another branch: they do not dominate this one."""
        self._steps.clear()
        self._tests.clear()
        self.at.enter()

    def address(self, register: int) -> Any:
        """A byte pointer to a register's element."""
        b, offset = self.b, self.layout.offsets[register]
        size = self.view.dtype.bits // 8
        constant = 0  # bytes; added last, so that it becomes the offset in the instruction's address
        dynamic: Any = None  # bytes
        for axis, count in enumerate(offset):
            stride = self.view.strides[axis]
            if stride is not None:
                constant += count * stride * size
            elif count:
                step = self._step(axis, count * size)
                dynamic = step if dynamic is None else b.add(dynamic, step)
        place = self.base if dynamic is None else b.gep(self.base, [dynamic])
        return b.gep(place, [const(I64, constant)]) if constant else place

    def _step(self, axis: int, count: int) -> Any:
        """`count` times the stride along `axis`."""
        key = (axis, count)
        if key not in self._steps:
            self._steps[key] = self.b.mul(self.strides[axis], const(I64, count))
        return self._steps[key]

    def inside(self, register: int) -> Any:
        """Whether a register's element lies in the tile and in the tensor."""
        b, inside = self.b, self.starts_inside
        for axis, offset in enumerate(self.layout.offsets[register]):
            key = (axis, offset)
            if key not in self._tests:
                where = b.add(self.origin[axis], self.at.element(register, axis))
                self._tests[key] = b.icmp_signed("<", where, self.ends[axis])
            inside = both(b, inside, self._tests[key])
        return as_flag(inside)

    def bytes_inside(self, register: int, axis: int, width: int) -> Any:
        """Bytes of `width` neighbours along `axis` that lie in the tile and in the tensor.

        `register` has the first of these neighbours.
        """
        b, size = self.b, self.view.dtype.bits // 8
        rest = b.sub(self.ends[axis], b.add(self.origin[axis], self.at.element(register, axis)))
        rest = _smaller(b, rest, i32c(width))
        return b.select(self.inside(register), b.mul(rest, i32c(size)), i32c(0))


def _smaller(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed("<", x, y), x, y)


WORD_BITS = 32
VECTORS = (1, 2, 4)
"""Numbers of 32-bit words that one access may have (PTX ISA, "ld")."""


def _load_one(b: Any, dtype: DTypeLike, address: Any, condition: Any, fill: int = 0) -> Any:
    """An element if `condition` holds, else the bits `fill`, and nothing is read.

    The register is filled before the address is read, hence the early clobber.
    """
    letter, kind, register, wide = REGISTERS[dtype.bits]
    # Predicated, not a branch for each element. With an effect, so that LLVM does not read where the condition is false
    # (PTX ISA, "Predicated Execution", "ld").
    text = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; mov.{register} $0, {fill}; @p ld.global.{kind} $0, [$1];}}"
    bits = asm(b, wide, [address, b.zext(condition, I32)], text, f"=&{letter},l,r", effect=True)
    return from_register(b, dtype, bits)


def _store_one(b: Any, dtype: DTypeLike, value: Any, address: Any, condition: Any) -> None:
    """Write an element where `condition` holds."""
    letter, kind, _, _ = REGISTERS[dtype.bits]
    bits = to_register(b, dtype, value)
    # Predicated, as `_load_one` (PTX ISA, "st").
    text = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.{kind} [$1], $0;}}"
    asm(b, VOID, [bits, address, b.zext(condition, I32)], text, f"{letter},l,r,~{{memory}}", effect=True)


def vector_type(dtype: DTypeLike, width: int) -> Any:
    """The LLVM type of one wide access.

    An access of more than 32 bits is a vector of words: LLVM splits accesses of vectors of 8 and 16 bits.
    """
    bits = dtype.bits * width
    if bits <= 32 or width == 1:  # one word at most, or one element of 64 bits
        return ir.IntType(bits)
    word = 64 if dtype.bits == 64 else 32
    return ir.VectorType(ir.IntType(word), bits // word)


def split(b: Any, dtype: DTypeLike, vector: Any, width: int) -> list[Any]:
    """The elements of one wide access.

    Elements below 32 bits are shifted out of their word: LLVM would load a vector of them in small pieces.
    """
    if width == 1:
        return [from_memory(b, dtype, vector)]
    if dtype.bits >= 32:
        return [from_memory(b, dtype, b.extract_element(vector, i32c(i))) for i in range(width)]
    per_word = 32 // dtype.bits
    elements: list[Any] = []
    for word in range(max(1, width // per_word)):
        bits = b.extract_element(vector, i32c(word)) if width > per_word else vector
        for part in range(min(per_word, width)):
            field = b.lshr(bits, const(bits.type, part * dtype.bits)) if part else bits
            elements.append(from_memory(b, dtype, b.trunc(field, memory_type(dtype))))
    return elements


def join_words(b: Any, dtype: DTypeLike, bits: Sequence[Any]) -> list[Any]:
    """Bits of small elements joined to words of 32 bits, or to one smaller word.

    LLVM sees through these shifts, and through those of `split`.
    """
    per_word = min(32 // dtype.bits, len(bits))
    word = ir.IntType(per_word * dtype.bits)
    words: list[Any] = []
    for first in range(0, len(bits), per_word):
        total: Any = None
        for i, each in enumerate(bits[first : first + per_word]):
            part = b.zext(each, word)
            part = b.shl(part, const(word, i * dtype.bits)) if i else part
            total = part if total is None else b.or_(total, part)
        words.append(total)
    return words


def join(b: Any, dtype: DTypeLike, elements: Sequence[Any]) -> Any:
    """Elements as the value of one wide access."""
    bits = [to_memory(b, dtype, each) for each in elements]
    if len(bits) > 1 and dtype.bits < 32:
        bits = join_words(b, dtype, bits)
    if len(bits) == 1:
        return bits[0]
    vector = const(ir.VectorType(bits[0].type, len(bits)), ir.Undefined)
    for i, each in enumerate(bits):
        vector = b.insert_element(vector, each, i32c(i))
    return vector


def _words(b: Any, count: int, result: Any) -> Any:
    """The results of an access of `count` words as one value."""
    if count == 1:
        return result
    vector = const(ir.VectorType(I32, count), ir.Undefined)
    for i in range(count):
        vector = b.insert_element(vector, b.extract_value(result, i), i32c(i))
    return vector


def _load_words(b: Any, address: Any, fill: Sequence[int], condition: Any) -> Any:
    """1, 2 or 4 words in one access if `condition` holds.

    Else they are `fill`, and nothing is read.
    """
    words = len(fill)
    registers = [f"${i}" for i in range(words)]
    listed = "{" + ", ".join(registers) + "}" if words > 1 else registers[0]
    clear = " ".join(f"mov.b32 {each}, {word};" for each, word in zip(registers, fill, strict=True))
    access = f"ld.global.{f'v{words}.' if words > 1 else ''}b32 {listed}, [${words}];"
    text = f"{{.reg .pred p; setp.ne.b32 p, ${words + 1}, 0; {clear} @p {access}}}"
    result = ir.LiteralStructType([I32] * words) if words > 1 else I32
    # As `_load_one`, with several registers (PTX ISA, "ld").
    constraints = ",".join(["=&r"] * words) + ",l,r"
    return _words(b, words, asm(b, result, [address, b.zext(condition, I32)], text, constraints, effect=True))


def load_words(b: Any, dtype: DTypeLike, address: Any, width: int, condition: Any) -> Any:
    """`width` neighbours in one access of 2, 4, 8 or 16 bytes, as one value.

    If `condition` does not hold, they are zeros, and nothing is read.
    """
    if dtype.bits * width == u16.bits:  # two bytes: the pairs of columns that a thread has of an accumulator
        return _load_one(b, u16, address, condition)
    words = _load_words(b, address, [0] * _whole_words(dtype, width), condition)
    return b.bitcast(words, vector_type(dtype, width))


def _whole_words(dtype: DTypeLike, width: int) -> int:
    """The number of words in an access of 4, 8 or 16 bytes; 0 for any other size."""
    words, rest = divmod(dtype.bits * width, WORD_BITS)
    return words if not rest and words in VECTORS else 0


def _load_wide(
    b: Any, dtype: DTypeLike, address: Any, width: int, constant: bool, condition: Any | None, fill: int = 0
) -> Any:
    """`width` neighbouring elements in one access, not yet taken apart (`split`).

    `constant`: nothing writes there during the launch. `fill`: the bits of each element if `condition` does not hold.
    """
    kind = vector_type(dtype, width)
    if condition is not None:
        if words := _whole_words(dtype, width):
            pattern = sum(fill << (dtype.bits * i) for i in range(width))
            fill_words = [pattern >> (32 * i) & 0xFFFFFFFF for i in range(words)]  # 32 bits each
            return b.bitcast(_load_words(b, address, fill_words, condition), kind)
        size = dtype.bits // 8
        places = [b.gep(address, [const(I64, size * i)]) for i in range(width)]
        return join(b, dtype, [_load_one(b, dtype, each, condition, fill) for each in places])
    vector = b.load(pointer(b, address, kind, GLOBAL))
    vector.align = dtype.bits * width // 8
    if constant:
        vector.set_metadata("invariant.load", b.module.add_metadata([]))  # becomes PTX's `ld.global.nc`
    return vector


def _groups(layout: Layout, axis: int | None, width: int) -> list[list[int]]:
    """The registers, in groups of one access each.

    Raises:
        ValueError: The registers of a group would not hold neighbours.
    """
    if width > 1 and (axis is None or layout.vector(axis) < width):
        raise ValueError(f"no {width} consecutive registers hold neighbours along axis {axis} in {layout}")
    return [list(range(first, first + width)) for first in range(0, layout.registers, width)]


@cache
def load(
    view: View,
    layout: Layout,
    *,
    vector: tuple[int, int] | None = None,
    wide_edges: bool = False,
    constant: bool = False,
    steps: tuple[int, ...] | None = None,
    limited: tuple[int, ...] = (),
    padding: float = 0.0,
) -> Any:
    """`f(base, *extents, *strides, *tile index, *limits)`: a tile.

    It is padded past the tensor's edges. The arguments are in the order of `View.arguments`: only the dynamic extents
    and strides are among them.

    Args:
        view: of the tensor.
        layout: of the tile.
        vector: (axis, width) of a wide access along an axis of stride 1; base, strides and tile extent allow it.
        wide_edges: in a tile that the tensor's edge cuts, whole groups are accessed as wide; else element by element.
        constant: nothing writes to the tensor during the launch.
        steps: elements from tile to tile along each axis, where they are not the tile's extents.
        limited: the axes on which the tensor ends at a limit.
        padding: the value of elements past the edges.
    """
    dtype, count = view.dtype, layout.registers
    element_count = count if layout.rank else 0  # a tile without axes is a scalar
    axis, width = vector or (None, 1)
    groups = _groups(layout, axis, width)

    def generate(b: Any, values: list[Any]) -> Any:
        access = Access(b, view, layout, values, steps, limited)

        def fast() -> list[Any]:
            access.enter()
            accesses: list[Any] = []
            for group in groups:
                test = access.at.inside(group[0])  # one for the whole group, since the width divides the tile's extent
                accesses.append(_load_wide(b, dtype, access.address(group[0]), width, constant, test))
            return accesses

        def edge() -> list[Any]:
            access.enter()
            fill = bits_of(padding, dtype)

            if not wide_edges or not _whole_words(dtype, width) or width == 1:
                single = [_load_one(b, dtype, access.address(r), access.inside(r), fill) for r in range(count)]
                return [join(b, dtype, [single[r] for r in group]) for group in groups]

            def one_by_one(group: list[int]) -> Any:
                single = [_load_one(b, dtype, access.address(r), access.inside(r), fill) for r in group]
                return join(b, dtype, single)

            accesses: list[Any] = []
            for group in groups:  # joined one by one: single elements of all groups would take more registers
                access.enter()
                is_whole = access.inside(group[-1])  # the group's last element is inside, and so are the others
                wide = _load_wide(b, dtype, access.address(group[0]), width, constant, is_whole, fill)
                is_cut = b.and_(access.inside(group[0]), b.not_(is_whole))
                before = b.block
                with b.if_then(is_cut):
                    access.enter()
                    words = one_by_one(group)
                    behind = b.block
                accesses += merge(b, ([wide], before), ([words], behind))
            return accesses

        # The phis are of whole accesses, so that small elements stay together in their words. A tile of one element
        # needs no branch, unless it is constant: only the fast path has the `invariant.load` of `_load_wide`.
        is_single = math.prod(layout.shape) == 1 and not constant
        vectors = edge() if is_single else _either(b, access.interior, fast, edge)
        return pack(b, [each for vector in vectors for each in split(b, dtype, vector, width)], element_count)

    return intrinsic("load", frag(dtype, element_count), view.arguments(len(limited)), generate)


@cache
def pad(
    view: View,
    layout: Layout,
    *,
    padding: float,
    steps: tuple[int, ...] | None = None,
    limited: tuple[int, ...] = (),
) -> Any:
    """`f(tile, base, *extents, *strides, *tile index, *limits)`: the tile, padded.

    It is padded past the tensor's edges. The arguments are those of `load`.
    """
    dtype, count = view.dtype, layout.registers
    per_word = max(1, 32 // dtype.bits)
    groups = [range(first, min(first + per_word, count)) for first in range(0, count, per_word)]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], count)
        access = Access(b, view, layout, values[1:], steps, limited)
        fill = const(memory_type(dtype), bits_of(padding, dtype))

        def inside() -> list[Any]:
            return [join(b, dtype, [elements[r] for r in group]) for group in groups]

        def edge() -> list[Any]:
            access.enter()
            words: list[Any] = []
            for group in groups:
                bits = [b.select(access.inside(r), to_memory(b, dtype, elements[r]), fill) for r in group]
                words.append(join(b, dtype, [from_memory(b, dtype, each) for each in bits]))
            return words

        words = _either(b, access.interior, inside, edge)
        return pack(
            b,
            [each for word, group in zip(words, groups, strict=True) for each in split(b, dtype, word, len(group))],
            count,
        )

    return intrinsic("pad", frag(dtype, count), [frag(dtype, count), *view.arguments(len(limited))], generate)


def _either(b: Any, condition: Any, then: Callable[[], list[Any]], orelse: Callable[[], list[Any]]) -> list[Any]:
    """Values that one of two branches computes.

    They are the values of `then` if the i1 `condition` holds, else those of `orelse`.
    """
    first, second = b.append_basic_block("inside"), b.append_basic_block("edge")
    done = b.append_basic_block("loaded")
    b.cbranch(condition, first, second)
    branches: list[tuple[list[Any], Any]] = []
    for where, make in ((first, then), (second, orelse)):
        b.position_at_end(where)
        values = make()
        branches.append((values, b.block))
        b.branch(done)
    b.position_at_end(done)
    return merge(b, *branches)


def _add_wide(b: Any, address: Any, elements: Sequence[Any]) -> None:
    """Add neighbouring elements of f32 to those in memory, two at a time."""
    for first in range(0, len(elements), 2):
        pair = elements[first : first + 2]
        place = b.gep(address, [const(I64, WORD_BYTES * first)])
        kind, listed = ("v2.f32", "{$1, $2}") if len(pair) == 2 else ("f32", "$1")
        # Relaxed: updates of a tile have no order among each other, and nobody reads before the kernel's end. Vectors
        # need sm_90 (PTX ISA, "red").
        text = f"red.relaxed.gpu.global.add.{kind} [$0], {listed};"
        asm(b, VOID, [place, *pair], text, ",".join(["l", *["f"] * len(pair), "~{memory}"]), effect=True)


def _add_one(b: Any, value: Any, address: Any, condition: Any) -> None:
    """Add an element of f32 where `condition` holds."""
    # Predicated, as `_load_one`; relaxed, as `_add_wide` (PTX ISA, "red").
    text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p red.relaxed.gpu.global.add.f32 [$1], $0;}"
    asm(b, VOID, [value, address, b.zext(condition, I32)], text, "f,l,r,~{memory}", effect=True)


def _store_wide(b: Any, dtype: DTypeLike, address: Any, elements: Sequence[Any]) -> None:
    """Store neighbouring elements in one access."""
    bits = join(b, dtype, elements)
    b.store(bits, pointer(b, address, bits.type, GLOBAL)).align = dtype.bits * len(elements) // 8


@cache
def store(
    view: View,
    layout: Layout,
    *,
    vector: tuple[int, int] | None = None,
    wide_edges: bool = False,
    steps: tuple[int, ...] | None = None,
    limited: tuple[int, ...] = (),
    adds: bool = False,
) -> Any:
    """`f(tile, base, *extents, *strides, *tile index, *limits)`: write a tile.

    Past an edge nothing is written. The arguments are those of `load`. With `adds`, elements of f32 are added to the
    tensor's elements, each one atomically.
    """
    dtype, count = view.dtype, layout.registers
    element_count = count if layout.rank else 0  # a tile without axes is a scalar
    axis, width = vector or (None, 1)
    groups = _groups(layout, axis, width)

    def generate(b: Any, values: list[Any]) -> None:
        tile, *rest = values
        elements = unpack(b, tile, element_count)
        access = Access(b, view, layout, rest, steps, limited)
        owner = access.at.owner()
        done = b.append_basic_block("stored")
        if owner is not None:
            mine = b.append_basic_block("owner")
            b.cbranch(owner, mine, done)
            b.position_at_end(mine)
        fast, edge = b.append_basic_block("inside"), b.append_basic_block("edge")
        b.cbranch(access.interior, fast, edge)
        b.position_at_end(fast)
        access.enter()
        for group in groups:
            test = access.at.inside(group[0])
            address = access.address(group[0])
            neighbours = [elements[each] for each in group]
            with b.if_then(test) if test is not None else nullcontext():
                if adds:
                    _add_wide(b, address, neighbours)
                else:
                    _store_wide(b, dtype, address, neighbours)
        b.branch(done)
        b.position_at_end(edge)
        access.enter()

        def one_by_one(group: Sequence[int]) -> None:
            for register in group:
                where, inside = access.address(register), access.inside(register)
                if adds:
                    _add_one(b, elements[register], where, inside)
                else:
                    _store_one(b, dtype, elements[register], where, inside)

        for group in groups:
            if not wide_edges or width == 1 or adds:
                one_by_one(group)
                continue
            is_whole = access.inside(group[-1])  # the group's last element is inside, and so are the others
            with b.if_then(is_whole):
                access.enter()
                _store_wide(b, dtype, access.address(group[0]), [elements[each] for each in group])
            access.enter()
            with b.if_then(b.and_(access.inside(group[0]), b.not_(is_whole))):
                access.enter()
                one_by_one(group)
            access.enter()
        b.branch(done)
        b.position_at_end(done)

    return intrinsic("store", None, [frag(dtype, element_count), *view.arguments(len(limited))], generate)
