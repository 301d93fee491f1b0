"""Matrix products by warpgroups of four warps (`wgmma`, sm_90a).

Operands are in shared memory, accumulators in registers. PTX ISA, "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions": a product is begun, and goes on while the warpgroup does something else. Until it is
waited for, its accumulator must not be touched, and its operands stay.
"""

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
    asm,
    call,
    const,
    i32c,
    ir,
    thread,
)
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, SmemLayout
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

ADDRESS_BITS = 0x3FFF
"""The bits of an address in shared memory, in units of 16 bytes; above them is the block's number in its cluster."""
ADDRESS_SHIFT = 4
"""A descriptor has addresses in units of 16 bytes (PTX ISA, "Matrix Descriptor Format")."""
BLOCK = 8
"""Columns of an accumulator of which a thread has two neighbours, in each of two rows."""


def group_number(b: Any, *, once: bool = False) -> Any:
    """The thread's warpgroup, as a value that the compiler knows to be uniform.

    Args:
        b: the builder.
        once: whether it is to be worked out ahead of loops, where whole warps run: 60 cycles less for each product.
    """
    number = b.lshr(thread(b), i32c(WARPGROUP.bit_length() - 1))
    # Lane 0's, which is every lane's: only a shuffle lets the compiler keep it in a uniform register.
    if once:  # in PTX that LLVM may move, as it moves no call of the intrinsic
        return asm(b, I32, [number], f"shfl.sync.idx.b32 $0, $1, 0, {LANES - 1}, {ALL_LANES};", "=r,r")
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
        sums = "s32" if form.sums is i32 else "f32"
        self._kind = f"m64n{columns}k{self.step_of(dtype)}.{sums}.{form.name}.{MMA_ATOMS[other].name}"
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
