"""Run the parts of the soak: `python -m tests.soak [PART ...] [--rounds N] [--seed N]`."""

import argparse
import sys
import time
from importlib import import_module

from tests.soak.part import Part

# One module a part; each has a `PART`.
MODULES: tuple[str, ...] = ("killed_writers", "random_kernels", "guard_pages", "interrupts", "forks")


def parts() -> tuple[Part, ...]:
    """Every part, in the order in which they run."""
    return tuple(import_module(f"tests.soak.{name}").PART for name in MODULES)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are named, or all; the exit status is 1 where a round failed."""
    everything = {part.name: part for part in parts()}
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=main.__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *everything], help="parts to run; all where none is named")
    parser.add_argument("--rounds", type=int, help="rounds of each part, in place of its own number")
    parser.add_argument("--seed", type=int, default=0, help="the first round's seed")
    options = parser.parse_args(arguments)
    failures = 0
    for name in options.part or everything:
        part = everything[name]
        start = time.monotonic()
        outcome = part.run(part.rounds if options.rounds is None else options.rounds, options.seed)
        notes = "".join(f", {key} {value:g}" for key, value in outcome.notes.items())
        seconds = time.monotonic() - start
        print(f"{name}: {outcome.rounds} rounds, {len(outcome.failures)} failed, {seconds:.0f} s{notes}", flush=True)
        for failure in outcome.failures:
            print(failure, file=sys.stderr)
        failures += len(outcome.failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
