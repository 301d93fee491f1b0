"""Matrix products by warp groups of four warps (`wgmma`, sm_90a): operands in shared memory, sums in registers.

A product is begun, and goes on while the group does something else; until it is waited for, its sums must not be
touched, and its operands must stay.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.forms import FORMS
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import I32, I64, VOID, asm, call, const, i32c, ir, thread
from cutile.backend.cuda.intrinsics.ring import INTEGER, address, slot_of
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.panels import GROUP, ROWS, STEP_BYTES, Panels
from cutile.dtypes import DTypeLike

ADDRESS_BITS = 0x3FFF
"""Of an address in shared memory, in units of 16 bytes; above them is the block's number in its cluster."""


def group_number(b: Any) -> Any:
    """The thread's warp group, as a value that the compiler knows to be one for the warp."""
    number = b.lshr(thread(b), i32c(GROUP.bit_length() - 1))
    operands = [i32c(-1), number, i32c(0), i32c(31)]
    return call(b, "llvm.nvvm.shfl.sync.idx.i32", I32, operands, convergent=True)


def tied(b: Any, text: str, elements: list[Any], *operands: Any, constraints: str = "") -> list[Any]:
    """Inline PTX that changes elements in place; `$0` and so on are they, then come the operands."""
    count = len(elements)
    kind = elements[0].type
    letter = "f" if str(kind) == "float" else "r"
    result = ir.LiteralStructType([kind] * count)
    listed = ",".join([f"={letter}"] * count + [str(i) for i in range(count)] + ([constraints] if constraints else []))
    made = asm(b, result, [*elements, *operands], text, listed, effect=True)
    return [b.extract_value(made, i) for i in range(count)]


def _part(b: Any, base: int, address_: Any) -> Any:
    """The descriptor of what lies at an address, of which the block's number in its cluster is no part."""
    where = b.zext(b.and_(b.lshr(address_, i32c(4)), i32c(ADDRESS_BITS)), I64)
    return b.or_(where, const(I64, base - (1 << 64) if base >> 63 else base))


@cache
def multiply(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    layout: Layout,
    left: Panels,
    right: Panels,
    *,
    depth: int,
    slots: int,
    slot_bytes: int,
    place: int,
) -> Any:
    """`f(acc, turn)`: begin to add the product of the operands in the slot of a turn.

    Args:
        dtype: of the left operand.
        other: of the right one.
        acc: of the sums.
        layout: of the sums: a `group_accumulator`.
        left: how the left operand lies in shared memory.
        right: how the right one does.
        depth: of the product.
        slots: of the ring.
        slot_bytes: from slot to slot.
        place: where the ring is in shared memory, in bytes.
    """
    rows, columns = layout.shape
    groups = layout.warps // 4
    per_part = columns // 2
    step = STEP_BYTES // (dtype.bits // 8)
    form = FORMS[dtype]
    kind = f"m64n{columns}k{step}.{form.sums_name}.{form.name}.{FORMS[other].name}"
    sums = ", ".join(f"${i}" for i in range(per_part))
    turned = f", {int(not left.k_major)}, {int(not right.k_major)}" if form.any_major else ""
    operands = f"${2 * per_part}, ${2 * per_part + 1}, {form.flags}{turned}"
    text = f"wgmma.mma_async.sync.aligned.{kind} {{{sums}}}, {operands};"

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], layout.registers)
        slot = b.add(address(b, place), b.mul(slot_of(b, values[1], slots), i32c(slot_bytes)))
        mine = b.add(slot, b.mul(group_number(b), i32c(left.offset(ROWS, 0)))) if groups > 1 else slot
        a = _part(b, left.descriptor, mine)
        other = _part(b, right.descriptor, b.add(slot, i32c(left.place_bytes)))
        asm(b, VOID, [], "wgmma.fence.sync.aligned;", "~{memory}", effect=True, convergent=True)
        for k in range(0, depth, step):
            for m in range(rows // (ROWS * groups)):
                at = slice(m * per_part, (m + 1) * per_part)
                x = b.add(a, const(I64, left.offset(m * ROWS * groups, k) >> 4))
                y = b.add(other, const(I64, right.offset(0, k) >> 4))
                elements[at] = tied(b, text, elements[at], x, y, constraints="l,l")
        asm(b, VOID, [], "wgmma.commit_group.sync.aligned;", "~{memory}", effect=True, convergent=True)
        return pack(b, elements, layout.registers)

    kind_ = frag(acc, layout.registers)
    return intrinsic("multiply", kind_, [kind_, INTEGER], generate)


@cache
def wait(acc: DTypeLike, n: int, pending: int) -> Any:
    """`f(acc)`: wait until at most `pending` products are under way; with 0 the sums that come out may be read."""
    kind = frag(acc, n)
    text = f"wgmma.wait_group.sync.aligned {pending};"

    def generate(b: Any, values: list[Any]) -> Any:
        if pending:
            asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)
            return values[0]
        return pack(b, tied(b, text, unpack(b, values[0], n)), n)

    return intrinsic("wait", kind, [kind], generate)


@cache
def opaque(dtype: DTypeLike, n: int) -> Any:
    """`f(tile)`: the tile, in registers of its own."""
    kind = frag(dtype, n)

    def generate(b: Any, values: list[Any]) -> Any:
        return pack(b, tied(b, "", unpack(b, values[0], n)), n)

    return intrinsic("opaque", kind, [kind], generate)


@cache
def part(dtype: DTypeLike, source: Layout, target: Layout, number: int) -> Any:
    """`f(x)`: of a tile of `source` the `number`th columns of `target`'s shape: a choice among registers."""
    where = {offset: register for register, offset in enumerate(source.offsets)}
    moved = number * target.shape[1]
    chosen = [where[row, column + moved] for row, column in target.offsets]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], source.registers)
        return pack(b, [elements[register] for register in chosen], target.registers)

    return intrinsic("part", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
