"""What lets an annotation state facts in brackets."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any


class Subscriptable:
    """Lets `Tensor[f32, Dyn, 128]` stand as an annotation that is evaluated.

    It keeps the facts.
    """

    def __class_getitem__(cls, facts: Any) -> Any:
        return types.GenericAlias(cls, facts)


class Marker(Enum):
    """What all markers share."""

    def __repr__(self) -> str:
        return f"ct.{type(self).__name__}.{self.name}"
