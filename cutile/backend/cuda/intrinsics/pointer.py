"""Elements by address: each thread accesses those of its registers.

A register past the tile's edge has no element. Several threads may hold one element. The first of them alone writes it.
If a memory order counts, the first alone reads it too, and hands the result to the others through shared memory.
"""

import functools
from collections.abc import Sequence
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
    asm,
    barrier,
    from_register,
    from_shared,
    i32c,
    ir,
    memory_type,
    merge,
    shared_element,
    thread,
    to_memory,
    to_register,
)
from cutile.backend.cuda.intrinsics.memory import join, load_words, split
from cutile.backend.cuda.intrinsics.shape import flat_index, row_major
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, u64

Exchange = tuple[int, bool]
"""Where elements are handed on in shared memory, in bytes; whether an earlier use of that memory may be under way."""

SCOPES = {"tile_block": "cta", "device": "gpu", "system": "sys"}
"""The names of scopes in PTX (PTX ISA, "Scope")."""


class Lanes:
    """The registers of a tile of addresses, and the thread that acts for each.

    Without a layout there is one address, for which thread 0 acts.
    """

    def __init__(self, b: Any, layout: Layout | None) -> None:
        self.b = b
        self.layout = layout
        self.at = Coordinates(b, layout) if layout is not None else None
        self.count = layout.registers if layout is not None else 0

    def __len__(self) -> int:
        return max(self.count, 1)

    def inside(self, register: int) -> Any | None:
        """Whether the register's element is in the tile; None where it always is."""
        return self.at.inside(register) if self.at is not None else None

    def mine(self, register: int) -> Any | None:
        """Whether this thread acts for the register's element; None where it always does."""
        if self.at is None:
            return self.b.icmp_unsigned("==", thread(self.b), i32c(0))
        return both(self.b, self.at.owner(), self.inside(register))

    def active(self, masks: Sequence[Any]) -> list[Any]:
        """For each register, whether this thread accesses its element."""
        return [as_flag(both(self.b, mask, self.mine(register))) for register, mask in enumerate(masks)]

    def hand_on(self, dtype: DTypeLike, elements: Sequence[Any], exchange: Exchange) -> list[Any]:
        """The elements of the threads that acted, in all threads that hold them."""
        b, (offset, fence) = self.b, exchange
        if fence:
            barrier(b)  # others may still use the memory
        for register, element in enumerate(elements):
            with b.if_then(as_flag(self.mine(register))):
                b.store(to_memory(b, dtype, element), self._place(dtype, register, offset))
        barrier(b)  # the threads that acted have written before the others read
        return [from_shared(b, dtype, self._place(dtype, register, offset)) for register in range(len(elements))]

    def _place(self, dtype: DTypeLike, register: int, offset: int) -> Any:
        """A pointer to where a register's element is handed on in shared memory."""
        b, index = self.b, i32c(0)
        if self.layout is not None:
            at = Coordinates(b, self.layout)
            index = flat_index(b, at, register, row_major(self.layout.shape))
            inside = at.inside(register)
            if inside is not None:  # past the tile's edge: read any element
                index = b.select(inside, index, i32c(0))
        return shared_element(b, memory_type(dtype), index, offset)


def release_once(b: Any, order: str, scope: str, active: Sequence[Any]) -> str:
    """The memory order that each access still needs behind one fence for all.

    A fence and any strong write after it are a release pattern of PTX's memory model (PTX ISA, "Release and Acquire
    Patterns"), so one fence serves all elements. A release for each element would be a fence for each, which waits for
    all earlier writes of the thread. The elements of one access have no order among themselves.
    """
    rest = {"release": "relaxed", "acq_rel": "acquire"}.get(order)
    if rest is None or len(active) < 2:
        return order
    any_active = functools.reduce(b.or_, active)
    # A thread that accesses nothing has nothing to release (PTX ISA, "membar / fence").
    text = f"{{.reg .pred p; setp.ne.b32 p, $0, 0; @p fence.acq_rel.{SCOPES[scope]};}}"
    asm(b, VOID, [b.zext(any_active, I32)], text, "r,~{memory}", effect=True)
    return rest


def _load_one(b: Any, dtype: DTypeLike, address: Any, active: Any, pad: Any, access: str, constant: bool) -> Any:
    """An element, or the pad if the lane is not active."""
    letter, kind, register, wide = REGISTERS[dtype.bits]
    # `$0` becomes the pad, and then the element if the lane is active. The early clobber keeps the address apart from
    # `$0` (PTX ISA, "ld").
    text = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; mov.{register} $0, $3; @p {access}.{kind} $0, [$1];}}"
    clobbers = "" if constant else ",~{memory}"
    constraints = f"=&{letter},l,r,{letter}{clobbers}"
    operands = [address, b.zext(active, I32), to_register(b, dtype, pad)]
    return from_register(b, dtype, asm(b, wide, operands, text, constraints, effect=not constant))


def _load_neighbours(
    b: Any, dtype: DTypeLike, group: Sequence[tuple[Any, Any, Any]], access: str, constant: bool
) -> Any:
    """Elements that lie side by side, in one access if the lane is active for all.

    `group` has the address, the flag and the pad of each.
    """
    (first, *_), active = group[0], [flag for _, flag, _ in group]
    all_active, any_active = functools.reduce(b.and_, active), functools.reduce(b.or_, active)
    pads = join(b, dtype, [pad for *_, pad in group])
    wide = b.select(all_active, load_words(b, dtype, first, len(group), all_active), pads)
    before = b.block
    with b.if_then(b.and_(any_active, b.not_(all_active)), likely=False):
        elements = [_load_one(b, dtype, address, flag, pad, access, constant) for address, flag, pad in group]
        words = join(b, dtype, elements)
        behind = b.block
    (words,) = merge(b, ([wide], before), ([words], behind))
    return split(b, dtype, words, len(group))


@cache
def load(
    dtype: DTypeLike,
    layout: Layout | None,
    order: str,
    scope: str,
    *,
    constant: bool,
    exchange: Exchange | None,
    width: int = 1,
) -> Any:
    """`f(addresses, mask, pad)`: the elements where the mask is set, `pad` elsewhere.

    Args:
        dtype: of the elements.
        layout: of the tile of addresses; None for one address.
        order: the memory order: "weak", "relaxed" or "acquire".
        scope: of `SCOPES`.
        constant: nothing writes there during the launch.
        exchange: where the elements are handed to the other threads that hold them; None: each thread reads.
        width: number of neighbouring registers whose elements lie side by side, and are read at once if all masks are
            set. It is 1 unless `order` is "weak": the wide access has no order and no scope.
    """
    count = layout.registers if layout is not None else 0
    # One fence behind all loads of a thread: each acquire of its own would hold up the loads behind it.
    fences_once = order == "acquire" and count > 1
    access = "ld.global" if order == "weak" else f"ld.{'relaxed' if fences_once else order}.{SCOPES[scope]}.global"
    access += ".nc" if constant else ""

    def generate(b: Any, values: list[Any]) -> Any:
        lanes = Lanes(b, layout)
        columns = [unpack(b, value, count) for value in values]
        rows: list[tuple[Any, Any, Any]] = []
        for register, (address, mask, pad) in enumerate(zip(*columns, strict=True)):
            loads = lanes.inside(register) if exchange is None else lanes.mine(register)
            rows.append((address, as_flag(both(b, mask, loads)), pad))
        if width > 1:
            groups = (rows[first : first + width] for first in range(0, count, width))
            elements = [each for group in groups for each in _load_neighbours(b, dtype, group, access, constant)]
        else:
            elements = [_load_one(b, dtype, address, active, pad, access, constant) for address, active, pad in rows]
        if fences_once:
            # An acquire pattern: strong reads, then a fence (PTX ISA, "Release and Acquire Patterns").
            asm(b, VOID, [], f"fence.acq_rel.{SCOPES[scope]};", "~{memory}", effect=True)
        if exchange is not None:
            elements = lanes.hand_on(dtype, elements, exchange)
        return pack(b, elements, count)

    operands = [frag(u64, count), frag(bool_, count), frag(dtype, count)]
    return intrinsic("load_at", frag(dtype, count), operands, generate)


@cache
def store(dtype: DTypeLike, layout: Layout | None, order: str, scope: str, *, width: int = 1) -> Any:
    """`f(addresses, value, mask)`: write the elements where the mask is set.

    The arguments of the factory are those of `load`; `order` is "weak", "relaxed" or "release".
    """
    count = layout.registers if layout is not None else 0
    letter, kind, _, _ = REGISTERS[dtype.bits]

    def generate(b: Any, values: list[Any]) -> None:
        addresses, elements, masks = (unpack(b, value, count) for value in values)
        active = Lanes(b, layout).active(masks)
        order_of_each = release_once(b, order, scope, active)
        access = "st.global" if order == "weak" else f"st.{order_of_each}.{SCOPES[scope]}.global"
        # Predicated: an inactive lane's address may be anything. `st` has the order and the scope (PTX ISA, "st").
        text = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; @p {access}.{kind} [$1], $0;}}"
        rows = list(zip(addresses, elements, active, strict=True))

        def one_by_one(group: Sequence[tuple[Any, Any, Any]]) -> None:
            for address, element, flag in group:
                operands = [to_register(b, dtype, element), address, b.zext(flag, I32)]
                # The store of `text`, above.
                asm(b, VOID, operands, text, f"{letter},l,r,~{{memory}}", effect=True)

        for first in range(0, len(rows), width):
            group = rows[first : first + width]
            if width == 1:
                one_by_one(group)
                continue
            flags = [flag for *_, flag in group]
            with b.if_else(functools.reduce(b.and_, flags)) as (all_active, others):
                with all_active:
                    bits = join(b, dtype, [element for _, element, _ in group])
                    place = b.inttoptr(group[0][0], ir.PointerType(bits.type, GLOBAL))
                    b.store(bits, place).align = dtype.bits * width // 8
                with others:
                    one_by_one(group)

    operands = [frag(u64, count), frag(dtype, count), frag(bool_, count)]
    return intrinsic("store_at", None, operands, generate)


@cache
def address() -> Any:
    """`f(x)`: the address of a tensor's first element."""
    return intrinsic("address_of", frag(u64, 0), [POINTER], lambda b, values: b.ptrtoint(values[0], I64))


@cache
def pointer_at(dtype: DTypeLike) -> Any:
    """`f(address)`: the base address of a tensor, from an integer of `dtype`."""

    def generate(b: Any, values: list[Any]) -> Any:
        return b.inttoptr(values[0], ir.PointerType(I8))

    return intrinsic("pointer_at", POINTER, [frag(dtype, 0)], generate)
