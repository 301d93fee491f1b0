"""Tiles from a layout of wide accesses into an accumulator's, by shuffles."""

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

    Between the two layouts, some bits of the lane's number and of the register's number have changed places
    (`swapped_bits`). For each such bit, one shuffle for each pair of words exchanges one of them with another lane.
    Elements of 16 bits stay two to a word.
    """
    per_word = WORD_BITS // dtype.bits
    swaps = swapped_bits(source, target)

    def generate(b: Any, values: list[Any]) -> Any:
        words = join_all(b, [to_memory(b, dtype, each) for each in unpack(b, values[0], source.registers)])
        words = dict(zip(source.offsets[::per_word], words, strict=True))  # by the offset of a word's first element
        lane = lane_of(b, thread(b))
        for bit, old, new in swaps:
            upper = b.icmp_unsigned("!=", b.and_(lane, i32c(1 << bit)), i32c(0))
            exchanged: dict[Coordinate, Any] = {}
            for offset, low in words.items():
                if any(o & n for o, n in zip(offset, new, strict=True)):  # the upper word of a pair
                    continue
                high = words[xor(offset, new)]
                other = shuffle_xor(b, b.select(upper, low, high), 1 << bit)
                exchanged[offset] = b.select(upper, other, low)
                exchanged[xor(offset, old)] = b.select(upper, high, other)
            words = exchanged
        groups = [split(b, dtype, words[offset], per_word) for offset in target.offsets[::per_word]]
        return pack(b, [element for group in groups for element in group], target.registers)

    def join_all(b: Any, elements: list[Any]) -> list[Any]:
        return elements if per_word == 1 else join_words(b, dtype, elements)

    return intrinsic("exchange", frag(dtype, target.registers), [frag(dtype, source.registers)], generate)
