"""The instructions of warpgroups' products (PTX ISA, `wgmma.mma_async`), as data."""

from dataclasses import dataclass

from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e5m2, f16, f32, i8, i32, tf32, u8

COLUMN_STEP = 8
"""A multiple of which an instruction has columns; integers beyond 32 twice that."""


@dataclass(frozen=True)
class MmaAtom:
    """One kind of product.

    Attributes:
        name: of the operands' type in PTX.
        sums: the dtype that the products add up in.
        any_major: whether operands may be contiguous along either axis; else along K alone.
        flags: what follows the descriptors in PTX after whether sums are added to: signs, if the form has them.
        promotes: whether the tensor cores add in fewer bits than f32 has, so that sums are moved to f32 on the way.
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
    """The form of a product; None where there is no instruction.

    Operands of 8 bits may differ in their dtype.
    """
    form, other = MMA_ATOMS.get(left), MMA_ATOMS.get(right)
    if form is None or other is None or sums is not form.sums or sums is not other.sums:
        return None
    return form if left is right or (left.bits == right.bits == 8) else None


def columns_fit(form: MmaAtom, columns: int) -> bool:
    """Whether one instruction takes so many columns.

    Integers beyond 32 in steps of 16.
    """
    step = 2 * COLUMN_STEP if form.sums is i32 and columns > 32 else COLUMN_STEP
    return columns % step == 0 and 0 < columns <= 256


def padded_columns(rows: int) -> int:
    """The columns of an instruction that rows become where operands change places.

    What is more than the tile has is loaded and multiplied as well, and its sums belong to nobody.

    Example:
        >>> padded_columns(1), padded_columns(16), padded_columns(20)
        (8, 16, 24)
    """
    return -(-rows // COLUMN_STEP) * COLUMN_STEP
