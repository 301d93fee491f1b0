"""One process of a search: it draws batches of kernels, compares backends, and says what it is at, kernel by kernel.

What it says goes through a pipe, so that its parent knows which kernel was on when the process died or hung: a kernel
that breaks a GPU's context takes its process along.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection

from hypothesis import HealthCheck, Phase, given, seed, settings

from cuda_async import DeviceLostError
from cutile.dtypes import f8e4m3fn, i8
from tests.properties.generator import RandomKernel, interleaved, kernels, loops
from tests.properties.planned import MODELS, PLAIN, TOO_LARGE, compiled, executed, lower, prove
from tests.properties.running import check, compile_only, run

SHRINKING = 60.0
"""Seconds for making a failure small; what is smallest by then is shown."""
DRAWN = {"any": kernels, "loops": loops, "eights": partial(loops, operands=(f8e4m3fn, i8)), "interleaved": interleaved}
"""What kernels are drawn: any; those of several products in loops; these of 8 bits alone; those whose loads and uses
stand anywhere."""
AGAIN = 1_000_000
"""Added to a batch's number for the rest of it after a failure."""


@dataclass(frozen=True)
class Batch:
    """Kernels to be drawn from one seed, and the backends to run each on; seconds for making a failure small.

    `drawn`: what is drawn, of `DRAWN`.
    """

    number: int
    count: int
    backends: tuple[str, ...]
    shrinking: float = SHRINKING
    drawn: str = "any"

    def rest(self, done: int) -> Batch:
        """As many kernels as are left, from another seed."""
        return replace(self, number=self.number + AGAIN, count=self.count - done)


@dataclass(frozen=True)
class Tried:
    """A kernel about to run."""

    text: str


@dataclass(frozen=True)
class Agreed:
    """A kernel that every backend of the batch computed alike; the seconds that each took to compile it, and what the
    CUDA backend made of it, if it was asked."""

    seconds: dict[str, float]
    about: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Disagreed:
    """A kernel on which a backend fails, and what was wrong; the last one of a batch is the shortest."""

    backend: str
    text: str


@dataclass(frozen=True)
class Finished:
    """A batch was gone through, or as much of it as there is to find before its first failure."""


Said = Tried | Agreed | Disagreed | Finished


class Disagreement(Exception):
    """One backend's failure, which Hypothesis makes small. The message is the kernel and what was wrong."""

    def __init__(self, backend: str, case: RandomKernel, error: Exception) -> None:
        super().__init__(f"{case}\n{type(error).__name__}: {error}")
        self.backend = backend


def compare(case: RandomKernel, backends: tuple[str, ...]) -> Agreed:
    """Run a kernel on the reference and on each backend.

    Raises:
        Disagreement: one of them differs, or fails.
        DeviceLostError: a GPU cannot be used in this process any more.
    """
    seconds: dict[str, float] = {}
    about: dict[str, str] = {}
    at = "reference"
    try:
        reference = run(case, at) if any(not each.startswith("sm_") for each in backends) else None
        for at in backends:
            if at == MODELS or (at != "cpu" and case.exact):
                start = time.perf_counter()
                lowered = lower(case, at) if at.startswith("sm_") else lower(case)
                about |= lowered.about
                if lowered.plan == TOO_LARGE:
                    continue
                if at == MODELS:
                    prove(lowered.after)
                    if lowered.plan != PLAIN and reference is not None and lowered.after is not None:
                        check(case, reference.arrays, executed(case, lowered.after, 2, case.seed))
                    seconds[at] = time.perf_counter() - start
                    continue
                if at.startswith("sm_"):
                    about |= compiled(lowered, at)
                    seconds[at] = time.perf_counter() - start
                    continue
            if at.startswith("sm_"):
                seconds[at] = compile_only(case, at)
            elif reference is not None:
                got = run(case, at)
                check(case, reference.arrays, got.arrays)
                seconds[at] = got.compile_seconds
    except DeviceLostError:
        raise
    except Exception as error:
        raise Disagreement(at, case, error) from None
    return Agreed(seconds, about)


def search(batch: Batch, say: Callable[[Said], None]) -> None:
    """Compare the kernels of a batch until one fails; make that one small."""
    failed: dict[str, Disagreement] = {}
    seen: set[str] = set()
    deadline = float("inf")

    @seed(batch.number)
    @settings(
        max_examples=batch.count, database=None, deadline=None, print_blob=False, report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(case=DRAWN[batch.drawn]())
    def judge(case: RandomKernel) -> None:
        nonlocal deadline
        text = str(case)
        if time.monotonic() < deadline and text not in seen:
            seen.add(text)
            say(Tried(text))
            try:
                agreed = compare(case, batch.backends)
                if not failed:
                    say(agreed)
            except Disagreement as error:
                if not failed:
                    say(Disagreed(error.backend, str(error)))
                    deadline = time.monotonic() + batch.shrinking
                failed[text] = error
        if text in failed:  # the one place that raises, so that Hypothesis takes all failures for one
            raise failed[text]

    try:
        judge()
    except Disagreement as error:
        say(Disagreed(error.backend, str(error)))
    say(Finished())


def work(pipe: Connection) -> None:
    """Search batch after batch, as the pipe brings them; None ends it. The body of a process."""
    os.environ["CUTILE_DISK_CACHE"] = "0"  # no kernel comes twice
    gc.disable()  # compilers make much that is soon dead, and little that needs a collection
    while (batch := pipe.recv()) is not None:
        try:
            search(batch, pipe.send)
        except DeviceLostError as error:
            pipe.send(Disagreed("cuda", f"the device is lost: {error}"))
            os._exit(1)  # nothing on the device can be given back any more
        gc.collect()
