"""A launch as plain Python: waits for its memory, and calls the interpreter.

A GPU's memory is copied to the CPU for the launch, and back. For the check of uninitialised reads, each storage has a
history: which of its bytes the interpreter has written. A history is valid as long as nothing else writes the storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cuda_async import ExecutionContext, LaunchError, Storage, Use, upload
from cuda_async.staging import fetch
from cutile.backend.interface import Grid
from cutile.compile.kernels import Plan
from cutile.language.variable import DeviceVariable
from cutile.launch.arguments import Checked, Pointer
from cutile.launch.fastpath import number_of
from cutile.launch.variables import use_variables
from cutile.launch.views import PointingView, TiledView, View

Bytes = np.ndarray[Any, np.dtype[np.bool_]]
Mark = tuple[object, int] | None
"""A storage's last write; see `Storage.write_mark`."""


@dataclass
class _History:
    """The written bytes of a storage; valid while `mark` is its last write."""

    written: Bytes
    mark: Mark


_histories: weakref.WeakKeyDictionary[Storage, _History] = weakref.WeakKeyDictionary()


def run_interpreted(
    context: ExecutionContext, plan: Plan, checked: Sequence[Checked], uses: Sequence[Use], grid: Grid, check: bool
) -> None:
    """Wait for the arguments' memory, and run the kernel in this thread.

    Raises:
        LaunchError: in a graph, which would have nothing to replay; or an argument is an address, or a tensor of
            addresses, of a device whose memory the CPU does not reach.
        KernelError: the kernel does not compile, or a check of it failed.
        Exception: whatever the kernel's function raises.
    """
    if context.stream.recorder is not None:
        raise LaunchError("an interpreted kernel cannot be part of a graph: it runs in Python, once")
    on_host = context.device.kind == "host"
    if not on_host and any(isinstance(each, Pointer | PointingView) for each in checked):
        raise LaunchError(
            f"an interpreted kernel runs on the CPU, which does not reach what addresses of {context.device} lead to: "
            "interpret it over tensors of the CPU (with Device.host(): ...), or compile it"
        )
    views = {position: each for position, each in enumerate(checked) if isinstance(each, View | TiledView)}
    # Before `use` below, which makes this launch the last writer.
    marks_before = {id(use.storage): cast("Storage", use.storage).write_mark() for use in uses}
    for use in uses:
        cast("Storage", use.storage).use(context.stream, write=use.write)
    context.stream.synchronize()
    mirrors = {} if on_host else {i: _Mirror(context, each.storage, each.byte_range) for i, each in views.items()}
    kernel = plan.interpreted()
    numbers: list[Any] = [number_of(each)(checked, grid) for each in kernel.parameters]
    for position, parameter in enumerate(kernel.parameters):
        if parameter.kind == "pointer" and parameter.argument in mirrors:
            numbers[position] += mirrors[parameter.argument].shift
    names = list(plan.specialization.parameters)
    histories = (
        {i: _history_of(each.storage, marks_before[id(each.storage)]) for i, each in views.items()} if check else {}
    )
    masks = {
        i: _byte_of_each(views[i], each.written, 0).ravel().copy() for i, each in histories.items() if each is not None
    }
    variables = _Variables(context)
    kernel.run(grid, numbers, {names[i]: mask for i, mask in masks.items()} if check else None, variables.address_of)
    for i, mirror in mirrors.items():
        if views[i].writes:
            mirror.write_back(context)
    variables.write_back()
    # After the copies back, which are the last writes of a GPU's storages: later launches then trust the histories.
    for i, mask in masks.items():
        history = histories[i]
        assert history is not None
        _remember(views[i], history, mask)


class _Variables:
    """Addresses at which the CPU reaches the device's variables; a GPU's are mirrored."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._addresses: dict[DeviceVariable, int] = {}
        self._mirrors: list[_Mirror] = []

    def address_of(self, variable: DeviceVariable) -> int:
        """Wait for the variable's earlier users, and return its address."""
        if variable not in self._addresses:
            stream = self._context.stream
            (storage,) = use_variables([variable], stream)
            stream.synchronize()
            self._addresses[variable] = storage.address
            if self._context.device.kind != "host":
                mirror = _Mirror(self._context, storage, (0, storage.nbytes))
                self._mirrors.append(mirror)
                self._addresses[variable] += mirror.shift
        return self._addresses[variable]

    def write_back(self) -> None:
        """Enqueue the copies to the GPU."""
        for each in self._mirrors:
            each.write_back(self._context)


class _Mirror:
    """A copy of a GPU's bytes in the CPU's memory, for one launch.

    Attributes:
        shift: bytes from an address on the GPU to the address of its copy.
    """

    def __init__(self, context: ExecutionContext, storage: Storage, byte_range: tuple[int, int]) -> None:
        self._storage = storage
        self._low, high = byte_range
        self._bytes = np.empty(high - self._low, np.uint8)
        fetch(context, self._storage, self._bytes.ctypes.data, self._bytes.nbytes, offset=self._low, keep=self._bytes)
        self.shift = self._bytes.ctypes.data - (self._storage.address + self._low)

    def write_back(self, context: ExecutionContext) -> None:
        """Enqueue the copy to the GPU."""
        upload(context, self._storage, self._bytes.ctypes.data, self._bytes.nbytes, offset=self._low, keep=self._bytes)


def _history_of(storage: Storage, mark: Mark) -> _History | None:
    """The history of a storage; None if anything but the interpreter has written it."""
    history = _histories.get(storage)
    if history is None and mark is None:
        history = _histories[storage] = _History(np.zeros(storage.nbytes, np.bool_), None)
    return history if history is not None and history.mark == mark else None


def _byte_of_each(view: View | TiledView, written: Bytes, byte: int) -> Bytes:
    """The marks in `written` of one byte of each element.

    A writable array of the view's shape. `byte` is the byte's position in its element.
    """
    inner = view.view if isinstance(view, TiledView) else view
    size = inner.dtype.bits // 8
    strides = tuple(stride * size for stride in inner.strides)
    return np.ndarray(inner.shape, np.bool_, written.data, inner.offset + byte, strides)


def _remember(view: View | TiledView, history: _History, elements: Bytes) -> None:
    """Store the marks of a view's elements, and the storage's last write."""
    history.mark = view.storage.write_mark()
    for byte in range(view.facts.layout.dtype.bits // 8):
        marks = _byte_of_each(view, history.written, byte)
        marks[...] = elements.reshape(marks.shape)
