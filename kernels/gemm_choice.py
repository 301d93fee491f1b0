"""Which tile a matrix product is cut into, when nobody says: the one that a model of the device finds the fastest.

The model counts what a thread block does, step by step: the products, at the rate that tensor cores reach with tiles of
its form; the loads, at its share of what the second-level cache delivers; and at the end the writing of its tile. A
device runs one such block per multiprocessor, so the blocks of a small product come in few rounds, and a tile that
fills the last round well is worth more than one that multiplies fast. Not a measurement: kernels are timed by
`python -m kernels bench`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cuda_async import Device
from cutile import DType, Tensor, bf16, f8e4m3fn, f8e5m2, f16, f32, i8, tf32, u8


@dataclass(frozen=True)
class Choice:
    """How a product is cut.

    Attributes:
        rows, columns: of the result, per tile block.
        depth: columns of the left operand, per step.
        seconds: what the model says that the product takes; 0 where it was not asked.
    """

    rows: int
    columns: int
    depth: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Chip:
    """What the model knows of a kind of device, per multiprocessor.

    Attributes:
        flops: per second, of products of 16 bits; of 8 bits twice as many, of tf32 half.
        cache_bytes: per second from the second-level cache, when all multiprocessors load.
        most_cache_bytes: when few do.
        memory_bytes: per second from the device's memory, of all multiprocessors together.
        write_bytes: per second, of a block's result.
        fill_s: seconds from a block's begin to its first product.
        rows, columns: of the tiles that are worth a try.
        depth: of a step of 16-bit operands; as many bytes of others.
        sums: registers of a thread for tiles of the result.
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


HOPPER = Chip(6.0e12, 80e9, 80e9, 4.2e12, 100e9, 2.0e-6, (64, 128), (64, 96, 128, 160, 192, 224, 256), 64, 200)
"""H200, fitted to what was measured there: 64 blocks of 64 x 64 took 3.66 us for a product of 512, 88 of 128 x 96 took
7.55 us for one of 1024, 64 of 128 x 256 took 27.9 us for one of 2048. A block loads 80 GB/s. At 8192 cubed 21 rounds
of 128 x 192 took 2 % less than 16 of 128 x 256; at 1024 cubed 64 x 128 took 9 % less than 128 x 64, which loads as
much."""

EXACT = {(128, 128): 2.8e-6, (64, 128): 1.5e-6, (128, 64): 1.5e-6, (64, 64): 0.85e-6, (32, 64): 0.6e-6}
"""f32 on an H200, by fused multiply-adds: seconds of a step of 32 with a tile, as measured."""

AMPERE = Chip(2.0e12, 30e9, 80e9, 1.5e12, 40e9, 2e-6, (64, 128), (64, 128), 32, 200)
"""A100, with products of single warps."""

EFFICIENCY = {64: 0.95, 96: 0.96, 128: 0.98, 160: 0.98, 224: 0.98}
"""Of an instruction by its columns, relative to 256 columns: the left operand is read again for each; columns that are
no multiple of 64 come in more copies."""

Lie = Literal["along", "left across", "right across", "both across", "otherwise"]

GROUP, ROWS = 128, 64
"""Threads that share the sums of so many rows."""

HOST = Choice(256, 512, 256)
"""One call of a BLAS per tile block."""

PLAIN = Choice(128, 128, 32)
"""f32 and f64 on a GPU, without tensor cores or with those of single warps."""

BYTES = Choice(128, 128, 64)
"""8 bits, by tensor cores of single warps."""

ALONG_K = (i8, u8, f8e4m3fn, f8e5m2, tf32)
"""What warp groups multiply only where an operand, at least, is contiguous along K."""

EIGHTS = (f8e4m3fn, f8e5m2)


def choose(
    m: int,
    n: int,
    k: int,
    dtype: type[DType],
    device: Device,
    *,
    batch: int = 1,
    held: int = 1,
    lie: Lie = "otherwise",
) -> Choice:
    """The tile for `batch` products of (m, k) by (k, n) on a device.

    Args:
        m, n, k: extents of a product.
        dtype: of the operands.
        device: where it runs.
        batch: how many such products.
        held: tiles of the result's size that a thread holds at once: its sums, and a residual.
        lie: how the operands lie (see `how_they_lie`).

    Example:
        >>> choose(2048, 2048, 2048, f16, Device.host())
        Choice(rows=256, columns=512, depth=256, seconds=0.0)
    """
    if device.kind != "cuda":
        return HOST
    units, hopper = device.properties.multiprocessor_count, device.arch == "sm_90a"
    if dtype in (f16, bf16):
        return best(m, n, k, HOPPER if hopper else AMPERE, units, batch=batch, held=held)
    if dtype in ALONG_K and hopper and lie not in ("both across", "otherwise"):
        if dtype in EIGHTS:
            held = max(held, 2)  # products of some steps are added up apart from the sums
        turned = lie == "right across"  # what is multiplied is the transpose
        found = best(*((n, m) if turned else (m, n)), k, HOPPER, units, batch=batch, held=held, bits=dtype.bits)
        return replace(found, rows=found.columns, columns=found.rows) if turned else found
    if dtype is f32 and hopper and lie != "otherwise":
        return best_exact(m, n, k, units, batch=batch)
    return BYTES if dtype.bits == 8 else PLAIN


def how_they_lie(x: Tensor, y: Tensor) -> Lie:
    """How `x`, (m, k), and `y`, (k, n), lie, where the copy engine takes the rows of both: both contiguous along K,
    one of them across, or both; "otherwise" where rows begin at odd places."""
    left, right = x.spec().layout, y.spec().layout
    if not left.alignment == right.alignment == 16:
        return "otherwise"
    if left.strides[-1] == 1:
        return "along" if right.strides[-2] == 1 else "right across" if right.strides[-1] == 1 else "otherwise"
    if left.strides[-2] == 1:
        return "left across" if right.strides[-2] == 1 else "both across" if right.strides[-1] == 1 else "otherwise"
    return "otherwise"


def best(m: int, n: int, k: int, chip: Chip, units: int, *, batch: int = 1, held: int = 1, bits: int = 16) -> Choice:
    """The fastest tile by the model.

    Args:
        m, n, k: extents of the product.
        chip: the kind of device.
        units: its multiprocessors.
        batch, held: as for `choose`.
        bits: of an element of the operands.

    Example:
        >>> found = best(8192, 8192, 8192, HOPPER, 132)
        >>> found.rows, found.columns  # the last of 21 rounds is fuller than that of 16 with 256 columns
        (128, 192)
        >>> found = best(512, 512, 512, HOPPER, 132)  # 256 by 128 would leave all but 8 multiprocessors idle
        >>> found.rows * found.columns <= 64 * 64
        True
    """
    tried = [
        Choice(
            rows,
            columns,
            chip.depth * 16 // bits,
            predict(m, n, k, rows, columns, chip, units, batch=batch, bits=bits),
        )
        for rows in chip.rows
        for columns in chip.columns
        if held * rows * columns <= chip.sums * GROUP * rows // ROWS
    ]
    return min(tried, key=lambda choice: (choice.seconds, -choice.rows * choice.columns, choice.rows))


def best_exact(m: int, n: int, k: int, units: int, *, batch: int = 1) -> Choice:
    """The fastest tile for a product of f32 on Hopper, by the seconds that a step takes.

    Example:
        >>> found = best_exact(512, 512, 512, 132)  # 128 by 128 would leave all but 16 multiprocessors idle
        >>> found.rows * found.columns < 64 * 128
        True
    """
    tried = [
        Choice(*tile, PLAIN.depth, -(-batch * -(-m // tile[0]) * -(-n // tile[1]) // units) * -(-k // 32) * step)
        for tile, step in EXACT.items()
    ]
    return min(tried, key=lambda choice: choice.seconds)


def predict(
    m: int,
    n: int,
    k: int,
    rows: int,
    columns: int,
    chip: Chip,
    units: int,
    *,
    batch: int = 1,
    bits: int = 16,
) -> float:
    """Seconds that the product takes with tiles of `rows` by `columns`, by the model."""
    size, depth = bits / 8, chip.depth * 16 // bits
    written = 2 if bits == 16 else 4  # of f32 and of integers; of 8-bit floats less
    blocks = batch * -(-m // rows) * -(-n // columns)
    busy = min(blocks, units)
    rounds = -(-blocks // units)
    steps = -(-k // depth)
    # A single warp group multiplies half of the time: the other half it waits, and writes.
    efficiency = EFFICIENCY.get(columns, 1.0) * (1.0 if rows >= 128 else 0.75)
    products = 2 * rows * columns * depth / (chip.flops * 16 / bits * efficiency)
    share = min(chip.most_cache_bytes, chip.cache_bytes * units / busy)
    loads = (rows + columns) * depth * size / share
    write = rows * columns * written / chip.write_bytes
    blockwise = rounds * (steps * max(products, loads) + write) + chip.fill_s
    memory = batch * ((m * k + k * n) * size + m * n * written) / chip.memory_bytes
    return max(blockwise, memory + chip.fill_s)
