"""IR prints and parses back; what is wrong is refused with its place."""

import enum
from collections.abc import Callable

import numpy as np
import pytest

from cutile.dtypes import f16, f32, i32
from cutile.errors import IRError
from cutile.ir.core import Block, Function, Value
from cutile.ir.text import parse, print_function
from cutile.ir.types import MutType, TensorType, TileType, attribute_text
from cutile.ir.verify import verify
from cutile.ops import OPS
from tests.support.golden import Golden
from tests.support.kernels import kernel
from tests.support.memory import launch
from tests.support.programs import GEMM, mut, program, scalar, tensor

BRANCHES = """
def branches(y: Mut, a: f32, x: Tensor):
    t = ct.load_tile_like(x, y)
    n = 0
    while n < 3:
        n += 1
    if a > 0.0:
        t = t * float("-inf")
    else:
        t = t + a
    y.store(t if n == 3 else -t)
"""


def gemm() -> Function:
    return program(GEMM, {"z": mut(128, 96, dtype=f16), "x": tensor(2, f16), "y": tensor(2, f16)}, BK=32)


def branches() -> Function:
    return program(BRANCHES, {"y": mut(4, 8), "a": scalar(), "x": tensor(2)})


def letters() -> Function:
    text = "def größe(y: Mut, δ: f32, नि: f32):\n    ℘ = δ + नि\n    y.store(℘)\n"
    return program(text, {"y": mut(4), "δ": scalar(), "नि": scalar()})


@pytest.mark.parametrize("make", [gemm, branches, letters])
def test_printing_and_parsing_gives_the_same_function(make: Callable[[], Function]) -> None:
    function = make()
    verify(function)
    text = print_function(function)
    again = parse(text, OPS)
    verify(again)
    assert again == function
    assert print_function(again) == "\n".join(line.split("  //")[0] for line in text.splitlines()) + "\n"


def test_functions_that_differ_are_unequal() -> None:
    assert gemm() != branches()
    parsed = parse(print_function(branches()), OPS)
    two = parse(print_function(branches()).replace("-inf", "inf"), OPS)
    assert parsed == branches()
    assert parsed != two


def test_the_text_of_a_kernel(golden: Golden) -> None:
    golden("ir/gemm.ir", print_function(gemm()))
    golden("ir/branches.ir", print_function(branches()))


class Extent(enum.IntEnum):
    """Extents that a kernel may name."""

    ROWS = 4


class Word(enum.StrEnum):
    """Words of attributes."""

    ZERO = "zero"


def test_members_of_enums_print_as_what_they_are() -> None:
    numbers = (Extent.ROWS, -0.0, np.float64(1.5), True, Word.ZERO, None)
    assert attribute_text(numbers) == "[4, -0.0, 1.5, True, 'zero', None]"


def test_an_enum_is_the_shape_of_a_tile() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    text = "def f(y: Mut, x: Tensor, *, ROWS: Const = 4):\n    y.store(x.load_tile((ROWS,), (0,)))\n"
    launch(kernel(text), (y, (4,)), x, ROWS=Extent.ROWS, backend="reference")
    np.testing.assert_array_equal(y, x)


def test_types_print_as_they_parse() -> None:
    for type in (
        TileType(f32),
        TileType(i32, (4,)),
        TensorType(f16, (None, 8), (None, 1), 16),
        MutType(TensorType(f32, (None,), (None,), 4), (32,)),
    ):
        function = Function("f", Block((Value(type, "x"),)))
        assert parse(print_function(function), OPS).parameters[0].type == type


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @f(%x: f32) stage ir {\n %y = nothing(%x) : f32\n}", "no operation 'nothing'"),
        ("func @f(%x f32) stage ir {\n}", "expected ':'"),
        ("func @f(%x: f32) stage ir {\n %y = add(%x, %x) : f32 ~\n}", "cannot read '~"),
    ],
)
def test_text_that_is_no_ir_is_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse(text, OPS)
