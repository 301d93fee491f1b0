"""Products by warpgroups (`wgmma`, sm_90a) whose operands lie in any buffers.

The left operand may be in registers. A product is begun, and goes on while the warpgroup does something else. Until it
is waited for, its sums and the registers that it reads must not be touched (PTX ISA, "Asynchronous Warpgroup Level
Matrix Multiply-Accumulate Instructions").
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    HALF_BITS,
    I32,
    I64,
    LANES,
    VOID,
    asm,
    call,
    const,
    i32c,
    ir,
    lane_of,
    shuffle_from,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, address, stage_of
from cutile.backend.cuda.intrinsics.wgmma import (
    ADDRESS_SHIFT,
    Instruction,
    begin_group,
    commit,
    descriptor,
    group_number,
    tied,
)
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, BufferStages, SmemLayout
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i32

HALF_STEP_BITS = 128
"""Bits of a row in half of an instruction's depth: a register in each of four lanes (PTX ISA, "Register Fragments and
Shared Memory Matrix Layouts")."""


def stage_address(b: Any, place: BufferStages, counter: Any) -> Any:
    """The address of the stage of a counter."""
    if place.stages == 1:
        return address(b, place.place)
    return b.add(address(b, place.place), b.mul(stage_of(b, counter, place.stages), i32c(place.stage_bytes)))


def _fence_registers(b: Any, *groups: list[Any]) -> list[list[Any]]:
    """Registers behind a fence, in the groups they came in, for use in a product."""
    flat = [register for group in groups for register in group]
    letters = ["f" if str(register.type) == "float" else "r" for register in flat]
    kind = ir.LiteralStructType([register.type for register in flat])
    listed = ",".join([*(f"={letter}" for letter in letters), *map(str, range(len(flat))), "~{memory}"])
    # The fence of `begin_group`, with the registers as its inputs and outputs (PTX ISA, "wgmma.fence"): `dot` says why,
    # where it calls this function.
    results = asm(b, kind, flat, "wgmma.fence.sync.aligned;", listed, effect=True, convergent=True)
    registers = iter(b.extract_value(results, i) for i in range(len(flat)))
    return [[next(registers) for _ in group] for group in groups]


class _FromRegisters(Instruction):
    """A product whose left operand is four registers of each thread.

    They hold 32 bytes of each row. A register has two neighbouring columns of 16-bit elements, which one thread has in
    an accumulator too. So the result of one product is the operand of another, and no element moves. Of 8-bit elements
    a register has four neighbours, which threads exchange before (`pack_quads`).
    """

    def __init__(self, dtype: DTypeLike, other: DTypeLike, columns: int, right: SmemLayout) -> None:
        super().__init__(dtype, other, columns, right, right)
        # An instruction has a flag for the contiguous axis of each operand that has a descriptor: not for registers,
        # but for the right operand, if its dtype allows either axis (16 bits; PTX ISA, "wgmma.mma_async").
        atom = MMA_ATOMS[dtype]
        self._flags = atom.flags + (f", {int(not right.k_major)}" if atom.any_major else "")

    def add(self, b: Any, sums: list[Any], x: Any, y: Any, added: Any = None) -> list[Any]:
        """As `Instruction.add`; `x` is four registers."""
        return self.add_from(b, sums, x, y, added)

    def begin(self, b: Any, x: Any, y: Any) -> list[Any]:
        """As `Instruction.begin`; `x` is four registers."""
        letter = "r" if self._sums is I32 else "f"
        count = self._count
        # Four registers, as in `add_from`; then the right operand's descriptor.
        operands = f"{{{', '.join(f'${count + i}' for i in range(4))}}}, ${count + 4}"
        constraints = ",".join([f"={letter}"] * count + ["r", "r", "r", "r", "l"])
        kind = ir.LiteralStructType([self._sums] * count)
        # scale-d is 0, as in `Instruction.begin`.
        sums = asm(b, kind, [*x, y], self._text(operands, "0"), constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(count)]


class _Left:
    """The left operand of a product: registers, or descriptors of a stage.

    Args:
        b: the builder.
        left: where its stages are, or the layout of its words in registers.
        value: the stage counter, or the fragment of words.
        groups: warpgroups, each with 64 rows in turn.
        instructions: the number of blocks of 64 rows that a warpgroup has.
        bits: of an element.
        once: as of `group_number`.
    """

    def __init__(
        self, b: Any, left: BufferStages | Layout, value: Any, groups: int, instructions: int, bits: int, *, once: bool
    ) -> None:
        self._b, self._left, self._rows, self._bits = b, left, WGMMA_ROWS * groups, bits
        if isinstance(left, Layout):
            self.words = unpack(b, value, left.registers)
            self._words_per_block = len(self.words) // instructions
            return
        self.stage = own = stage_address(b, left, value)
        if groups > 1:
            own = b.add(own, b.mul(group_number(b, once=once), i32c(left.smem_layout.offset(WGMMA_ROWS, 0))))
        self._first = descriptor(b, left.smem_layout.descriptor, own)

    def at(self, m: int, k: int) -> Any:
        """The operand of one instruction: from element `k` along K on.

        `m` is the number of the warpgroup's block of 64 rows.
        """
        if isinstance(self._left, Layout):
            # A lane has a register for each half of the depth of each of two rows, 8 apart: four for an instruction
            # (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts").
            first = m * self._words_per_block + k * self._bits // HALF_STEP_BITS * 2
            return self.words[first : first + 4]
        offset = self._left.smem_layout.offset(m * self._rows, k)
        return self._b.add(self._first, const(I64, offset >> ADDRESS_SHIFT))


def _add_promoted(b: Any, elements: list[Any], products: list[list[Any]], places: list[slice]) -> None:
    """Wait for partial accumulators, and add each to the sums at its place, in f32."""
    # Tied, so that the products are not read ahead of the wait (PTX ISA, "wgmma.wait_group").
    flat = [partial for product in products for partial in product]
    partials = iter(tied(b, "wgmma.wait_group.sync.aligned 0;", flat))
    for place in places:
        elements[place] = [b.fadd(x, next(partials)) for x in elements[place]]


@cache
def dot(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    layout: Layout,
    left: BufferStages | Layout,
    right: BufferStages,
    depth: int,
    *,
    fresh: bool = False,
    together: bool = False,
    replaces: bool = False,
    promote_columns: int = 0,
    left_first: int = 0,
    right_first: int = 0,
) -> Any:
    """`f(counter, left counter, acc)`: begin to add a product to sums.

    `counter` names the right operand's stage, `left counter` the left one's.

    Args:
        dtype: of the left operand.
        other: of the right one.
        acc: of the sums.
        layout: of the sums: a `group_accumulator` or an `across_accumulator`.
        left: where the left operand's stages are: `f(counter, left counter, ...)`. Or, of an operand in registers, the
            layout of its words of two or four elements, a `group_accumulator` too: `f(counter, words, ...)`.
        right: where the right operand's stages are.
        depth: elements along K.
        fresh: there are no sums to add to: `f(counter, left counter)`.
        together: both operands are in the stage of one counter: `f(counter, acc)`.
        replaces: `f(..., acc, added)`: if the bool `added` is false, the product replaces the sums.
        promote_columns: columns of a partial accumulator, which is waited for and then added to the sums in f32. 0 for
            none: the tensor cores add to the sums.
        left_first: the element along K of the left operand's tile at which the product begins.
        right_first: the same for the right operand.
    """
    rows, columns = layout.cover
    groups = layout.core[0] // WGMMA_ROWS
    sharing = 1 << sum(bool(basis[1]) for basis in layout.warp)  # warpgroups that share the columns
    columns //= sharing  # of a warpgroup
    width = promote_columns or columns  # columns of an instruction
    blocks = range(-(-rows // (WGMMA_ROWS * groups)))  # of 64 rows of a warpgroup: an instruction each
    order = range(layout.registers)  # the register of each of the instruction's sums
    if right.smem_layout.interleaved:  # the operand's columns lie in another order, and so do the instruction's sums
        registers = {offset: register for register, offset in enumerate(layout.offsets)}
        offsets = group_accumulator((rows, columns), groups).offsets
        order = [registers[row, right.smem_layout.row_at(column)] for row, column in offsets]
    if isinstance(left, Layout):
        instruction: Instruction = _FromRegisters(dtype, other, width, right.smem_layout)
    else:
        instruction = Instruction(dtype, other, width, left.smem_layout, right.smem_layout)

    def place(m: int, column: int) -> slice:
        # Of 64 rows over 128 threads, a thread has one element in each two columns.
        first = layout.registers // len(blocks) * m + column // 2
        return slice(first, first + width // 2)

    def generate(b: Any, values: list[Any]) -> Any:
        counter, *more = values
        right_stage = None if together else stage_address(b, right, counter)
        # The warpgroup's number comes by a shuffle, for which each product waits. One shuffle ahead of loops would do,
        # but then the number takes a register: gradients of attention, all of 16 bits, have none to spare.
        once = dtype.bits == 8
        operand = _Left(b, left, counter if together else more.pop(0), groups, len(blocks), dtype.bits, once=once)
        if right_stage is None and isinstance(left, BufferStages):
            right_stage = b.add(operand.stage, i32c(right.place - left.place))
        if sharing > 1:
            own = b.mul(group_number(b, once=True), i32c(right.smem_layout.offset(columns, 0)))
            right_stage = b.add(right_stage, own)
        right_at = descriptor(b, right.smem_layout.descriptor, right_stage)
        acc_registers = [None] * layout.registers if fresh else unpack(b, more[0], layout.registers)
        elements = [acc_registers[register] for register in order]
        starts_anew = fresh or promote_columns > 0  # the first instruction adds to nothing
        for column in range(0, columns, width):
            places = [place(m, column) for m in blocks]
            products = [[] if starts_anew else elements[at] for at in places]
            if isinstance(left, Layout):
                # The fence redefines the registers that the product reads. So ptxas has no reason to copy them while
                # another product is under way, for which it would serialise both (its remark C7513).
                *products, operand.words = _fence_registers(b, *products, operand.words)
            else:
                begin_group(b)  # the sums may have been set by other instructions
            for k in range(0, depth, instruction.step_of(dtype)):
                for m in blocks:
                    x = operand.at(m, left_first + k)
                    offset = right.smem_layout.offset(column, right_first + k)
                    y = b.add(right_at, const(I64, offset >> ADDRESS_SHIFT))
                    if starts_anew and k == 0:
                        products[m] = instruction.begin(b, x, y)
                    else:
                        products[m] = instruction.add(b, products[m], x, y, more[1] if replaces and k == 0 else None)
            commit(b)
            if promote_columns:
                _add_promoted(b, elements, products, places)
            else:
                for at, product in zip(places, products, strict=True):
                    elements[at] = product
        sums = dict(zip(order, elements, strict=True))
        return pack(b, [sums[register] for register in range(layout.registers)], layout.registers)

    kind = frag(acc, layout.registers)
    source = frag(i32, left.registers) if isinstance(left, Layout) else INTEGER
    rest = [*([] if fresh else [kind]), *[frag(bool_, 0)] * replaces]
    return intrinsic("dot", kind, [INTEGER, *([] if together else [source]), *rest], generate)


LOWER, UPPER, LOWER_OTHERS, UPPER_OTHERS = 0x5410, 0x7632, 0x1054, 0x3276
"""Selectors of `prmt` that join halves of two words: the lower halves, or the upper ones, with the first word's half
below; then the same with the second word's half below (PTX ISA, "prmt")."""
QUAD = 4
"""Lanes that share a row of sums; elements of 8 bits in a word."""
BYTE_BITS = 8


@cache
def pack_quads(dtype: DTypeLike, layout: Layout) -> Any:
    """`f(tile)`: a tile of 8-bit elements as words of four, as `wgmma` takes it.

    In a `group_accumulator` with four neighbours, four neighbours of a lane are a word. Else lane t of a quad has
    columns 2t and 2t + 1 of each 8, and needs columns 4t to 4t + 3 of each 16. A lane first joins its elements of 16
    columns to one word, whose halves are 8 columns apart. Then lane t needs half t // 2 of two such words, those of
    lanes 2 (t % 2) and 2 (t % 2) + 1. Words are exchanged by twos: one shuffle brings this half of two words of a lane.
    """
    n = layout.registers // QUAD

    def generate(b: Any, values: list[Any]) -> Any:
        elements = [b.zext(each, I32) for each in unpack(b, values[0], QUAD * n)]
        pairs = zip(elements[::2], elements[1::2], strict=True)
        halves = [b.or_(low, b.shl(high, i32c(BYTE_BITS))) for low, high in pairs]
        if layout.vector(1) == QUAD:
            pairs = zip(halves[::2], halves[1::2], strict=True)
            words = [b.or_(low, b.shl(high, i32c(HALF_BITS))) for low, high in pairs]
        else:
            words = _exchange_halves(b, halves)
        # Tied to empty PTX, so that LLVM joins the bytes here, and not while the product reads the words.
        return pack(b, tied(b, "", words), n)

    return intrinsic("pack_quads", frag(i32, n), [frag(dtype, QUAD * n)], generate)


def _exchange_halves(b: Any, halves: list[Any]) -> list[Any]:
    """Words for a product, each of halves from two lanes (`pack_quads`)."""

    def pick(x: Any, y: Any, selector: Any) -> Any:  # bytes of two words
        return call(b, "llvm.nvvm.prmt", I32, [x, y, selector])

    def either(condition: Any, then: int, otherwise: int) -> Any:
        return b.select(condition, i32c(then), i32c(otherwise))

    lane = lane_of(b, thread(b))
    odd, upper = (b.icmp_unsigned("!=", b.and_(lane, i32c(bit)), i32c(0)) for bit in (1, 2))
    quad, twice = b.and_(lane, i32c(LANES - QUAD)), b.shl(b.and_(lane, i32c(1)), i32c(1))
    near = b.or_(quad, b.or_(twice, b.zext(upper, I32)))  # lane 2 (t % 2) + t // 2 of the quad
    other = b.xor(near, i32c(1))
    # An even lane is `near` for lanes that need lower halves, and `other` for lanes that need upper halves.
    sent_near, sent_other = either(odd, UPPER, LOWER), either(odd, LOWER, UPPER)
    lower_word, upper_word = either(upper, LOWER_OTHERS, LOWER), either(upper, UPPER_OTHERS, UPPER)
    words: list[Any] = []
    # 32 columns of two rows at a time, which are 8 halves or 4 words: the rows take turns every 8 columns.
    for first in range(0, len(halves), 8):
        block = halves[first : first + 8]
        rows: list[list[Any]] = []
        for row in range(2):
            # The words of columns 0 to 15 and of 16 to 31: in the first row, halves 0 and 2, and halves 4 and 6.
            x, y = (b.or_(block[at + row], b.shl(block[at + row + 2], i32c(HALF_BITS))) for at in (0, 4))
            from_near = shuffle_from(b, pick(x, y, sent_near), near)
            from_other = shuffle_from(b, pick(x, y, sent_other), other)
            rows.append([pick(from_near, from_other, selector) for selector in (lower_word, upper_word)])
        words += [rows[0][0], rows[1][0], rows[0][1], rows[1][1]]
    return words


@cache
def wait(acc: DTypeLike, n: int, pending: int, words: int = 0, *, goes_on: bool = False) -> Any:
    """`f(acc)`: wait until at most `pending` groups of products are under way.

    Args:
        acc: the dtype of the sums.
        n: registers of the sums.
        pending: groups.
        words: registers of the product's left operand: `f(acc, left)`. They stay as they are until here.
        goes_on: whether a later product adds to the sums, which must not be read behind this wait.
    """
    kind = frag(acc, n)

    def generate(b: Any, values: list[Any]) -> Any:
        text = f"wgmma.wait_group.sync.aligned {pending};"
        if goes_on:
            # A stage becomes free. The sums are not touched before a later wait, so they are not tied to this one (PTX
            # ISA, "wgmma.wait_group").
            asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)
            return values[0]
        # Tied to the sums, even where others are pending: this product's are read next (PTX ISA, "wgmma.wait_group").
        operand = unpack(b, values[1], words) if words else []
        return pack(b, tied(b, text, unpack(b, values[0], n), *operand, constraints=",".join("r" * words)), n)

    return intrinsic("dot_wait", kind, [kind, *([frag(i32, words)] if words else [])], generate)
