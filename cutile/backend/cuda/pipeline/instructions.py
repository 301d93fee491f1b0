"""The instructions of a product, and how many warpgroups share its accumulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from cutile.backend.cuda.pipeline.accumulators import THREE_WARPGROUP_ROWS, THREE_WARPGROUPS, fragment_registers
from cutile.backend.cuda.pipeline.operand import lies_across
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, WGMMA_ROWS
from cutile.backend.cuda.target import Lack, Refused, require, undivided, would_hold
from cutile.backend.cuda.wgmma_instructions import MAX_COLUMNS, MmaAtom, atom_of, columns_fit, padded_columns
from cutile.dtypes import f32, i32
from cutile.ir.core import Op, Value
from cutile.ops.matmul import Mma

# Registers of a thread. The registers beyond these limits are for addresses, counters and values of the epilogue.
MAX_SUMS = 128
"""Accumulator registers: as many as 128 x 256 elements take in two warpgroups."""
MAX_SIMT_SUMS_OF_ONE = 32
"""Accumulator registers of a SIMT product up to which one warpgroup has a tile to itself."""
MAX_SUMS_AND_FRAGMENT = 144
"""Accumulator registers and those of a left operand that threads read: 128, and 16 for 128 rows of 128 bytes."""
MAX_SUMS_TWICE = 96
"""Accumulator registers beside which there is room for as many again."""
MAX_PARTIAL_SUMS = 64
"""Registers of partial accumulators: half of `MAX_SUMS`, which may be full beside them."""
# The tensor cores add them up in some 14 bits, so that the error grows with their number.
MAX_PROMOTE_DEPTH = 512
"""Elements of K whose products the tensor cores add up before the sum is added to the accumulator in f32."""


@dataclass(frozen=True)
class Instructions:
    """How a product is made.

    Attributes:
        atom: the kind of `wgmma`; None for a SIMT product.
        rows, columns: extents of the accumulator.
        warpgroups: the number of warpgroups that share the tile: its rows, or the columns of 64 rows.
        a_from_registers: whether the left operand lies across K, so that threads read it from shared memory.
        promotes: whether there are partial accumulators. The tensor cores add up products of 8-bit floats in fewer bits
            than f32 has.
    """

    atom: MmaAtom | None
    rows: int
    columns: int
    warpgroups: int
    a_from_registers: bool
    promotes: bool

    @property
    def sums(self) -> int:
        """Accumulator registers of a thread."""
        return self.rows * self.columns // (WARPGROUP * self.warpgroups)

    @property
    def by_instruction(self) -> bool:
        """Whether the accumulator has the layout of `wgmma`.

        Each warp then has 16 of 64 rows.
        """
        return self.atom is not None and not self.a_from_registers

    def promotion(self, depth: int, *, by_iterations: bool) -> tuple[int, int]:
        """Columns of a partial accumulator, and iterations after which it is added.

        At least one of the two is 0; without partial accumulators both are. The columns are as many as a thread has
        registers for.

        Args:
            depth: elements of K in an iteration.
            by_iterations: whether the loop's bounds are i32, so that it can be cut into intervals of iterations.

        Raises:
            Refused: the left operand is in registers, so that one instruction has all columns.
        """
        if not self.promotes:
            return 0, 0
        if self.sums <= MAX_SUMS_TWICE and by_iterations:  # fewer additions: one for several iterations
            return 0, max(1, MAX_PROMOTE_DEPTH // depth)
        why = "a left operand of 8-bit floats that lies across K needs fewer accumulators, and a loop counted in i32"
        require(not self.a_from_registers, why, Lack.K_MAJOR)
        down = self.rows // (WGMMA_ROWS * self.warpgroups)  # instructions of a warpgroup, one below the other
        fitting = (columns for columns in range(8, self.columns + 1, 8) if self.columns % columns == 0)
        return max(columns for columns in fitting if down * columns // 2 <= MAX_PARTIAL_SUMS), 0


def instructions_of(product: Mma, definitions: Mapping[Value, Op]) -> Instructions:
    """The instructions for a product.

    Raises:
        Refused: no warp-specialised product fits.
    """
    left, other, acc = product.a.tile, product.b.tile.dtype, product.acc.tile
    require(len(acc.shape) == 2, "a batch of products in one tile: the accumulator has more than 2 axes", Lack.TWO_AXES)
    (rows, columns), dtype, depth = acc.shape, left.dtype, left.shape[1]
    depth_bytes = depth * dtype.bits // 8
    atom = atom_of(dtype, other, acc.dtype)
    if atom is None and not dtype is other is acc.dtype is f32:
        raise Refused(f"there is no wgmma for products of {dtype} and {other} that add up in {acc.dtype}", Lack.DTYPES)
    along_k = atom is not None and not atom.any_major  # both operands have to be contiguous along K
    a_from_registers = along_k and lies_across(product.a, 1, definitions)
    if along_k and lies_across(product.b, 0, definitions):
        why = f"the right operand, of {dtype}, lies across K, and cannot change places with the left one"
        raise Refused(why, Lack.K_MAJOR)
    if atom is None:
        groups = 1 if rows * columns <= WARPGROUP * MAX_SIMT_SUMS_OF_ONE else 2
    else:  # a product of few rows is swapped: the rows are its columns here, and may be 1 or 20
        columns = padded_columns(columns)
        groups = _groups(rows, columns, atom)
    promotes = atom is not None and atom.promotes and not product.use_fast_acc
    instructions = Instructions(atom, rows, columns, groups, a_from_registers, promotes)
    sums = instructions.sums
    require(sums <= MAX_SUMS, would_hold(sums, f", and has registers for {MAX_SUMS}"))
    if a_from_registers:
        if promotes and sums > MAX_SUMS_TWICE:
            raise Refused(would_hold(sums, f" twice, and has registers for {MAX_SUMS_TWICE}"))
        held = sums + fragment_registers(rows, depth_bytes, groups)
        most = MAX_SUMS_AND_FRAGMENT
        require(held <= most, would_hold(held, f" and operands, and has room for {most}"))
    require(depth_bytes % STEP_BYTES == 0, f"a depth of {depth} is no whole number of steps", Lack.STEPS_OF_K)
    return instructions


def _groups(rows: int, columns: int, atom: MmaAtom) -> int:
    """The warpgroups that share a tile."""
    require(rows % WGMMA_ROWS == 0, f"a tile of {rows} rows is no whole number of {WGMMA_ROWS}", Lack.ROWS)
    step = "16" if atom.sums is i32 and columns > 32 else "8"  # as `columns_fit` asks
    # Where 64 rows have more columns than one instruction takes, two warpgroups have half of the columns each.
    halved = rows == WGMMA_ROWS and columns > MAX_COLUMNS
    groups = 2 if halved else {WGMMA_ROWS: 1, THREE_WARPGROUP_ROWS: THREE_WARPGROUPS}.get(rows, 2)
    fit = columns_fit(atom, columns // groups if halved else columns)
    require(fit, f"{columns} columns: a multiple of {step} up to {MAX_COLUMNS} is wanted", Lack.COLUMNS)
    require(halved or rows % (WGMMA_ROWS * groups) == 0, undivided(f"{rows} rows", f"{groups} warp groups"))
    return groups
