"""A loop in LLVM IR, and numbers that it does not work out anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutile.backend.cuda.intrinsics.llvm import I32, asm, i32c

Body = Callable[[Any, list[Any]], list[Any]]


def counted(b: Any, stop: int, step: int, values: Sequence[Any], body: Body) -> list[Any]:
    """`for k in range(0, stop, step): values = body(k, values)`, run at least once; the values in the end."""
    entry = b.block
    inside, done = b.append_basic_block("turn"), b.append_basic_block("turned")
    b.branch(inside)
    b.position_at_end(inside)
    k = b.phi(I32)
    k.add_incoming(i32c(0), entry)
    carried = [b.phi(each.type) for each in values]
    for phi, each in zip(carried, values, strict=True):
        phi.add_incoming(each, entry)
    made = body(k, list(carried))
    following = b.add(k, i32c(step))
    k.add_incoming(following, b.block)
    for phi, each in zip(carried, made, strict=True):
        phi.add_incoming(each, b.block)
    b.cbranch(b.icmp_unsigned("<", following, i32c(stop)), inside, done)
    b.position_at_end(done)
    return made


def kept(b: Any, value: Any) -> Any:
    """A 32-bit number in a register of its own, which the compiler does not work out anew where it is used."""
    return asm(b, I32, [value], "mov.b32 $0, $1;", "=r,r")
