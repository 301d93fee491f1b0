"""Rows as a table for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.kernels.measure import Row
from benchmarks.record import duration


def console() -> Console:
    """Return a console as wide as the terminal, or, without a terminal, wide enough for a table."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=120)


def table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table with a line for each row and a column for each peer that ran."""
    peers = [peer for peer in ("numpy", "torch", "copy") if any(peer in row.timings for row in rows)]
    grid = Table(title=title, title_justify="left")
    for heading in ("kernel", "size"):
        grid.add_column(heading, no_wrap=True)
    for heading in ("error", "time", "rate", *(f"x {peer}" for peer in peers)):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ratios = [row.ratio(peer) for peer in peers]
        grid.add_row(
            row.kernel,
            row.size,
            "WRONG" if row.wrong else f"{row.error:.1e}",
            duration(row.timings["cutile"].median * 1e-3),
            f"{row.rate:,.0f} {row.unit}",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            style="red" if row.wrong else None,
        )
    return grid
