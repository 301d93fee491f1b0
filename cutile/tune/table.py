"""What a search shows: its table, how far it is, and what it found (`Tuned`).

The table is text for a terminal, and plain HTML for a notebook; nothing is loaded. While a search runs it fills in, in
a notebook, and nothing is shown elsewhere.
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
"""Rows of those that were measured, and of those that were not: the rest is counted."""


def ranked(trials: Sequence[Trial], best: Config | None = None) -> list[Trial]:
    """Those that were measured, the fastest first.

    The winner of a run-off before the one that it beat.
    """
    measured = [each for each in trials if isinstance(each.outcome, Measured)]
    return sorted(measured, key=lambda each: (each.config != best, each.median_ms or 0.0))


def _cell(value: Value) -> str:
    return value if isinstance(value, str) else repr(value)


def _rows(trials: Sequence[Trial], best: Config | None) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each that was measured."""
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
    """Those that cannot be used, and the first line of why."""
    return [(each.config.id, each.outcome.line) for each in trials if isinstance(each.outcome, Invalid)]


def text(title: str, trials: Sequence[Trial], best: Config | None = None) -> str:
    """The table as lines."""
    headings, rows = _rows(trials, best)
    shown = rows[:SHOWN]
    widths = [max(len(row[i]) for row in [headings, *shown]) for i in range(len(headings))]
    lines = [title]
    if rows:
        lines += ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                  for row in [headings, *shown]]  # fmt: skip
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} slower ones")
    out = refused(trials)
    lines += [f"  not used: {config}: {reason}" for config, reason in out[:SHOWN]]
    if len(out) > SHOWN:
        lines.append(f"  and {len(out) - SHOWN} more that are not used")
    return "\n".join(lines)


def html(title: str, trials: Sequence[Trial], best: Config | None = None) -> str:
    """The table for a notebook, the best row in bold."""
    headings, rows = _rows(trials, best)
    head = "".join(f'<th style="text-align:right;padding:0 10px 0 0">{escape(each)}</th>' for each in headings)
    body = "".join(_html_row(row, bold=best is not None and number == 0) for number, row in enumerate(rows[:SHOWN]))
    grid = f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>'
    more = f"<div>and {len(rows) - SHOWN} slower ones</div>" if len(rows) > SHOWN else ""
    out = refused(trials)
    reasons = "".join(f"<div>{escape(config)}: {escape(reason)}</div>" for config, reason in out)
    opened = " open" if len(out) <= 3 else ""  # a few reasons are read, many would hide the table
    hidden = f"<details{opened}><summary>{len(out)} not used</summary>{reasons}</details>" if out else ""
    return (
        f'<div style="{MONOSPACED}">'
        f'<div style="font-weight:bold;padding-bottom:4px">{escape(title)}</div>'
        f"{grid if rows else ''}{more}{hidden}</div>"
    )


def _html_row(row: Sequence[str], *, bold: bool) -> str:
    weight = ";font-weight:bold" if bold else ""
    cells = (f'<td style="text-align:right;padding:0 10px 0 0{weight}">{escape(each)}</td>' for each in row)
    return f"<tr>{''.join(cells)}</tr>"


Progress = Callable[[Sequence[Trial], int | None], object]
"""Called with the trials so far after each of them, and with how many there will be, where that is known."""

REDRAWN_EVERY_S = 0.2


@dataclass(frozen=True)
class _View:
    """What is shown while the search goes on."""

    title: str
    trials: Sequence[Trial]

    def __repr__(self) -> str:
        return text(self.title, self.trials)

    def _repr_html_(self) -> str:
        return html(self.title, self.trials)


class NotebookTable:
    """A table that fills in, in the output of the cell that runs the search.

    At the end it makes room for the result.

    Args:
        name: the tuner's name.
        display: IPython's `display`.
        now: the clock by which it is not drawn too often.
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
        """Make room: the result shows itself, and the table would be there twice."""
        if self._handle is not None:
            self._handle.update(_View(title, ()))


def default_progress(name: str) -> Progress | None:
    """A table in a notebook, None elsewhere. IPython is not imported for it."""
    python = sys.modules.get("IPython")
    shell: Any = python.get_ipython() if python is not None and hasattr(python, "get_ipython") else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    return NotebookTable(name, importlib.import_module("IPython.display").display)


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
        return ranked(self.trials, self.best)

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
        return "\n".join([text(self.title, self.trials, self.best), *(f"  {each}" for each in self._footer())])

    def _repr_html_(self) -> str:
        from html import escape

        footer = "".join(f'<div style="{MONOSPACED}">{escape(line)}</div>' for line in self._footer())
        return html(self.title, self.trials, self.best) + footer
