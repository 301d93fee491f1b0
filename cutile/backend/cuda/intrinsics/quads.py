"""Tiles from a layout of wide accesses into that of an accumulator, by shuffles."""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import i32c, lane_of, shuffle_xor, thread, to_memory
from cutile.backend.cuda.intrinsics.memory import join_words, split
from cutile.backend.cuda.pipeline.accumulators import swapped_bits
from cutile.backend.gpu.layout import Coordinate, Layout, xor
from cutile.dtypes import DTypeLike

WORD_BITS = 32
"""Bits that one shuffle moves."""


@cache
def exchange(dtype: DTypeLike, source: Layout, target: Layout) -> Any:
    """`f(x)`: a tile of `source` in the layout of `target`, by shuffles.

    Bits of a lane's number have changed places with bits of a register's: each pair of words by one shuffle. Elements
    of 16 bits stay two to a word.
    """
    together = WORD_BITS // dtype.bits
    swaps = swapped_bits(source, target)

    def generate(b: Any, values: list[Any]) -> Any:
        words = join_all(b, [to_memory(b, dtype, each) for each in unpack(b, values[0], source.registers)])
        held = dict(zip(source.offsets[::together], words, strict=True))
        lane = lane_of(b, thread(b))
        for bit, old, new in swaps:
            upper = b.icmp_unsigned("!=", b.and_(lane, i32c(1 << bit)), i32c(0))
            after: dict[Coordinate, Any] = {}
            for offset, low in held.items():
                if any(o & n for o, n in zip(offset, new, strict=True)):
                    continue
                high = held[xor(offset, new)]
                other = shuffle_xor(b, b.select(upper, low, high), 1 << bit)
                after[offset] = b.select(upper, other, low)
                after[xor(offset, old)] = b.select(upper, high, other)
            held = after
        found = [split(b, dtype, held[offset], together) for offset in target.offsets[::together]]
        return pack(b, [element for word in found for element in word], target.registers)

    def join_all(b: Any, elements: list[Any]) -> list[Any]:
        return elements if together == 1 else join_words(b, dtype, elements)

    return intrinsic("exchange", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
