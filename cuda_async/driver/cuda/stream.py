"""Streams and events of CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cuda_async.driver.cuda.api import cu, error_of, is_pending
from cuda_async.driver.cuda.checks import SETTLING, RunErrors, Unfollowed
from cuda_async.driver.cuda.context import PrimaryContext
from cuda_async.driver.cuda.early import MAX_CONFIGURATIONS, early_configuration
from cuda_async.driver.interface import Check, Driver, DriverEvent, DriverGraph, DriverStream, Launcher
from cuda_async.errors import DeviceLostError, DriverError, LaunchError, raise_again

if TYPE_CHECKING:
    from cuda_async.driver.cuda.device import CudaDriver

__all__ = (
    "BorrowedStream",
    "CudaEvent",
    "CudaFunction",
    "CudaGraphHandle",
    "CudaStream",
    "EarlyFunction",
)

_SPIN_S = 500e-6  # seconds that a wait polls before it sleeps: a sleep of 20 us takes 95 us, too long for short work
_MIN_SLEEP_S = 20e-6
_MAX_SLEEP_S = 500e-6
_LATENESS = 0.01  # a sleep lasts this part of the wait so far: by so much the end may be seen late

_MAX_UNFOLLOWED = 64  # checks of launches that no waiter follows; with more, a new run calls those of finished work

# The handles of default streams: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. Each names a stream of the current
# context.
_DEFAULT_STREAMS = (0, 1, 2)

_launch, _launch_early, _launch_graph = cu.cuLaunchKernel, cu.cuLaunchKernelEx, cu.cuGraphLaunch
_query, _record = cu.cuEventQuery, cu.cuEventRecord
_SUCCESS: Any = cu.CUresult.CUDA_SUCCESS
_NOT_READY: Any = cu.CUresult.CUDA_ERROR_NOT_READY


class CudaFunction:
    """A kernel of a module, which stays loaded as long as this object lives."""

    __slots__ = ("_driver", "handle", "module")

    def __init__(self, driver: CudaDriver, module: Any, handle: Any) -> None:
        self._driver = driver
        self.module = module
        self.handle = handle

    def __del__(self) -> None:
        # A finalizer runs within any call, where it must not call the driver: `CudaDriver.collect` does.
        self._driver.garbage.append((cu.cuModuleUnload, self.module))


class EarlyFunction(CudaFunction):
    """A kernel that may begin before the kernel ahead of it has ended.

    See `early.py`.

    Attributes:
        always: whether all its launches may begin early; if not, only the launches that a graph records may.
    """

    __slots__ = ("_configurations", "always")

    def __init__(self, driver: CudaDriver, module: Any, handle: Any, *, always: bool) -> None:
        super().__init__(driver, module, handle)
        self.always = always
        self._configurations: dict[tuple[Any, ...], Any] = {}

    def configuration(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, stream: Any
    ) -> Any:
        """The configuration of a launch, for `cuLaunchKernelEx`."""
        key = (grid, block, shared_bytes, int(stream))
        configuration = self._configurations.get(key)
        if configuration is None:
            if len(self._configurations) >= MAX_CONFIGURATIONS:
                self._configurations = {}  # a new dictionary, since other threads may be reading this one
            configuration = self._configurations[key] = early_configuration(grid, block, shared_bytes, stream)
        return configuration


class CudaEvent(DriverEvent):
    """A CUDA event."""

    __slots__ = ("_checks", "_context", "_driver", "_error", "errors", "handle", "timing")

    def __init__(self, driver: CudaDriver, timing: bool) -> None:
        self._driver = driver
        self._context: PrimaryContext = driver.context
        self.timing = timing
        flags = cu.CUevent_flags.CU_EVENT_DEFAULT if timing else cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.handle: Any = self._context.call(cu.cuEventCreate, int(flags))
        self.errors: RunErrors | None = None
        self._checks: tuple[tuple[Check, int], ...] | None = None  # of the work before the record; None once called
        self._error: BaseException | None = None  # of a query or a check since the last record

    def begin(self, errors: RunErrors) -> None:
        """Prepare a record behind work whose failures `errors` has."""
        self.errors = errors
        # A copy: work behind the record adds its checks to `errors`, too.
        self._checks = tuple(errors.checks.items()) if errors.checks else None
        self._error = None

    def query(self) -> bool:
        context = self._context
        if context.usable:  # the fast path: waiters ask again and again
            code = _query(self.handle)[0]
            if code is _NOT_READY:
                return False
            if code is _SUCCESS and not context.speaks:
                return self._checks is None or self._settle()
        if not context.usable:  # the work has failed: the device is lost, or this is a fork, and it is its parent's
            return True
        code = context.query(_query, self.handle)
        if code == _SUCCESS and not context.speaks:
            return self._settle()
        if is_pending(code):
            return False
        if context.speaks:
            context.write_output(cu.cuEventSynchronize, self.handle)
        error = error_of(code, "work on the device")
        if isinstance(error, DeviceLostError):
            context.lose(error)
        self._error = self._error or error  # a later query may have another error, or none: the first one holds
        return self._settle()

    def _settle(self) -> bool:
        """Call the checks of work that the device has done.

        The first failure is the event's. Returns whether all checks could tell.
        """
        with SETTLING:
            checks = self._checks or ()
            for check, _ in checks:
                try:
                    if check() is False:
                        return False
                except BaseException as error:
                    self._error = self._error or error
            if self.errors is not None:
                self.errors.unfollowed.drop(checks)
            self._checks = None
        return True

    def wait(self, timeout_s: float) -> bool:
        if self.query():
            return True
        if self.errors is not None:
            self.errors.unfollowed.expect()
        begin = time.perf_counter()
        while not self.query():
            waited = time.perf_counter() - begin
            if waited >= timeout_s:
                return False
            if waited > _SPIN_S:
                time.sleep(min(max(_MIN_SLEEP_S, _LATENESS * waited), _MAX_SLEEP_S, timeout_s - waited))
        return True

    def failure(self) -> BaseException | None:
        error = (None if self._context.usable else self._context.refusal()) or self._error
        return self.errors.error if error is None and self.errors is not None else error

    def forget(self) -> None:
        self.errors = self._error = None

    def elapsed_ms(self, end: DriverEvent) -> float:
        return float(self._context.call(cu.cuEventElapsedTime, self.handle, cast("CudaEvent", end).handle))

    def notify(self, callback: Callable[[], None]) -> bool:
        return False  # a driver callback would take the interpreter's lock: a deadlock (`host_functions.py`)

    def close(self) -> None:
        if self._context.usable:
            self._context.call(cu.cuEventDestroy, self.handle)


class CudaGraphHandle(DriverGraph):
    """A captured graph, and its executable.

    Attributes:
        checks: the checks that are called when a launch of it is over.
    """

    __slots__ = ("_context", "_executable", "_graph", "_nodes", "checks")

    def __init__(self, context: PrimaryContext, graph: Any, checks: Sequence[Check] = ()) -> None:
        self._context = context
        self.checks = tuple(checks)
        self._graph = graph
        self._executable: Any = None
        self._nodes = int(context.call(cu.cuGraphGetNodes, graph, 0)[1])

    @property
    def nodes(self) -> int:
        return self._nodes

    @property
    def graph(self) -> Any:
        """The graph itself (`CUgraph`), which other graphs may have as a node."""
        return self._graph

    @property
    def executable(self) -> Any:
        """The instantiated graph (`CUgraphExec`), which is launched."""
        return self._executable

    def instantiate(self) -> None:
        self._executable = self._context.call(cu.cuGraphInstantiate, self._graph, 0)

    def upload(self, stream: DriverStream) -> None:
        self._context.call(cu.cuGraphUpload, self._executable, cast("CudaStream", stream).handle)

    def close(self) -> None:
        if not self._context.usable:
            return
        if self._executable is not None:
            self._context.call(cu.cuGraphExecDestroy, self._executable)
        self._context.call(cu.cuGraphDestroy, self._graph)


class CudaStream(DriverStream):
    """A CUDA stream. Unless borrowed, it does not wait for the legacy default stream."""

    __slots__ = (
        "__weakref__", "_context", "_driver", "_entered", "_max_checks", "_sweep", "_unfollowed", "ambient", "captured",
        "errors", "handle", "plain",
    )  # fmt: skip

    def __init__(self, driver: CudaDriver, handle: Any) -> None:
        self.ambient = int(handle) in _DEFAULT_STREAMS
        """Whether it is a default stream. Its handle means one of the current context: each call makes ours current."""
        self._driver = driver
        self._context: PrimaryContext = driver.context
        self.handle = handle
        self._unfollowed = Unfollowed()
        self._sweep: CudaEvent | None = None  # recorded behind work that no waiter follows: its query calls the checks
        self.errors = RunErrors(self._unfollowed)
        self._max_checks = _MAX_UNFOLLOWED  # of a run, before it is divided
        self.captured: list[Check] | None = None
        """The checks of a capture under way; None outside of one."""
        self.plain = not self.ambient
        """Whether a launch needs the driver's call alone: the stream is not `ambient`, and does not capture."""
        self._entered: list[bool] = []  # for each call of `enter` without its `leave`: whether the context was entered

    @property
    def raw(self) -> int:
        return int(self.handle)

    def begin_run(self) -> None:
        self._begin()
        if self._driver.garbage:
            self._driver.collect()
        self.enter()

    def enter(self) -> None:
        here = self._context.is_current()
        if not here:
            self._context.enter()
        self._entered += [not here]  # no `append`: Ctrl-C may come behind a call, and the context would stay entered

    def leave(self) -> None:
        entered = self._entered[-1]
        del self._entered[-1]  # no `pop`, for the same reason
        if entered:
            self._context.leave()

    def begin_single(self) -> None:
        # Without `enter`: each call makes the context current if it is not, and refuses one that cannot be used.
        if self.errors.used:
            self._begin()
        if self._driver.garbage:
            self._driver.collect()

    def continue_run(self) -> None:
        errors = self.errors
        # A long run is divided, so that its checks are called now and then, as the checks of many short runs are. A
        # check that cannot tell yet stays, and raises the limit. Else each call would divide the run: no use, and some
        # 10 us.
        if errors.used and (errors.followed or len(errors.checks) > self._max_checks):
            self._begin()

    def _begin(self) -> None:
        """Begin a run, which has the checks of earlier runs that no waiter follows."""
        # The query of a finished sweep calls its checks, and drops them from those that no waiter follows.
        if self._sweep is not None and self._sweep.query():
            sweep, self._sweep = self._sweep, None
            if (failure := sweep.failure()) is not None:
                # The failure becomes a check that no waiter follows: the new run begins with these.
                self.errors.add((partial(raise_again, failure),))
            sweep.close()
        self.errors = RunErrors(self._unfollowed)
        self._max_checks = len(self.errors.checks) + _MAX_UNFOLLOWED
        if len(self.errors.checks) > _MAX_UNFOLLOWED and self._sweep is None:
            self._sweep = CudaEvent(self._driver, timing=False)
            self.record(self._sweep)

    def followed(self) -> None:
        self.errors.follow()

    def awaited(self) -> None:
        self._unfollowed.expect()

    def end_run(self) -> None:
        self.leave()

    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        if self.captured is None:
            self.errors.add((check,))
            if expect is not None:
                self._unfollowed.expects[expect] = None
        else:
            self.captured.append(check)

    def record(self, event: DriverEvent) -> None:
        event = cast("CudaEvent", event)
        event.begin(self.errors)
        call = self._context.call if self.ambient else self._context.direct
        call(_record, event.handle, self.handle)

    def wait_event(self, event: DriverEvent) -> None:
        self._context.call(cu.cuStreamWaitEvent, self.handle, cast("CudaEvent", event).handle, 0)

    def query(self) -> bool:
        if not self._context.usable:  # as `CudaEvent.query`
            return True
        done = not is_pending(self._ask(cu.cuStreamQuery))
        if done and self._context.speaks:
            self._context.write_output(cu.cuStreamSynchronize, self.handle)
        return done

    def _ask(self, function: Any) -> Any:
        """The result code of a query of the stream."""
        if not self.ambient:
            return self._context.query(function, self.handle)
        self._context.enter()
        try:
            return function(self.handle)[0]
        finally:
            self._context.leave()

    def expect_output(self) -> None:
        self._context.speaks = True

    def allocate(self, nbytes: int) -> int:
        return int(self._context.call(cu.cuMemAllocFromPoolAsync, nbytes, self._driver.pool, self.handle))

    def free(self, address: int) -> None:
        if self._context.usable:  # a lost context has no memory any more, and in a fork the memory is the parent's
            self._context.call(cu.cuMemFreeAsync, address, self.handle)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._context.call(cu.cuMemcpyAsync, destination, source, nbytes, self.handle)

    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        target, origin = cast("CudaDriver", destination_driver), cast("CudaDriver", source_driver)
        target.connect(origin)
        origin.connect(target)
        self._context.call(
            cu.cuMemcpyPeerAsync,
            destination,
            target.context.handle,
            source,
            origin.context.handle,
            nbytes,
            self.handle,
        )

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        width = len(pattern)
        if width not in (1, 2, 4) or nbytes < 1 or nbytes % width:
            raise ValueError(
                f"fill: expected a pattern of 1, 2 or 4 bytes that divides the size; got {width} bytes for {nbytes}"
            )
        call = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[width]
        self._context.call(call, destination, int.from_bytes(pattern, "little"), nbytes // width, self.handle)

    def call(self, function: Callable[[], None]) -> None:
        self._driver.host_functions.enqueue(self, function)

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        raise LaunchError("parallel_for: a GPU runs no host code; use launch_function, or Device.host()")

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        if not isinstance(function, CudaFunction):
            raise LaunchError(f"launch_function: expected what load_function returned, got {type(function).__name__}")
        call = self._context.call if self.ambient else self._context.direct
        if isinstance(function, EarlyFunction) and (function.always or self.captured is not None):
            configuration = function.configuration(grid, block, shared_bytes, self.handle)
            call(_launch_early, configuration, function.handle, parameters, 0)
        else:
            call(_launch, function.handle, *grid, *block, shared_bytes, self.handle, parameters, 0)

    def launcher(self, function: object, block: tuple[int, int, int], shared_bytes: int) -> Launcher:
        if not isinstance(function, CudaFunction):
            raise LaunchError(f"launcher: expected what load_function returned, got {type(function).__name__}")
        if isinstance(function, EarlyFunction) and function.always:
            # Each launch needs a configuration of its shape and stream.
            return super().launcher(function, block, shared_bytes)
        # Locals, not attributes: each launch is spared the look-ups.
        context, call, success, handle = self._context, _launch, _SUCCESS, function.handle
        i, j, k = block

        # `owner`: the module is unloaded with the function, which the caller may drop.
        def launch(stream: Any, blocks: int, parameters: int, owner: CudaFunction = function) -> None:
            if context.usable and (stream.plain or (stream.captured is None and context.is_current())):
                result = call(handle, blocks, 1, 1, i, j, k, shared_bytes, stream.handle, parameters, 0)
                if result[0] is not success:
                    arguments = (handle, blocks, 1, 1, i, j, k, shared_bytes, stream.handle, parameters, 0)
                    context.refused(call, arguments, result)
            else:  # in a capture the launch may be an early one
                stream.launch_function(owner, (blocks, 1, 1), block, shared_bytes, parameters)

        return launch

    def prepare_launch(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> Callable[[], None]:
        if not isinstance(function, CudaFunction):
            raise LaunchError(f"prepare_launch: expected what load_function returned, got {type(function).__name__}")
        context, launch, success = self._context, _launch, _SUCCESS
        arguments: tuple[Any, ...] = (function.handle, *grid, *block, shared_bytes, self.handle, parameters, 0)
        if isinstance(function, EarlyFunction) and function.always:
            launch = _launch_early
            arguments = (
                function.configuration(grid, block, shared_bytes, self.handle),
                function.handle,
                parameters,
                0,
            )
        if self.ambient:

            def launch_in_context(owner: CudaFunction = function) -> None:  # `owner`: as in `launcher`
                context.call(launch, *arguments)

            return launch_in_context

        # `PrimaryContext.direct` written out: nearly always this is the driver's call alone.
        def launch_directly(owner: CudaFunction = function) -> None:
            if not context.usable:
                context.check()
            result = launch(*arguments)
            if result[0] is not success:
                context.refused(launch, arguments, result)

        return launch_directly

    def begin_capture(self) -> None:
        # Relaxed: other threads, and this one on other streams, may make any call during the capture.
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._context.call(cu.cuStreamBeginCapture, self.handle, mode)
        self.captured, self.plain = [], False

    def end_capture(self) -> DriverGraph:
        checks, self.captured, self.plain = self.captured or (), None, not self.ambient
        graph = self._context.call(cu.cuStreamEndCapture, self.handle)
        if graph is None or int(graph) == 0:
            raise DriverError(0, "CUDA_NO_GRAPH", "cuStreamEndCapture returned a null graph")
        return CudaGraphHandle(self._context, graph, checks)

    def launch_graph(self, graph: DriverGraph) -> None:
        recorded = cast("CudaGraphHandle", graph)
        if self.captured is not None:
            self._add_child(recorded.graph)
            self.captured.extend(recorded.checks)
            return
        call = self._context.call if self.ambient else self._context.direct
        call(_launch_graph, recorded.executable, self.handle)
        if recorded.checks:
            self.errors.add(recorded.checks)

    def _add_child(self, graph: Any) -> None:
        """Record a graph as a node of the one that is being captured."""
        call = self._context.call  # adds the node itself: a capture refuses `cuGraphLaunch`
        _, _, parent, ahead, _, count = call(cu.cuStreamGetCaptureInfo, self.handle)
        node = call(cu.cuGraphAddChildGraphNode, parent, ahead, count, graph)
        behind = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        call(cu.cuStreamUpdateCaptureDependencies, self.handle, [node], None, 1, behind)

    def close(self) -> None:
        self._driver.take_back(self.handle)


class BorrowedStream(CudaStream):
    """A stream that its owner made, and destroys."""

    __slots__ = ()

    def close(self) -> None:
        """Do nothing: the owner destroys it."""
