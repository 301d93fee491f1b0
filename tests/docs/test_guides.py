"""What the guides put beside another library's names exists here; tests/docs/test_code_blocks.py runs their code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutile
from tests.docs.blocks import ROOT

GUIDES = sorted((ROOT / "docs").glob("from_*.md"))
_NAME = re.compile(r"\b(ct|api)\.((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)")


def ours(text: str) -> Iterator[str]:
    """Yield the names `ct.x` and `api.x` of the last column of each table: the first is the other library's."""
    for line in text.splitlines():
        if line.startswith("| "):
            here = line.strip("| ").rpartition(" | ")[2]
            yield from (f"{module}.{name}" for module, name in _NAME.findall(here))


def exists(name: str) -> bool:
    """Whether a name leads somewhere; what a call yields is not asked."""
    module, *path = name.split(".")
    found: object = {"ct": cutile, "api": cutile.api}[module]
    for part in path:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_names_of_a_guide_exist(page: Path) -> None:
    names = list(ours(page.read_text(encoding="utf-8")))
    assert len(names) > 5
    assert [name for name in names if not exists(name)] == []


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert list(ours("| `ct.where(a)` | `ct.select(c, a, b)`, `api.zeros` |\n")) == ["ct.select", "api.zeros"]
    assert exists("ct.rounding.APPROX")
    assert not exists("ct.where")
    assert not exists("api.zeroes")
