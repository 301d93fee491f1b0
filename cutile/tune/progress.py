"""How far a search is: a table that fills in, in a notebook; nothing elsewhere."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.tune import table
from cutile.tune.trial import Trial

Progress = Callable[[Sequence[Trial], int | None], object]
"""Called with the trials so far after each of them, and with how many there will be, where that is known."""

REDRAWN_EVERY_S = 0.2


@dataclass(frozen=True)
class _View:
    """What is shown while the search goes on."""

    title: str
    trials: Sequence[Trial]

    def __repr__(self) -> str:
        return table.text(self.title, self.trials)

    def _repr_html_(self) -> str:
        return table.html(self.title, self.trials)


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
