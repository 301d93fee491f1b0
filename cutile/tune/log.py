"""The log of a search, and the trials in it.

A trial is a configuration with its outcome: measured, or invalid with the reason. A log has JSON lines: a header, a
record for each configuration, and a record for each runoff of the two best. A later search goes on from it.

    {"cutile.tune": 1, "name": "gemm", "space": "3f0c...", "parameters": ["BK", "BM"]}
    {"config": {"BK": 64, "BM": 128}, "subject": "9b1d...", "measured": {"median_ms": 0.41, ...}}
    {"config": {"BK": 64, "BM": 512}, "subject": "77ab...", "invalid": {"reason": "...", "stage": "compile"}}
    {"runoff": [{"BK": 64, "BM": 128}, {...}], "subjects": ["9b1d...", "..."], "paired": {...}}

Each record is written by one call. A line that a crash cut short is ignored. A file that is no such log is refused.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cutile.bench import Interval, Measurement, Paired
from cutile.compile.store import CacheWarning
from cutile.errors import ForeignLogError
from cutile.tune.space import Config, space_hash

Stage = Literal["build", "compile", "check", "run", "lost"]
"""Where a configuration failed.

"build": its operation was not built. "compile": it did not compile. "check": its result was wrong. "run": it did not
run. "lost": it made the device unusable.
"""


@dataclass(frozen=True)
class Measured:
    """How long a configuration takes.

    Attributes:
        median_ms: the median of the runs, in milliseconds.
        low_ms, high_ms: the 95 % confidence interval of the median.
        min_ms, mean_ms: the fastest run, and the mean.
        reps: the number of runs.
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
        reason: the error's message.
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
        """The error's message.

        Its class stands before it if the error is not of cutile or cuda_async, or has no message.
        """
        message, kind = str(error).strip(), type(error)
        ours = kind.__module__.startswith(("cutile", "cuda_async"))  # their messages tell all without the class
        return cls(message if message and ours else f"{kind.__name__}: {message}", stage)


_MAX_FAILURES = 5  # failures that an error lists; the others are counted


def failure_lines(failures: Mapping[Config, Invalid]) -> list[str]:
    """A line for each of the first failures of a search, and the number of others."""
    lines: list[str] = []
    previous = ""
    for config, outcome in list(failures.items())[:_MAX_FAILURES]:
        reason = f"({outcome.stage}): {outcome.reason}"
        lines.append(f"  {config.id} {'for the same reason' if reason == previous else reason}")
        previous = reason
    if len(failures) > _MAX_FAILURES:
        lines.append(f"  and {len(failures) - _MAX_FAILURES} more")
    return lines


@dataclass(frozen=True)
class Trial:
    """One configuration with its outcome.

    Attributes:
        config: the configuration.
        outcome: `Measured` or `Invalid`.
        subject: a digest of the code, arguments, device and toolchain. If it changes, the configuration is timed anew.
        resumed: whether the trial comes from the log of an earlier run.
    """

    config: Config
    outcome: Measured | Invalid
    subject: str = ""
    resumed: bool = False

    @property
    def median_ms(self) -> float | None:
        """Milliseconds; None where it is invalid."""
        return self.outcome.median_ms if isinstance(self.outcome, Measured) else None


FORMAT = 1
"""The version of the log's format. A log of another version is refused."""


class TrialLog:
    """A search's log; without a path nothing is read or written.

    Args:
        path: the file; it is made, with its folder, when the first record is written.
        name: the tuner's name.
        parameters: the names of the space's parameters.
        optional: whether the search goes on without a log, with a warning, where the file cannot be read or written.

    Attributes:
        path: the file; None without one.
        trials: what the file held when it was opened: the last record of each configuration and subject.
        runoffs: the run-offs that the file held, by the configurations and subjects of both.

    Raises:
        ForeignLogError: the file is of another tuner or of other parameters, or is no log.
        OSError: the file cannot be read, unless `optional`.
    """

    def __init__(self, path: Path | None, name: str, parameters: tuple[str, ...], *, optional: bool = False) -> None:
        self.path = path
        self._optional = optional
        self._header: dict[str, Any] = {
            "cutile.tune": FORMAT,
            "name": name,
            "space": space_hash(parameters),
            "parameters": sorted(parameters),
        }
        self.trials: dict[tuple[Config, str], Trial] = {}
        self.runoffs: dict[tuple[tuple[Config, str], tuple[Config, str]], Paired] = {}
        self._begun = False  # whether the file has a header
        self._cut = False  # whether its last line lacks a newline, as a crash leaves it
        try:
            if path is not None and path.exists():
                self._read(path)
        except OSError as error:
            self._do_without(error)

    def _do_without(self, error: OSError) -> None:
        """Go on without the file, and warn.

        Raises the error where the file is not optional.
        """
        if not self._optional:
            raise error
        warnings.warn(
            f"the search {self._header['name']!r} keeps no log in {self.path} ({error}); name another file with "
            ".log(path), or leave the log out with .log(None)",
            CacheWarning,
            stacklevel=3,
        )
        self.path = None

    def _read(self, path: Path) -> None:
        data = path.read_bytes()  # not text: a line that was cut short may end within a character
        self._cut = bool(data) and not data.endswith(b"\n")
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                # A killed writer leaves part of a line, which is left out. Before a header, only part of this search's
                # own header is accepted: any other text is a file of something else.
                if not self._begun and not json.dumps(self._header).encode().startswith(line):
                    raise self._foreign(f"line {number} is no JSON") from None
                continue
            if not isinstance(record, dict):
                raise self._foreign(f"line {number} is no record")
            self._add_record(number, record)  # pyright: ignore[reportUnknownArgumentType]

    def _add_record(self, number: int, record: Mapping[str, Any]) -> None:
        """Take a header, a trial or a run-off from the file's line of this number."""
        if "cutile.tune" in record:
            # Two processes that begin a log at once both write a header: each of them is compared.
            for field, value in self._header.items():
                if record.get(field) != value:
                    raise self._foreign(f"its {field} is {record.get(field)!r}, this search's is {value!r}")
            self._begun = True
            return
        if not self._begun:
            raise self._foreign("it has no header")
        try:
            if "runoff" in record:
                first, second = (
                    (Config(config), subject)
                    for config, subject in zip(record["runoff"], record["subjects"], strict=True)
                )
                self.runoffs[first, second] = _paired(record["paired"])
                return
            config = Config(record["config"])
            outcome = Measured(**record["measured"]) if "measured" in record else Invalid(**record["invalid"])
            self.trials[config, record["subject"]] = Trial(config, outcome, record["subject"], resumed=True)
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(f"line {number} is no record of a search") from error

    def _foreign(self, why: str) -> ForeignLogError:
        return ForeignLogError(
            f"{self.path} is not the log of the search {self._header['name']!r} over "
            f"{', '.join(self._header['parameters'])}: {why}. Name another file with .log(path), or delete this one"
        )

    # -- writing ------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """Write a trial.

        Raises:
            OSError: the file cannot be written, unless it is optional.
        """
        kind = "measured" if isinstance(trial.outcome, Measured) else "invalid"
        self._write({"config": dict(trial.config), "subject": trial.subject, kind: asdict(trial.outcome)})

    def add_runoff(self, first: Trial, second: Trial, paired: Paired) -> None:
        """Write a run-off of two configurations."""
        both = [first, second]
        self._write(
            {
                "runoff": [dict(trial.config) for trial in both],
                "subjects": [trial.subject for trial in both],
                "paired": asdict(paired),
            }
        )

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self._append(self.path, record)
        except OSError as error:
            self._do_without(error)

    def _append(self, path: Path, record: Mapping[str, Any]) -> None:
        """Append a record, after the header if the file has none."""
        lines = [json.dumps(record)]
        if not self._begun:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines.insert(0, json.dumps(self._header))
        text = ("\n" if self._cut else "") + "\n".join(lines) + "\n"
        # One `write` with O_APPEND puts the whole text at the end, so that lines of two processes do not mix.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        rest = text.encode()
        try:
            # More than one `write` only where the disk is full: it writes a part, and the next one raises the error.
            # The next record, if there is one, then has to begin on a line of its own.
            while rest:
                rest = rest[os.write(file, rest) :]
                self._cut = bool(rest)
        finally:
            os.close(file)
        self._begun = True


def _paired(record: Mapping[str, Any]) -> Paired:
    first, second = record["repeats"]  # a list in JSON; `Paired` has a tuple, and is compared by its fields
    return Paired(record["first_s"], record["second_s"], Interval(**record["ratio"]), (first, second))
