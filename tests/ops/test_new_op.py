"""The places that an operation needs: an existing one lacks none, a new name all."""

from __future__ import annotations

import pytest

from cutile.dtypes import BY_NAME
from cutile.language.declare import DECLARED
from cutile.ops.registry import FAMILIES
from tests.new_op import ROOT, Place, family_or_default, main, places, places_of_dtype

NEW = "acoth"
"""No operation, and none is planned."""
NEW_DTYPE = "f6e3m2fn"

PLACES = [
    # Each with whether only an operation with a class has it: a composition has none.
    ("cutile/ops/math.py", True),
    ("cutile/language/math.py", False),  # the function
    ("cutile/language/math.py", False),  # its name in `__all__`
    ("cutile/frontend/families/elementwise.py", False),
    ("cutile/backend/cuda/intrinsics/math.py", True),
    ("cutile/backend/cpu/intrinsics/math.py", True),
    ("tests/samples/values.py", False),
    ("docs/reference/language.md", False),
]


def missing(name: str) -> list[Place]:
    return [place for place in places(name, family_or_default(name)) if not place.exists]


def files_missing(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """The files that the command reports as missing, and its other lines."""
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    is_missing = [line.startswith("  MISSING ") for line in lines]
    files = [line.split()[1].rstrip(":") for line, gap in zip(lines, is_missing, strict=True) if gap]
    return files, [line for line, gap in zip(lines, is_missing, strict=True) if not gap]


def test_no_existing_operation_lacks_a_place() -> None:
    assert {name: gaps for name in DECLARED if (gaps := missing(name))} == {}


@pytest.mark.parametrize("name", BY_NAME)
def test_no_existing_element_type_lacks_a_place(name: str) -> None:
    assert [place for place in places_of_dtype(name) if not place.exists] == []


@pytest.mark.parametrize("composition", [False, True])
def test_a_new_operation_lacks_every_place(composition: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert NEW not in DECLARED
    files, others = files_missing([NEW, "--composition"] if composition else [NEW], capsys)
    assert files == [file for file, of_class in PLACES if not (composition and of_class)]
    hint, summary = others
    assert hint.split()[:2] == ["ok", "cutile/frontend/elsewhere.py:"]  # no hint for another library's name
    assert summary == f"ct.{NEW}: {len(files)} of {len(files) + 1} places missing"


@pytest.mark.parametrize("composition", [False, True])
# No function of the language belongs to these two families.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("constant", "control")])
def test_every_place_is_an_existing_file(family: str, composition: bool) -> None:
    assert [place for place in places(NEW, family, composition) if not (ROOT / place.file).exists()] == []


def test_a_function_of_two_operands_has_another_table() -> None:
    words = [place.what for place in places("atan2", "math") if "cuda" in place.file]
    assert words == ['a row "atan2" in `LIBDEVICE_OF_TWO`']


def test_a_composition_without_a_sample_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.new_op.SAMPLES", [])
    assert [place.what for place in missing("sigmoid")] == [
        "a row or a case: an expression, and what it is worth in NumPy"
    ]


def test_arithmetic_without_instructions_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.new_op.RESERVED", ())
    assert [place.file for place in missing("shli")] == []  # its emitters name other intrinsics
    assert [place.file for place in missing("popcount")] == ["cutile/backend/cpu/intrinsics/arith.py"]


def test_a_formula_of_our_own_is_measured() -> None:
    measured = "tests/backend/cpu/test_math.py"
    formulas = [
        name for name in ("tanh", "hypot", "lgamma") if measured in [place.file for place in places(name, "math")]
    ]
    assert formulas == ["tanh", "hypot"]  # lgamma calls the C library, and is no formula of our own


def test_a_new_element_type_lacks_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert NEW_DTYPE not in BY_NAME
    files, others = files_missing([NEW_DTYPE, "--dtype"], capsys)
    assert files == [
        "cutile/dtypes.py",  # the class
        "cutile/dtypes.py",  # its place in a list
        "cutile/__init__.py",
        "cutile/host/foreign.py",
        "docs/element_types.md",
        "cutile/ops/matmul.py",
    ]
    assert others == [f"ct.{NEW_DTYPE}: {len(files)} of {len(files)} places missing"]
