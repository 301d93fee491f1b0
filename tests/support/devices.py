"""Where kernels of a test run: on the first GPU, or on the CPU by a backend of choice."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cuda_async import Device
from cutile.launch.target import use_backend


@contextmanager
def on(backend: str) -> Generator[None]:
    """Make `backend`'s device the default, and have it compile."""
    if backend == "cuda":
        with Device(0):
            yield
        return
    with Device.host(), use_backend(backend):
        yield
