"""Products by warpgroups whose left operand threads read into registers.

The operand has elements of 8 or 32 bits and is contiguous across K in shared memory, where `wgmma` cannot read it
(`pipeline/accumulators.py`).
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.dot import stage_address
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import I32, I64, PIECE_SHIFT, VOID, asm, const, i32c, ir, lane_of, thread
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
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, bool_

FRAGMENT = ir.LiteralStructType([I32] * 4)
"""The left operand's registers (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts")."""
WARPGROUP_WARPS = 4
"""Warps of a warpgroup."""
SECOND_HALF = 4
"""Elements along K from a lane's first read of words to its second."""
PLAIN_PAIRS = (0x6420, 0x7531)
"""Selectors of `prmt`: the even bytes of two words, and the odd ones (PTX ISA, "prmt")."""
SWAPPED_PAIRS = (0x2064, 0x3175)
"""The same selectors with the second word's bytes first."""


def _sum_of_bits(b: Any, number: Any, first: int, steps: tuple[int, ...]) -> Any:
    """The sum of those steps whose bits are set in a number.

    Step `i` belongs to bit `first + i`. The steps are different powers of two, so that `or` adds them.
    """
    total: Any = None
    for bit, step in enumerate(steps, first):
        flag = b.and_(b.lshr(number, i32c(bit)), i32c(1))
        part = b.mul(flag, i32c(step))
        total = part if total is None else b.or_(total, part)
    return total


class Reader:
    """Reads rows of an operand that is contiguous across K.

    A thread reads the rows of which `a_from_registers_accumulator` gives it the sums.

    Args:
        b: the builder.
        smem_layout: how the operand lies.
        warpgroups: number of warpgroups, a power of two; they take blocks of 64 rows in turn.
        base: the address of the operand.
    """

    def __init__(self, b: Any, smem_layout: SmemLayout, warpgroups: int, base: Any) -> None:
        self._b = b
        self._smem_layout = smem_layout
        self._base = base
        self._number = thread(b)
        # Of a thread's number, bits 5 and 6 are the warp's in its warpgroup, and bits from 7 on the warpgroup's.
        group_rows = [WGMMA_ROWS << bit for bit in range(warpgroups.bit_length() - 1)]
        self._warp_row = _sum_of_bits(b, self._number, LANE_BITS, (*WARP_ROWS[smem_layout.size], *group_rows))
        self._selectors = _select_pairs(b, self._number) if smem_layout.size != WORD else None

    def read(self, row: int, k: int) -> list[Any]:
        """This thread's four words of 64 rows from `row` on and 32 bytes along K from `k`."""
        return self._words(row, k) if self._smem_layout.size == WORD else self._bytes(row, k)

    def fragment(self, words: list[Any]) -> list[Any]:
        """The four registers of the left operand, from the words that `read` gave.

        Words of 32-bit elements are these registers. Words of bytes hold two rows, and are permuted.
        """
        b, selectors = self._b, self._selectors
        if selectors is None:
            return words
        # One instruction permutes the bytes of two registers (PTX ISA, "prmt").
        return [
            asm(b, I32, [*pair, selector], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
            for pair in (words[:2], words[2:])
            for selector in selectors
        ]

    def _address(self, row: Any, more_rows: int, k: Any, more_k: int) -> Any:
        """The address of element (row + more_rows, k + more_k).

        `more_k` is a multiple of 8, which does not change the swizzle: it adds a constant to the address. `more_rows`
        adds one, too, if it is a whole number of panels.
        """
        b, smem_layout = self._b, self._smem_layout
        row = b.add(row, i32c(more_rows)) if more_rows % smem_layout.span else row
        more_panels = more_rows // smem_layout.span if more_rows % smem_layout.span == 0 else 0
        panel = b.lshr(row, i32c(smem_layout.span.bit_length() - 1))
        in_panel = b.mul(b.and_(row, i32c(smem_layout.span - 1)), i32c(smem_layout.size))  # bytes
        bits = smem_layout.swizzle.bit_length() - 5  # of a piece's number in a panel's row of `swizzle` bytes
        # The swizzle flips the piece's number by the number of the panel's row, which is k here. Narrow swizzles skip
        # the low bits of that number (PTX ISA, "Swizzling Modes").
        mask = b.and_(b.lshr(k, i32c(3 - bits)), i32c((1 << bits) - 1))
        place = b.add(b.mul(panel, i32c(smem_layout.panel_bytes)), b.mul(k, i32c(smem_layout.swizzle)))
        place = b.add(self._base, b.add(place, b.xor(in_panel, b.shl(mask, i32c(PIECE_SHIFT)))))
        return b.add(place, i32c(more_panels * smem_layout.panel_bytes + more_k * smem_layout.swizzle))

    def _words(self, row: int, k: int) -> list[Any]:
        """Two reads of two neighbouring rows: at the lane's k, and at the k 4 behind it.

        The lower two bits of a lane's number are its k.
        """
        b, lane = self._b, lane_of(self._b, self._number)
        lane_row = b.or_(self._warp_row, _sum_of_bits(b, lane, 2, LANE_ROWS[WORD]))
        words: list[Any] = []
        pair = ir.LiteralStructType([I32] * 2)
        for half in (0, SECOND_HALF):
            lane_k = b.or_(b.and_(lane, i32c(SECOND_HALF - 1)), i32c(half))
            place = self._address(lane_row, row, lane_k, k)
            # With an effect, so that LLVM keeps it between the stage's arrival and its release (PTX ISA, "ld").
            rows = asm(b, pair, [place], "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r,~{memory}", effect=True)
            words += [b.extract_value(rows, i) for i in range(2)]
        return words

    def _bytes(self, row: int, k: int) -> list[Any]:
        """Four blocks of 8 ks (indices along K) by 16 rows, transposed in pairs of rows.

        `ldmatrix` takes the bytes of two neighbouring rows for one element of 16 bits. A lane needs four ks of two
        rows. Lane `l` gets two of them from one block and two from another: in each block, the ks at position
        `2 (l % 4)` and at the next one. The lane decides which of the two blocks has its first two ks
        (`_select_pairs`). So the ks of a block differ in their swizzle, and their reads meet in no bank.
        """
        b, lane = self._b, lane_of(self._b, self._number)
        # Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix (block) i, which are ks here: `line` is the
        # row's number. The bits of k, from the lowest: bit 0 of the line; bit 2 of the line, flipped in odd blocks;
        # bits 1 and 2 of the line; bit 1 of the block.
        line, block = b.and_(lane, i32c(7)), b.lshr(lane, i32c(3))
        bit_1 = b.xor(b.lshr(line, i32c(2)), b.and_(block, i32c(1)))
        line_k = b.or_(b.and_(line, i32c(1)), b.shl(bit_1, i32c(1)))
        line_k = b.or_(line_k, b.shl(b.and_(b.lshr(line, i32c(1)), i32c(3)), i32c(2)))
        line_k = b.or_(line_k, b.shl(b.lshr(block, i32c(1)), i32c(4)))
        place = self._address(self._warp_row, row, line_k, k)
        # Transposed: elements that lie across K come along it (PTX ISA, "ldmatrix").
        text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"
        words = asm(b, FRAGMENT, [place], text, "=r,=r,=r,=r,r,~{memory}", effect=True, convergent=True)
        return [b.extract_value(words, i) for i in range(len(FRAGMENT.elements))]


def _select_pairs(b: Any, number: Any) -> tuple[Any, Any]:
    """Selectors of four ks of a lane's first row, and of its second row.

    They take the bytes of an even and of an odd block. Where bit 1 of the lane's number is set, bit 2 of its lines is
    set too, which the odd block flips: there the odd block has the first two ks (`Reader._bytes`).
    """
    is_swapped = b.icmp_unsigned("!=", b.and_(number, i32c(2)), i32c(0))

    def pair(plain_selector: int, swapped_selector: int) -> Any:
        return b.select(is_swapped, i32c(swapped_selector), i32c(plain_selector))

    first, second = (pair(*selectors) for selectors in zip(PLAIN_PAIRS, SWAPPED_PAIRS, strict=True))
    return first, second


def _wait_for_step(b: Any, steps: int) -> None:
    """Wait for the products that this step of K began an iteration ago."""
    # Each step of an iteration is one group of products, and groups end in order. This step's group of an iteration ago
    # is the oldest of the last `steps` groups. So at most `steps - 1` may be pending (PTX ISA, "wgmma.wait_group").
    text = f"wgmma.wait_group.sync.aligned {steps - 1};"
    asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)


def _sum_registers(layout: Layout, row: int, columns: int) -> list[int]:
    """The registers of the sums of an instruction whose rows begin at `row`.

    They are in the instruction's order: a pair of columns in each of two rows, then the same in the next 8 columns.
    """
    registers = {offset: register for register, offset in enumerate(layout.offsets)}
    # PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", but for the rows: a lane's two are neighbours.
    offsets = [(row + (i >> 1 & 1), (i & 1) + (i >> 2) * BLOCK) for i in range(columns // 2)]
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

    A step of K is the 32 bytes along K that one instruction takes. The products of each step are a group of their own.
    A step writes its operand to the registers from which the same step of the last iteration has multiplied. So it
    first waits for that step's group; the groups of later steps may still be under way.

    Words are read step by step. Bytes are permuted after they are read, so all reads of an iteration are begun ahead of
    its first product. Else a warpgroup that has the tensor cores to itself would wait for reads between its products.

    Args:
        dtype, other, acc: of the left operand, of the right one, and of the sums.
        layout: of the sums: an `a_from_registers_accumulator`.
        left, right: where the operands' stages are, of one counter; the left one lies across K.
        depth: elements along K.
        replaces: `f(counter, acc, added)`, as of `dot.dot`.
    """
    height, width = layout.cover
    warpgroups = layout.warps // WARPGROUP_WARPS
    instruction = Instruction(dtype, other, width, left.smem_layout, right.smem_layout)
    rows = range(0, height, WGMMA_ROWS * warpgroups)
    sum_registers = [_sum_registers(layout, row, width) for row in rows]

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[1], layout.registers)
        stage = stage_address(b, left, values[0])
        reader = Reader(b, left.smem_layout, warpgroups, stage)
        # A stage holds both operands, the right one at the same distance from the left one in every stage.
        right_stage = b.add(stage, i32c(right.place - left.place))
        right_descriptor = descriptor(b, right.smem_layout.descriptor, right_stage)
        steps = range(0, depth, instruction.step_of(dtype))
        words: list[list[list[Any]]] = []  # by step, by 64 rows of the warpgroup: what `Reader.read` gave

        def read_until(count: int) -> None:
            words.extend([reader.read(row, k) for row in rows] for k in steps[len(words) : count])

        if left.smem_layout.size != WORD:
            read_until(len(steps))
        for number, k in enumerate(steps):
            _wait_for_step(b, len(steps))  # its products of an iteration ago read the registers that are written next
            read_until(number + 1)
            fragments = [reader.fragment(row_words) for row_words in words[number]]
            begin_group(b)  # the operand's registers have just been written
            for registers, fragment in zip(sum_registers, fragments, strict=True):
                y = b.add(right_descriptor, const(I64, right.smem_layout.offset(0, k) >> ADDRESS_SHIFT))
                added = values[2] if replaces and k == 0 else None
                sums = instruction.add_from(b, [elements[register] for register in registers], fragment, y, added)
                for register, element in zip(registers, sums, strict=True):
                    elements[register] = element
            commit(b)
        return pack(b, elements, layout.registers)

    kind = frag(acc, layout.registers)
    return intrinsic("multiply", kind, [INTEGER, kind, *[frag(bool_, 0)] * replaces], generate)
