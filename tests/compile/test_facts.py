"""What specialization knows of tensors: what TMA may be trusted with."""

from __future__ import annotations

from cutile.compile.facts import ALIGNMENT_WITHOUT_TMA, WIDEST, layout_class
from cutile.dtypes import f16


def test_a_result_whose_rows_end_within_16_bytes_is_not_for_the_copy_engine() -> None:
    wide = layout_class(f16, (56, 27), (48, 1), 0)
    assert wide.alignment == WIDEST
    assert wide.tiled((56, 27), (64, 32)).alignment == ALIGNMENT_WITHOUT_TMA
    assert wide.tiled((56, 32), (64, 32)).alignment == WIDEST
    assert layout_class(f16, (27,), (1,), 0).tiled((27,), (32,)).alignment == WIDEST  # by threads, which stop in time
