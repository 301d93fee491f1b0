"""A repeated launch for backends whose own launch costs little beside the work.

Arguments in a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.backend.interface import Argument, Grid, Loaded


class RepeatedLaunch:
    """Launches a kernel with the arguments as they are at the time."""

    def __init__(self, loaded: Loaded[Any], grid: Grid, arguments: Sequence[Argument], stream: Any) -> None:
        self._loaded = loaded
        self._grid = grid
        self._arguments = list(arguments)
        self._stream = stream

    def launch(self) -> None:
        """Enqueue the kernel; never wait."""
        self._loaded.launch(self._grid, tuple(self._arguments), self._stream)

    def set(self, position: int, number: Argument) -> None:
        """Change one argument for the launches to come."""
        self._arguments[position] = number
