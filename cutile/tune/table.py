"""`Tuned`: the result of a search. Tables that show it, and a search's progress.

A table is text for a terminal, and HTML without scripts or styles from elsewhere for a notebook. Progress is shown in
notebooks only.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from cuda_async.svg import MONOSPACED
from cutile.bench import Paired
from cutile.errors import TuningError
from cutile.tune.log import Invalid, Measured, Trial
from cutile.tune.record import Record
from cutile.tune.space import Config, Value

SHOWN = 12
"""The most rows of measured configurations, and in text also lines of invalid ones; the others are counted."""


def ranked(trials: Sequence[Trial], best: Config | None = None) -> list[Trial]:
    """The measured trials: the one of `best`, then the others, the fastest first.

    A run-off may have found `best` faster than a configuration whose median is less.
    """
    measured = [each for each in trials if isinstance(each.outcome, Measured)]
    return sorted(measured, key=lambda each: (each.config != best, each.median_ms or 0.0))  # False sorts first


def _cell(value: Value) -> str:
    return value if isinstance(value, str) else repr(value)


def _rows(trials: Sequence[Trial], best: Config | None) -> tuple[list[str], list[list[str]]]:
    """The headings, and a row for each measured trial."""
    names = list(dict.fromkeys(name for each in trials for name in each.config))
    ranking = ranked(trials, best)
    fastest = ranking[0].median_ms if ranking else None
    rows: list[list[str]] = []
    for trial in ranking:
        outcome = trial.outcome
        assert isinstance(outcome, Measured)
        times = f"{outcome.median_ms / fastest:.2f}" if fastest else "1.00"
        spread = f"{outcome.low_ms:.4g} to {outcome.high_ms:.4g}"
        cells = [_cell(trial.config[name]) if name in trial.config else "" for name in names]
        rows.append([*cells, f"{outcome.median_ms:.4g}", spread, times])
    return [*names, "median ms", "95 %", "times the best"], rows


def refused(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """The ids of invalid configurations, and the first line of each reason."""
    return [(each.config.id, each.outcome.line) for each in trials if isinstance(each.outcome, Invalid)]


def text(title: str, trials: Sequence[Trial], best: Config | None = None) -> str:
    """The table as lines."""
    headings, rows = _rows(trials, best)
    rows_of_table = rows[:SHOWN]
    widths = [max(len(row[i]) for row in [headings, *rows_of_table]) for i in range(len(headings))]
    lines = [title]
    if rows:
        lines += ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                  for row in [headings, *rows_of_table]]  # fmt: skip
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} slower ones")
    failures = refused(trials)
    lines += [f"  not used: {config}: {reason}" for config, reason in failures[:SHOWN]]
    if len(failures) > SHOWN:
        lines.append(f"  and {len(failures) - SHOWN} more that are not used")
    return "\n".join(lines)


def html(title: str, trials: Sequence[Trial], best: Config | None = None) -> str:
    """The table for a notebook, the best row in bold."""
    headings, rows = _rows(trials, best)
    head = "".join(f'<th style="text-align:right;padding:0 10px 0 0">{escape(each)}</th>' for each in headings)
    body = "".join(_html_row(row, bold=best is not None and number == 0) for number, row in enumerate(rows[:SHOWN]))
    grid = f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'
    more = f"<div>and {len(rows) - SHOWN} slower ones</div>" if len(rows) > SHOWN else ""
    failures = refused(trials)
    reasons = "".join(f"<div>{escape(config)}: {escape(reason)}</div>" for config, reason in failures)
    attribute = " open" if len(failures) <= 3 else ""  # a few reasons are read, many would hide the table
    details = f"<details{attribute}><summary>{len(failures)} not used</summary>{reasons}</details>" if failures else ""
    return (
        f'<div style="{MONOSPACED}">'
        f'<div style="font-weight:bold;padding-bottom:4px">{escape(title)}</div>'
        f"{grid if rows else ''}{more}{details}</div>"
    )


def _html_row(row: Sequence[str], *, bold: bool) -> str:
    weight = ";font-weight:bold" if bold else ""
    cells = (f'<td style="text-align:right;padding:0 10px 0 0{weight}">{escape(each)}</td>' for each in row)
    return f"<tr>{''.join(cells)}</tr>"


Progress = Callable[[Sequence[Trial], int | None], object]
"""Called after each trial with all trials so far, and the number that there will be; None where it is unknown."""

REDRAWN_EVERY_S = 0.2  # seconds; each drawing sends the whole table to the browser


@dataclass(frozen=True)
class _View:
    """The table of a search that is running."""

    title: str
    trials: Sequence[Trial]

    def __repr__(self) -> str:
        return text(self.title, self.trials)

    def _repr_html_(self) -> str:
        return html(self.title, self.trials)


class NotebookTable:
    """A table that fills in, in the output of the cell that runs the search.

    At the end only its title stays, since the result shows the table itself.

    Args:
        name: the tuner's name.
        display: IPython's `display`.
        now: the clock, in seconds, that limits how often it is drawn.
    """

    def __init__(self, name: str, display: Callable[..., Any], now: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._now = now
        self._drawn = now()
        self._handle = display(_View(f"{name}: ...", ()), display_id=True)

    def __call__(self, trials: Sequence[Trial], total: int | None) -> None:
        """Draw it anew."""
        last = total is not None and len(trials) >= total
        if self._handle is None or (not last and self._now() - self._drawn < REDRAWN_EVERY_S):
            return
        self._drawn = self._now()
        of = "" if total is None else f" of {total}"
        self._handle.update(_View(f"{self._name}: {len(trials)}{of}", tuple(trials)))

    def done(self, title: str) -> None:
        """Reduce the table to its title: the cell shows the result with a table."""
        if self._handle is not None:
            self._handle.update(_View(title, ()))


def default_progress(name: str) -> Progress | None:
    """A table in a notebook, None elsewhere. IPython is not imported for it."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is None or getattr(shell, "kernel", None) is None:  # a terminal's shell has no kernel
        return None
    return NotebookTable(name, importlib.import_module("IPython.display").display)


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of a search. Shows itself as a table.

    Attributes:
        name: the tuner's name.
        best: the winner: the faster finalist by the run-off, or by its median where the run-off finds no difference.
        trials: every configuration that was tried, in order.
        runoff: the finalists, timed in turn; None where there was only one configuration, no time, or an error.
        finalists: the two configurations with the least medians, the lesser first; empty where there was only one.
            `runoff.ratio` says how many times as fast the first is as the second.
        record: the winner with the facts for which it is valid; None where no device was asked.
        out_of_time: whether the budget ended the search before all configurations were tried.
        remarks: lines about the run-off, if it failed or was left out.
        log: the log's path, if there is a log.
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
        """Milliseconds: the winner's median, of its measurement before the run-off."""
        return next(each.median_ms for each in self.trials if each.config == self.best and each.median_ms is not None)

    @property
    def ranking(self) -> list[Trial]:
        """The measured trials: the winner, then the others by their medians."""
        return ranked(self.trials, self.best)

    @property
    def title(self) -> str:
        """The winner, and the numbers of trials, in one line."""
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
            TuningError: there is no record, since no device was asked.
        """
        if self.record is None:
            raise TuningError(f"{self.name}: there is no record to save: no device was asked what it timed")
        self.record.save(path)

    def _footer(self) -> list[str]:
        if self.runoff is None:
            return list(self.remarks)
        ratio = self.runoff.ratio
        comparison = f"run-off: {self.finalists[0].id} is {ratio.median:.3f} times as fast as {self.finalists[1].id}"
        verdict = "" if self.runoff.differ else ", which is as good"
        return [f"{comparison} ({ratio.low:.3f} to {ratio.high:.3f}){verdict}", *self.remarks]

    def __repr__(self) -> str:
        return "\n".join([text(self.title, self.trials, self.best), *(f"  {each}" for each in self._footer())])

    def _repr_html_(self) -> str:
        footer = "".join(f'<div style="{MONOSPACED}">{escape(line)}</div>' for line in self._footer())
        return html(self.title, self.trials, self.best) + footer
