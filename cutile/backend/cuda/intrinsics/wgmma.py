"""Matrix products by warpgroups of four warps (`wgmma`, sm_90a).

Operands are in shared memory, accumulators in registers. A product is begun, and goes on while the warpgroup does
something else. Until it is waited for, its accumulator must not be touched, and its operands must stay (PTX ISA,
"Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
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
    const,
    i32c,
    ir,
    shuffle_from,
    thread,
)
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, SmemLayout
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

ADDRESS_BITS = 0x3FFF
"""Mask of the 14 bits of a shared-memory address in units of 16 bytes (PTX ISA, "Matrix Descriptor Format").

The bits above them, if any, are the block's number in its cluster.
"""
ADDRESS_SHIFT = 4
"""Bits: a descriptor has addresses in units of 16 bytes (PTX ISA, "Matrix Descriptor Format")."""
BLOCK = 8
"""Columns of a block of an accumulator: a thread has two neighbouring columns of each block, in each of two rows (PTX
ISA, "Register Fragments and Shared Memory Matrix Layouts")."""


def group_number(b: Any, *, once: bool = False) -> Any:
    """The number of the thread's warpgroup, which the compiler knows to be uniform.

    Args:
        b: the builder.
        once: whether LLVM may compute it once, ahead of loops. That saves 60 cycles in each product, and takes a
            register. All lanes of the warp must run this code.
    """
    number = b.lshr(thread(b), i32c(WARPGROUP.bit_length() - 1))
    # It is lane 0's number, which all lanes share: the compiler keeps it in a uniform register only behind a shuffle.
    if once:  # PTX without an effect, which LLVM may move, unlike a call of the intrinsic (PTX ISA, "shfl.sync")
        return asm(b, I32, [number], f"shfl.sync.idx.b32 $0, $1, 0, {LANES - 1}, {ALL_LANES};", "=r,r")
    return shuffle_from(b, number, i32c(0))


def tied(b: Any, text: str, elements: list[Any], *operands: Any, constraints: str = "") -> list[Any]:
    """Inline PTX that changes elements in place; return the changed elements.

    In `text`, `$0` and so on are the elements as results. Then come the elements as inputs, and then the operands with
    these constraints.
    """
    count = len(elements)
    kind = elements[0].type
    letter = "f" if str(kind) == "float" else "r"
    result = ir.LiteralStructType([kind] * count)
    listed = ",".join([f"={letter}"] * count + [str(i) for i in range(count)] + ([constraints] if constraints else []))
    # An input that names an output's number takes its register: the elements change in place.
    results = asm(b, result, [*elements, *operands], text, listed, effect=True)
    return [b.extract_value(results, i) for i in range(count)]


def descriptor(b: Any, base: int, address_: Any) -> Any:
    """The matrix descriptor for an address in shared memory.

    `base` has its other fields (`SmemLayout.descriptor`). The block's number in its cluster, which an address may have,
    is masked out.
    """
    place = b.zext(b.and_(b.lshr(address_, i32c(ADDRESS_SHIFT)), i32c(ADDRESS_BITS)), I64)
    return b.or_(place, const(I64, base - (1 << 64) if base >> 63 else base))  # as a signed number of 64 bits


class Instruction:
    """`wgmma` for two dtypes, a number of columns, and the operands' layouts."""

    def __init__(self, dtype: DTypeLike, other: DTypeLike, columns: int, left: SmemLayout, right: SmemLayout) -> None:
        atom = MMA_ATOMS[dtype]
        self._count = columns // 2  # registers of a thread for 64 rows by `columns`, over 128 threads
        sums = "s32" if atom.sums is i32 else "f32"
        self._kind = f"m64n{columns}k{self.step_of(dtype)}.{sums}.{atom.name}.{MMA_ATOMS[other].name}"
        self._flags = atom.flags
        if atom.any_major:  # the flags imm-trans-a and imm-trans-b: 1 where the operand is contiguous across K
            self._flags += f", {int(not left.k_major)}, {int(not right.k_major)}"
        self._sums = I32 if atom.sums is i32 else F32

    @staticmethod
    def step_of(dtype: DTypeLike) -> int:
        """Elements along K that one instruction takes."""
        return STEP_BYTES // (dtype.bits // 8)

    def add(self, b: Any, sums: list[Any], x: Any, y: Any, added: Any = None) -> list[Any]:
        """Begin to add a product to sums, or to replace them if `added` is false.

        `x` and `y` are the operands' descriptors.
        """
        first = 2 * self._count
        operands = f"${first}, ${first + 1}"
        if added is None:
            return tied(b, self._text(operands, "1"), sums, x, y, constraints="l,l")
        # The predicate scale-d follows the operands: if it is false, the product replaces the accumulator (PTX ISA,
        # "wgmma.mma_async").
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${first + 2}, 0; {self._text(operands, 'p')} }}"
        return tied(b, text, sums, x, y, b.zext(added, I32), constraints="l,l,r")

    def add_from(self, b: Any, sums: list[Any], x: list[Any], y: Any, added: Any = None) -> list[Any]:
        """As `add`, with the left operand in four registers."""
        # Four registers of 128 threads are 64 rows by 32 bytes (PTX ISA, "Register Fragments and Shared Memory Matrix
        # Layouts").
        first = 2 * self._count
        operands = f"{{${first}, ${first + 1}, ${first + 2}, ${first + 3}}}, ${first + 4}"
        if added is None:
            return tied(b, self._text(operands, "1"), sums, *x, y, constraints="r,r,r,r,l")
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${first + 5}, 0; {self._text(operands, 'p')} }}"
        return tied(b, text, sums, *x, y, b.zext(added, I32), constraints="r,r,r,r,l,r")

    def begin(self, b: Any, x: Any, y: Any) -> list[Any]:
        """Begin a product that adds to nothing; return its new accumulator registers."""
        letter = "r" if self._sums is I32 else "f"
        constraints = ",".join([f"={letter}"] * self._count + ["l", "l"])
        kind = ir.LiteralStructType([self._sums] * self._count)
        # scale-d is 0: the accumulator is only written, and needs no zeros (PTX ISA, "wgmma.mma_async").
        sums = asm(b, kind, [x, y], self._text(f"${self._count}, ${self._count + 1}", "0"), constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(self._count)]

    def _text(self, operands: str, added: str) -> str:
        sums = ", ".join(f"${i}" for i in range(self._count))
        return f"wgmma.mma_async.sync.aligned.{self._kind} {{{sums}}}, {operands}, {added}{self._flags};"


def begin_group(b: Any) -> None:
    """Order products after earlier accesses to the registers that they read and write."""
    # Without it, a product that reads registers written before has an undefined result (PTX ISA, "wgmma.fence").
    asm(b, VOID, [], "wgmma.fence.sync.aligned;", "~{memory}", effect=True, convergent=True)


def commit(b: Any) -> None:
    """Make one group of the products begun since the last commit."""
    # Waits are for groups, not for products (PTX ISA, "wgmma.commit_group").
    asm(b, VOID, [], "wgmma.commit_group.sync.aligned;", "~{memory}", effect=True, convergent=True)


@cache
def undef(dtype: DTypeLike, n: int) -> Any:
    """`f()`: registers with any values, without an instruction that sets them."""

    def generate(b: Any, _: list[Any]) -> Any:
        kind = ir.LiteralStructType([I32 if dtype is i32 else F32] * n)
        letter = "r" if dtype is i32 else "f"
        # Empty PTX with outputs; LLVM's `undef` might be another value at each use.
        registers = asm(b, kind, [], "", ",".join([f"={letter}"] * n), effect=True)
        return pack(b, [b.extract_value(registers, i) for i in range(n)], n)

    return intrinsic("undef", frag(dtype, n), [], generate)


@cache
def zero_unless(dtype: DTypeLike, n: int) -> Any:
    """`f(tile, condition)`: the tile, or zeros if the condition does not hold."""
    kind = frag(dtype, n)
    zero = "mov.b32 ${}, 0;" if dtype is i32 else "mov.f32 ${}, 0f00000000;"

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], n)
        zeros = " ".join(zero.format(i) for i in range(n))
        # A jump over the moves, not a selection of each register (PTX ISA, "bra").
        text = f"{{ .reg .pred p; setp.ne.b32 p, ${2 * n}, 0; @p bra D; {zeros} D: }}"
        return pack(b, tied(b, text, elements, b.zext(values[1], I32), constraints="r"), n)

    return intrinsic("zero_unless", kind, [kind, frag(bool_, 0)], generate)


@cache
def optimization_barrier(dtype: DTypeLike, n: int) -> Any:
    """`f(tile)`: the tile, in registers that the compiler takes for new ones."""
    kind = frag(dtype, n)

    def generate(b: Any, values: list[Any]) -> Any:
        # Empty PTX changes the elements in place, as far as LLVM knows.
        return pack(b, tied(b, "", unpack(b, values[0], n)), n)

    return intrinsic("optimization_barrier", kind, [kind], generate)


@cache
def subtile(dtype: DTypeLike, source: Layout, target: Layout, number: int) -> Any:
    """`f(x)`: subtile `number` of a tile: as many columns as `target` has.

    No element moves: each thread takes some of its registers.
    """
    where = {offset: register for register, offset in enumerate(source.offsets)}
    first = number * target.shape[1]
    registers = [where[row, column + first] for row, column in target.offsets]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], source.registers)
        return pack(b, [elements[register] for register in registers], target.registers)

    return intrinsic("subtile", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
