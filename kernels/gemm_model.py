"""A model of the time of a matrix product on a GPU, by which `gemm_choice` picks the tile.

The model adds up the time of a thread block, step by step: the products, at the rate that tensor cores reach with such
a tile; the loads, at the block's share of the L2 cache's bandwidth; and at the end the writing of the tile. A device
runs one such block per multiprocessor. So the blocks of a small product run in few waves, and a tile that fills the
last wave well can beat one that multiplies faster. If there are too few tiles, split-K divides their steps. No product
is faster than its memory traffic. The model only estimates; `python -m kernels bench` measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from cutile import CompileOptions


@dataclass(frozen=True)
class Choice:
    """A tile, and how thread blocks share it.

    Attributes:
        rows, columns: of the result, per tile block.
        depth: columns of the left operand, per step.
        seconds: the product's time by the model; 0 if it was not computed.
        cluster: thread blocks of a cluster, which share their loads.
        pieces: splits of a tile's steps (split-K), as the model expects launches to divide them.
        halved: whether the kernel is ping-pong: each of two warpgroups has a tile of its own, and one writes its result
            while the other multiplies.
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
        """The compile options of this choice; None if it needs none."""
        if self.cluster == 1 and not self.halved:
            return None
        return CompileOptions(
            num_cta_in_cga=self.cluster if self.cluster > 1 else None,
            num_worker_warps=4 if self.halved else None,
        )


@dataclass(frozen=True)
class Chip:
    """Parameters of a kind of device, per multiprocessor unless the line says otherwise.

    Attributes:
        flops: operations per second of 16-bit products; 8-bit products have twice as many, tf32 half.
        cache_bytes: bytes per second from the L2 cache, when all multiprocessors load.
        most_cache_bytes: the same when few multiprocessors load.
        memory_bytes: bytes per second from the device's memory, of all multiprocessors together.
        lone_bytes: bytes per second from the device's memory, of one multiprocessor.
        write_bytes: bytes per second of the writing of a block's result.
        fill_s: seconds from a block's begin to its first product.
        rows, columns: extents of the tiles that are tried.
        few: rows of tiles for products of no more rows, which are multiplied with A and B swapped.
        depth: elements of K in a step of 16-bit operands; other operands have as many bytes.
        sums: registers of a thread for tiles of the result.
        meet_s: seconds until the sums of several blocks are added up in a workspace; 0 without split-K.
        send_bytes: bytes per second of sums from one block of a cluster to others.
        nearby_bytes: as `most_cache_bytes`, for the blocks of split-K in clusters.
        clustered: blocks that the device holds at once in clusters of 2, of 3, and so on.
        three: rows and columns of a tile that three warpgroups share, for products with no more tiles than
            multiprocessors; 0 for none.
        halved: the most columns of a ping-pong kernel's tile of 128 rows; 0 for none.
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
"""H200, fitted to these measurements. 512 cubed by 64 blocks of 64 x 64 took 3.66 us, 1024 cubed by 88 of 128 x 96 took
7.55 us, 2048 cubed by 64 of 128 x 256 took 27.9 us. A block loads 80 GB/s. At 8192 cubed 21 waves of 128 x 192 took 2 %
less than 16 of 128 x 256; at 1024 cubed 64 x 128 took 9 % less than 128 x 64, which loads as much. With N = K = 8192,
16 rows took 33.8 us in tiles of 16 x 64, and 51 us in tiles of 64 x 64, which have 48 rows of zeros; 128 rows took 36.3
us if two blocks share the columns of 64 x 128, and 44.6 us if they do not. The sums of eight blocks were added in a
workspace within 3 us. Split-K in clusters: 512 x 512 x 8192 in tiles of 128 x 128 took 15.2 us by six blocks with 22
steps each, 16.1 by five and 18.5 by four; in tiles of 64 x 128 by three blocks with 43 steps it took 14.1. Ping-pong
tiles of 128 x 192: 8192 x 8192 x 512 took 105.0 us, and 119.2 us with shared tiles; 8192 cubed took 3 % less. 1536 x
3072 x 8192 took 102 us by 128 tiles of 192 x 192, and 134 us by 192 of 128 x 192."""

AMPERE = Chip(2.0e12, 30e9, 80e9, 1.5e12, 40e9, 2e-6, (64, 128), (64, 128), 32, 200, 20e9)
"""A100, with products by `mma.sync`."""

EFFICIENCY = {64: 0.95, 96: 0.96, 128: 0.98, 160: 0.98, 224: 0.98}
"""Speed of an instruction by its columns, relative to 256 columns: each instruction reads the left operand again, and
columns that are no multiple of 64 are loaded by more copies."""

GROUP, ROWS, EIGHT = 128, 64, 8
"""Threads of a warpgroup; rows of its instruction; its instruction has a multiple of EIGHT columns."""
HALF_ROWS = 128
"""Rows of a ping-pong kernel's tile."""
MAX_PIECES, MIN_TURNS, MAX_SUMS = 16, 16, 64
"""Split-K in a workspace: the most splits, the fewest steps of a split, and the most sums a thread for which it is
tried, because larger tiles leave more multiprocessors idle."""
MAX_NEARBY, MIN_NEARBY, MAX_SENT = 8, 8, 96 * 1024
"""Split-K in a cluster: the most splits, the fewest steps of a split that the model assumes (launches may use fewer),
and the most bytes of sums that are sent to a block."""
WORTH_DIVIDING = 1.15
"""How many times as fast a product must be with split-K, by the model, for it to be chosen."""
CACHED = 48e6
"""Bytes of a right operand that the L2 cache can hold, so that later blocks find there what earlier ones have read."""
AGAIN = 0.2
"""The part of a larger right operand that is read from memory twice, if there are several rows of blocks."""


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
    """The tiles that `best` compares; arguments as there."""
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
        held: tiles of the result's size that a thread block holds at once: the accumulators, and a residual.
        bits: of an element of the operands.
        along: whether the operands lie so that A and B can be swapped, loads shared in clusters, and steps divided.
        halves: whether the kernel may be ping-pong.
        three: whether three warpgroups may share a tile: 16-bit operands, and an epilogue that is only a conversion.

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
        # Three warpgroups have no delayed epilogue, so such tiles are taken only if each block has one of them.
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
    # A single warpgroup cannot overlap its waits and its epilogue with products, unless it has many steps.
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
    writes = 2 if tile.halved else rounds  # one warpgroup writes while the other multiplies, except for the last tiles
    write = writes * tile.rows * tile.columns * written / chip.write_bytes
    meet, sums = 0.0, tall * wide * 4
    if pieces > 1:
        meet = sums / chip.send_bytes if nearby else chip.meet_s + pieces * sums / chip.write_bytes
    return max(working + write, memory) + meet + chip.fill_s


def _pieces(tile: Choice, blocks: int, turns: int, chip: Chip, units: int) -> int:
    """The splits that a launch will use: those of the choice, or 1 if they do not fit the device."""
    if 1 < tile.pieces <= MAX_NEARBY:
        fit = blocks * tile.pieces <= chip.clustered[tile.pieces - 2] and turns >= tile.pieces * MIN_NEARBY
        return tile.pieces if fit else 1
    fit = blocks * tile.pieces <= units and turns >= tile.pieces * MIN_TURNS
    return tile.pieces if fit else 1


def _exchanged(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the tile as the instructions see it: A and B are swapped if rows are few."""
    return (rows, columns) if rows % ROWS == 0 else (columns, -(-rows // EIGHT) * EIGHT)
