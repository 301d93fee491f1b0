"""What became of a configuration: measured, or invalid with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cutile.bench import Measurement
from cutile.tune.space import Config

Stage = Literal["build", "compile", "check", "run", "lost"]
"""Where a configuration failed: its operation was not built, did not compile, computed something else, did not run, or
ended the device."""


@dataclass(frozen=True)
class Measured:
    """How long a configuration takes.

    Attributes:
        median_ms: the median of the runs, in milliseconds.
        low_ms, high_ms: between which the true median lies with 95 % probability.
        min_ms, mean_ms: the fastest run, and the mean.
        reps: how many runs counted.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    min_ms: float
    mean_ms: float
    reps: int

    @classmethod
    def of(cls, measurement: Measurement) -> Measured:
        """The figures of a measurement."""
        spread = measurement.interval_ms
        return cls(
            measurement.median_ms, spread.low, spread.high, measurement.min_ms, measurement.mean_ms, measurement.reps
        )


@dataclass(frozen=True)
class Invalid:
    """Why a configuration cannot be used.

    Attributes:
        reason: what the error said.
        stage: where it failed.
    """

    reason: str
    stage: Stage

    @property
    def line(self) -> str:
        """The first line of the reason."""
        return self.reason.strip().split("\n", 1)[0]

    @classmethod
    def of(cls, error: BaseException, stage: Stage) -> Invalid:
        """What an error says; its kind, where it says nothing or is not made for people."""
        said, kind = str(error).strip(), type(error)
        ours = kind.__module__.startswith(("cutile", "cuda_async"))
        return cls(said if said and ours else f"{kind.__name__}: {said}", stage)


@dataclass(frozen=True)
class Trial:
    """One configuration, and what became of it.

    Attributes:
        config: the configuration.
        outcome: `Measured` or `Invalid`.
        subject: what identifies what was timed: code, arguments, device and toolchain. Another one is timed anew.
        resumed: whether it comes from the log of an earlier run.
    """

    config: Config
    outcome: Measured | Invalid
    subject: str = ""
    resumed: bool = False

    @property
    def median_ms(self) -> float | None:
        """Milliseconds; None where it is invalid."""
        return self.outcome.median_ms if isinstance(self.outcome, Measured) else None
