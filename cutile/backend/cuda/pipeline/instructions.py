"""The instructions of a product, and how many warpgroups share its accumulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from cutile.backend.cuda.pipeline.accumulators import THREE_WARPGROUP_ROWS, THREE_WARPGROUPS, fragment_registers
from cutile.backend.cuda.pipeline.kernel import Refused, require
from cutile.backend.cuda.pipeline.operand import lies_across
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, WGMMA_ROWS
from cutile.backend.cuda.wgmma_instructions import MmaAtom, atom_of, columns_fit, padded_columns
from cutile.dtypes import f32, i32
from cutile.ir.core import Op, Value
from cutile.ops.matmul import Mma

MAX_COLUMNS = 256
"""Of one instruction."""
MAX_SUMS = 128
"""Accumulator registers of a thread that leave room for the rest."""
MAX_SIMT_SUMS_OF_ONE = 32
"""Sums of a thread from outer products up to which one warp group has a tile to itself."""
MAX_SUMS_AND_FRAGMENT = 144
"""Registers of a thread for its sums and for the operand that it reads."""
MAX_SUMS_TWICE = 96
"""Sums of a thread beside which it has registers for as many again."""
MAX_PARTIAL_SUMS = 64
"""Registers of a thread for products that are yet to be added to its sums."""
MAX_PROMOTE_DEPTH = 512
"""Products of 8-bit floats that the tensor cores add up before they are added in f32."""


@dataclass(frozen=True)
class Instructions:
    """How a product is made.

    Attributes:
        atom: the kind of product of warp groups; None where it is made by fused multiply-adds.
        rows, columns: of the sums.
        warpgroups: that share the rows.
        a_from_registers: whether the left operand lies across K, and is read by threads.
        fast: whether all sums are left to the tensor cores, whatever they add in.
    """

    atom: MmaAtom | None
    rows: int
    columns: int
    warpgroups: int
    a_from_registers: bool
    fast: bool

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.rows * self.columns // (WARPGROUP * self.warpgroups)

    @property
    def by_instruction(self) -> bool:
        """Whether the sums are where an instruction leaves those of the tile.

        A warp has sixteen of its rows.
        """
        return self.atom is not None and not self.a_from_registers

    @property
    def promotes(self) -> bool:
        """Whether the tensor cores add in fewer bits than f32 has.

        So that some products are added up at a time.
        """
        return self.atom is not None and self.atom.promotes and not self.fast

    def promotion(self, depth: int, *, by_iterations: bool) -> tuple[int, int]:
        """Columns multiplied apart from the sums at a time, or iterations of a depth.

        As many as a thread has registers for. Iterations only if `by_iterations`.

        Raises:
            Refused: the left operand is read by threads, which multiply all columns at a time.
        """
        if not self.promotes:
            return 0, 0
        if self.sums <= MAX_SUMS_TWICE and by_iterations:
            return 0, max(1, MAX_PROMOTE_DEPTH // depth)
        require(
            not self.a_from_registers,
            "8-bit floats that lie across K are added up some turns at a time, counted in i32",
        )
        down = self.rows // (WGMMA_ROWS * self.warpgroups)
        fitting = (columns for columns in range(8, self.columns + 1, 8) if self.columns % columns == 0)
        return max(columns for columns in fitting if down * columns // 2 <= MAX_PARTIAL_SUMS), 0


def instructions_of(product: Mma, definitions: Mapping[Value, Op]) -> Instructions:
    """The instructions for a product.

    Raises:
        Refused: there are none by which warps that only multiply could make it.
    """
    require(len(product.acc.tile.shape) == 2, "a batch of products in one tile")
    rows, columns = product.acc.tile.shape
    dtype, other, acc = product.a.tile.dtype, product.b.tile.dtype, product.acc.tile.dtype
    depth_bytes = product.a.tile.shape[1] * dtype.bits // 8
    atom = atom_of(dtype, other, acc)
    if atom is None and not dtype is other is acc is f32:
        of = f"{dtype}" if dtype is other else f"{dtype} by {other}"
        raise Refused(f"products of {of} that add up in {acc} keep to a warp")
    turns = atom is not None and not atom.any_major  # of what lies across K on the way in
    a_from_registers = turns and lies_across(product.a, 1, definitions)
    keeps = not (turns and lies_across(product.b, 0, definitions))
    require(keeps, f"the right operand, of {dtype}, lies across K, and cannot change places with the left one")
    if atom is not None:
        columns = padded_columns(columns)
    groups = _of_outer(rows, columns) if atom is None else _groups(rows, columns, atom)
    how = Instructions(atom, rows, columns, groups, a_from_registers, product.use_fast_acc)
    if a_from_registers:
        twice = not how.promotes or how.sums <= MAX_SUMS_TWICE
        require(twice, f"a thread would hold {how.sums} sums twice, and has registers for {MAX_SUMS_TWICE}")
        held = how.sums + fragment_registers(rows, depth_bytes, groups)
        require(
            held <= MAX_SUMS_AND_FRAGMENT,
            f"a thread would hold {held} sums and operands, and has room for {MAX_SUMS_AND_FRAGMENT}",
        )
    require(depth_bytes % STEP_BYTES == 0, f"a depth of {product.a.tile.shape[1]} is no whole number of steps")
    return how


def _groups(rows: int, columns: int, atom: MmaAtom) -> int:
    """The warpgroups that share a product's rows."""
    require(rows % WGMMA_ROWS == 0, f"a tile of {rows} rows is no whole number of {WGMMA_ROWS}")
    step = "16" if atom.sums is i32 and columns > 32 else "8"
    # Of the columns that one instruction has no room for, two warpgroups have half each.
    apart = rows == WGMMA_ROWS and columns > MAX_COLUMNS
    groups = 2 if apart else {WGMMA_ROWS: 1, THREE_WARPGROUP_ROWS: THREE_WARPGROUPS}.get(rows, 2)
    own = columns // groups if apart else columns
    require(columns_fit(atom, own), f"{columns} columns: a multiple of {step} up to 256 is wanted")
    require(apart or rows % (WGMMA_ROWS * groups) == 0, f"{rows} rows do not divide among {groups} warp groups")
    return _with_room(rows * columns, groups)


def _of_outer(rows: int, columns: int) -> int:
    """The warp groups that share the sums of outer products."""
    return _with_room(rows * columns, 1 if rows * columns <= WARPGROUP * MAX_SIMT_SUMS_OF_ONE else 2)


def _with_room(sums: int, groups: int) -> int:
    """So many groups, if their threads have room for the sums."""
    count = sums // (WARPGROUP * groups)
    require(count <= MAX_SUMS, f"a thread would hold {count} sums, and has registers for {MAX_SUMS}")
    return groups
