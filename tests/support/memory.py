"""NumPy arrays as launch arguments, without the host side's tensors: the shortest way to run a kernel in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVarTuple

import numpy as np
import pytest

from cuda_async import Device, Storage, Stream
from cutile.dtypes import DTypeLike, from_numpy
from cutile.entry import Kernel
from cutile.host import api
from cutile.launch.target import INTERPRET, interpret, use_backend
from cutile.launch.views import TiledView, View

Array = np.ndarray[Any, Any]
_Case = TypeVarTuple("_Case")


class Input:
    """An array to be read. The memory is shared: no copy."""

    def __init__(self, stream: Stream, array: Array, dtype: DTypeLike | None = None) -> None:
        self.array = array
        self._dtype = dtype or from_numpy(array.dtype)
        low = _lowest(array)
        self._offset = array.__array_interface__["data"][0] - low
        self.storage = Storage.borrow(stream, low, array.nbytes + 4096, keep=array)

    def __kernel_input__(self) -> View:
        size = self.array.itemsize
        strides = tuple(stride // size for stride in self.array.strides)
        return View(self.storage, self._offset, self._dtype, self.array.shape, strides)


class Output:
    """An array to be written, cut into tiles."""

    def __init__(self, stream: Stream, array: Array, tile: tuple[int, ...]) -> None:
        self.input = Input(stream, array)
        self.tile = tile

    def __kernel_output__(self) -> TiledView:
        return TiledView(self.input.__kernel_input__(), self.tile)


def _lowest(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address + sum(min(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True))


def launch(kernel: Kernel, *arguments: Any, backend: str = "reference", **generics: Any) -> None:
    """Run a kernel on arrays, in place. A pair (array, tile) is a partition, an array is a tensor.

    All but "cuda" share the arrays' memory; that copies them to the first GPU and the outputs back.
    """
    if backend == "cuda":
        _launch_on_gpu(kernel, arguments, generics)
        return
    stream = Device.host().new_stream()
    passed: list[Any] = []
    for argument in arguments:
        if isinstance(argument, tuple):
            array, tile = argument  # pyright: ignore[reportUnknownVariableType]
            passed.append(Output(stream, array, tile))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(argument, np.ndarray):
            passed.append(Input(stream, argument))  # pyright: ignore[reportUnknownArgumentType]
        else:
            passed.append(argument)
    with interpret() if backend == INTERPRET else use_backend(backend):
        kernel(*passed, **generics).sync_on(stream)


def _launch_on_gpu(kernel: Kernel, arguments: tuple[Any, ...], generics: dict[str, Any]) -> None:
    with Device(0):
        passed: list[Any] = []
        for argument in arguments:
            if isinstance(argument, tuple):
                passed.append(api.from_numpy(argument[0]).sync().partition(argument[1]))  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(argument, np.ndarray):
                passed.append(api.from_numpy(argument).sync())  # pyright: ignore[reportUnknownArgumentType]
            else:
                passed.append(argument)
        done = kernel(*passed, **generics).sync()
        for argument, result in zip(arguments, done, strict=True):
            if isinstance(argument, tuple):
                argument[0][...] = result.unpartition().to_numpy().sync()


CPU_BACKENDS = ("reference", "cpu")
BACKENDS = (*CPU_BACKENDS, pytest.param("cuda", marks=pytest.mark.gpu))
"""For `pytest.mark.parametrize`."""


def cases_on_backends(cases: Iterable[tuple[*_Case]], on_cpu: Callable[[*_Case], bool]) -> list[Any]:
    """Each case, and after it a backend: the reference and a GPU take all, the CPU those that `on_cpu` accepts.

    Compiling for the CPU is most of what such a test takes. Where cases differ in what the IR says, and not in which
    operations it has, a few of them show that these compile.
    """
    parameters: list[Any] = []
    for case in cases:
        parameters.append(pytest.param(*case, "reference"))
        if on_cpu(*case):
            parameters.append(pytest.param(*case, "cpu"))
        parameters.append(pytest.param(*case, "cuda", marks=pytest.mark.gpu))
    return parameters
