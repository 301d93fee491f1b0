"""Registers and shared memory of a block, beyond which tiles are refused.

The sums of a product live in registers all the time, and so do its operands where they do not pass through stages in
shared memory. The rest of a thread's registers is for addresses and for loads under way. Compiled for sm_80 and sm_90a,
products of up to `255 - SPARE_REGISTERS` registers spill next to nothing. Larger ones spill in their innermost loop, at
a hundredth of the speed.
"""

import itertools
from collections.abc import Mapping

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import StagedMma
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout, round_up
from cutile.backend.gpu.op_facts import source_of
from cutile.backend.interface import CompileOptions
from cutile.errors import KernelTypeError
from cutile.ir.core import Function, Op, Value
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute

MIN_TILE_EXTENT = 16
"""The least extent of the product that an error recommends."""
MAX_THREAD_REGISTERS = 255
"""Registers of a thread that instructions can name."""
# Found by compiling, as this file's docstring says: 216 of 255 registers are for a product. One that needs more is
# refused, and the error names the nearest tile that fits.
SPARE_REGISTERS = 39
"""Registers of a thread that a product leaves to everything else."""
SYSTEM_BYTES = 1024
"""Shared memory that the system keeps for each block."""


def product_words(
    op: Mma | StagedMma, layouts: Mapping[str, Layout], definitions: Mapping[Value, Op] | None = None
) -> tuple[int, int]:
    """Registers of a thread for a lowered product's sums, and for its operands.

    Sums of f16 are added up in f32. Operands in stages take no registers. Other operands are counted as packed words.
    With `definitions` they are counted as they are loaded: an element that is loaded alone takes a register, and so
    does each element of 8 bits.
    """

    def words(value: Value, layout: str) -> int:
        bits = value.tile.dtype.bits
        if definitions is not None and bits < 32:
            load, _ = source_of(value, definitions, lambda op: isinstance(op, Permute | Convert))
            bits = 32 if bits == 8 or (isinstance(load, LoadTile) and not load.attributes.get("vector")) else bits
        return -(-layouts[layout].registers * bits // 32)

    sums = layouts[op.attributes["layout"]].registers * max(op.result.tile.dtype.bits, 32) // 32
    if isinstance(op, StagedMma):
        return sums, 0
    return sums, sum(words(value, name) for value, name in zip((op.a, op.b), op.attributes["source"], strict=True))


def check_budget(function: Function, lowered: Function, arch: Architecture, options: CompileOptions) -> None:
    """Refuse a kernel whose tiles do not fit; name the nearest product that does.

    Options that leave a thread block or a thread less room are named as well.

    Args:
        function: the kernel before it was lowered.
        lowered: the lowered kernel.
        arch: the architecture that it is compiled for.
        options: the author's; for a kernel of rows, with the number of warps of its plan.

    Raises:
        KernelTypeError: the tiles need more shared memory, or more registers, than there is.
    """
    blocks = options.occupancy or 1
    threads, shared = lowered.facts["threads"], lowered.facts["shared_bytes"]
    room = shared_room(arch, blocks)
    if shared > room:
        of = f"a block on {arch.name} has {room}" + ("" if blocks == 1 else f" where {blocks} share a multiprocessor")
        message = f"{function.name}: its tiles need {shared} bytes of shared memory; {of}"
        product = _largest(function)
        place = None if product is None else product.location
        raise KernelTypeError(message, place, _remedy(function, arch, options))
    most = registers(arch, threads, blocks) - SPARE_REGISTERS
    for op in lowered.walk():
        if isinstance(op, Mma | StagedMma):
            # Counted as packed words. Operands that take more may spill, which costs speed, but is no reason to refuse.
            sums, operands = product_words(op, layouts_of(lowered))
            if sums + operands > most:
                raise KernelTypeError(
                    f"{function.name}: a thread would hold {sums} registers of the product's sums"
                    + (f" and {operands} of its operands" if operands else "")
                    + f"; of its {most + SPARE_REGISTERS} registers on {arch.name}, {most} are for these",
                    op.location,
                    _remedy(function, arch, options),
                )


def shared_room(arch: Architecture, blocks: int) -> int:
    """Bytes of shared memory per block if `blocks` blocks share a multiprocessor."""
    # A multiprocessor has `SYSTEM_BYTES` more than one block may have. Each block loses as many to the system.
    return arch.shared_bytes if blocks == 1 else (arch.shared_bytes + SYSTEM_BYTES) // blocks - SYSTEM_BYTES


def registers(arch: Architecture, threads: int, blocks: int) -> int:
    """Registers that a thread may have where `blocks` blocks share a multiprocessor."""
    # A warp's registers are allocated in units of 256: 8 for each of its threads.
    return min(MAX_THREAD_REGISTERS, arch.registers // (threads * blocks) // 8 * 8)


def _largest(function: Function) -> Mma | None:
    products = [op for op in function.walk() if isinstance(op, Mma)]
    return max(products, key=lambda op: op.acc.tile.size * op.a.tile.shape[-1], default=None)


def _remedy(function: Function, arch: Architecture, options: CompileOptions) -> str:
    product, blocks, warps = _largest(function), options.occupancy or 1, options.num_worker_warps
    other = f" Or ask for less than occupancy={blocks}, or for none." if blocks > 1 else ""
    if product is None:
        return f"Use a smaller partition.{other}"
    other += f" Or ask for more than num_worker_warps={warps}, or for none." if warps else ""
    near = nearest(product, arch, blocks)
    (m, n), k = product.acc.tile.shape[-2:], product.a.tile.shape[-1]
    if near is None:
        return f"Use smaller tiles: a smaller K step of the product, or a smaller partition.{other}"
    return f"The nearest that fits is a product of {' x '.join(map(str, near))}, in place of {m} x {n} x {k}.{other}"


def nearest(product: Mma, arch: Architecture, blocks: int) -> tuple[int, int, int] | None:
    """The largest product that fits; None where none does.

    Its extents are those of `product`, each halved up to four times.
    """
    (m, n), k = product.acc.tile.shape[-2:], product.a.tile.shape[-1]
    halves = [
        (m >> a, n >> b, k >> c)
        for a, b, c in itertools.product(range(5), repeat=3)
        if a + b + c and all(extent % (1 << by) == 0 for extent, by in ((m, a), (n, b), (k, c)))
    ]
    fitting = [shape for shape in halves if min(shape) >= MIN_TILE_EXTENT and _fits(shape, product, arch, blocks)]

    def merit(shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Size of the product, then of its sums, then how square it is.

        A tile that is nearly square loads the fewest operands for its sums.
        """
        rows, columns, depth = shape
        return rows * columns * depth, rows * columns, -rows - columns, columns

    return max(fitting, key=merit, default=None)


def _fits(shape: tuple[int, int, int], product: Mma, arch: Architecture, blocks: int) -> bool:
    """Whether a product of this shape surely fits the plan of one group of warps."""
    m, n, k = shape
    dtype, sums = product.a.tile.dtype, product.acc.tile.dtype
    # The warps of `choose_warps` for sums of 32 bits: `MAX_MMA_WARPS` at most, each with 2048 sums, 64 of a thread.
    warps = min(8, max(1, round_up(m * n) // 2048))
    operand_bytes = (m + n) * k * dtype.bits // 8
    padded = 2 * operand_bytes * 5 // 4  # two stages, with a quarter more for padding; so no operand is in registers
    filled = m * n * sums.bits // 32 // (32 * warps)
    return padded <= shared_room(arch, blocks) and filled <= registers(arch, 32 * warps, blocks) - SPARE_REGISTERS
