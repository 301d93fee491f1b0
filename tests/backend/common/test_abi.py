"""The report of a failed assertion: kernels write within the memory that the host gives them."""

from __future__ import annotations

from cuda_async.core.report import REPORT_BYTES
from cutile.backend.common.abi import BLOCK, GRID_NAMES, NUMBERS
from cutile.ops.debug import MAX_NUMBERS

WORD_BYTES = 4


def test_a_report_has_room_for_all_that_a_kernel_writes() -> None:
    assert BLOCK + len(GRID_NAMES) <= NUMBERS
    assert (NUMBERS + 2 * MAX_NUMBERS) * WORD_BYTES <= REPORT_BYTES


def test_the_integers_of_a_report_are_aligned() -> None:
    """They are stored by instructions of 8 bytes, which need addresses that are multiples of 8."""
    assert NUMBERS * WORD_BYTES % 8 == 0
