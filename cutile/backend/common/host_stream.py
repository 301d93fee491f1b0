"""What kernels of the CPU ask of the stream that they are launched on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ("HostStream",)


class HostStream(Protocol):
    """What a loaded kernel sees of the runtime: `cuda_async.Stream` satisfies it."""

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Enqueue `body(first, last)` over ranges that cover `[0, count)`.

        Each range is about `grain` long; their order is free.
        """
        ...
