"""Matrix products by warpgroups of four warps (`wgmma`, sm_90a).

Operands are in shared memory, accumulators in registers. PTX ISA, "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions": a product is begun, and goes on while the warpgroup does something else. Until it is
waited for, its accumulator must not be touched, and its operands stay.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    ALL_LANES,
    F32,
    I32,
    I64,
    LANES,
    VOID,
    address,
    asm,
    call,
    const,
    i32c,
    ir,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, stage_of
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, WGMMA_ROWS, MmaOperands, SmemLayout
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

ADDRESS_BITS = 0x3FFF
"""The bits of an address in shared memory, in units of 16 bytes; above them is the block's number in its cluster."""
ADDRESS_SHIFT = 4
"""A descriptor has addresses in units of 16 bytes (PTX ISA, "Matrix Descriptor Format")."""
BLOCK = 8
"""Columns of an accumulator of which a thread has two neighbours, in each of two rows."""


def group_number(b: Any) -> Any:
    """The thread's warpgroup, as a value that the compiler knows to be uniform."""
    number = b.lshr(thread(b), i32c(WARPGROUP.bit_length() - 1))
    # Lane 0's, which is every lane's: only a shuffle lets the compiler keep it in a uniform register.
    operands = [i32c(ALL_LANES), number, i32c(0), i32c(LANES - 1)]
    return call(b, "llvm.nvvm.shfl.sync.idx.i32", I32, operands, convergent=True)


def tied(b: Any, text: str, elements: list[Any], *operands: Any, constraints: str = "") -> list[Any]:
    """Inline PTX that changes elements in place.

    `$0` and so on are the elements; the operands come behind them.
    """
    count = len(elements)
    kind = elements[0].type
    letter = "f" if str(kind) == "float" else "r"
    result = ir.LiteralStructType([kind] * count)
    listed = ",".join([f"={letter}"] * count + [str(i) for i in range(count)] + ([constraints] if constraints else []))
    # An input that names an output's number takes its register: the elements change in place.
    changed = asm(b, result, [*elements, *operands], text, listed, effect=True)
    return [b.extract_value(changed, i) for i in range(count)]


def descriptor(b: Any, base: int, address_: Any) -> Any:
    """The matrix descriptor for an address in shared memory.

    The block's number in its cluster is no part of it.
    """
    place = b.zext(b.and_(b.lshr(address_, i32c(ADDRESS_SHIFT)), i32c(ADDRESS_BITS)), I64)
    return b.or_(place, const(I64, base - (1 << 64) if base >> 63 else base))  # as a signed number of 64 bits


class Instruction:
    """One form of `wgmma`, of so many columns, and the operands of one stage."""

    def __init__(self, dtype: DTypeLike, other: DTypeLike, columns: int, left: SmemLayout, right: SmemLayout) -> None:
        form = MMA_ATOMS[dtype]
        self._count = columns // 2  # 64 rows by `columns`, over 128 threads
        self._kind = f"m64n{columns}k{self.step_of(dtype)}.{form.sums_name}.{form.name}.{MMA_ATOMS[other].name}"
        self._flags = form.flags
        if form.any_major:
            self._flags += f", {int(not left.k_major)}, {int(not right.k_major)}"
        self._sums = I32 if form.sums is i32 else F32

    @staticmethod
    def step_of(dtype: DTypeLike) -> int:
        """Elements along K that one instruction takes."""
        return STEP_BYTES // (dtype.bits // 8)

    def add(self, b: Any, sums: list[Any], x: Any, y: Any, added: Any = None) -> list[Any]:
        """Begin to add a product to sums.

        Or to replace them, if the flag `added` does not hold.
        """
        first = 2 * self._count
        operands = f"${first}, ${first + 1}"
        if added is None:
            return tied(b, self._text(operands, "1"), sums, x, y, constraints="l,l")
        # scale-d, the predicate behind the operands: where it is false the product replaces the accumulator.
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${first + 2}, 0; {self._text(operands, 'p')} }}"
        return tied(b, text, sums, x, y, b.zext(added, I32), constraints="l,l,r")

    def add_from(self, b: Any, sums: list[Any], x: list[Any], y: Any, added: Any = None) -> list[Any]:
        """As `add`, with the left operand in four registers."""
        # PTX ISA, "Register Fragments and Shared Memory Matrix Layouts": 64 rows by 32 bytes, over 128 threads.
        first = 2 * self._count
        operands = f"{{${first}, ${first + 1}, ${first + 2}, ${first + 3}}}, ${first + 4}"
        if added is None:
            return tied(b, self._text(operands, "1"), sums, *x, y, constraints="r,r,r,r,l")
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${first + 5}, 0; {self._text(operands, 'p')} }}"
        return tied(b, text, sums, *x, y, b.zext(added, I32), constraints="r,r,r,r,l,r")

    def begin(self, b: Any, x: Any, y: Any) -> list[Any]:
        """Begin a product in registers of its own."""
        letter = "r" if self._sums is I32 else "f"
        constraints = ",".join([f"={letter}"] * self._count + ["l", "l"])
        kind = ir.LiteralStructType([self._sums] * self._count)
        # scale-d is 0: the accumulator is only written, and needs no zeros.
        sums = asm(b, kind, [x, y], self._text(f"${self._count}, ${self._count + 1}", "0"), constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(self._count)]

    def _text(self, operands: str, added: str) -> str:
        sums = ", ".join(f"${i}" for i in range(self._count))
        return f"wgmma.mma_async.sync.aligned.{self._kind} {{{sums}}}, {operands}, {added}{self._flags};"


def stage_at(b: Any, mma_operands: MmaOperands, counter: Any) -> Any:
    """The address of the stage of a counter."""
    return b.add(
        address(b, mma_operands.place), b.mul(stage_of(b, counter, mma_operands.stages), i32c(mma_operands.stage_bytes))
    )


def begin_group(b: Any) -> None:
    """Order products after earlier accesses to the registers that they read and write."""
    # Without it, what a product finds in an accumulator that was written before is undefined (PTX ISA, "wgmma.fence").
    asm(b, VOID, [], "wgmma.fence.sync.aligned;", "~{memory}", effect=True, convergent=True)


def commit(b: Any) -> None:
    """Make one group of the products begun since the last commit.

    They are waited for together.
    """
    # Only groups can be waited for (PTX ISA, "wgmma.commit_group").
    asm(b, VOID, [], "wgmma.commit_group.sync.aligned;", "~{memory}", effect=True, convergent=True)


class _Operands:
    """The descriptors of both operands in the stage of a counter.

    The left one begins at the rows of this thread's warpgroup.
    """

    def __init__(self, b: Any, mma_operands: MmaOperands, counter: Any, groups: int) -> None:
        self._b, self._mma_operands, self._rows = b, mma_operands, WGMMA_ROWS * groups
        left, stage = mma_operands.left, stage_at(b, mma_operands, counter)
        mine = b.add(stage, b.mul(group_number(b), i32c(left.offset(WGMMA_ROWS, 0)))) if groups > 1 else stage
        self._left = descriptor(b, left.descriptor, mine)
        self._right = descriptor(b, mma_operands.right.descriptor, b.add(stage, i32c(left.place_bytes)))

    def at(self, m: int, column: int, k: int) -> tuple[Any, Any]:
        """Those of the `m`th rows, from `column` on, and from depth `k` on."""
        b, mma_operands = self._b, self._mma_operands
        x = b.add(self._left, const(I64, mma_operands.left.offset(m * self._rows, k) >> ADDRESS_SHIFT))
        return x, b.add(self._right, const(I64, mma_operands.right.offset(column, k) >> ADDRESS_SHIFT))


def _add_promoted(b: Any, elements: list[Any], products: list[list[Any]], places: list[slice]) -> None:
    """Wait for products, and add each to the elements at its place, in f32."""
    # Tied: the products are read below, and must not be read ahead of the wait (PTX ISA, "wgmma.wait_group").
    over = iter(tied(b, "wgmma.wait_group.sync.aligned 0;", [each for product in products for each in product]))
    for place in places:
        elements[place] = [b.fadd(x, next(over)) for x in elements[place]]


@cache
def multiply(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    layout: Layout,
    mma_operands: MmaOperands,
    *,
    promote_columns: int = 0,
    replaces: bool = False,
    swap_ab: bool = False,
) -> Any:
    """`f(acc, counter)`: begin to add the product of a stage's operands.

    Args:
        dtype: of the left operand.
        other: of the right one.
        acc: of the sums.
        layout: of the sums: a `group_accumulator`, or an `own_accumulator`.
        fed: where the operands are.
        promote_columns: columns that are multiplied apart, waited for, and added in f32; 0 adds to the sums themselves.
        replaces: `f(acc, counter, added)`: the product takes the place of the sums where `added` does not hold.
        swap_ab: the sums are those of the transpose: their rows are the instruction's columns.
    """
    rows, columns = reversed(layout.cover) if swap_ab else layout.cover
    groups = layout.core[1 if swap_ab else 0] // WGMMA_ROWS
    wide = promote_columns or columns
    instruction = Instruction(dtype, other, wide, mma_operands.left, mma_operands.right)
    tall = range(-(-rows // (WGMMA_ROWS * groups)))

    def place(m: int, column: int) -> slice:
        first = layout.registers // len(tall) * m + column // 2
        return slice(first, first + wide // 2)

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], layout.registers)
        operands = _Operands(b, mma_operands, values[1], groups)
        for column in range(0, columns, wide):
            begin_group(b)  # the sums may have been set by other instructions
            products: list[list[Any]] = [[] for _ in tall]
            for k in range(0, mma_operands.depth, instruction.step_of(dtype)):
                for m in tall:
                    at = place(m, column)
                    if not promote_columns:
                        added = values[2] if replaces and k == 0 else None
                        elements[at] = instruction.add(b, elements[at], *operands.at(m, column, k), added)
                    elif k == 0:
                        products[m] = instruction.begin(b, *operands.at(m, column, k))
                    else:
                        products[m] = instruction.add(b, products[m], *operands.at(m, column, k))
            commit(b)
            if promote_columns:
                _add_promoted(b, elements, products, [place(m, column) for m in tall])
        return pack(b, elements, layout.registers)

    kind = frag(acc, layout.registers)
    return intrinsic("multiply", kind, [kind, INTEGER, *[frag(bool_, 0)] * replaces], generate)


@cache
def wait(acc: DTypeLike, n: int, pending: int) -> Any:
    """`f(acc)`: wait until at most `pending` groups are under way.

    With 0 the sums that come out may be read.
    """
    kind = frag(acc, n)
    text = f"wgmma.wait_group.sync.aligned {pending};"

    def generate(b: Any, values: list[Any]) -> Any:
        if pending:
            # The sums are not touched before a later wait, so they are not tied to this one: a stage becomes free.
            asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)
            return values[0]
        return pack(b, tied(b, text, unpack(b, values[0], n)), n)

    return intrinsic("wait", kind, [kind], generate)


@cache
def undef(dtype: DTypeLike, n: int) -> Any:
    """`f()`: registers with anything in them, without an instruction that sets them."""

    def generate(b: Any, _: list[Any]) -> Any:
        kind = ir.LiteralStructType([I32 if dtype is i32 else F32] * n)
        letter = "r" if dtype is i32 else "f"
        # No instruction that has outputs: an `undef` of LLVM may be another number at each use.
        registers = asm(b, kind, [], "", ",".join([f"={letter}"] * n), effect=True)
        return pack(b, [b.extract_value(registers, i) for i in range(n)], n)

    return intrinsic("undef", frag(dtype, n), [], generate)


@cache
def zero_unless(dtype: DTypeLike, n: int) -> Any:
    """`f(tile, condition)`: the tile, or zeros if the condition does not hold.

    By a jump, which is the rare case.
    """
    kind = frag(dtype, n)
    zero = "mov.b32 ${}, 0;" if dtype is i32 else "mov.f32 ${}, 0f00000000;"

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        zeros = " ".join(zero.format(i) for i in range(n))
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${2 * n}, 0; @p bra D; {zeros} D: }}"
        return pack(b, tied(b, text, elements, b.zext(values[1], I32), constraints="r"), n)

    return intrinsic("zero_unless", kind, [kind, frag(bool_, 0)], generate)


@cache
def optimization_barrier(dtype: DTypeLike, n: int) -> Any:
    """`f(tile)`: the tile, in registers of its own."""
    kind = frag(dtype, n)

    def generate(b: Any, values: list[Any]) -> Any:
        return pack(b, tied(b, "", unpack(b, values[0], n)), n)

    return intrinsic("optimization_barrier", kind, [kind], generate)


@cache
def subtile(dtype: DTypeLike, source: Layout, target: Layout, number: int) -> Any:
    """`f(x)`: the `number`th columns of `target`'s shape, of a tile of `source`.

    A choice among registers.
    """
    where = {offset: register for register, offset in enumerate(source.offsets)}
    moved = number * target.shape[1]
    registers = [where[row, column + moved] for row, column in target.offsets]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], source.registers)
        return pack(b, [elements[register] for register in registers], target.registers)

    return intrinsic("subtile", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
