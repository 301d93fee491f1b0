"""What has to be done before an operation runs, and waits for the device itself.

A search for a configuration, say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.operation import Operation

__all__ = ("Prerequisite", "do_prerequisites")


class Prerequisite:
    """A preparation (`DeviceOp.preparations`) that `execute` cannot make up for.

    Every run that somebody waits for does these first. Runs within `then`, graphs and `async_on` cannot: `execute` then
    has to refuse.

    Args:
        prepare: does it.

    Attributes:
        exists: whether this process may have any. Else nobody looks for them, which costs.
    """

    __slots__ = ("_prepare",)

    exists: ClassVar[bool] = False

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare

    def __call__(self) -> None:
        self._prepare()


def do_prerequisites(op: Operation[Any], device: Device) -> None:
    """Do what has to be done before `op` runs on `device`.

    Not inside a submission, since it waits.
    """
    if not Prerequisite.exists:
        return
    for prepare in op.preparations(device):
        if isinstance(prepare, Prerequisite):
            prepare()
