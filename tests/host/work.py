"""What these tests write tensors with: a launch in small, on every device."""

from __future__ import annotations

from typing import Any

from cuda_async import DeviceOp, ExecutionContext, Use
from cutile.launch.views import KernelInput, KernelOutput


class Overwrite(DeviceOp[tuple[Any, Any]]):
    """Copies the bytes of `source` over a contiguous partition of the same size; yields both, as a kernel does."""

    has_effects = True
    arity = 2

    def __init__(self, part: KernelOutput, source: KernelInput) -> None:
        super().__init__()
        self._arguments = part, source
        self._to, self._from = part.__kernel_output__().view, source.__kernel_input__()
        self.lend(
            Use("part", self._to.storage, True, *self._to.byte_range),
            Use("source", self._from.storage, False, *self._from.byte_range),
        )

    def _give_back(self) -> None:
        super()._give_back()
        for argument in getattr(self, "_arguments", ()):
            release = getattr(argument, "__kernel_give_back__", None)
            if release is not None:
                release()

    def execute(self, context: ExecutionContext) -> tuple[Any, Any]:
        low, high = self._from.byte_range
        self._to.storage.use(context.stream, write=True)
        self._from.storage.use(context.stream, write=False)
        context.stream.copy(self._to.address, self._from.address, high - low)
        return self._arguments
