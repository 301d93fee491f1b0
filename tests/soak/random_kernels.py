"""Random kernels on the CPU, and on a GPU where there is one, each compared with the reference.

A kernel that was printed runs again by `python -m tests.properties.search --backend cpu --again FILE`.
"""

from cutile.config import usable_cores
from tests.properties.search import gone_through
from tests.soak.part import Outcome, Part
from tests.support.gpu import why_no_gpu


def run(rounds: int, seed: int) -> Outcome:
    """Compare so many kernels."""
    backends = ("cpu",) if why_no_gpu() else ("cpu", "cuda")
    found = gone_through(backends, seed, rounds, usable_cores())
    return Outcome(found.count, [failure.text for failure in found.failures], {"backends": len(backends)})


PART = Part("random_kernels", "a random kernel on every backend that this machine has", 10_000, 3, run)
