"""`Tuned`: what a search found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuda_async.svg import MONOSPACED
from cutile.bench import Paired
from cutile.errors import TuningError
from cutile.tune import table
from cutile.tune.record import Record
from cutile.tune.space import Config
from cutile.tune.trial import Trial


@dataclass(frozen=True, repr=False)
class Tuned:
    """What a search found. Shows itself as a table.

    Attributes:
        name: the tuner's name.
        best: the winner: of the two with the least medians the one that their run-off finds faster, if it can tell.
        trials: every configuration that was tried, in order.
        runoff: those two, timed in turn; None where there was one only, or no time for it.
        finalists: those two; `runoff.ratio` says how many times as fast the first is as the second.
        record: the winner with what it is the winner of; None where no device was asked.
        out_of_time: whether the budget ended the search.
        remarks: what else there is to know.
        log: the log, if there is one.
    """

    name: str
    best: Config
    trials: tuple[Trial, ...]
    runoff: Paired | None = None
    finalists: tuple[Config, ...] = ()
    record: Record | None = None
    out_of_time: bool = False
    remarks: tuple[str, ...] = ()
    log: Path | None = None

    @property
    def median_ms(self) -> float:
        """Milliseconds of the winner, when it was measured alone."""
        return next(each.median_ms for each in self.trials if each.config == self.best and each.median_ms is not None)

    @property
    def ranking(self) -> list[Trial]:
        """Those that were measured: the winner, then the others by their medians."""
        return table.ranked(self.trials, self.best)

    @property
    def title(self) -> str:
        """The winner, and how many were tried, in one line."""
        measured, resumed = len(self.ranking), sum(each.resumed for each in self.trials)
        parts = [f"{self.name}: {self.best.id} is the fastest, {self.median_ms:.4g} ms", f"{measured} measured"]
        if resumed:
            parts[-1] += f" ({resumed} of them before)"
        if measured < len(self.trials):
            parts.append(f"{len(self.trials) - measured} not used")
        if self.out_of_time:
            parts.append("the budget ended the search")
        return "; ".join(parts)

    def save(self, path: str | Path) -> None:
        """Write the winner's record, for `load_verified`.

        Raises:
            TuningError: no device was asked, so that there is nothing to verify it by.
        """
        if self.record is None:
            raise TuningError(f"{self.name}: there is no record to save: no device was asked what it timed")
        self.record.save(path)

    def _footer(self) -> list[str]:
        if self.runoff is None:
            return list(self.remarks)
        ratio = self.runoff.ratio
        said = f"run-off: {self.finalists[0].id} is {ratio.median:.3f} times as fast as {self.finalists[1].id}"
        verdict = "" if self.runoff.differ else ", which is as good"
        return [f"{said} ({ratio.low:.3f} to {ratio.high:.3f}){verdict}", *self.remarks]

    def __repr__(self) -> str:
        return "\n".join([table.text(self.title, self.trials, self.best), *(f"  {each}" for each in self._footer())])

    def _repr_html_(self) -> str:
        from html import escape

        footer = "".join(f'<div style="{MONOSPACED}">{escape(line)}</div>' for line in self._footer())
        return table.html(self.title, self.trials, self.best) + footer
