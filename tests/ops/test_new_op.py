"""The list of what an operation needs: complete for those that there are, and for one that is not there all of it."""

from __future__ import annotations

import pytest

from cutile.dtypes import BY_NAME
from cutile.language.declare import DECLARED
from cutile.ops.registry import FAMILIES
from tests.new_op import ROOT, Place, family_of, main, places, places_of_dtype


def missing(name: str) -> list[Place]:
    return [place for place in places(name, family_of(name) or "math") if not place.there]


def test_nothing_is_missing_of_what_there_is() -> None:
    assert {name: gaps for name in DECLARED if (gaps := missing(name))} == {}


@pytest.mark.parametrize("name", BY_NAME)
def test_nothing_is_missing_of_an_element_type(name: str) -> None:
    if name != "bool":  # Python's name, so that the class has another
        assert [place for place in places_of_dtype(name) if not place.there] == []


def test_all_is_missing_of_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acoth"]) == 1
    lines = capsys.readouterr().out.splitlines()
    files = [line.split()[1].rstrip(":") for line in lines if "MISSING" in line]
    assert len(lines) == len(files) + 2
    assert files == [
        "cutile/ops/math.py",
        "cutile/language/math.py",
        "cutile/language/math.py",
        "cutile/frontend/families/elementwise.py",
        "cutile/backend/cuda/intrinsics/math.py",
        "cutile/backend/cpu/intrinsics/math.py",
        "tests/samples/values.py",
        "docs/reference/language.md",
    ]


def test_all_is_missing_of_a_composition_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acoth", "--composition"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines if "MISSING" in line] == [
        "cutile/language/math.py",
        "cutile/language/math.py",
        "cutile/frontend/families/elementwise.py",
        "tests/samples/values.py",
        "docs/reference/language.md",
    ]


@pytest.mark.parametrize("composition", [False, True])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("constant", "control")])
def test_every_place_is_a_file_that_there_is(family: str, composition: bool) -> None:
    assert [place for place in places("acoth", family, composition) if not (ROOT / place.file).exists()] == []


def test_a_function_of_two_operands_has_another_table() -> None:
    words = [place.what for place in places("atan2", "math") if "cuda" in place.file]
    assert words == ['a row "atan2" in `LIBDEVICE_OF_TWO`']


def test_a_composition_without_a_sample_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.new_op.SAMPLES", [])
    assert [place.what for place in missing("sigmoid")] == [
        "a row or a case: an expression, and what it is worth in NumPy"
    ]


def test_arithmetic_without_instructions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.new_op.RESERVED", ())
    assert [place.file for place in missing("shli")] == []  # its emitters name other intrinsics
    assert [place.file for place in missing("popcount")] == ["cutile/backend/cpu/intrinsics/arith.py"]


def test_a_formula_of_our_own_is_measured() -> None:
    measured = "tests/backend/cpu/test_math.py"
    formulas = [
        name for name in ("tanh", "hypot", "lgamma") if measured in [each.file for each in places(name, "math")]
    ]
    assert formulas == ["tanh", "hypot"]  # lgamma is the C library's


def test_all_is_missing_of_an_element_type_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["f6e3m2fn", "--dtype"]) == 1
    assert capsys.readouterr().out.count("MISSING") == 6
