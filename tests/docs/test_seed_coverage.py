"""The table of the documents' features cannot rot: what it names exists, and each row has a test or a reason."""

from __future__ import annotations

from collections import Counter

from tests.docs.pages import ROOT, cited, names, rows, wrong

PAGE = ROOT / "docs" / "reference" / "seed_coverage.md"

# How many features each part of the documents has, at the least; a row may stand for several.
AT_LEAST = {
    "Constructors and transfers": 22,
    "Tensors, views, handles": 43,
    "Partitions": 14,
    "Operations and combinators": 35,
    "Execution and futures": 18,
    "Scheduling and devices": 18,
    "CUDA graphs": 22,
    "Kernel launcher": 28,
    "Raw CUDA kernels": 10,
    "Errors": 12,
    "Devices, streams, modules, events, pools": 30,
    "The first release's names": 19,
    "async-cuda-core": 24,
}


def test_names_and_tests_exist() -> None:
    assert wrong(PAGE) == []


def test_every_row_has_a_name_and_a_test_or_a_reason() -> None:
    for row in rows(PAGE):
        feature, here, test = row.cells
        assert feature, row
        assert here, row
        if names(here):
            assert cited(test), f"line {row.line}: {feature} has a name and no test"
        else:
            assert len(here) > len("not here"), f"line {row.line}: {feature} has neither a name nor a reason"


def test_no_part_of_the_documents_is_missing() -> None:
    found = Counter(row.section for row in rows(PAGE))
    assert set(found) == set(AT_LEAST)
    for section, count in AT_LEAST.items():
        assert found[section] >= count, f"{section}: {found[section]} rows, {count} were there"
