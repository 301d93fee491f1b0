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

    `sync` and `await` do these first. Runs within `then`, graphs and `async_on` cannot, because nothing waits in a
    submission: `execute` has to refuse there.

    Args:
        prepare: does it.

    Attributes:
        exists: whether this process may have any. Looking for them costs time, so runs ask this first.
    """

    __slots__ = ("_prepare",)

    exists: ClassVar[bool] = False

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare

    def __call__(self) -> None:
        self._prepare()


def do_prerequisites(op: Operation[Any], device: Device) -> None:
    """Do the prerequisites of `op` on `device`.

    Call it outside of submissions: it waits.
    """
    if not Prerequisite.exists:
        return
    for prepare in op.preparations(device):
        if isinstance(prepare, Prerequisite):
            prepare()
