"""`scan_blocks`: the combined total of all tile blocks before this one.

Merrill and Garland's decoupled look-back combines the totals that are there when a block looks, so that sums of floats
depend on timing. Here the order is fixed. Blocks form groups. A block combines the totals of its group's earlier blocks
with the combined total of all earlier groups. The last block of a group writes that for the next group:

    state     total of block 0, 1, 2, ...      combined total of all groups up to 0, 1, 2, ...
    block k   waits for its group's totals before k, and for the combined total of the groups before its own
    last of a group   writes the combined total of all blocks up to itself

Each word of `state` has 32 bits of a value and a bit that says that it was written. So a written word is whole, and no
fence has to order one access with another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.dtypes import bool_, i32, u8, u16, u32, u64
from cutile.language.atomic import atomic_xchg
from cutile.language.cast import bitcast
from cutile.language.compare import select
from cutile.language.control import static_assert
from cutile.language.create import constant, iota
from cutile.language.debug import cuda_tile_assert
from cutile.language.element import gather
from cutile.language.grid import get_num_tile_blocks, get_tile_block_id
from cutile.language.markers import ordering
from cutile.language.reduce import reduce, reduce_min
from cutile.language.shared_mut import SharedMut
from cutile.tile import Tile

__all__ = ("scan_blocks", "scan_unchecked")

READY = 1 << 32
"""The bit of a word that says that it was written."""
LANES = 256
"""Words that a block waits for at once: the totals of its group, and one combined total of earlier groups. Each group
waits for the one before it, about a microsecond on an H200. Groups are so large that memory takes longer than that."""


def scan_blocks(state: SharedMut, total: Tile, identity: Any, function: Callable[[Any, Any], Any]) -> Tile:
    """The totals of all tile blocks before this one, combined by `function`.

    A function of kernels that is written in the language, and compiled in place. Each tile block calls it once. The
    order in which totals are combined is the same in each launch, so that sums of floats are, too.

    Args:
        state: zeros of u64 when the kernel starts: 2 for each tile block of the grid, or 4 if `total` has 64 bits.
        total: a scalar of this tile block.
        identity: a constant that `function` leaves without effect, such as 0 for sums.
        function: associative, and need not commute. It takes two scalars: a `def`, a `lambda` or one of the language.

    Returns:
        A scalar of the dtype of `total`. Tile blocks are in the order of their indices, whose last axis varies fastest.
        For the first one it is `identity`.

    Raises:
        KernelTypeError: `state` is not of u64.
        KernelAssertionError: `state` is too small. Waiting for the launch raises it. With a state that an earlier
            launch has used, results are wrong: nothing looks for that.

    Example:
        >>> import numpy as np, operator
        >>> @ct.entry
        ... def running_sums(y: ct.Mut, x: ct.Tensor, state: ct.SharedMut):
        ...     t = ct.load_tile_like(x, y)
        ...     y.store(ct.cumsum(t, 0) + ct.scan_blocks(state, ct.reduce_sum(t, 0), 0, operator.add))
        >>> x = ct.api.arange(6, ct.i32).sync()
        >>> y, state = ct.api.zeros((6,), ct.i32).partition((2,)), ct.api.zeros((2 * 3,), ct.u64)
        >>> running_sums(y, x, state).first().unpartition().to_numpy().sync().tolist()
        [0, 1, 3, 6, 10, 15]
    """
    if state.dtype is not u64:
        static_assert(False, f"scan_blocks: state must be u64, got {state.dtype}: api.zeros((n,), u64)")
        return total
    if len(state.shape) != 1:
        static_assert(False, f"scan_blocks: state must have one axis, got {len(state.shape)}: api.zeros((n,), u64)")
        return total
    words = 4 if total.dtype.bits == 64 else 2
    _, blocks = _place()
    # A block would wait for ever for a word that lies outside of the tensor.
    cuda_tile_assert(
        blocks <= _capacity(state, total),
        f"scan_blocks: state is too small: it has less than {words} words for each tile block of the grid; pass "
        f"api.zeros(({words} * blocks,), u64)",
    )
    return scan_unchecked(state, total, identity, function)


def scan_unchecked(state: SharedMut, total: Tile, identity: Any, function: Callable[[Any, Any], Any]) -> Tile:
    """`scan_blocks` without the check that `state` is large enough."""
    block, _ = _place()
    capacity, size = _capacity(state, total), LANES - 1
    group, at = block // size, block % size
    _leave(state, capacity, block, total)
    # Blocks start in the order of their indices, so that all that this one waits for have started.
    lanes = iota((LANES,))
    mask = (lanes <= at) & ((lanes > 0) | (group > 0))
    places = select(lanes == 0, capacity + group - 1, group * size + lanes - 1)
    bits = _words(state, places, mask)
    if total.dtype.bits == 64:
        bits = bits | (_words(state, places + 2 * capacity, mask) << 32)
    values = select(mask, _value_of(bits, total.dtype), constant(identity, (LANES,), total.dtype))
    before = reduce(values, 0, identity, function)
    if at == size - 1:
        _leave(state, capacity, capacity + group, function(before, total))
    return before


def _place() -> tuple[Any, Any]:
    """The number of this tile block, and the number of tile blocks."""
    i, j, k = get_tile_block_id()
    rows, columns, depth = get_num_tile_blocks()
    return (i * columns + j) * depth + k, rows * columns * depth


def _capacity(state: SharedMut, total: Any) -> Any:
    """Tile blocks that a state has room for."""
    return state.shape[0] // (4 if total.dtype.bits == 64 else 2)


def _words(state: SharedMut, places: Any, mask: Any) -> Any:
    """The values of some words, once all of them are written."""
    words = gather(state, places, mask=mask, padding_value=READY, ordering=ordering.RELAXED)
    while reduce_min((words >> 32).astype(i32), 0) == 0:
        words = gather(state, places, mask=mask, padding_value=READY, ordering=ordering.RELAXED)
    return words & (READY - 1)


def _leave(state: SharedMut, capacity: Any, place: Any, value: Any) -> None:
    """Write the words of a value by exchanges.

    Other blocks see exchanges sooner than stores, which wait behind the stores of tiles. On an H200, a scan of 2**28
    i32 took 0.63 ms with exchanges and 0.78 ms with stores.
    """
    bits = _bits_of(value)
    atomic_xchg(state, place, (bits & (READY - 1)) | READY)
    if value.dtype.bits == 64:
        atomic_xchg(state, place + 2 * capacity, (bits >> 32) | READY)


def _bits_of(value: Any) -> Any:
    """A value's bits as u64."""
    if value.dtype is bool_:
        return value.astype(u64)
    if value.dtype.bits == 64:
        return bitcast(value, u64)
    if value.dtype.bits == 32:
        return bitcast(value, u32).astype(u64)
    return bitcast(value, u16 if value.dtype.bits == 16 else u8).astype(u64)


def _value_of(bits: Any, dtype: Any) -> Any:
    """The value of bits; the inverse of `_bits_of`."""
    if dtype is bool_:
        return bits == 1
    if dtype.bits == 64:
        return bitcast(bits, dtype)
    if dtype.bits == 32:
        return bitcast(bits.astype(u32), dtype)
    return bitcast(bits.astype(u16 if dtype.bits == 16 else u8), dtype)
