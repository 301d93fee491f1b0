"""What `functions.py` calls, with a constant of this module's own. No tests."""

from __future__ import annotations

from typing import Any

NEUTRAL = 1


def product(x: Any, y: Any, *, scale: Any = NEUTRAL) -> Any:
    """`x * y * scale`."""
    return x * y * scale
