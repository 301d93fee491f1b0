"""The table of the documents' features cannot rot: what it names exists, and each row has a test or a reason."""

from __future__ import annotations

import re
from collections import Counter

import cuda_async
import cutile
from cutile import api
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


def test_what_is_said_to_be_missing_is() -> None:
    """A row that says that something is not here goes out of date on the day on which it comes."""
    for row in rows(PAGE):
        feature, here, _ = row.cells
        assert " yet" not in here, f"line {row.line}: a page says what is, not what may come"
        if "not here" not in here or names(here):
            continue
        for word in re.findall(r"\w+", feature):
            there = [owner.__name__ for owner in (cutile, cuda_async, api) if word in owner.__all__]
            assert not there, f"line {row.line}: {word} is in {there[0]}"


def test_no_part_of_the_documents_is_missing() -> None:
    counts = Counter(row.section for row in rows(PAGE))
    assert set(counts) == set(AT_LEAST)
    for section, count in AT_LEAST.items():
        assert counts[section] >= count, f"{section}: {counts[section]} rows, {count} were there"
