"""A model of what a matrix product takes on a GPU, cut into tiles: what `gemm_choice` picks tiles by.

It counts what a thread block does, step by step: the products, at the rate that tensor cores reach with tiles of its
form; the loads, at its share of what the second-level cache delivers; and at the end the writing of its tile. A device
runs one such block per multiprocessor, so the blocks of a small product come in few rounds, and a tile that fills the
last round well is worth more than one that multiplies fast. Where tiles are too few, their steps may be divided.
Nothing is faster than memory. Not a measurement: kernels are timed by `python -m kernels bench`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from cutile import CompileOptions


@dataclass(frozen=True)
class Choice:
    """How a product is cut.

    Attributes:
        rows, columns: of the result, per tile block.
        depth: columns of the left operand, per step.
        seconds: what the model says that the product takes; 0 where it was not asked.
        cluster: thread blocks that share what they load.
        pieces: thread blocks that share a tile's steps, as the model expects launches to divide them.
        halved: whether the two halves of a thread block have tiles of their own: one writes its result while the
            other multiplies.
    """

    rows: int
    columns: int
    depth: int
    seconds: float = 0.0
    cluster: int = 1
    pieces: int = 1
    halved: bool = False

    @property
    def options(self) -> CompileOptions | None:
        """The hints that go with it, if any."""
        if self.cluster == 1 and not self.halved:
            return None
        return CompileOptions(
            num_cta_in_cga=self.cluster if self.cluster > 1 else None,
            num_worker_warps=4 if self.halved else None,
        )


@dataclass(frozen=True)
class Chip:
    """What the model knows of a kind of device, per multiprocessor.

    Attributes:
        flops: per second, of products of 16 bits; of 8 bits twice as many, of tf32 half.
        cache_bytes: per second from the second-level cache, when all multiprocessors load.
        most_cache_bytes: when few do.
        memory_bytes: per second from the device's memory, of all multiprocessors together.
        lone_bytes: per second from there, of one.
        write_bytes: per second, of a block's result.
        fill_s: seconds from a block's begin to its first product.
        rows, columns: of the tiles that are worth a try.
        few: rows of tiles for products of no more rows, multiplied with the operands exchanged.
        depth: of a step of 16-bit operands; as many bytes of others.
        sums: registers of a thread for tiles of the result.
        meet_s: seconds until the sums of several blocks are added up; 0 where steps are not divided.
        send_bytes: per second, of sums from one block of a cluster to others.
        nearby_bytes: per second from the second-level cache, of a block of such clusters, of which there are few.
        clustered: blocks that the device holds at once in clusters of 2, of 3, and so on.
        three: rows and columns of a tile that three warpgroups share, for products with no more tiles than
            multiprocessors; 0 for none.
        halved: the most columns of a tile of 128 rows that half of a thread block can have by itself; 0 for none.
    """

    flops: float
    cache_bytes: float
    most_cache_bytes: float
    memory_bytes: float
    write_bytes: float
    fill_s: float
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: int
    sums: int
    lone_bytes: float
    few: tuple[int, ...] = ()
    meet_s: float = 0.0
    send_bytes: float = 1.0
    nearby_bytes: float = 0.0
    clustered: tuple[int, ...] = ()
    halved: int = 0
    three: int = 0


HOPPER = Chip(
    flops=6.0e12,
    cache_bytes=80e9,
    most_cache_bytes=80e9,
    memory_bytes=4.2e12,
    write_bytes=100e9,
    fill_s=2.0e-6,
    rows=(64, 128),
    columns=(64, 96, 128, 160, 192, 224, 256),
    depth=64,
    sums=200,
    lone_bytes=45e9,
    few=(8, 16, 32, 48),
    meet_s=3.0e-6,
    send_bytes=13e9,
    nearby_bytes=110e9,
    clustered=(132, 117, 120, 110, 102, 105, 120),
    halved=192,
    three=192,
)
"""H200, fitted to what was measured there: 64 blocks of 64 x 64 took 3.66 us for a product of 512, 88 of 128 x 96 took
7.55 us for one of 1024, 64 of 128 x 256 took 27.9 us for one of 2048. A block loads 80 GB/s. At 8192 cubed 21 rounds
of 128 x 192 took 2 % less than 16 of 128 x 256; at 1024 cubed 64 x 128 took 9 % less than 128 x 64, which loads as
much. With N = K = 8192, 16 rows took 33.8 us in tiles of 16 x 64 and 51 us in tiles of 64 x 64, of which 48 rows are
filled with zeros; 128 rows took 36.3 us where two blocks share the columns of 64 x 128, and 44.6 us where they do not.
Sums of eight blocks met within 3 us in a workspace. In clusters, of 512 x 512 x 8192 six blocks that had 22 steps of
128 x 128 each took 15.2 us, five 16.1 and four 18.5; three that had 43 of 64 x 128 took 14.1. Where halves of blocks
have tiles of 128 x 192 of their own, a product of 8192 x 8192 x 512 took 105.0 us, and 119.2 where they share them;
8192 cubed 3 % less. Of 1536 x 3072 x 8192 128 tiles of 192 x 192 took 102 us, 192 of 128 x 192 took 134."""

AMPERE = Chip(2.0e12, 30e9, 80e9, 1.5e12, 40e9, 2e-6, (64, 128), (64, 128), 32, 200, 20e9)
"""A100, with products of single warps."""

EFFICIENCY = {64: 0.95, 96: 0.96, 128: 0.98, 160: 0.98, 224: 0.98}
"""Of an instruction by its columns, relative to 256 columns: the left operand is read again for each; columns that are
no multiple of 64 come in more copies."""

GROUP, ROWS, EIGHT = 128, 64, 8
"""Threads that share the sums of so many rows; a multiple of which an instruction has columns."""
HALF_ROWS = 128
"""Of a tile that half of a thread block has by itself."""
MAX_PIECES, MIN_TURNS, MAX_SUMS = 16, 16, 64
"""Launches divide tiles into up to so many pieces, of so many steps or more; worth it are those of up to so many sums a
thread, since larger ones leave more multiprocessors idle."""
MAX_NEARBY, MIN_NEARBY, MAX_SENT = 8, 8, 96 * 1024
"""Pieces up to which their blocks are a cluster, steps of such a piece that the model counts on (launches may divide
into shorter ones), and bytes that a block of it may be sent."""
WORTH_DIVIDING = 1.15
"""How many times as fast a product must be, by the model, for its steps to be divided."""
CACHED = 48e6
"""Bytes of a right operand up to which blocks find in the cache what others have read."""
AGAIN = 0.2
"""Of what two rows of blocks both read, and the cache does not hold: the part that comes from memory twice."""


def candidates(
    m: int,
    n: int,
    k: int,
    chip: Chip,
    *,
    batch: int = 1,
    held: int = 1,
    bits: int = 16,
    along: bool = True,
    halves: bool = False,
    three: bool = False,
) -> Iterator[Choice]:
    """The tiles that are worth a try; arguments as for `best`."""
    depth = chip.depth * 16 // bits
    few = [each for each in chip.few if m <= each][:1] if batch == 1 and along else []
    if three and chip.three and not few:
        yield Choice(chip.three, chip.three, depth)
    for rows, columns in itertools.product(few or chip.rows, chip.columns):
        tall, wide = _exchanged(rows, columns)
        if few and columns not in (ROWS, 2 * ROWS, 4 * ROWS):
            continue
        if held * tall * wide > chip.sums * GROUP * tall // ROWS:
            continue
        yield Choice(rows, columns, depth)
        if halves and held == 1 and rows == HALF_ROWS and columns <= chip.halved:
            yield Choice(rows, columns, depth, halved=True)
        if not chip.few or batch > 1 or not along:
            continue
        if -(-m // rows) == 2 and k * n * bits / 8 > CACHED:
            yield Choice(rows, columns, depth, cluster=2)
        if chip.meet_s and tall * wide <= MAX_SUMS * GROUP * max(1, min(2, tall // ROWS)):
            yield Choice(rows, columns, depth, pieces=MAX_PIECES)
            parts = columns // EIGHT if (tall, wide) == (rows, columns) else 1
            for pieces, _ in enumerate(chip.clustered, 2):
                if -(-parts // pieces) * pieces * tall * wide * 4 // parts <= MAX_SENT:
                    yield Choice(rows, columns, depth, pieces=pieces)


@lru_cache(maxsize=4096)  # some fifty tiles are weighed, 0.5 ms: a launch on the GPU takes a hundredth of that
def best(
    m: int,
    n: int,
    k: int,
    chip: Chip,
    units: int,
    *,
    batch: int = 1,
    held: int = 1,
    bits: int = 16,
    along: bool = True,
    halves: bool = False,
    three: bool = False,
) -> Choice:
    """The fastest tile by the model.

    Args:
        m, n, k: extents of the product.
        chip: the kind of device.
        units: its multiprocessors.
        batch: how many such products.
        held: tiles of the result's size that a thread holds at once: its sums, and a residual.
        bits: of an element of the operands.
        along: whether operands lie so that they can be multiplied as they are, and exchanged.
        halves: whether halves of a thread block may have tiles of their own.
        three: whether three warpgroups may share a tile: 16-bit operands, and nothing but the product.

    Example:
        >>> found = best(8192, 8192, 8192, HOPPER, 132)
        >>> found.rows, found.columns  # the last of 21 rounds is fuller than that of 16 with 256 columns
        (128, 192)
        >>> found = best(512, 512, 512, HOPPER, 132)  # 256 by 128 would leave all but 8 multiprocessors idle
        >>> found.rows * found.columns <= 64 * 64
        True
        >>> best(16, 8192, 8192, HOPPER, 132).rows
        16
    """
    tried = [
        replace(choice, seconds=predict(m, n, k, choice, chip, units, batch=batch, bits=bits))
        for choice in candidates(
            m, n, k, chip, batch=batch, held=held, bits=bits, along=along, halves=halves, three=three
        )
        # Three warpgroups write no result under the next tile's products.
        if choice.rows != chip.three or batch * -(-m // choice.rows) * -(-n // choice.columns) <= units
    ]

    def cost(tile: Choice) -> tuple[float, ...]:
        doubt = WORTH_DIVIDING if tile.pieces > 1 else 1.0
        return tile.seconds * doubt, tile.cluster, -tile.rows * tile.columns, tile.rows

    return min(tried, key=cost)


def predict(m: int, n: int, k: int, tile: Choice, chip: Chip, units: int, *, batch: int = 1, bits: int = 16) -> float:
    """Seconds that the product takes with a tile, by the model."""
    size = bits / 8
    written = 2 if bits == 16 else 4  # of f32 and of integers; of 8-bit floats less
    tall, wide = _exchanged(tile.rows, tile.columns)
    rows = -(-m // tile.rows)
    blocks = batch * rows * -(-n // tile.columns)
    turns = -(-k // tile.depth)
    pieces = _pieces(tile, blocks, turns, chip, units)
    nearby = 1 < pieces == tile.pieces <= MAX_NEARBY
    busy, rounds = min(blocks * pieces, units), -(-blocks * pieces // units)
    # A single warp group multiplies half of the time: the other half it waits, and writes; unless it has many steps.
    efficiency = EFFICIENCY.get(wide, 1.0) * (1.0 if tall >= 128 or nearby else 0.75)
    products = 2 * tall * wide * tile.depth / (chip.flops * 16 / bits * efficiency)
    share = min(chip.nearby_bytes if nearby else chip.most_cache_bytes, chip.cache_bytes * units / busy)
    larger, smaller = max(tall, wide), min(tall, wide)
    loads = (larger / tile.cluster + smaller) * tile.depth * size / share
    working = rounds * -(-turns // pieces) * max(products, loads)
    read = m * k + k * n
    if k * n * size > CACHED and rows > tile.cluster:
        read += AGAIN * k * n
    memory = batch * (read * size + m * n * written) / min(chip.memory_bytes, busy * chip.lone_bytes)
    writes = 2 if tile.halved else rounds  # half of a block writes while the other multiplies, but for the last tile
    write = writes * tile.rows * tile.columns * written / chip.write_bytes
    meet, sums = 0.0, tall * wide * 4
    if pieces > 1:
        meet = sums / chip.send_bytes if nearby else chip.meet_s + pieces * sums / chip.write_bytes
    return max(working + write, memory) + meet + chip.fill_s


def _pieces(tile: Choice, blocks: int, turns: int, chip: Chip, units: int) -> int:
    """The pieces into which a launch divides the steps, all or none."""
    if 1 < tile.pieces <= MAX_NEARBY:
        fit = blocks * tile.pieces <= chip.clustered[tile.pieces - 2] and turns >= tile.pieces * MIN_NEARBY
        return tile.pieces if fit else 1
    fit = blocks * tile.pieces <= units and turns >= tile.pieces * MIN_TURNS
    return tile.pieces if fit else 1


def _exchanged(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns as instructions have them: of few rows, the operands change places."""
    return (rows, columns) if rows % ROWS == 0 else (columns, -(-rows // EIGHT) * EIGHT)
