"""Functions for kernels of other modules: plain Python, compiled where they are called. No tests."""

from __future__ import annotations

from typing import Any

from tests.language import more_functions


def relu(x: Any) -> Any:
    """`x` where it is positive, else 0."""
    return max(x, 0)


def square(x: Any) -> Any:
    """`x * x`, by a function of yet another module."""
    return more_functions.product(x, x)
