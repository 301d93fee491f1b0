"""What annotations and markers share: facts in brackets, and how a choice prints."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Subscriptable:
    """Lets `Tensor[f32, Dyn, 128]` stand as an annotation that is evaluated: it means itself."""

    def __class_getitem__(cls, facts: Any) -> type:
        return cls


class Marker(Enum):
    """What all markers share."""

    def __repr__(self) -> str:
        return f"ct.{type(self).__name__}.{self.name}"
