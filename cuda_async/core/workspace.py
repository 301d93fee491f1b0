"""Workspaces: memory through which the blocks of a launch exchange results.

A launch finds zeros in its first 4096 bytes, for counters, and leaves zeros there. So the launches of a stream, which
follow one another, share one workspace, and none of them pays for clearing it. The contents of the other bytes are
undefined.
A graph has a workspace of its own, since it may be launched on any stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.core.storage import Storage

if TYPE_CHECKING:
    from cuda_async.core.stream import Stream

__all__ = ("Workspace", "workspace_of_graph")

_ZERO = b"\0"


class Workspace:
    """A stream's workspace.

    It is freed in stream order when neither the stream nor a bound launch holds it.

    Args:
        stream: the stream whose launches use it.
        nbytes: its size in bytes.

    Raises:
        OutOfMemoryError: it does not fit.
    """

    __slots__ = ("_device", "_driver", "address", "nbytes")

    def __init__(self, stream: Stream, nbytes: int) -> None:
        # The driver's stream: ours holds this workspace, and the two would be a cycle.
        self._driver, self._device = stream.driver, stream.device
        self.nbytes = nbytes
        self.address = self._driver.allocate(nbytes)
        self._driver.fill(self.address, nbytes, _ZERO)
        stream.sequence += 2  # the allocation and the fill

    def __del__(self) -> None:
        address = getattr(self, "address", None)  # absent where __init__ failed
        if address is not None:
            driver = self._driver
            self._device.defer(lambda: driver.free(address))


def workspace_of_graph(home: Stream, nbytes: int) -> Storage:
    """A workspace for launches that are being captured for `home`.

    It is zeroed on `home`, outside of the capture. The caller notes that the launches use it.

    Raises:
        OutOfMemoryError: it does not fit.
    """
    storage = Storage.allocate(home, nbytes)
    storage.use(home, write=True)
    home.fill(storage.address, nbytes, _ZERO)
    return storage
