"""What pages say that there is, there is; and who looks for it sees all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, cited, texts, wrong

PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.name != "language.md"
]  # that one is generated


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    assert wrong(page) == []


@pytest.mark.parametrize("name", ["seed_coverage.md", "errors.md"])
def test_every_test_that_a_page_names_is_seen(name: str) -> None:
    """Counted in another way, so that who reads the page cannot be blind for half of it."""
    page = ROOT / "docs" / "reference" / name
    seen = [test for _, text in texts(page) for test in cited(text)]
    assert len(seen) == len(re.findall(r"\btests/\w", page.read_text(encoding="utf-8"))) > 40


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("`cutile.nothing`", ["1: there is no cutile.nothing"]),
        ("`cutile.torch` `cutile.torch.register` `cutile.torch.nothing`", ["1: there is no cutile.torch.nothing"]),
        ("`cutile.nothing(x=1)`", ["1: there is no cutile.nothing"]),
        ("`cuda_async.Device.nothing` `cutile.api.zeros`", ["1: there is no cuda_async.Device.nothing"]),
        ("`tests/nothing.py`", ["1: there is no tests/nothing.py"]),
        ("`cutile/nothing.py`", ["1: there is no cutile/nothing.py"]),
        ("`tests/conftest.py::nothing`", ["1: tests/conftest.py has no nothing"]),
        ("`` `tests/nothing.py` ``", []),  # what is quoted is no name
        ("```\n`cutile.nothing\n```", []),
        ("    `cutile.nothing` of a block of code", []),
        ("a ` b\n\n`cutile.nothing`", ["1: a backtick has no other one", "3: there is no cutile.nothing"]),
        ("`f(x,\ny)` and `cutile.nothing`", ["1: there is no cutile.nothing"]),
        ("tests/conftest.py::golden", ["1: tests/conftest.py::golden is not quoted"]),
        (
            "| `-- `b`` | `cutile.nothing` | `tests/nothing.py` |",
            ["1: a backtick has no other one", "1: there is no cutile.nothing", "1: there is no tests/nothing.py"],
        ),
        ("| `a\\|b` | `cutile.nothing` |", ["1: there is no cutile.nothing"]),
    ],
)
def test_a_page_that_claims_too_much_is_found_out(tmp_path: Path, text: str, faults: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert wrong(page) == [f"page.md:{each}" for each in faults]
