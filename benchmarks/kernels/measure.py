"""One row of a table: a kernel at one size, checked against float64 and timed beside its peers."""

from dataclasses import dataclass

import numpy as np

from benchmarks.kernels.peers import numpy_run, torch_run
from benchmarks.kernels.timing import DeviceClock, TimedCall, Timing, interleaved
from kernels.example import Case, Example, Problem, to_device, to_host


@dataclass(frozen=True)
class Row:
    """The measurements of one kernel at one size.

    Attributes:
        kernel, size: names of the kernel and of the size.
        error: the largest error, relative to the largest element of the float64 result.
        wrong: why the result is not acceptable; "" if it is.
        timings: milliseconds, by library: `cutile`, `numpy`, `torch`.
        rate: GB/s or GFLOP/s of cutile, as `unit` says.
    """

    kernel: str
    size: str
    error: float
    wrong: str
    timings: dict[str, Timing]
    rate: float
    unit: str

    def ratio(self, peer: str) -> float | None:
        """Return the speed of cutile relative to `peer`, or None if that peer did not run."""
        other = self.timings.get(peer)
        return None if other is None else other.median / self.timings["cutile"].median


def measure(
    example: Example,
    case: Case,
    clock: DeviceClock,
    *,
    seed: int = 0,
    budget_s: float = 1.0,
    quick: bool = False,
    copy: bool = False,
) -> Row:
    """Check a case on random inputs, then time it beside its peers.

    Args:
        example: the kernel.
        case: the size.
        clock: the clock of the device.
        seed: the seed of the random inputs. Outputs are poisoned before the run that is checked.
        budget_s: seconds spent on each library.
        quick: check the result, and spend hardly any time on the measurement.
        copy: whether a plain copy of as many bytes is a peer, too.
    """
    problem = example.problem(case, np.random.default_rng(seed))
    error, wrong, run = _checked(example, case, problem, clock)
    flops = example.flops(case)
    candidates = {
        "cutile": run,
        "numpy": numpy_run(example.name, problem),
        "torch": torch_run(example.name, problem, clock.device),
        "copy": clock.time_copy(example.nbytes(case)) if copy and not flops else None,
    }
    runs = {name: peer for name, peer in candidates.items() if peer is not None}
    timings = interleaved(
        runs, budget_s=0.02 if quick else budget_s, max_rounds=20, pause_s=0.0 if quick else clock.pause_s
    )
    rate = (flops or example.nbytes(case)) / timings["cutile"].median / 1e6
    return Row(example.name, str(case), error, wrong, timings, rate, "GFLOP/s" if flops else "GB/s")


def _checked(example: Example, case: Case, problem: Problem, clock: DeviceClock) -> tuple[float, str, TimedCall]:
    expected = example.reference(problem)
    with clock.device:
        outputs, inputs = to_device(problem.outputs), to_device(problem.inputs)
        results = to_host(example.launch(case, outputs, inputs).sync_on(clock.stream))
    run = clock.time(lambda: example.launch(case, outputs, inputs))
    try:
        return example.judge(case, results, expected), "", run
    except AssertionError as failure:
        return float("nan"), str(failure), run
