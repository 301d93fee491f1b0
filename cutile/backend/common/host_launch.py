"""Launches of kernels that run on the host.

The stream that such a kernel asks for, and a repeated launch for backends whose own costs little beside the work.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cutile.backend.interface import Argument, Grid, Loaded


class HostStream(Protocol):
    """What a loaded kernel sees of the runtime: `cuda_async.Stream` satisfies it."""

    @property
    def threads(self) -> int:
        """How many threads one call of a body may use, the one that calls it included."""
        ...

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Enqueue `body(first, last)` over ranges that cover `[0, count)`.

        Each range is about `grain` long; their order is free.
        """
        ...


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
