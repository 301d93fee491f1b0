"""Rows as a table for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kernels.measure import Row


def console() -> Console:
    """Return a console as wide as the terminal, and wide enough for a table where there is none."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=120)


def table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table with a line for each row and a column for each peer that ran."""
    peers = [peer for peer in ("numpy", "torch", "copy") if any(peer in row.timings for row in rows)]
    shown = Table(title=title, title_justify="left")
    for heading in ("kernel", "size"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("error", "time", "rate", *(f"x {peer}" for peer in peers)):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ratios = [row.ratio(peer) for peer in peers]
        shown.add_row(
            row.kernel,
            row.size,
            "WRONG" if row.wrong else f"{row.error:.1e}",
            duration(row.timings["cutile"].median),
            f"{row.rate:,.0f} {row.unit}",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            style="red" if row.wrong else None,
        )
    return shown


def duration(milliseconds: float) -> str:
    """Return a time with three digits and a fitting unit.

    Example:
        >>> duration(0.0123), duration(12.34)
        ('12.3 us', '12.3 ms')
    """
    return f"{milliseconds * 1e3:.3g} us" if milliseconds < 1 else f"{milliseconds:.3g} ms"
