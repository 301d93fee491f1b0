"""Tiles that threads read from the buffers of pipelines, or write there.

A buffer holds panels as TMA writes them. The 16-byte pieces of a panel's row are permuted by bits 7 to 9 of their
address (PTX ISA, "Swizzling Modes"). The address of a register's element is the sum of two parts. The first part is
permuted: it is the thread's place, and the register's offset modulo 1024. The second part is the rest of the offset, a
multiple of 1024: it does not change the permutation, and is a constant in the instruction.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.dot import stage_address
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    I32,
    PIECE_BYTES,
    PIECE_SHIFT,
    ROW_SHIFT,
    VOID,
    WORD_BYTES,
    address,
    asm,
    from_memory,
    i32c,
    ir,
    lane_of,
    memory_type,
    proxy_fence,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, stage_of
from cutile.backend.cuda.intrinsics.wgmma import group_number
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, BufferStages, SmemLayout
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, i32

PERIOD = 1024
"""Bytes after which the permutation of pieces repeats."""
ROW = 1 << ROW_SHIFT
"""Bytes in which all pieces are permuted by one number."""


@cache
def read(
    dtype: DTypeLike,
    layout: Layout,
    smem_layout: SmemLayout,
    axis: int,
    *,
    stages: int,
    stage_bytes: int,
    place: int,
    number: bool = False,
) -> Any:
    """`f(counter)`: this thread's elements of the tile in the stage of a counter.

    Args:
        dtype: of the tile.
        layout: of the tile in registers.
        smem_layout: of the tile in shared memory; its rows run over all axes but the contiguous one, in their order.
        axis: the contiguous one.
        stages: of the buffer.
        stage_bytes: from stage to stage.
        place: where the tile lies in stage 0, in bytes.
        number: `f(counter, index)`: a tile of one element. `tma.load` brings the whole aligned group around the
            element, whose place in the group is `index` modulo the group's size.
    """
    size = dtype.bits // 8
    others = [other for other in range(layout.rank) if other != axis]
    run = layout.run(axis)[: PIECE_BYTES // size]
    bits = layout.reach[axis] * size  # the bits of an offset along the row that differ from thread to thread
    # Whether all threads read the same row of the permutation: then the register's offset alone says how pieces are
    # permuted.
    is_constant = bits < min(ROW, smem_layout.swizzle) and not any(layout.reach[other] for other in others)

    def generate(b: Any, values: list[Any]) -> Any:
        base = b.add(address(b, place), b.mul(stage_of(b, values[0], stages), i32c(stage_bytes)))
        coordinates = Coordinates(b, layout)
        row: Any = i32c(0)
        for other in others:
            row = b.add(b.mul(row, i32c(layout.shape[other])), coordinates.thread_part(other))
        column = b.and_(values[1], i32c(smem_layout.span - 1)) if number else coordinates.thread_part(axis)
        mine = b.add(_panel(b, smem_layout, column), b.mul(row, i32c(smem_layout.swizzle)))  # before the swizzle
        addresses: dict[int, Any] = {}  # of permuted places
        elements: dict[int, Any] = {}
        for register in range(layout.registers):
            if register & run[-1]:
                continue  # read with the first element of its run
            offset = layout.offsets[register]
            above = 0  # rows from the thread's own to the register's
            for other in others:
                above = above * layout.shape[other] + offset[other]
            panel, within = divmod(offset[axis], smem_layout.span)
            # Bytes from the thread's own place to the register's, and the part of them that is permuted.
            step = panel * smem_layout.panel_bytes + above * smem_layout.swizzle + within * size
            lower = step % PERIOD if smem_layout.swizzle else 0  # without a swizzle nothing is permuted
            if is_constant and not lower & bits:
                # The permutation is an XOR with a constant of the register. Bits of it at which the threads' places
                # differ are applied to these places. The other bits are applied to the offset, when this is written.
                mask = (lower // ROW & smem_layout.swizzle // PIECE_BYTES - 1) * PIECE_BYTES
                key, lower = mask & bits, lower ^ (mask & ~bits)
                if key not in addresses:
                    addresses[key] = b.add(base, b.xor(mine, i32c(key)))
                neighbours = _access(b, dtype, addresses[key], lower + step - step % PERIOD, len(run))
            else:
                if lower not in addresses:
                    addresses[lower] = b.add(base, _permute(b, smem_layout, b.add(mine, i32c(lower))))
                neighbours = _access(b, dtype, addresses[lower], step - lower, len(run))
            elements.update(zip((register | other for other in run), neighbours, strict=True))
        return pack(b, [elements[register] for register in range(layout.registers)], layout.registers)

    return intrinsic("read", frag(dtype, layout.registers), [INTEGER] * (1 + number), generate)


def _panel(b: Any, smem_layout: SmemLayout, column: Any) -> Any:
    """Bytes from the tile's first byte to the element at `column` of its first row."""
    if smem_layout.count == 1:
        return b.mul(column, i32c(smem_layout.size))
    panel = b.mul(b.lshr(column, i32c(smem_layout.span.bit_length() - 1)), i32c(smem_layout.panel_bytes))
    return b.add(panel, b.mul(b.and_(column, i32c(smem_layout.span - 1)), i32c(smem_layout.size)))


def _permute(b: Any, smem_layout: SmemLayout, place: Any) -> Any:
    """The offset of an element after the swizzle, which changes its piece's number.

    `place` is the offset before. The number of its row (bits 7 and up) is the mask of the change.
    """
    if not smem_layout.swizzle:
        return place
    pieces = smem_layout.swizzle // PIECE_BYTES
    mask = b.and_(b.lshr(place, i32c(ROW_SHIFT)), i32c(pieces - 1))
    return b.xor(place, b.shl(mask, i32c(PIECE_SHIFT)))


def _access(b: Any, dtype: DTypeLike, at: Any, offset: int, width: int) -> list[Any]:
    """Read `width` neighbouring elements, `offset` bytes behind the address `at`."""
    nbytes = dtype.bits // 8 * width
    if nbytes < WORD_BYTES:
        # Into a register of 32 bits, of whose upper bits LLVM knows nothing: so it converts a byte as a byte, and not
        # as 16 bits (PTX ISA, "ld").
        text = f"ld.shared.u{8 * nbytes} $0, [$1+{offset}];"
        return _elements(b, dtype, asm(b, I32, [at], text, "=r,r,~{memory}", effect=True))[:width]
    words = nbytes // WORD_BYTES
    # Inline PTX with an effect stays between the wait for the stage and its release, as LLVM's loads would not.
    if words == 1:
        registers = [asm(b, I32, [at], f"ld.shared.b32 $0, [$1+{offset}];", "=r,r,~{memory}", effect=True)]
    else:
        names = ", ".join(f"${i}" for i in range(words))
        # One access of 8 or 16 bytes (PTX ISA, "ld").
        text = f"ld.shared.v{words}.b32 {{{names}}}, [${words}+{offset}];"
        kind = ir.LiteralStructType([I32] * words)
        vector = asm(b, kind, [at], text, ",".join(["=r"] * words) + ",r,~{memory}", effect=True)
        registers = [b.extract_value(vector, i) for i in range(words)]
    return [element for word in registers for element in _elements(b, dtype, word)]


def _elements(b: Any, dtype: DTypeLike, word: Any) -> list[Any]:
    """The elements in a word."""
    count = 32 // dtype.bits
    if count == 1:
        return [from_memory(b, dtype, word)]
    fields = [b.lshr(word, i32c(dtype.bits * i)) if i else word for i in range(count)]
    return [from_memory(b, dtype, b.trunc(bits, memory_type(dtype))) for bits in fields]


@cache
def write(layout: Layout, place: BufferStages) -> Any:
    """`f(words, counter)`: write words of two elements to a stage of a buffer.

    The words are an operand of `wgmma`, which sees them behind a barrier. The four lanes of a row write one 16-byte
    piece of the row. The swizzle spreads the pieces of 8 rows over all banks.

    Args:
        layout: of the elements: a `group_accumulator`, or an `across_accumulator`, of which two neighbouring registers
            make a word.
        place: where the operand lies; its rows are those of the tile.
    """
    smem_layout = place.smem_layout
    count = layout.registers // 2  # words
    pieces = smem_layout.swizzle // PIECE_BYTES
    # Columns of a warpgroup, if warpgroups share the columns: the step of the highest bit of the warp's number. Else 0.
    own = max(basis[1] for basis in layout.warp)

    def generate(b: Any, values: list[Any]) -> None:
        words = unpack(b, values[0], count)
        number = thread(b)
        # An accumulator's rows (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts"): 16 for each of a
        # warpgroup's 4 warps, of which a lane has row `lane // 4`, and the one 8 below.
        lane, warp = lane_of(b, number), b.and_(b.lshr(number, i32c(LANE_BITS)), i32c(3))
        line = b.lshr(lane, i32c(2))  # the row modulo 8, by which the swizzle goes: only multiples of 8 are added
        row = b.add(b.mul(warp, i32c(16)), line)
        if not own:
            row = b.add(row, b.mul(group_number(b), i32c(WGMMA_ROWS)))
        base = b.add(stage_address(b, place, values[1]), b.mul(row, i32c(smem_layout.swizzle)))
        # A swizzle over fewer pieces uses as many of the highest of the three bits of the row's number (PTX ISA,
        # "Swizzling Modes"): 3 bits for 8 pieces, 2 for 4, 1 for 2.
        swizzle = b.and_(b.lshr(line, i32c(3 - pieces.bit_length() + 1)), i32c(pieces - 1))
        if own >= smem_layout.span:  # a warpgroup's columns are whole panels
            base = b.add(base, b.mul(group_number(b), i32c(own // smem_layout.span * smem_layout.panel_bytes)))
        elif own:  # pieces within a panel: powers of two, so that an exclusive or adds them to the piece's number
            swizzle = b.xor(swizzle, b.mul(group_number(b), i32c(own * smem_layout.size // PIECE_BYTES)))
        # Each of four lanes has one word of the 16 bytes of a piece, which are 8 columns.
        within = b.shl(b.and_(lane, i32c(3)), i32c(2))
        addresses: dict[int, Any] = {}  # of each piece in the lane's row
        for word, (down, across) in zip(words, layout.offsets[::2], strict=True):
            panel, rest = divmod(across, smem_layout.span)
            piece = rest * smem_layout.size // PIECE_BYTES
            if piece not in addresses:
                addresses[piece] = b.add(base, b.or_(b.shl(b.xor(swizzle, i32c(piece)), i32c(PIECE_SHIFT)), within))
            where = b.add(addresses[piece], i32c(panel * smem_layout.panel_bytes + down * smem_layout.swizzle))
            # In PTX, so that LLVM keeps the store behind the products that read this stage, and ahead of the fence (PTX
            # ISA, "st").
            asm(b, VOID, [where, word], "st.shared.b32 [$0], $1;", "r,r,~{memory}", effect=True)
        proxy_fence(b)  # `wgmma` reads it next, behind a barrier

    return intrinsic("write_operand", None, [frag(i32, count), INTEGER], generate)
