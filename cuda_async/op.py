"""`DeviceOp`: lazy work for a device, composed and run by its methods.

A subclass overrides `execute`:

    class Scale(DeviceOp[Storage]):
        has_effects = True                                     # warn if it is dropped unrun

        def __init__(self, storage: Storage, factor: float) -> None:
            self._storage, self._factor = storage, factor      # check arguments first: an error leaves nothing
            super().__init__()                                 # notes the user's line
            self.lend(Use("storage", storage, write=True))     # then borrow: all or nothing

        def execute(self, context: ExecutionContext) -> Storage:
            self._storage.use(context.stream, write=True)      # order behind other streams
            context.stream.parallel_for(...)                   # or launch_function, copy, fill, call
            return self._storage                               # a handle: the data come later

`execute` is called at most once, by `ExecutionContext.execute`, on the thread that submits. It
enqueues on `context.stream` and never waits. Storage that is known only in `execute` (the output of
an inner operation) is lent there, by the same `lend`.

An operation is used once: it is run, or composed into another. `.shared()` gives its result to several consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cuda_async.compat import OldMethods
from cuda_async.core.operation import Operation
from cuda_async.errors import ArgumentTypeError, ContextError
from cuda_async.extension import ResultMethods, combinators
from cuda_async.hints import NotItsResult
from cuda_async.locks import EXITING
from cuda_async.picture import expression, picture_of_op
from cuda_async.site import format_site

if TYPE_CHECKING:
    from cuda_async.core.future import DeviceFuture
    from cuda_async.core.policy import SchedulingPolicy
    from cuda_async.core.stream import Stream
    from cuda_async.graph import CudaGraph
    from cuda_async.shared import SharedDeviceOp

__all__ = ("DeviceOp", "into_op")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class DeviceOp(Operation[T_co], ResultMethods, OldMethods, NotItsResult, Generic[T_co]):
    """Work for a device that yields a `T_co`. Run it by `.sync()` or `await`.

    Example:
        >>> from cuda_async import value
        >>> value(20).map(lambda x: x + 1).then(lambda x: value(2 * x)).sync()
        42
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{expression(self)} made at {format_site(self.site)}, {self.state}>"

    def diagram(self) -> str:
        """The composition as text: a line for each operation, in the order they run.

        Example:
            >>> from cuda_async import value
            >>> print(value(3).map(lambda x: x + 1).diagram())
            map, built, made at ...
              1  value 3                        ...
              2  map lambda of line ...  after 1  ...
        """
        return picture_of_op(self).text()

    def _repr_html_(self) -> str:
        from cuda_async.svg import html_of

        return html_of(picture_of_op(self))

    # -- composing ----------------------------------------------------------------------------

    def then(self, function: Callable[[T_co], DeviceOp[U]]) -> DeviceOp[U]:
        """Run this, then the operation that `function` makes of its result.

        Both run on the same stream. `function` is called on the submitting thread, before the device has computed
        anything: it gets handles, and reading values there raises `NotReadyError`.

        Raises:
            OwnershipError: this operation was used before.
            TypeError: `function` cannot be called; (when run) it did not return an operation.

        Example:
            >>> from cuda_async import value
            >>> value(20).then(lambda x: value(2 * x)).sync()
            40
        """
        from cuda_async.combinators import Then

        return Then(self, function)

    def map(self, function: Callable[[T_co], U], *more: object) -> DeviceOp[U]:
        """Transform the result on the host, at submission: on handles, not on data.

        Raises:
            OwnershipError: this operation was used before.
            TypeError: `function` cannot be called, or there are more arguments. The result's own `map` is reached by
                `.map(lambda result: result.map(...))`.

        Example:
            >>> from cuda_async import value
            >>> value([1, 2]).map(len).sync()
            2
        """
        from cuda_async.combinators import Map

        if more:
            arguments = ", ".join(map(repr, (function, *more)))
            raise ArgumentTypeError(
                f"map: expected a function of the result, got ({arguments}); to call the map of what {self!r} yields, "
                f"write .map(lambda result: result.map({arguments}))"
            )
        return Map(self, function)

    def inspect(self, function: Callable[[T_co], object]) -> DeviceOp[T_co]:
        """Call `function` with the result, at submission, and yield that result.

        Example:
            >>> from cuda_async import value
            >>> value(3).inspect(print).sync()
            3
            3
        """
        from cuda_async.combinators import Inspect

        return Inspect(self, function)

    def first(self: DeviceOp[tuple[U, ...]]) -> DeviceOp[U]:
        """The first element of the tuple that this yields.

        Example:
            >>> from cuda_async import value
            >>> value((1, 2)).first().sync()
            1
        """
        return combinators().Select(self, 0)

    def last(self: DeviceOp[tuple[U, ...]]) -> DeviceOp[U]:
        """The last element of the tuple that this yields.

        Example:
            >>> from cuda_async import value
            >>> value((1, 2)).last().sync()
            2
        """
        return combinators().Select(self, -1)

    def unzip(self: DeviceOp[tuple[U, ...]], n: int | None = None) -> tuple[DeviceOp[U], ...]:
        """One operation for each element of the tuple that this yields.

        This operation runs once, with the first of them that runs.

        Args:
            n: the number of elements; not needed where `arity` is known.

        Raises:
            ValueError: `n` is needed, or contradicts what the operation knows.

        Example:
            >>> from cuda_async import value
            >>> left, right = value((1, 2)).unzip(2)
            >>> right.sync(), left.sync()
            (2, 1)
        """
        from cuda_async.shared import unzip

        return unzip(self, n)

    def shared(self) -> SharedDeviceOp[T_co]:
        """This operation for several consumers: it runs once, and all get its result.

        Example:
            >>> from cuda_async import value, zip
            >>> top = value(3).shared()
            >>> zip(top.clone(), top.map(lambda x: x + 1)).sync()
            (3, 4)
        """
        from cuda_async.shared import SharedDeviceOp

        return SharedDeviceOp(self)

    def boxed(self) -> DeviceOp[T_co]:
        """This operation, for type checkers a plain `DeviceOp`.

        A list can then hold operations of several classes.
        """
        return self

    # -- running ------------------------------------------------------------------------------

    def sync(self) -> T_co:
        """Run on the default device's next stream and wait. Returns the result.

        Raises:
            OwnershipError: the operation was used before.
            ReentrancyError: called inside the submission of another operation.
            DeviceError: the device failed.

        Example:
            >>> from cuda_async import value
            >>> value(20).map(lambda x: x + 1).sync()
            21
        """
        __tracebackhide__ = True
        try:
            from cuda_async.fastpath import sync
        except ImportError:  # the interpreter is exiting: modules are being taken apart
            raise ContextError(0, EXITING) from None

        return sync(self)

    def sync_on(self, stream: Stream) -> T_co:
        """Run on `stream` and wait. Raises as `sync` does.

        Example:
            >>> from cuda_async import Device, value
            >>> value(20).sync_on(Device.host().new_stream())
            20
        """
        __tracebackhide__ = True
        try:
            from cuda_async.fastpath import sync_on
        except ImportError:  # as in `sync`
            raise ContextError(0, EXITING) from None

        return sync_on(self, stream)

    def schedule(self, policy: SchedulingPolicy) -> DeviceFuture[T_co]:
        """Choose the stream now, run when the returned future is first awaited.

        Raises:
            OwnershipError: the operation was used before.
            SchedulingError: the policy named no stream.

        Example:
            >>> from cuda_async import Device, SingleStream, value
            >>> value(3).schedule(SingleStream(Device.host())).sync()
            3
        """
        from cuda_async.fastpath import schedule

        return schedule(self, policy)

    def into_future(self) -> DeviceFuture[T_co]:
        """Choose the default policy's stream now; what `await op` does first.

        Example:
            >>> import asyncio
            >>> from cuda_async import value
            >>> async def twice():
            ...     future = value(3).into_future()
            ...     return await future, await future
            >>> asyncio.run(twice())
            (3, 3)
        """
        try:
            from cuda_async.fastpath import into_future
        except ImportError:  # as in `sync`
            raise ContextError(0, EXITING) from None

        return into_future(self)

    def graph(self) -> CudaGraph[T_co]:
        """Record this as a graph of the default policy's next stream; see `graph_on`.

        Example:
            >>> from cutile import api
            >>> y = api.zeros((4,)).sync()
            >>> graph = api.fill(y, 7.0).graph()
            >>> _ = graph.launch().sync()
            >>> y.to_numpy().sync().sum()
            np.float32(28.0)
        """
        from cuda_async.core.policy import default_stream
        from cuda_async.graph import CudaGraph

        return CudaGraph.capture(default_stream(), self)

    def graph_on(self, stream: Stream) -> CudaGraph[T_co]:
        """Record this, without running it, as a graph to be launched repeatedly.

        Raises:
            OwnershipError: the operation was used before, or what it uses is lent for writing.
            LaunchError: a part of it cannot be replayed (host functions, copies to the host).
            DriverError: the capture failed; the stream stays usable.

        Example:
            >>> from cuda_async import Device
            >>> from cutile import api
            >>> stream = Device.host().new_stream()
            >>> y = api.zeros((4,)).sync_on(stream)
            >>> graph = api.fill(y, 7.0).graph_on(stream)
            >>> _ = graph.launch().sync_on(stream)
            >>> y.to_numpy().sync()
            array([7., 7., 7., 7.], dtype=float32)
        """
        from cuda_async.graph import CudaGraph

        return CudaGraph.capture(stream, self)

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self.into_future().__await__()


def into_op(item: DeviceOp[T] | T) -> DeviceOp[T]:
    """Return an operation as it is; else `item.__device_op__()`, or `value(item)`.

    Example:
        >>> from cuda_async import into_op
        >>> into_op(3).sync()
        3
    """
    from cuda_async.combinators import Value

    if isinstance(item, DeviceOp):
        return item  # pyright: ignore[reportUnknownVariableType]
    convert = getattr(item, "__device_op__", None)
    return Value(item) if convert is None else convert()
