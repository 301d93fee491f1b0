"""Preparations that wait for the device, such as a search of configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.operation import Operation

__all__ = ("Prerequisite", "do_prerequisites")


class Prerequisite:
    """A preparation (`DeviceOp.preparations`) that must end before `execute` begins.

    `sync` and `await` make prerequisites first. Runs within `then`, graphs and `async_on` cannot, because nothing
    waits in a submission: `execute` has to refuse there.

    Args:
        prepare: makes the preparation; it may wait for the device.

    Attributes:
        exists: whether this process may have any; set by the code that makes them. Runs ask this first, since looking
            for prerequisites costs time.
    """

    __slots__ = ("_prepare",)

    exists: ClassVar[bool] = False

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare

    def __call__(self) -> None:
        self._prepare()


def do_prerequisites(op: Operation[Any], device: Device) -> None:
    """Make the prerequisites of `op` on `device`. Not inside a submission: they wait."""
    if not Prerequisite.exists:
        return
    for prepare in op.preparations(device):
        if isinstance(prepare, Prerequisite):
            prepare()
