"""Kernels on the host's own tensors, wherever they can run: both CPU backends, the interpreter, and a GPU."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from cuda_async import Device
from cutile.launch.target import INTERPRET, interpret, use_backend

EVERYWHERE = ("reference", "cpu", INTERPRET, pytest.param("cuda", marks=pytest.mark.gpu))
"""For `pytest.mark.parametrize`."""


@contextmanager
def running_on(backend: str) -> Generator[None]:
    """Launches inside run there, and tensors inside are made there."""
    if backend == "cuda":
        with Device(0):
            yield
    elif backend == INTERPRET:
        with interpret():
            yield
    else:
        with use_backend(backend):
            yield
