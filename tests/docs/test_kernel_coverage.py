"""The table of the kernel language cannot rot: what it names exists, and a test uses every operation."""

from __future__ import annotations

import re

import cutile as ct
from cutile import language
from tests.docs.pages import ROOT, rows

PAGE = ROOT / "docs" / "reference" / "kernel_coverage.md"
QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)?)`")
NOT_NAMES = {  # Python's own words
    "for",
    "while",
    "if",
    "elif",
    "else",
    "and",
    "or",
    "not",
    "return",
    "match",
    "break",
    "continue",
    "print",
    "assert",
    "x.shape",
    "t.shape",
    "f32.max",
    "f32.min",
}

AT_LEAST = {  # features of the upstream's inventory, each named in a row
    "Module, function and entry": 18, "Control flow": 9, "Markers": 14, "Types": 16, "Grid and queries": 8,
    "Loads, stores, partitions": 21, "Views with explicit controls": 9, "Creation and shape": 12,
    "Reductions and scans": 4, "Matrix products": 6, "Arithmetic": 16, "Functions": 6, "Comparison and bits": 4,
    "Conversion": 6, "Pointers, atomics, tokens": 10, "Debugging and hints": 7,
}  # fmt: skip


def _exists(name: str) -> bool:
    owner, _, member = name.partition(".")
    holder = getattr(language, owner, None) or getattr(ct, owner, None)
    if not member:
        return holder is not None
    return any(hasattr(each, member) for each in (holder, getattr(ct, owner, None)) if each is not None)


def test_every_name_exists() -> None:
    for row in rows(PAGE):
        for name in QUOTED.findall(row.cells[1]):
            assert name in NOT_NAMES or _exists(name), f"line {row.line}: {name}"


def test_every_row_says_what_became_of_it() -> None:
    counts: dict[str, int] = {}
    for row in rows(PAGE):
        assert all(row.cells), row
        counts[row.section] = counts.get(row.section, 0) + 1
    assert counts.keys() == AT_LEAST.keys()
    assert {section: count for section, count in AT_LEAST.items() if counts[section] < count} == {}


def test_every_operation_of_the_language_is_tested() -> None:
    tests = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in ("docs", "golden")
    )
    for name in language.__all__:
        if hasattr(getattr(language, name), "__cutile__"):
            assert re.search(rf"\b{name}\b", tests), f"no test uses {name}"
