"""Atomic updates by address: one PTX instruction per lane.

It is `red` where nobody asks for the old element.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import I16, I32, VOID, asm, const, narrow, number, widen
from cutile.backend.cuda.intrinsics.pointer import REGISTERS, SCOPES, Exchange, Lanes, narrowed, release_once, widened
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, u64


def _instruction(kind: str, dtype: DTypeLike) -> str:
    """The operation and the type of an update."""
    bits = dtype.bits
    if kind == "addf":
        return f"add.noftz.{dtype.name}" if dtype.is_half else f"add.{dtype.name}"
    types = {"add": "u", "max": "s", "min": "s", "umax": "u", "umin": "u"}
    names = {"umax": "max", "umin": "min", "xchg": "exch"}
    return f"{names.get(kind, kind)}.{types.get(kind, 'b')}{bits}"


def _one(b: Any, dtype: DTypeLike, address: Any, operands: list[Any], active: Any, text: str, used: bool) -> Any:
    """One update in PTX; the old element, zero where it is not active."""
    letter, _, register, wide = REGISTERS[dtype.bits]
    first = 1 if used else 0
    names = ", ".join(f"${first + 1 + i}" for i in range(len(operands)))
    predicate = f"${first + 1 + len(operands)}"
    clear = f"mov.{register} $0, 0; " if used else ""
    target = "$0, " if used else ""
    # `$0` is cleared before the address is read, hence the early clobber. A predicate in place of a branch: lanes stay
    # together, and one that is not active touches no memory (PTX ISA, "atom", "red").
    code = f"{{.reg .pred p; setp.ne.b32 p, {predicate}, 0; {clear}@p {text} {target}[${first}], {names};}}"
    constraints = ",".join([*([f"=&{letter}"] if used else []), "l", *[letter] * len(operands), "r", "~{memory}"])
    values = [address, *operands, b.zext(active, I32)]
    made = asm(b, wide if used else VOID, values, code, constraints, effect=True)
    return narrowed(b, dtype, made) if used else number(dtype, 0)


def _add_in_a_loop(b: Any, dtype: DTypeLike, address: Any, value: Any, active: Any, where: str) -> Any:
    """A 16-bit float added by compare and swap.

    For architectures that lack the instruction.
    """
    before = b.block
    start, loop, done = (b.append_basic_block(name) for name in ("update", "again", "updated"))
    b.cbranch(active, start, done)
    b.position_at_end(start)
    # A first guess of the old element, which the compare and swap below checks. `.sys`: others may be writing there.
    first = asm(b, I16, [address], "ld.relaxed.sys.global.b16 $0, [$1];", "=h,l,~{memory}", effect=True)
    b.branch(loop)
    b.position_at_end(loop)
    old = b.phi(I16)
    old.add_incoming(first, start)
    total = narrow(b, dtype, b.fadd(widen(b, dtype, old), widen(b, dtype, value)))
    # What was there; the update is made if that is what the sum was computed from (PTX ISA, "atom").
    text = f"atom{where}.global.cas.b16 $0, [$1], $2, $3;"
    seen = asm(b, I16, [address, old, total], text, "=h,l,h,h,~{memory}", effect=True)
    old.add_incoming(seen, loop)
    b.cbranch(b.icmp_unsigned("==", seen, old), done, loop)
    b.position_at_end(done)
    result = b.phi(I16)
    result.add_incoming(const(I16, 0), before)
    result.add_incoming(seen, loop)
    return result


@cache
def update(
    kind: str,
    dtype: DTypeLike,
    layout: Layout | None,
    order: str,
    scope: str,
    *,
    used: bool = True,
    native: bool = True,
    exchange: Exchange | None = None,
) -> Any:
    """`f(addresses, value, mask)`: what was there before, 0 where the mask is not set.

    Args:
        used: whether anybody asks for that.
        native: whether there is an instruction for it.
        exchange: where the old elements are handed to the other threads that hold them.
    """
    count = layout.registers if layout is not None else 0
    reduces = not used and kind != "xchg" and order in ("relaxed", "release")

    def generate(b: Any, values: list[Any]) -> Any:
        lanes = Lanes(b, layout)
        addresses, operands, masks = (unpack(b, value, count) for value in values)
        active = lanes.active(masks)
        where = f".{release_once(b, order, scope, active)}.{SCOPES[scope]}"
        text = f"{'red' if reduces else 'atom'}{where}.global.{_instruction(kind, dtype)}"
        old: list[Any] = []
        for address, value, flag in zip(addresses, operands, active, strict=True):
            if native:
                operand = widened(b, dtype, value)
                old.append(_one(b, dtype, address, [operand], flag, text, not reduces))
            else:
                old.append(_add_in_a_loop(b, dtype, address, value, flag, where))
        if exchange is not None:
            old = lanes.hand_on(dtype, old, exchange)
        return pack(b, old, count)

    operands = [frag(u64, count), frag(dtype, count), frag(bool_, count)]
    return intrinsic("update", frag(dtype, count), operands, generate)


@cache
def compare_and_swap(
    dtype: DTypeLike, layout: Layout | None, order: str, scope: str, *, exchange: Exchange | None = None
) -> Any:
    """`f(addresses, expected, value, mask)`: the old elements.

    They are 0 where the mask is not set.
    """
    count = layout.registers if layout is not None else 0

    def generate(b: Any, values: list[Any]) -> Any:
        lanes = Lanes(b, layout)
        *columns, masks = (unpack(b, value, count) for value in values)
        active = lanes.active(masks)
        text = f"atom.{release_once(b, order, scope, active)}.{SCOPES[scope]}.global.cas.b{dtype.bits}"
        old: list[Any] = []
        for address, expected, value, flag in zip(*columns, active, strict=True):
            operands = [widened(b, dtype, expected), widened(b, dtype, value)]
            old.append(_one(b, dtype, address, operands, flag, text, True))
        if exchange is not None:
            old = lanes.hand_on(dtype, old, exchange)
        return pack(b, old, count)

    operands = [frag(u64, count), frag(dtype, count), frag(dtype, count), frag(bool_, count)]
    return intrinsic("compare_and_swap", frag(dtype, count), operands, generate)
