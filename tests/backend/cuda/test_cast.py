"""Conversions as LLVM IR: operands and results of inline PTX have the types of its constraints, for every pair."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cutile.backend.cuda.intrinsics.cast import convert_all
from cutile.backend.cuda.intrinsics.llvm import ir, register_type
from cutile.conversion import ROUNDINGS
from cutile.dtypes import EVERY_DTYPE, DTypeLike, f4e2m1fnx2

LETTERS = {"h": "i16", "r": "i32", "l": "i64", "f": "float", "d": "double"}
CONVERTED = [each for each in EVERY_DTYPE if each is not f4e2m1fnx2]


@dataclass(frozen=True)
class Inline:
    """A call of inline PTX: its text, its constraints, and the types of the result and the operands."""

    text: str
    constraints: list[str]
    types: list[str]


def inline(source: DTypeLike, target: DTypeLike, rounding: str | None, capability: tuple[int, int]) -> list[Inline]:
    """The inline PTX of a conversion of three neighbours."""
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [register_type(source)] * 3), "f")
    b = ir.IRBuilder(function.append_basic_block())
    made = convert_all(b, source, target, list(function.args), rounding, capability)
    assert [each.type for each in made] == [register_type(target)] * 3
    calls = [each for each in b.block.instructions if isinstance(each, ir.CallInstr)]
    return [
        Inline(each.callee.asm, each.callee.constraint.split(","), [str(value.type) for value in (each, *each.args)])
        for each in calls
        if isinstance(each.callee, ir.InlineAsm)
    ]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)], ids=str)
@pytest.mark.parametrize("source", CONVERTED, ids=str)
def test_inline_ptx_takes_what_its_constraints_say(source: DTypeLike, capability: tuple[int, int]) -> None:
    for target in CONVERTED:
        whole = source.format is not None and target.format is None
        for rounding in (None, *ROUNDINGS) if whole or target.format is not None else (None,):
            for call in inline(source, target, rounding, capability):
                said = [LETTERS[each.lstrip("=")] for each in call.constraints]
                assert call.types == said, (source, target, call.text)
