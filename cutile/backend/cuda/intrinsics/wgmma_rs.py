"""Products by warpgroups with the left operand from registers, which threads read.

The operand is contiguous across K, where `wgmma` cannot read it (`pipeline/accumulators.py`).
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.dot import stage_address
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import I32, I64, VOID, asm, const, i32c, ir, lane_of, thread
from cutile.backend.cuda.intrinsics.pipeline import INTEGER
from cutile.backend.cuda.intrinsics.wgmma import (
    ADDRESS_SHIFT,
    BLOCK,
    Instruction,
    begin_group,
    commit,
    descriptor,
)
from cutile.backend.cuda.pipeline.accumulators import LANE_ROWS, WARP_ROWS, WORD
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, BufferStages, SmemLayout
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_

WORDS = ir.LiteralStructType([I32] * 4)
"""The left operand's registers (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts")."""
SECOND_HALF = 4
"""Ks from a lane's first read of words to its second."""
PLAIN_PAIRS = (0x6420, 0x7531)
"""Selectors of `prmt`: the even bytes of two words, and the odd ones (PTX ISA, "prmt")."""
SWAPPED_PAIRS = (0x2064, 0x3175)
"""The same, the second word's bytes first."""


def _bits(b: Any, number: Any, first: int, steps: tuple[int, ...]) -> Any:
    """The sum of the steps whose bits, from `first` on, are set in a number."""
    total: Any = None
    for place, step in enumerate(steps, first):
        bit = b.and_(b.lshr(number, i32c(place)), i32c(1))
        part = b.mul(bit, i32c(step))
        total = part if total is None else b.or_(total, part)
    return total


class Reader:
    """Reads rows of an operand that is contiguous across K.

    Args:
        b: the builder.
        smem_layout: how the operand lies.
        groups: warpgroups that share the rows.
        base: the address of the operand.
    """

    def __init__(self, b: Any, smem_layout: SmemLayout, groups: int, base: Any) -> None:
        self._b = b
        self._smem_layout = smem_layout
        self._base = base
        self._number = thread(b)
        # Bits from 5 on are the warp's number in its warpgroup, then the warpgroup's.
        self._warp = _bits(b, self._number, 5, (*WARP_ROWS[smem_layout.size], *([WGMMA_ROWS] if groups > 1 else [])))
        self._selectors = _select_pairs(b, self._number) if smem_layout.size != WORD else None

    def read(self, row: int, k: int) -> list[Any]:
        """This thread's part of 64 rows from `row` on, of 32 bytes along K from `k` on."""
        return self._words(row, k) if self._smem_layout.size == WORD else self._bytes(row, k)

    def fragment(self, words: list[Any]) -> list[Any]:
        """The four registers of the left operand, from the words that `read` gave."""
        b, selectors = self._b, self._selectors
        if selectors is None:
            return words
        # One instruction permutes the bytes of two registers (PTX ISA, "prmt").
        return [
            asm(b, I32, [*two, selector], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
            for two in (words[:2], words[2:])
            for selector in selectors
        ]

    def _place(self, row: Any, above: int, k: Any, beyond: int) -> Any:
        """The address of element (row + above, k + beyond).

        `beyond` is a multiple of 8, so that it does not change the swizzle.
        """
        b, smem_layout = self._b, self._smem_layout
        row = b.add(row, i32c(above)) if above % smem_layout.span else row
        panels = above // smem_layout.span if above % smem_layout.span == 0 else 0  # a constant of the address
        panel = b.lshr(row, i32c(smem_layout.span.bit_length() - 1))
        at = b.mul(b.and_(row, i32c(smem_layout.span - 1)), i32c(smem_layout.size))
        bits = smem_layout.swizzle.bit_length() - 5  # of a piece's number in a row of `swizzle` bytes
        # The swizzle flips the piece's number by the number of its row, which is k here; narrow swizzles skip the low
        # bits of the row's number (PTX ISA, "Swizzling Modes").
        mask = b.and_(b.lshr(k, i32c(3 - bits)), i32c((1 << bits) - 1))
        place = b.add(b.mul(panel, i32c(smem_layout.panel_bytes)), b.mul(k, i32c(smem_layout.swizzle)))
        place = b.add(self._base, b.add(place, b.xor(at, b.shl(mask, i32c(4)))))  # pieces of 16 bytes
        return b.add(place, i32c(panels * smem_layout.panel_bytes + beyond * smem_layout.swizzle))

    def _words(self, row: int, k: int) -> list[Any]:
        """Two reads of two neighbouring rows, at the lane's k and 4 on.

        A lane's k is the lower two bits of its number.
        """
        b, lane = self._b, lane_of(self._b, self._number)
        mine = b.or_(self._warp, _bits(b, lane, 2, LANE_ROWS[WORD]))
        words: list[Any] = []
        pair = ir.LiteralStructType([I32] * 2)
        for half in (0, SECOND_HALF):
            at = b.or_(b.and_(lane, i32c(SECOND_HALF - 1)), i32c(half))
            place = self._place(mine, row, at, k)
            # With an effect, so that LLVM keeps it between the stage's arrival and its release (PTX ISA, "ld").
            two = asm(b, pair, [place], "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r,~{memory}", effect=True)
            words += [b.extract_value(two, i) for i in range(2)]
        return words

    def _bytes(self, row: int, k: int) -> list[Any]:
        """Four blocks of 8 ks by 16 rows, transposed in pairs of rows.

        A lane needs four ks, of two rows. It gets them from two blocks, two ks from each: those at positions
        `2 (l % 4)` and the next of the block, for lane `l`. Which block has the first two ks depends on the lane: so
        the ks of a block differ in their swizzle, and their reads meet in no bank.
        """
        b, lane = self._b, lane_of(self._b, self._number)
        # Lanes 8 i to 8 i + 7 give the rows of matrix (block) i, which are ks here; the line is a row's number. The
        # bits of k, from the lowest: bit 0 of the line; bit 2 of the line, flipped in odd blocks; bits 1 and 2 of the
        # line; bit 1 of the block.
        line, block = b.and_(lane, i32c(7)), b.lshr(lane, i32c(3))
        upper = b.xor(b.lshr(line, i32c(2)), b.and_(block, i32c(1)))
        at = b.or_(b.and_(line, i32c(1)), b.shl(upper, i32c(1)))
        at = b.or_(at, b.shl(b.and_(b.lshr(line, i32c(1)), i32c(3)), i32c(2)))
        at = b.or_(at, b.shl(b.lshr(block, i32c(1)), i32c(4)))
        place = self._place(self._warp, row, at, k)
        # Transposed: elements that lie across K come along it (PTX ISA, "ldmatrix").
        text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"
        words = asm(b, WORDS, [place], text, "=r,=r,=r,=r,r,~{memory}", effect=True, convergent=True)
        return [b.extract_value(words, i) for i in range(len(WORDS.elements))]


def _select_pairs(b: Any, number: Any) -> tuple[Any, Any]:
    """Selectors of four ks of a lane's first row, and of its second row.

    They take the bytes of two blocks, the second block's first if bit 1 of the lane's number is set.
    """
    swapped = b.icmp_unsigned("!=", b.and_(number, i32c(2)), i32c(0))

    def pair(plain_selector: int, swapped_selector: int) -> Any:
        return b.select(swapped, i32c(swapped_selector), i32c(plain_selector))

    first, second = (pair(*selectors) for selectors in zip(PLAIN_PAIRS, SWAPPED_PAIRS, strict=True))
    return first, second


def _wait_for_oldest(b: Any, groups: int) -> None:
    """Wait until at most `groups - 1` groups of products are under way."""
    # An iteration has `groups` groups: the one that an iteration ago was begun here is done then (PTX ISA,
    # "wgmma.wait_group").
    text = f"wgmma.wait_group.sync.aligned {groups - 1};"
    asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)


def _places(layout: Layout, row: int, wide: int) -> list[int]:
    """The registers of an instruction's sums, whose rows begin at `row`.

    The instruction has a pair of columns in each of two rows, then the same in the next 8 columns.
    """
    registers = {offset: register for register, offset in enumerate(layout.offsets)}
    # PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", but for the rows: a lane's two are neighbours.
    offsets = [(row + (i >> 1 & 1), (i & 1) + (i >> 2) * BLOCK) for i in range(wide // 2)]
    return [registers[offset] for offset in offsets]


@cache
def multiply(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    layout: Layout,
    left: BufferStages,
    right: BufferStages,
    depth: int,
    *,
    replaces: bool = False,
) -> Any:
    """`f(counter, acc)`: begin to add a product whose left operand threads read.

    Each step of K is a group of its own. The next iteration reads into a step's registers again, once all groups but
    the later steps' are done. Bytes are permuted on their way, and so a whole iteration of them is read ahead: else a
    warpgroup that has the tensor cores to itself would wait for them between its products.

    Args:
        dtype, other, acc: of the left operand, of the right one, and of the sums.
        layout: of the sums: an `a_from_registers_accumulator`.
        left, right: where the operands' stages are, of one counter; the left one lies across K.
        depth: elements along K.
        replaces: `f(counter, acc, added)`, as of `dot.dot`.
    """
    tall, wide = layout.cover
    groups = layout.warps // 4  # of four warps each
    instruction = Instruction(dtype, other, wide, left.smem_layout, right.smem_layout)
    rows = range(0, tall, WGMMA_ROWS * groups)
    places = [_places(layout, row, wide) for row in rows]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[1], layout.registers)
        stage = stage_address(b, left, values[0])
        reader = Reader(b, left.smem_layout, groups, stage)
        right_stage = b.add(stage, i32c(right.place - left.place))
        right_at = descriptor(b, right.smem_layout.descriptor, right_stage)
        steps = range(0, depth, instruction.step_of(dtype))
        words: list[list[list[Any]]] = []

        def read(until: int) -> None:
            words.extend([reader.read(row, k) for row in rows] for k in steps[len(words) : until])

        if left.smem_layout.size != WORD:
            read(len(steps))
        for number, k in enumerate(steps):
            _wait_for_oldest(b, len(steps))  # the product that last read this step's registers
            read(number + 1)
            fragments = [reader.fragment(each) for each in words[number]]
            begin_group(b)  # the operand's registers have just been written
            for registers, fragment in zip(places, fragments, strict=True):
                y = b.add(right_at, const(I64, right.smem_layout.offset(0, k) >> ADDRESS_SHIFT))
                added = values[2] if replaces and k == 0 else None
                sums = instruction.add_from(b, [elements[register] for register in registers], fragment, y, added)
                for register, element in zip(registers, sums, strict=True):
                    elements[register] = element
            commit(b)
        return pack(b, elements, layout.registers)

    kind = frag(acc, layout.registers)
    return intrinsic("multiply", kind, [INTEGER, kind, *[frag(bool_, 0)] * replaces], generate)
