"""Random kernels on the CPU with all their memory between inaccessible pages, each process's end told with its kernel.

A kernel that was printed runs again by `python -m tests.properties.search --backend guarded --again FILE`.
"""

from cutile.config import usable_cores
from tests.properties.guarded import GUARDED
from tests.properties.search import gone_through
from tests.soak.part import Outcome, Part


def run(rounds: int, seed: int) -> Outcome:
    """Compare so many kernels with the reference, and see that none touches what is not its own."""
    found = gone_through((GUARDED,), seed, rounds, usable_cores())
    return Outcome(found.count, [failure.text for failure in found.failures])


PART = Part("guard_pages", "a random kernel between guard pages, on the CPU", 2000, 5, run)
