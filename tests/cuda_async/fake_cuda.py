"""A fake of CUDA's bindings: contexts, streams and events of several devices, whose work is over at once.

As the driver does, it keeps a stack of contexts, and takes a default stream for that of the current context. It serves
one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from cuda_async.driver.cuda import context, stream
from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.host_functions import HostFunctions

__all__ = ("FakeCuda", "FakeDevice")

_ALIASES = {
    stream: {
        "_launch": "cuLaunchKernel",
        "_launch_early": "cuLaunchKernelEx",
        "_launch_graph": "cuGraphLaunch",
        "_query": "cuEventQuery",
        "_record": "cuEventRecord",
    },
    context: {"_current_context": "cuCtxGetCurrent"},
}
"""Functions of the bindings that a module has under a name of its own."""

_CALLS = (
    "cuCtxGetCurrent", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuCtxSetCurrent", "cuDeviceGet",
    "cuDevicePrimaryCtxRetain", "cuEventCreate", "cuEventDestroy", "cuEventQuery", "cuEventRecord",
    "cuGetErrorString", "cuGraphAddChildGraphNode", "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphGetNodes",
    "cuGraphInstantiate", "cuGraphLaunch", "cuInit", "cuLaunchKernel", "cuLaunchKernelEx", "cuMemFreeAsync",
    "cuModuleUnload", "cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamGetCaptureInfo", "cuStreamQuery",
    "cuStreamSynchronize", "cuStreamUpdateCaptureDependencies", "cuStreamWaitEvent", "cuStreamWaitValue32",
    "cuStreamWriteValue32",
)  # fmt: skip

_NOT_IN_A_CAPTURE = {"cuGraphLaunch": 1, "cuStreamQuery": 0, "cuStreamSynchronize": 0}
"""Functions that the driver refuses while their stream captures: the place of the stream among the arguments."""


class FakeCuda:
    """The bindings.

    Args:
        monkeypatch: puts them in place of the real ones.
        current: the device whose context is current; None for no context.

    Attributes:
        calls: each call of a function: its name, the device of the current context, its arguments.
        stack: the devices of the contexts that are current, the innermost last; 0 devices for no context.
        interrupted: the function behind whose next call Ctrl-C comes.
        refused: the function whose next call the driver refuses.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, current: int | None = None) -> None:
        self.calls: list[tuple[str, int | None, tuple[Any, ...]]] = []
        self.stack: list[int] = [] if current is None else [current]
        self.interrupted = self.refused = ""
        self._handles = 1000
        self._captures: dict[Any, tuple[int, list[int]]] = {}  # by stream: the graph, and the nodes to come behind
        for name in _CALLS:
            monkeypatch.setattr(cu, name, self._function(name))
        for module, aliases in _ALIASES.items():
            for alias, name in aliases.items():
                monkeypatch.setattr(module, alias, getattr(cu, name))

    @property
    def current(self) -> int | None:
        """The device of the current context."""
        return self.stack[-1] if self.stack else None

    def of(self, name: str) -> list[tuple[int | None, tuple[Any, ...]]]:
        """The calls of one function: the device of the current context, and the arguments."""
        return [(device, arguments) for called, device, arguments in self.calls if called == name]

    def _function(self, name: str) -> Callable[..., tuple[Any, ...]]:
        answer = getattr(self, f"_{name}", None)

        def function(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, self.current, arguments))
            if self.refused == name:
                self.refused = ""
                return (cu.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
            if name in _NOT_IN_A_CAPTURE and arguments[_NOT_IN_A_CAPTURE[name]] in self._captures:
                return (cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
            values = () if answer is None else answer(*arguments)
            if self.interrupted == name:
                self.interrupted = ""
                raise KeyboardInterrupt
            return (cu.CUresult.CUDA_SUCCESS, *values)

        function.__name__ = name
        return function

    def _handle(self, *_: Any) -> tuple[int]:
        self._handles += 1
        return (self._handles,)

    _cuEventCreate = _cuGraphInstantiate = _handle

    def _cuStreamBeginCapture(self, handle: Any, mode: Any) -> tuple[()]:
        self._captures[handle] = self._handle()[0], []
        return ()

    def _cuStreamEndCapture(self, handle: Any) -> tuple[int]:
        return (self._captures.pop(handle)[0],)

    def _cuStreamGetCaptureInfo(self, handle: Any) -> tuple[Any, ...]:
        graph, nodes = self._captures[handle]
        return cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE, 1, graph, list(nodes), None, len(nodes)

    def _cuGraphAddChildGraphNode(self, graph: int, nodes: list[int], count: int, child: int) -> tuple[int]:
        assert len(nodes) == count
        assert graph in {capture for capture, _ in self._captures.values()}
        return self._handle()

    def _cuStreamUpdateCaptureDependencies(
        self, handle: Any, nodes: list[int], edges: Any, count: int, flags: Any
    ) -> tuple[()]:
        assert len(nodes) == count
        assert flags == cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        self._captures[handle][1][:] = nodes
        return ()

    def _cuGetErrorString(self, code: Any) -> tuple[bytes]:
        return (code.name.lower().encode(),)

    def _cuGraphGetNodes(self, graph: Any, most: int) -> tuple[list[Any], int]:
        return [], 1

    def _cuDeviceGet(self, ordinal: int) -> tuple[int]:
        return (ordinal,)

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int]:
        return (100 + device,)

    def _cuCtxGetCurrent(self) -> tuple[int]:
        return (0 if self.current is None else 100 + self.current,)

    def _cuCtxSetCurrent(self, handle: int) -> tuple[()]:
        self.stack[-1:] = [handle - 100]
        return ()

    def _cuCtxPushCurrent(self, handle: int) -> tuple[()]:
        self.stack.append(handle - 100)
        return ()

    def _cuCtxPopCurrent(self) -> tuple[int]:
        return (100 + self.stack.pop(),)


class FakeDevice:
    """The driver of one device, as far as streams, events and functions need it."""

    def __init__(self, ordinal: int) -> None:
        self.context = context.PrimaryContext(ordinal)
        self.garbage: list[tuple[Any, Any]] = []
        driver: Any = self
        self.host_functions = HostFunctions(driver)

    def collect(self) -> None:
        """Make the calls in `garbage`."""
        while self.garbage:
            function, argument = self.garbage.pop(0)
            self.context.call(function, argument)

    def stream(self, handle: int = 5) -> Any:
        """A stream; the handles 0, 1 and 2 are default streams."""
        driver: Any = self
        return stream.CudaStream(driver, handle)

    def take_back(self, handle: int) -> None:
        """Keep the handle of a closed stream."""

    def pin(self, nbytes: int) -> int:
        """Memory of the host, which stays."""
        self._pinned = ctypes.create_string_buffer(nbytes)
        return ctypes.addressof(self._pinned)

    def create_event(self) -> Any:
        """An event, as drivers name the call."""
        return self.event()

    def event(self) -> Any:
        """An event."""
        driver: Any = self
        return stream.CudaEvent(driver, timing=False)

    def function(self, handle: int, module: int) -> Any:
        """A function of a module of its own, which is unloaded with the function."""
        driver: Any = self
        return stream.CudaFunction(driver, module, handle)

    def early_function(self, handle: int, *, always: bool) -> Any:
        """A function that may begin before the kernel ahead has ended."""
        driver: Any = self
        return stream.EarlyFunction(driver, handle + 100, handle, always=always)
