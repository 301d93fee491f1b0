"""Where kernels of a test run: on the first GPU, or on the CPU by a backend of choice or the interpreter."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from cuda_async import Device
from cutile.launch.target import INTERPRET, interpret, use_backend

EVERYWHERE = ("reference", "cpu", INTERPRET, pytest.param("cuda", marks=pytest.mark.gpu))
"""For `pytest.mark.parametrize`."""


@contextmanager
def on(backend: str) -> Generator[None]:
    """Make `backend`'s device the default, and have it compile; or interpret."""
    if backend == "cuda":
        with Device(0):
            yield
        return
    with Device.host(), interpret() if backend == INTERPRET else use_backend(backend):
        yield
