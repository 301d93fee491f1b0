"""What a part of the soak is: something that is done many times, and what went wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What one run of a part came to.

    Attributes:
        rounds: rounds that came to an end.
        failures: one text for each round that went wrong, with what repeats it.
        notes: figures worth keeping, by name.
    """

    rounds: int = 0
    failures: list[str] = field(default_factory=list[str])
    notes: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Part:
    """A part of the soak.

    Attributes:
        name: its name on the command line.
        meaning: what a round does, in a line.
        rounds: rounds of a whole run.
        short: rounds of the run that belongs to the ordinary tests.
        run: does `rounds` rounds from the seed on, and reports.
    """

    name: str
    meaning: str
    rounds: int
    short: int
    run: Callable[[int, int], Outcome]
