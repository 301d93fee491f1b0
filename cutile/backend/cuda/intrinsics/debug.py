"""Prints and assertions through what every CUDA device has: `vprintf` and `__assertfail`.

One thread speaks for the block. A tile goes through shared memory, whence that thread reads and prints it element by
element, in row-major order. `vprintf` is the device's C function: a format, and the arguments in one block of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.coordinates import Coordinates
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    F64,
    GLOBAL,
    I1,
    I8,
    I32,
    I64,
    SHARED,
    VOID,
    barrier,
    call,
    const,
    from_shared,
    i32c,
    ir,
    memory_type,
    pointer,
    shared,
    thread,
    to_memory,
    widen,
)
from cutile.backend.cuda.intrinsics.shape import flat_index, row_major
from cutile.backend.cuda.layout import Layout
from cutile.dtypes import DTypeLike, bool_

Piece = tuple[str, DTypeLike, Layout | None]
"""How a value is printed: its `%` format, its dtype, and its layout where it is a tile."""

MOST_ARGUMENTS = 32
"""Arguments that one `vprintf` takes."""


def text(b: Any, value: str) -> Any:
    """A C string."""
    data = bytearray(value.encode() + b"\0")
    kind = ir.ArrayType(I8, len(data))
    module = b.module
    name = f"text_{len(module.globals)}"
    made = ir.GlobalVariable(module, kind, name, addrspace=GLOBAL)
    made.linkage = "private"
    made.global_constant = True
    made.initializer = const(kind, data)
    start = b.gep(made, [i32c(0), i32c(0)], inbounds=True)
    return b.addrspacecast(start, ir.PointerType(I8))


def _say(b: Any, form: str, arguments: Sequence[Any]) -> None:
    """`printf(form, *arguments)`."""
    if not form:
        return
    words: list[Any] = []
    for each in arguments:  # each in eight bytes but for what is narrower, as the C convention packs them
        words.append(each)
    if words:
        kind = ir.LiteralStructType([each.type for each in words])
        with b.goto_entry_block():
            memory = b.alloca(kind)
        for i, each in enumerate(words):
            b.store(each, b.gep(memory, [i32c(0), i32c(i)], inbounds=True))
        block = b.bitcast(memory, ir.PointerType(I8))
    else:
        block = const(ir.PointerType(I8), None)
    call(b, "vprintf", I32, [text(b, form), block])


def _argument(b: Any, spec: str, dtype: DTypeLike, value: Any) -> tuple[str, Any]:
    """The C format and argument of a value."""
    if dtype is bool_:
        return spec, b.select(value, text(b, "True"), text(b, "False"))
    if dtype.kind == "float":
        wide = widen(b, dtype, value)
        wide = b.fpext(wide, F64) if wide.type == F32 else wide
        nan = b.fcmp_unordered("uno", wide, wide)
        return spec, b.select(nan, const(F64, math.nan), wide)  # no sign
    width = I64 if dtype.bits == 64 else I32
    if dtype.bits < 32:
        value = b.sext(value, I32) if dtype.kind == "int" else b.zext(value, I32)
    kind = spec[-1] if dtype.kind == "int" or spec[-1] != "d" else "u"
    return f"{spec[:-1]}{'ll' if width is I64 else ''}{kind}", value


def _put(b: Any, dtype: DTypeLike, layout: Layout, value: Any, offset: int) -> None:
    """A tile into shared memory, dense."""
    at = Coordinates(b, layout)
    for register, element in enumerate(unpack(b, value, layout.registers)):
        inside = at.inside(register)
        with b.if_then(const(I1, 1) if inside is None else inside):
            where = flat_index(b, Coordinates(b, layout), register, row_major(layout.shape))
            b.store(to_memory(b, dtype, element), _place(b, dtype, where, offset))


def _place(b: Any, dtype: DTypeLike, where: Any, offset: int) -> Any:
    place = shared(b, b.add(b.mul(where, i32c(dtype.bits // 8)), i32c(offset)))
    return pointer(b, place, memory_type(dtype), SHARED)


def _say_tile(b: Any, spec: str, dtype: DTypeLike, shape: Sequence[int], offset: int) -> None:
    """The elements of a tile in shared memory, in brackets."""
    total = math.prod(shape)
    before_loop = b.block
    loop, done = b.append_basic_block("element"), b.append_basic_block("printed")
    b.branch(loop)
    b.position_at_end(loop)
    at = b.phi(I32)
    at.add_incoming(i32c(0), before_loop)
    element = from_shared(b, dtype, _place(b, dtype, at, offset))
    following = b.add(at, i32c(1))
    opened, closed = text(b, ""), text(b, ", ")
    size = 1
    for depth, extent in enumerate(reversed(shape), 1):
        size *= extent
        first = b.icmp_unsigned("==", b.urem(at, i32c(size)), i32c(0))
        last = b.icmp_unsigned("==", b.urem(following, i32c(size)), i32c(0))
        opened = b.select(first, text(b, "[" * depth), opened)
        closed = b.select(last, text(b, "]" * depth + ("" if size == total else ", ")), closed)
    form, argument = _argument(b, spec, dtype, element)
    _say(b, f"%s{form}%s", [opened, argument, closed])
    at.add_incoming(following, b.block)
    b.cbranch(b.icmp_unsigned("<", following, i32c(total)), loop, done)
    b.position_at_end(done)


def _escaped(piece: str) -> str:
    return piece.replace("%", "%%")


@cache
def say(pieces: tuple[str, ...], values: tuple[Piece, ...], *, offset: int, fence: bool) -> Any:
    """`f(*values)`: print `pieces[0]`, the first value, `pieces[1]`, and so on.

    Args:
        offset: where in shared memory tiles go, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """

    def generate(b: Any, operands: list[Any]) -> None:
        form = _escaped(pieces[0])
        arguments: list[tuple[str, DTypeLike, Any]] = []
        busy = fence

        def flush() -> None:
            nonlocal form, arguments
            with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
                parts = form.split("\0")
                made = [_argument(b, *each) for each in arguments]
                joined = parts[0] + "".join(spec + part for (spec, _), part in zip(made, parts[1:], strict=True))
                _say(b, joined, [value for _, value in made])
            form, arguments = "", []

        for (spec, dtype, layout), value, piece in zip(values, operands, pieces[1:], strict=True):
            if layout is None:
                form += "\0"
                arguments.append((spec, dtype, value))
                form += _escaped(piece)
                if len(arguments) == MOST_ARGUMENTS:
                    flush()
                continue
            flush()
            if busy:
                barrier(b)
            _put(b, dtype, layout, value, offset)
            barrier(b)
            with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
                _say_tile(b, spec, dtype, layout.shape, offset)
            busy = True
            form = _escaped(piece)
        flush()

    kinds = [frag(dtype, layout.registers if layout is not None else 0) for _, dtype, layout in values]
    return intrinsic("say", None, kinds, generate)


def give_up(b: Any, form: str, numbers: Sequence[Any], message: str, at: tuple[str, str, int] = ("", "", 0)) -> None:
    """Print `form` with 32-bit numbers, and end the kernel with an error.

    Args:
        message: for the driver's own report.
        at: the kernel, file and line, likewise.
    """
    kernel, file, line = at
    _say(b, f"{form}\n", numbers)
    call(b, "__assertfail", VOID, [text(b, message), text(b, file), i32c(line), text(b, kernel), const(I64, 1)])


@cache
def fail_unless(head: str, tail: str, message: str, where: tuple[str, str, int, str], speaker: int = 0) -> Any:
    """`f(condition, x, y, z)`: where the condition does not hold, say so and trap.

    Args:
        head, tail: the text of the failure, before and after the tile block's index.
        message, where: the assertion's, for the driver's own report.
        speaker: the thread that does so.
    """
    kernel, file, line, _ = where

    def generate(b: Any, values: list[Any]) -> None:
        condition, *index = values
        failed = b.and_(b.not_(condition), b.icmp_unsigned("==", thread(b), i32c(speaker)))
        with b.if_then(failed, likely=False):
            form = f"{_escaped(head)}(%d, %d, %d){_escaped(tail)}"
            give_up(b, form, index, message, (kernel, file, line))

    from cutile.dtypes import i32

    return intrinsic("fail_unless", None, [frag(bool_, 0), *[frag(i32, 0)] * 3], generate)
