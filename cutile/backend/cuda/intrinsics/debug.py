"""Prints, by the device's C function `vprintf`, and assertions.

One thread prints for the block. It reads a tile from shared memory, and prints it element by element, in row-major
order. `vprintf` takes a format, and the arguments in one block of memory (CUDA C++ Programming Guide, "Formatted
Output").
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from cutile.backend.common.abi import BLOCK, GRID_NAMES, NUMBERS, SITE, WRITING, WRITTEN
from cutile.backend.cuda.intrinsics.fragment import POINTER, frag, intrinsic, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    F64,
    GLOBAL,
    I8,
    I32,
    I64,
    VOID,
    WORD_BYTES,
    address,
    asm,
    barrier,
    call,
    const,
    from_shared,
    i32c,
    ir,
    memory_type,
    shared_element,
    thread,
    widen,
)
from cutile.backend.cuda.intrinsics.shape import row_major, write_tile
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

Piece = tuple[str, DTypeLike, Layout | None]
"""How a value is printed: its `%` format, its dtype, and its layout where it is a tile."""

MAX_ARGUMENTS = 32
"""Arguments of one `vprintf`, the format not counted (CUDA C++ Programming Guide, "Formatted Output")."""


def text(b: Any, value: str) -> Any:
    """A C string."""
    data = bytearray(value.encode() + b"\0")
    kind = ir.ArrayType(I8, len(data))
    module = b.module
    name = f"text_{len(module.globals)}"  # unique, since each text adds a global to the module
    variable = ir.GlobalVariable(module, kind, name, addrspace=GLOBAL)
    variable.linkage = "private"
    variable.global_constant = True
    variable.initializer = const(kind, data)
    start = b.gep(variable, [i32c(0), i32c(0)], inbounds=True)
    return b.addrspacecast(start, ir.PointerType(I8))


def _say(b: Any, form: str, arguments: Sequence[Any]) -> None:
    """`printf(form, *arguments)`."""
    if not form:
        return
    if arguments:
        # A struct pads its members as C's convention for variable arguments does: each at a multiple of its size.
        kind = ir.LiteralStructType([each.type for each in arguments])
        with b.goto_entry_block():  # so that a print in a loop does not take stack in each iteration
            memory = b.alloca(kind)
        for i, each in enumerate(arguments):
            b.store(each, b.gep(memory, [i32c(0), i32c(i)], inbounds=True))
        block = b.bitcast(memory, ir.PointerType(I8))
    else:
        block = const(ir.PointerType(I8), None)
    call(b, "vprintf", I32, [text(b, form), block])


_PADDED = re.compile(r"%(\+?)0(\d+)(\.\d+)?([eEfgG])")
"""A `%` format of floats with zeros before the number."""
PADDED_ARGUMENTS = 3
"""Arguments of such a number: its sign and zeros, the width of the rest, the rest."""


def _arguments(b: Any, spec: str, dtype: DTypeLike, value: Any) -> tuple[str, list[Any]]:
    """The C format and arguments of a value."""
    if dtype is bool_:
        return spec, [b.select(value, text(b, "True"), text(b, "False"))]
    if dtype.is_float:
        wide = widen(b, dtype, value)
        wide = b.fpext(wide, F64) if wide.type == F32 else wide
        nan = b.fcmp_unordered("uno", wide, wide)
        wide = b.select(nan, const(F64, math.nan), wide)  # without a sign, which Python does not print
        form = _PADDED.fullmatch(spec)
        return _padded(b, wide, *form.groups("")) if form else (spec, [wide])
    width = I64 if dtype.bits == 64 else I32
    if dtype.bits < 32:
        value = b.sext(value, I32) if dtype.is_signed else b.zext(value, I32)
    kind = spec[-1] if dtype.is_signed or spec[-1] != "d" else "u"
    return f"{spec[:-1]}{'ll' if width is I64 else ''}{kind}", [value]


def _padded(b: Any, value: Any, plus: str, width: str, digits: str, kind: str) -> tuple[str, list[Any]]:
    """The C format and arguments of a float with zeros before it.

    Python puts zeros before NaN and infinity, too, where C has blanks. So the first argument is a text: the sign, and
    the zeros if the number is not finite.
    """
    bits = b.bitcast(value, I64)
    negative = b.icmp_signed("<", bits, const(I64, 0))
    size = b.bitcast(b.and_(bits, const(I64, (1 << 63) - 1)), F64)  # bit 63 is the sign
    finite = b.fcmp_ordered("<", size, const(F64, math.inf))
    signs: list[Any] = []
    widths: list[Any] = []
    for sign in ("-", plus):
        zeros = "0" * (int(width) - len(sign) - len("inf"))
        signs.append(b.select(finite, text(b, sign), text(b, sign + zeros)))
        widths.append(b.select(finite, i32c(max(int(width) - len(sign), 0)), i32c(0)))
    return f"%s%0*{digits}{kind}", [b.select(negative, *signs), b.select(negative, *widths), size]


def _say_tile(b: Any, spec: str, dtype: DTypeLike, shape: Sequence[int], offset: int) -> None:
    """Print the elements of a tile in shared memory, in nested brackets."""
    total = math.prod(shape)
    before_loop = b.block
    loop, done = b.append_basic_block("element"), b.append_basic_block("printed")
    b.branch(loop)
    b.position_at_end(loop)
    at = b.phi(I32)
    at.add_incoming(i32c(0), before_loop)
    element = from_shared(b, dtype, shared_element(b, memory_type(dtype), at, offset))
    following = b.add(at, i32c(1))
    opened, closed = text(b, ""), text(b, ", ")
    size = 1
    for depth, extent in enumerate(reversed(shape), 1):
        size *= extent
        first = b.icmp_unsigned("==", b.urem(at, i32c(size)), i32c(0))
        last = b.icmp_unsigned("==", b.urem(following, i32c(size)), i32c(0))
        opened = b.select(first, text(b, "[" * depth), opened)
        closed = b.select(last, text(b, "]" * depth + ("" if size == total else ", ")), closed)
    form, arguments = _arguments(b, spec, dtype, element)
    _say(b, f"%s{form}%s", [opened, *arguments, closed])
    at.add_incoming(following, b.block)
    b.cbranch(b.icmp_unsigned("<", following, i32c(total)), loop, done)
    b.position_at_end(done)


def _escaped(piece: str) -> str:
    """A text as a part of a C format, without NULs, which would end it."""
    return piece.replace("%", "%%").replace("\0", "")


@cache
def say(pieces: tuple[str, ...], values: tuple[Piece, ...], *, offset: int, fence: bool) -> Any:
    """`f(*values)`: print `pieces[0]`, the first value, `pieces[1]`, and so on.

    Args:
        pieces: the texts around the values.
        values: how each value is printed.
        offset: where in shared memory tiles go, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """

    def generate(b: Any, operands: list[Any]) -> None:
        form = _escaped(pieces[0])  # with a NUL for each argument, whose `%` format is known only when it is printed
        arguments: list[tuple[str, DTypeLike, Any]] = []
        room = MAX_ARGUMENTS  # arguments that the present `vprintf` can still take
        waits = fence  # before the next tile is written to shared memory

        def flush() -> None:
            nonlocal form, arguments, room
            with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
                parts = form.split("\0")
                formats = [_arguments(b, *each) for each in arguments]
                joined = parts[0] + "".join(spec + part for (spec, _), part in zip(formats, parts[1:], strict=True))
                _say(b, joined, [value for _, values in formats for value in values])
            form, arguments, room = "", [], MAX_ARGUMENTS

        for (spec, dtype, layout), value, piece in zip(values, operands, pieces[1:], strict=True):
            if layout is None:
                count = PADDED_ARGUMENTS if _PADDED.fullmatch(spec) else 1
                if count > room:
                    flush()
                form += "\0"
                arguments.append((spec, dtype, value))
                form += _escaped(piece)
                room -= count
                if not room:
                    flush()
                continue
            flush()
            if waits:
                barrier(b)  # others may still read what was there
            write_tile(b, dtype, layout, unpack(b, value, layout.registers), row_major(layout.shape), offset)
            barrier(b)  # one thread reads what all have written
            with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
                _say_tile(b, spec, dtype, layout.shape, offset)
            waits = True
            form = _escaped(piece)
        flush()

    kinds = [frag(dtype, layout.registers if layout is not None else 0) for _, dtype, layout in values]
    return intrinsic("say", None, kinds, generate)


def give_up(b: Any, form: str, numbers: Sequence[Any], message: str, at: tuple[str, str, int] = ("", "", 0)) -> None:
    """Print `form` with 32-bit numbers, and end the kernel with an error.

    Args:
        b: the builder.
        form: a C format.
        numbers: its arguments.
        message: for the driver's own report.
        at: the kernel, file and line, for that report too.
    """
    kernel, file, line = at
    _say(b, f"{form}\n", numbers)
    # What C's `assert` calls on the device; the last argument is the size of a character.
    call(b, "__assertfail", VOID, [text(b, message), text(b, file), i32c(line), text(b, kernel), const(I64, 1)])


@cache
def fail_unless(site: int, dtypes: tuple[DTypeLike, ...], *, speaker: int = 0, flag: int | None = None) -> Any:
    """`f(condition, report, x, y, z, *numbers)`: report a failed assertion.

    Nothing happens if the condition holds. `cutile/backend/common/abi.py` has the report's words. The report is written
    without a call. A call, such as of `vprintf`, would serialise products by warpgroups (the linker's remark C7510),
    and cost a stack frame.

    Args:
        site: the assertion's number.
        dtypes: of the numbers.
        speaker: the thread that reports.
        flag: where in shared memory a 1 says that an assertion of this thread block failed. None if all threads run
            this, with the same condition: then all of them end.
    """

    def generate(b: Any, values: list[Any]) -> None:
        condition, report, *numbers = values
        failed = b.not_(condition)
        speaks = b.icmp_unsigned("==", thread(b), i32c(speaker))
        with b.if_then(failed if flag is None else b.and_(failed, speaks), likely=False):
            if flag is not None:
                # Volatile: another warp reads the flag, behind a barrier at which this thread arrives later (PTX ISA,
                # "st").
                text = "st.volatile.shared.b32 [$0], $1;"
                asm(b, VOID, [address(b, flag), i32c(1)], text, "r,r,~{memory}", effect=True)
                _report(b, report, site, dtypes, numbers)
            else:
                with b.if_then(speaks):
                    _report(b, report, site, dtypes, numbers)
                # All threads end, so none waits for one that has left (PTX ISA, "exit").
                asm(b, VOID, [], "exit;", "~{memory}", effect=True)
                b.unreachable()

    kinds = [frag(bool_, 0), POINTER, *[frag(i32, 0)] * len(GRID_NAMES), *[frag(dtype, 0) for dtype in dtypes]]
    return intrinsic("fail_unless", None, kinds, generate)


def _report(b: Any, report: Any, site: int, dtypes: Sequence[DTypeLike], numbers: Sequence[Any]) -> None:
    """Write a failure to a launch's report, unless another thread has written one."""
    place = b.ptrtoint(report, I64)

    def put(kind: str, letter: str, word: int, value: Any) -> None:
        at = b.add(place, const(I64, WORD_BYTES * word))
        # In PTX, so that LLVM keeps the order of the words: the host may read while they are written (PTX ISA, "st").
        asm(b, VOID, [at, value], f"st.global.{kind} [$0], $1;", f"l,{letter},~{{memory}}", effect=True)

    # The first of all threads takes the report. In host memory, too, the device's atomics are atomic among its own
    # threads (PTX ISA, "atom").
    text = f"atom.global.cas.b32 $0, [$1], 0, {WRITING};"
    before = asm(b, I32, [place], text, "=r,l,~{memory}", effect=True)
    with b.if_then(b.icmp_unsigned("==", before, i32c(0))):
        put("b32", "r", SITE, i32c(site))
        axes = len(GRID_NAMES)
        for axis, each in enumerate(numbers[:axes]):
            put("b32", "r", BLOCK + axis, each)
        for i, (dtype, each) in enumerate(zip(dtypes, numbers[axes:], strict=True)):
            if dtype.bits < 64:
                each = b.sext(each, I64) if dtype.is_signed else b.zext(each, I64)
            put("b64", "l", NUMBERS + 2 * i, each)
        # The host reads word 0 first: once it sees `WRITTEN` there, it sees the other words. `.sys`, since the host is
        # no thread of the GPU (PTX ISA, "Scope").
        asm(b, VOID, [], "fence.acq_rel.sys;", "~{memory}", effect=True)
        put("b32", "r", 0, i32c(WRITTEN))


@cache
def has_failed(flag: int) -> Any:
    """`f() -> bool`: whether an assertion of this thread block failed, by its flag."""

    def generate(b: Any, _: list[Any]) -> Any:
        # Volatile: another warp sets the flag, ahead of an arrival for which this warp has waited (PTX ISA,
        # "ld").
        text = "ld.volatile.shared.b32 $0, [$1];"
        word = asm(b, I32, [address(b, flag)], text, "=r,r,~{memory}", effect=True)
        return b.icmp_unsigned("!=", word, i32c(0))

    return intrinsic("has_failed", frag(bool_, 0), [], generate)
