"""Tiles that threads read from the buffers of pipelines, or write there.

A buffer holds panels as TMA writes them: pieces of 16 bytes, of which those of one panel's row are permuted by bits 7
to 9 of their address (PTX ISA, "Swizzling Modes"). An address has two parts: a permuted one, of the thread and of the
lower bits of a register's place; and multiples of 1024 bytes, which the permutation does not see, as constants of
accesses.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.dot import stage_address
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    I32,
    VOID,
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
ROW = 128
"""Bytes of which the permutation is the same."""
WIDEST = 16
"""Bytes of the widest access, which are a piece: what the swizzle keeps together."""
PIECE_SHIFT = 4
"""Bits by which the number of a piece of 16 bytes is shifted to be its place."""
ROW_SHIFT = 7
"""An address, shifted by so many bits, is the number of its row of `ROW` bytes."""
WORD = 4
"""Bytes of a register."""


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
    """`f(counter)`: what this thread has of the tile in the stage of a counter.

    Args:
        dtype: of the tile.
        layout: who has what of it.
        smem_layout: how it lies in shared memory; the axes but the contiguous one, in their order, are its rows.
        axis: the contiguous one.
        stages: of the buffer.
        stage_bytes: from stage to stage.
        place: where the tile lies in stage 0, in bytes.
        number: `f(counter, index)`, of one element, which lies among those that `tma.load` brings with it.
    """
    size = dtype.bits // 8
    others = [other for other in range(layout.rank) if other != axis]
    width = min(layout.vector(axis), WIDEST // size)
    bits = layout.reach[axis] * size  # of the bytes from a row's begin, those that differ from thread to thread
    is_constant = bits < min(ROW, smem_layout.swizzle) and not any(layout.reach[other] for other in others)

    def generate(b: Any, values: list[Any]) -> Any:
        base = b.add(address(b, place), b.mul(stage_of(b, values[0], stages), i32c(stage_bytes)))
        coordinates = Coordinates(b, layout)
        row: Any = i32c(0)
        for other in others:
            row = b.add(b.mul(row, i32c(layout.shape[other])), coordinates.thread_part(other))
        column = b.and_(values[1], i32c(smem_layout.span - 1)) if number else coordinates.thread_part(axis)
        mine = b.add(_panel(b, smem_layout, column), b.mul(row, i32c(smem_layout.swizzle)))
        permuted: dict[int, Any] = {}
        elements: list[Any] = []
        for register in range(0, layout.registers, width):
            offset = layout.offsets[register]
            above = 0
            for other in others:
                above = above * layout.shape[other] + offset[other]
            panel, within = divmod(offset[axis], smem_layout.span)
            beyond = panel * smem_layout.panel_bytes + above * smem_layout.swizzle + within * size
            lower = beyond % PERIOD if smem_layout.swizzle else 0  # nothing changes places where there is no swizzle
            if is_constant and not lower & bits:
                # Which pieces change places, a register's place tells for all threads. What that does to bits that
                # they do not have is one constant with the place.
                turn = (lower // ROW & smem_layout.swizzle // WIDEST - 1) * WIDEST
                key, lower = turn & bits, lower ^ (turn & ~bits)
                if key not in permuted:
                    permuted[key] = b.add(base, b.xor(mine, i32c(key)))
                elements += _access(b, dtype, permuted[key], lower + beyond - beyond % PERIOD, width)
                continue
            if lower not in permuted:
                permuted[lower] = b.add(base, _permute(b, smem_layout, b.add(mine, i32c(lower))))
            elements += _access(b, dtype, permuted[lower], beyond - lower, width)
        return pack(b, elements, layout.registers)

    return intrinsic("read", frag(dtype, layout.registers), [INTEGER] * (1 + number), generate)


def _panel(b: Any, smem_layout: SmemLayout, column: Any) -> Any:
    """Bytes from the tile's begin to an element of its first row."""
    if smem_layout.count == 1:
        return b.mul(column, i32c(smem_layout.size))
    panel = b.mul(b.lshr(column, i32c(smem_layout.span.bit_length() - 1)), i32c(smem_layout.panel_bytes))
    return b.add(panel, b.mul(b.and_(column, i32c(smem_layout.span - 1)), i32c(smem_layout.size)))


def _permute(b: Any, smem_layout: SmemLayout, place: Any) -> Any:
    """Where the piece of a place lies: the piece's number, changed by the upper bits."""
    if not smem_layout.swizzle:
        return place
    pieces = smem_layout.swizzle // WIDEST
    mask = b.and_(b.lshr(place, i32c(ROW_SHIFT)), i32c(pieces - 1))
    return b.xor(place, b.shl(mask, i32c(PIECE_SHIFT)))


def _access(b: Any, dtype: DTypeLike, at: Any, beyond: int, width: int) -> list[Any]:
    """Some neighbouring elements.

    Volatile: a stage is read between its arrival and its release.
    """
    nbytes = dtype.bits // 8 * width
    if nbytes < WORD:
        # into a word whose upper bits nothing is known of: a byte of it is then converted as a byte, not as 16 bits
        text = f"ld.shared.u{8 * nbytes} $0, [$1+{beyond}];"
        return _elements(b, dtype, asm(b, I32, [at], text, "=r,r,~{memory}", effect=True))[:width]
    words = nbytes // WORD
    # `asm` with an effect keeps its place between the wait and the release, as LLVM's loads do not.
    if words == 1:
        loaded = [asm(b, I32, [at], f"ld.shared.b32 $0, [$1+{beyond}];", "=r,r,~{memory}", effect=True)]
    else:
        names = ", ".join(f"${i}" for i in range(words))
        # One access of up to 16 bytes.
        text = f"ld.shared.v{words}.b32 {{{names}}}, [${words}+{beyond}];"
        kind = ir.LiteralStructType([I32] * words)
        words_read = asm(b, kind, [at], text, ",".join(["=r"] * words) + ",r,~{memory}", effect=True)
        loaded = [b.extract_value(words_read, i) for i in range(words)]
    return [each for word in loaded for each in _elements(b, dtype, word)]


def _elements(b: Any, dtype: DTypeLike, word: Any) -> list[Any]:
    """The elements in a word."""
    count = 32 // dtype.bits
    if count == 1:
        return [from_memory(b, dtype, word)]
    shifted = [b.lshr(word, i32c(dtype.bits * i)) if i else word for i in range(count)]
    return [from_memory(b, dtype, b.trunc(each, memory_type(dtype))) for each in shifted]


@cache
def write(layout: Layout, place: BufferStages) -> Any:
    """`f(words, counter)`: write words of two elements to a stage of a buffer.

    They are an operand of `wgmma`, which sees them behind a barrier. Lanes whose rows differ by less than 8 hold one
    16-byte piece of each row; the swizzle spreads these over all banks.

    Args:
        layout: of the elements: a `group_accumulator`, or an `across_accumulator`, of which two neighbouring registers
            make a word.
        place: where the operand lies; its rows are those of the tile.
    """
    smem_layout = place.smem_layout
    count = layout.registers // 2
    pieces = smem_layout.swizzle // WIDEST
    own = max(basis[1] for basis in layout.warp)  # columns of a warpgroup, where warpgroups share them

    def generate(b: Any, values: list[Any]) -> None:
        words = unpack(b, values[0], count)
        number = thread(b)
        # An accumulator's rows (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts"): 16 for each of a
        # warpgroup's 4 warps, of which a lane has row `lane // 4`, and the one 8 below.
        lane, warp = lane_of(b, number), b.and_(b.lshr(number, i32c(LANE_BITS)), i32c(3))
        line = b.lshr(lane, i32c(2))
        row = b.add(b.mul(warp, i32c(16)), line)
        if not own:
            row = b.add(row, b.mul(group_number(b), i32c(WGMMA_ROWS)))
        base = b.add(stage_address(b, place, values[1]), b.mul(row, i32c(smem_layout.swizzle)))
        # A narrower swizzle permutes fewer pieces, by higher bits of the row's number (PTX ISA, "Swizzling modes").
        swizzle = b.and_(b.lshr(line, i32c(3 - pieces.bit_length() + 1)), i32c(pieces - 1))
        if own >= smem_layout.span:
            base = b.add(base, b.mul(group_number(b), i32c(own // smem_layout.span * smem_layout.panel_bytes)))
        elif own:
            swizzle = b.xor(swizzle, b.mul(group_number(b), i32c(own * smem_layout.size // WIDEST)))
        # Of 16 bytes, which are 8 columns, each of four lanes has a word.
        within = b.shl(b.and_(lane, i32c(3)), i32c(2))
        at: dict[int, Any] = {}
        for word, (down, across) in zip(words, layout.offsets[::2], strict=True):
            panel, rest = divmod(across, smem_layout.span)
            piece = rest * smem_layout.size // WIDEST
            if piece not in at:
                at[piece] = b.add(base, b.or_(b.shl(b.xor(swizzle, i32c(piece)), i32c(PIECE_SHIFT)), within))
            where = b.add(at[piece], i32c(panel * smem_layout.panel_bytes + down * smem_layout.swizzle))
            # In PTX, so that LLVM keeps it ahead of the fence and behind the products that read what was here.
            asm(b, VOID, [where, word], "st.shared.b32 [$0], $1;", "r,r,~{memory}", effect=True)
        proxy_fence(b)  # `wgmma` reads it next, behind a barrier

    return intrinsic("write_operand", None, [frag(i32, count), INTEGER], generate)
