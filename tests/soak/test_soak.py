"""A short run of each part of the soak."""

import pytest

from tests.soak.__main__ import parts
from tests.soak.part import Part


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(), ids=lambda part: part.name)
def test_a_short_run_finds_nothing(part: Part):
    """Whole runs are a command of their own: `python -m tests.soak`."""
    outcome = part.run(part.short, 0)
    assert outcome.rounds == part.short
    assert not outcome.failures, "\n".join(outcome.failures)
