"""What an element type says of itself: the questions that everything else asks it."""

from __future__ import annotations

import pytest

from cutile.dtypes import EVERY_DTYPE, bf16, f32

QUESTIONS = {
    "is_bool": "bool",
    "is_integer": "i8 i16 i32 i64 u8 u16 u32 u64",
    "is_signed": "i8 i16 i32 i64",
    "is_float": "f16 bf16 f32 f64",
    "is_half": "f16 bf16",
    "is_float8": "f8e4m3fn f8e5m2",
    "computes": "bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_which_types_say_yes(question: str) -> None:
    assert [dtype.name for dtype in EVERY_DTYPE if getattr(dtype, question)] == QUESTIONS[question].split()


def test_a_name_is_formatted() -> None:
    assert f"{f32:>5}|{bf16:<6}|{f32}" == "  f32|bf16  |f32"
