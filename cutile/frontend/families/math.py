"""Calls of functions that are composed of others."""

from __future__ import annotations

from typing import Any

from cutile.frontend.composed import Language, Term, composed


@composed
def sigmoid(ct: Language, x: Term) -> Any:
    # Of the absolute value: the exponential is at most 1, and a small result keeps its precision.
    small = ct.exp(-abs(x))
    return ct.select(x < 0, small, 1.0) / (small + 1.0)
