"""A search as a table: text for a terminal, HTML for a notebook.

Plain HTML; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cuda_async.svg import MONOSPACED
from cutile.tune.space import Config, Value
from cutile.tune.trial import Invalid, Measured, Trial

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
