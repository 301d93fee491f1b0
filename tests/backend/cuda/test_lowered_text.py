"""The lowered stage as text: every decision about a kernel, between what its author wrote and what is generated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutile.dtypes import bf16
from cutile.ir.core import Function
from cutile.ir.text import print_function
from kernels.attention import attention
from tests.backend.cuda.programs import HOPPER, gemm_program, lowered, saxpy_program, shipped
from tests.support.golden import Golden
from tests.support.programs import mut, scalar, tensor


def attention_program() -> Function:
    """Forward attention, 128 queries and 64 keys at a time."""
    given = {"o": mut(1, 128, 64, dtype=bf16), **{name: tensor(3, bf16) for name in "qkv"}, "scale": scalar()}
    return shipped(attention, given, BN=64)


KERNELS: dict[str, Callable[[], Function]] = {
    "saxpy": lambda: saxpy_program(1024),
    "gemm": lambda: gemm_program(bf16, (128, 128), 64),
    "attention": attention_program,
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_lowered_text_is_golden(name: str, golden: Golden) -> None:
    golden(f"lowered/{name}.ir", print_function(lowered(KERNELS[name](), HOPPER)))
