"""Extents that a signature gives one name.

`x: Tensor[f32, "m", "k"], w: Tensor[f32, "k", "n"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.errors import ArgumentError
from cutile.frontend.signature import Signature


def refuse_disagreement(signature: Signature, checked: Sequence[Any]) -> None:
    """Compare the extents of one name.

    Args:
        signature: the kernel's.
        checked: its arguments, of which tensors have a shape.

    Raises:
        ArgumentError: two differ; names both arguments and both axes.
    """
    for name, position, axis, other, other_axis in signature.agreements:
        this, two = checked[position], checked[other]
        if this.shape[axis] != two.shape[other_axis]:
            first, second = signature.parameters[position].title, signature.parameters[other].title
            raise ArgumentError(
                f"{signature.name}: the extent {name!r} is {this.shape[axis]} along axis {axis} of argument {first!r} "
                f"(shape {this.shape}), but {two.shape[other_axis]} along axis {other_axis} of argument {second!r} "
                f"(shape {two.shape})"
            )
