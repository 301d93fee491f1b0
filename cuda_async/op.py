"""`DeviceOp`: what to enqueue on a stream and what that yields. Lazy: building one runs nothing.

A subclass overrides `execute`:

    class Scale(DeviceOp[Storage]):
        has_effects = True                                     # dropped unrun: warn

        def __init__(self, storage: Storage, factor: float) -> None:
            self._storage, self._factor = storage, factor      # check everything first
            super().__init__()                                 # notes the user's line
            self.lend(Use("storage", storage, write=True))     # then borrow: all or nothing

        def execute(self, context: ExecutionContext) -> Storage:
            self._storage.use(context.stream, write=True)      # order behind other streams
            context.stream.parallel_for(...)                   # or launch_function, copy, fill, call
            return self._storage                               # a handle: the data come later

`execute` is called at most once, by `ExecutionContext.execute`, on the thread that submits. It
enqueues on `context.stream` and never waits. Storage that is known only there (the output of an
inner operation) is lent there, with the same `lend`.

An operation is used once: by running it, or by composing it into another. `.shared()` is for
several consumers.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from cuda_async.compat import OldMethods
from cuda_async.errors import ArgumentTypeError, ContextError, OwnershipError
from cuda_async.extension import ResultMethods
from cuda_async.lease import Lease, PlainUse, Use, end, enter, words_of
from cuda_async.picture import expression, picture_of_op
from cuda_async.site import Place, Site, format_site, site_at, user_site
from cuda_async.threads import EXITING
from cuda_async.unrun import NotItsResult

if TYPE_CHECKING:
    from cuda_async.context import ExecutionContext
    from cuda_async.device import Device
    from cuda_async.future import DeviceFuture
    from cuda_async.graph import CudaGraph
    from cuda_async.policy import SchedulingPolicy
    from cuda_async.shared import SharedDeviceOp
    from cuda_async.storage import Storage
    from cuda_async.stream import Stream

__all__ = ("BUILT", "DeviceOp", "UnrunOperationWarning", "into_op", "whole")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

BUILT, _COMPOSED, _RUN, _DISCARDED = range(4)  # in this order: `_RUN` and beyond, nothing is left to be done
_STATES = ("built", "composed", "run", "discarded")


class UnrunOperationWarning(RuntimeWarning):
    """An operation with effects was dropped without ever running."""


class DeviceOp(ResultMethods, OldMethods, NotItsResult, ABC, Generic[T_co]):
    """Work for a device that yields a `T_co`, to be run by `.sync()`, `await` or as part of another.

    Example:
        >>> from cuda_async import value
        >>> value(20).map(lambda x: x + 1).then(lambda x: value(2 * x)).sync()
        42
    """

    __slots__ = ("__weakref__", "_leases", "_place", "_state", "_token", "_used")

    has_effects: ClassVar[bool] = False
    """Whether dropping an operation of this class without running it is likely a mistake."""

    graph_node: bool = False
    """Whether it can be recorded in a graph scope: it neither allocates nor frees memory."""

    arity: int | None = None
    """The length of the tuple that the operation yields, where it is known before it runs."""

    def __init__(self, site: Place | None = None) -> None:
        self._place: Place = user_site(self) if site is None else site
        self._leases: list[Lease] = []
        self._token = object()
        self._state = BUILT
        self._used: Place | None = None

    @property
    def site(self) -> Site:
        """The file and line of the user's that made it."""
        return site_at(self._place)

    @property
    def place(self) -> Place:
        """`site`, as it was noted."""
        return self._place

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def execute(self, context: ExecutionContext) -> T_co:
        """Enqueue the work on `context.stream` and return what it yields. Never waits."""

    def unfold(self, context: ExecutionContext) -> Generator[DeviceOp[Any], Any, T_co] | None:
        """What does the same as `execute`, and yields each inner operation to whoever runs it, for its result.

        So that operations within operations, however deep, take no frames. None, as here, is always right; who
        overrides this has `execute` return `context.drive(self)`.
        """
        return None

    def straight(self, *, waited: bool) -> Callable[[Stream], T_co] | None:
        """What does the same as `execute` on a stream that it is given, where this operation is run alone.

        For an operation that has no parts and needs nothing of a run's books: it makes no memory and brings nothing
        to the host. None, as here, is always right.

        Args:
            waited: whether this object lives until the device is done. If not, nothing must have to be kept.
        """
        return None

    def written(self) -> Iterable[Storage]:
        """What it writes beside what was lent to it: that holds nothing useful if the device fails. Here: nothing."""
        return ()

    @property
    def leases(self) -> list[Lease]:
        """What it holds."""
        return self._leases

    def lend(self, *uses: Use | PlainUse) -> None:
        """Borrow arguments until the operation has finished or is discarded: all of them, or none.

        Raises:
            OwnershipError: a conflicting use is held; what this operation held is given back.
        """
        lease = Lease(uses, self._token, self._place)
        self._leases.append(lease)  # first: whatever ends the lending half-way, this gives it back
        try:
            enter(lease)
        except OwnershipError:
            self._give_back()
            self._state = _DISCARDED
            raise

    def parts(self) -> Iterable[DeviceOp[Any]]:
        """The operations that this one is composed of."""
        return ()

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """Slow host work to be done before this runs on `device` (compiling a kernel, say), if there is any.

        An `await` does it on a thread of its own, so that the event loop goes on; elsewhere `execute` does it.
        Here: what the parts have.
        """
        waiting = list(self.parts())
        while waiting:  # not by recursion: operations nest deeply
            part: Any = waiting.pop(0)
            if cast("Any", type(part)).preparations is cast("Any", DeviceOp).preparations:
                waiting[:0] = part.parts()
            else:
                yield from part.preparations(device)

    def label(self) -> str:
        """A short name for errors and drawings."""
        return type(self).__name__.lower()

    def detail(self) -> str:
        """A few words more, for drawings. Here: the arguments that it writes and reads."""
        return words_of([use for lease in self._leases for use in lease.uses])

    def sources(self) -> Iterable[DeviceOp[Any]]:
        """What is drawn before this: its parts, and operations that it shares with others."""
        return self.parts()

    @property
    def state(self) -> str:
        """`built`, `composed` (into another operation), `run` or `discarded`."""
        return _STATES[self._state]

    # -- life ---------------------------------------------------------------------------------

    def claim(self) -> None:
        """Mark the operation as part of another. For combinators.

        Raises:
            OwnershipError: it was used before.
        """
        if self._state != BUILT:
            self._refuse()
        self._state = _COMPOSED
        self._used = user_site()

    def begin(self, *, composed: bool, site: Place | None = None) -> list[Lease]:
        """Mark the operation as run and hand out the list of its leases, which `execute` may extend.

        For `ExecutionContext` (`composed`) and whoever runs it as a whole, at `site` of the user's code.

        Raises:
            OwnershipError: it was used before.
        """
        if self._state != BUILT and not (composed and self._state == _COMPOSED):
            self._refuse()
        if not composed:
            self._used = user_site() if site is None else site
        self._state = _RUN
        return self._leases

    def note_use(self, site: Place) -> None:
        """Say where it was run, after `begin`: finding that out takes a while."""
        self._used = site

    def unclaim(self) -> None:
        """Undo `claim`: what the operation was part of is gone, and it has not run."""
        if self._state == _COMPOSED:
            self._state = BUILT

    def discard(self) -> None:
        """Give up an operation that has not run: what was lent to it is free again.

        Example:
            >>> from cuda_async import value
            >>> op = value(3)
            >>> op.discard()
            >>> op.state
            'discarded'
        """
        if self._state in (BUILT, _COMPOSED):
            used = user_site()
            parts: list[DeviceOp[Any]] = [self]  # a chain may have ten thousand links
            while parts:
                op = parts.pop()
                parts += op.drop(used)

    def drop(self, used: Place) -> Iterable[DeviceOp[Any]]:
        """`discard`, without the parts, which are returned: theirs is the caller's business."""
        if self._state not in (BUILT, _COMPOSED):
            return ()
        self._state = _DISCARDED
        self._used = used
        end(self._leases)
        self._give_back()
        return self.parts()

    def _give_back(self) -> None:
        for lease in self._leases:
            lease.give_back()

    def _refuse(self) -> None:
        first = f" at {format_site(self._used)}" if self._used is not None else ""
        done = {_COMPOSED: "made part of another operation", _RUN: "run", _DISCARDED: "discarded"}
        raise OwnershipError(
            f"the operation {self.label()} made at {format_site(self.site)} was already "
            f"{done[self._state]}{first}; an operation is used once. Build it again, or call "
            ".shared() before its first use to give its result to several consumers."
        )

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            state = self._state
            if state >= _RUN:
                for lease in self._leases:  # of a run, if nothing came between
                    if lease.uses and lease.run is None:
                        lease.give_back()
                return
        except AttributeError:  # __init__ failed
            return
        if _is_finalizing():  # modules are being taken apart, and nobody is left to lend to
            return
        self._give_back()
        if state == BUILT and self.warns() and sys.exc_info()[1] is None:
            warnings.warn_explicit(
                f"the operation {self.label()} made here was never run. "
                "Run it (.sync(), .sync_on(stream), await), or call .discard().",
                UnrunOperationWarning,
                *self.site,
            )

    def warns(self) -> bool:
        """Whether dropping this operation unrun is likely a mistake: it or a part of it has effects."""
        if self.has_effects:
            return True
        waiting: list[Any] = list(self.parts())
        while waiting:  # not by recursion: operations nest deeply
            op = waiting.pop()
            if op.__class__.warns is not cast("Any", DeviceOp).warns:
                if op.warns():
                    return True
            elif op.has_effects:
                return True
            else:
                waiting += op.parts()
        return False

    def __repr__(self) -> str:
        return f"<{expression(self)} made at {format_site(self.site)}, {self.state}>"

    def diagram(self) -> str:
        """What this is composed of, as text: a line for each operation, in the order in which they run.

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
        """Run this, then the operation that `function` makes of its result, on the same stream.

        `function` is called on the submitting thread, before the device has computed anything: it
        gets handles, and reading values there raises `NotReadyError`.

        Raises:
            TypeError: (when run) `function` returned something that is no operation.

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
            TypeError: what is given is no function, or more; the `map` of a result is reached by a function.

        Example:
            >>> from cuda_async import value
            >>> value([1, 2]).map(len).sync()
            2
        """
        from cuda_async.combinators import Map

        if more:
            given = ", ".join(map(repr, (function, *more)))
            raise ArgumentTypeError(
                f"map: expected a function of the result, got ({given}); to call the map of what {self!r} yields, "
                f"write .map(lambda result: result.map({given}))"
            )
        return Map(self, function)

    def inspect(self, function: Callable[[T_co], object]) -> DeviceOp[T_co]:
        """Call `function` with the result, at submission, and yield the result.

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
        from cuda_async.combinators import Select

        return Select(self, 0)

    def last(self: DeviceOp[tuple[U, ...]]) -> DeviceOp[U]:
        """The last element of the tuple that this yields.

        Example:
            >>> from cuda_async import value
            >>> value((1, 2)).last().sync()
            2
        """
        from cuda_async.combinators import Select

        return Select(self, -1)

    def unzip(self: DeviceOp[tuple[U, ...]], n: int | None = None) -> tuple[DeviceOp[U], ...]:
        """One operation for each element; this runs once, with the first of them that runs.

        Args:
            n: the number of elements; may be left out where the operation knows it.

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
        """An operation that runs once however many clones are run, all of which get its result.

        Example:
            >>> from cuda_async import value, zip
            >>> top = value(3).shared()
            >>> zip(top.clone(), top.map(lambda x: x + 1)).sync()
            (3, 4)
        """
        from cuda_async.shared import SharedDeviceOp

        return SharedDeviceOp(self)

    def boxed(self) -> DeviceOp[T_co]:
        """This operation, with its class forgotten: for a list of operations of several kinds."""
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
            from cuda_async.straight import sync
        except ImportError:  # modules are being taken apart
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
            from cuda_async.straight import sync_on
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
        from cuda_async.future import schedule

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
            from cuda_async.future import into_future
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
        from cuda_async.graph import CudaGraph
        from cuda_async.policy import default_stream

        return CudaGraph.capture(default_stream(), self)

    def graph_on(self, stream: Stream) -> CudaGraph[T_co]:
        """Record this, without running it, as a graph that can be launched again and again.

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


def whole(op: DeviceOp[Any]) -> Generator[DeviceOp[Any]]:
    """The operation and everything that it is composed of."""
    waiting = [op]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each.parts()


def into_op(item: DeviceOp[T] | T) -> DeviceOp[T]:
    """Return `item` if it is an operation, what its `__device_op__()` makes, else `value(item)`.

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
