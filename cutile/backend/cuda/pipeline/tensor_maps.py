"""The tensor maps of a kernel: how TMA loads and stores its tensors' tiles, each a parameter with a name."""

from __future__ import annotations

from typing import Any

from cutile.backend.cuda.tensor_map import TensorMap
from cutile.ir.core import Function, Value


class TensorMaps:
    """The tensor maps by tensor and form, in the order of their first use."""

    def __init__(self) -> None:
        self._names: dict[tuple[Value, TensorMap], str] = {}

    def name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the parameter with a tensor's map."""
        key = (tensor, form)
        if key not in self._names:
            count = sum(other is tensor for other, _ in self._names)
            self._names[key] = f"{tensor.name}_map" + (f"_{count}" if count else "")
        return self._names[key]

    def facts(self, source: Function) -> tuple[Any, ...]:
        """What a launch needs to know of them."""
        return tuple(
            (name, source.parameters.index(value), form.box, form.swizzle, form.order, form.rounded)
            for (value, form), name in self._names.items()
        )
