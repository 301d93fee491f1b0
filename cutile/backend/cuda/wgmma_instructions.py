"""The instructions of warpgroups' products (PTX ISA, `wgmma.mma_async`), as data."""

from dataclasses import dataclass

from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e5m2, f16, f32, i8, i32, tf32, u8

COLUMN_STEP = 8
"""An instruction's columns are a multiple of it. With integers, more than 32 columns are a multiple of twice that."""
MAX_COLUMNS = 256
"""Columns of one instruction at most (PTX ISA, "wgmma.mma_async")."""


@dataclass(frozen=True)
class MmaAtom:
    """One kind of product.

    Attributes:
        name: the operands' type in PTX.
        sums: the accumulator's dtype.
        any_major: whether operands may be contiguous along either axis; else only along K.
        flags: PTX operands behind the predicate `scale-d`: `imm-scale-a` and `imm-scale-b`, if the form has them.
        promotes: whether the tensor cores add in fewer bits than f32 has, so that there are partial accumulators.
    """

    name: str
    sums: DTypeLike
    any_major: bool
    flags: str
    promotes: bool = False


MMA_ATOMS: dict[DTypeLike, MmaAtom] = {
    f16: MmaAtom("f16", f32, True, ", 1, 1"),
    bf16: MmaAtom("bf16", f32, True, ", 1, 1"),
    tf32: MmaAtom("tf32", f32, False, ", 1, 1"),
    f8e4m3fn: MmaAtom("e4m3", f32, False, ", 1, 1", promotes=True),
    f8e5m2: MmaAtom("e5m2", f32, False, ", 1, 1", promotes=True),
    i8: MmaAtom("s8", i32, False, ""),
    u8: MmaAtom("u8", i32, False, ""),
}


def atom_of(left: DTypeLike, right: DTypeLike, sums: DTypeLike) -> MmaAtom | None:
    """The instruction of a product, named for its left operand; None if there is none.

    Operands of 8 bits may differ in dtype.
    """
    atom, other = MMA_ATOMS.get(left), MMA_ATOMS.get(right)
    if atom is None or other is None or sums is not atom.sums or sums is not other.sums:
        return None
    return atom if left is right or (left.bits == right.bits == 8) else None


def columns_fit(atom: MmaAtom, columns: int) -> bool:
    """Whether there is an instruction of this kind with so many columns."""
    step = 2 * COLUMN_STEP if atom.sums is i32 and columns > 32 else COLUMN_STEP
    return columns % step == 0 and 0 < columns <= MAX_COLUMNS


def padded_columns(rows: int) -> int:
    """Columns of the instruction for rows that become columns by a swap of A and B.

    The columns beyond the tile are loaded and multiplied as well. Nobody reads their sums.

    Example:
        >>> padded_columns(1), padded_columns(16), padded_columns(20)
        (8, 16, 24)
    """
    return -(-rows // COLUMN_STEP) * COLUMN_STEP
