"""The list of what an operation needs: complete for those that there are, and for one that is not there all of it."""

from __future__ import annotations

import pytest

from cutile.dtypes import BY_NAME
from cutile.language.declare import DECLARED
from tests.new_op import Place, family_of, main, places, places_of_dtype


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


def test_all_is_missing_of_an_element_type_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["f6e3m2fn", "--dtype"]) == 1
    assert capsys.readouterr().out.count("MISSING") == 6
