"""`Operation`: work to enqueue on a stream, its leases, and its single use.

The public class is `cuda_async.DeviceOp` (`op.py`), which adds how operations compose and run. The core knows only
this class.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from cuda_async.core.lease import Lease, PlainUse, Use, end, enter, words_of
from cuda_async.errors import OwnershipError
from cuda_async.site import Place, Site, format_site, site_at, user_site

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.device import Device
    from cuda_async.core.storage import Storage
    from cuda_async.core.stream import Stream

__all__ = ("BUILT", "Operation", "UnrunOperationWarning", "whole")

T_co = TypeVar("T_co", covariant=True)

BUILT, _COMPOSED, _RUN, _DISCARDED, _BOUND = range(5)  # in this order: from `_RUN` on it cannot run any more
_STATES = ("built", "composed", "run", "discarded", "bound")


class UnrunOperationWarning(RuntimeWarning):
    """An operation with effects was dropped without ever running."""


class Operation(ABC, Generic[T_co]):
    """Work for a device that yields a `T_co`. Lazy: building it runs nothing."""

    __slots__ = ("__weakref__", "_leases", "_place", "_state", "_token", "_used")

    has_effects: ClassVar[bool] = False
    """Whether dropping an operation of this class without running it is likely a mistake."""

    titled: ClassVar[bool] = False
    """Whether its label names the user's call, so that a warning shows this label and not those of its parts.

    True of the `map` at the end of a library's composition (`combinators.Titled`).
    """

    graph_node: bool = False
    """Whether it can be recorded in a graph scope: it neither allocates nor frees memory."""

    is_step: ClassVar[bool] = False
    """Whether it does something with the result of another, its `parent`, and no more.

    True of `then`, `map` and their like (`combinators.py`).
    """

    arity: int | None = None
    """The length of the tuple that the operation yields, where it is known before it runs.

    `zip` of two operations has 2. None for an operation that yields no tuple.
    """

    def __init__(self, site: Place | None = None) -> None:
        self._place: Place = user_site(self) if site is None else site
        self._leases: list[Lease] = []
        self._token = object()  # the owner of its leases, which must not keep the operation alive
        self._state = BUILT
        self._used: Place | None = None

    @property
    def site(self) -> Site:
        """The user's file and line that made the operation."""
        return site_at(self._place)

    @property
    def place(self) -> Place:
        """`site` as it was noted: a code object and an offset, or a file and a line.

        The line is found when somebody asks for `site`, which takes time.
        """
        return self._place

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def execute(self, context: ExecutionContext) -> T_co:
        """Enqueue the work on `context.stream` and return the result. Must not wait."""

    def unfold(self, context: ExecutionContext) -> Generator[Operation[Any], Any, T_co] | None:
        """As `execute`: a generator that yields inner operations and gets their results.

        Its runner executes them in a loop, so that operations may nest deeply without recursion. None, as here, is
        always right: `execute` is called then.

        A class that overrides this has `execute` return `context.drive(self)`.
        """
        return None

    def trace(self, context: ExecutionContext) -> T_co:
        """As `execute`, on a stream that traces: nothing runs, and memory does not exist.

        Here: `execute`, since such a stream drops enqueued work.
        """
        return self.execute(context)

    def fast_path(self, *, waited: bool) -> Callable[[Stream], T_co] | None:
        """A function that does what `execute` does on a stream, without a run; or None.

        A run (`run.py`) follows an operation until the device is done: it records memory, callbacks and failures. The
        function is for an operation that needs none of that. Such an operation brings nothing to the host. Its
        `written` has the memory that it makes, and its `failed_part` the part that failed. None, as here, is always
        right.

        Args:
            waited: whether this object lives until the device is done. If not, the work must not need anything that
                only this object keeps alive.
        """
        return None

    def fast_steps(self, steps: Sequence[Any], *, waited: bool) -> tuple[Callable[[Stream], Any], int] | None:
        """`fast_path` of an operation that is followed by steps.

        Returns the function of `fast_path`, and the number of steps that it does as well, from the first on.

        Args:
            steps: operations in a row. The first takes the result of this operation, and each other one the result of
                the step before it. They call no function of the user's.
            waited: as for `fast_path`.
        """
        enqueue = self.fast_path(waited=waited)
        return None if enqueue is None else (enqueue, 0)

    def outline(self) -> Any:
        """The result without memory, if it is known before this runs; else None, as here.

        An outline is an object of the library that has made the operation. The outline of `api.zeros((3,))` has the
        method `partition`, as its result has. So that of `api.zeros((3,)).partition((2,))` is known, too. It has no
        methods whose results depend on memory.

        An operation with an outline makes new memory, which it may fill with one value, and does no more.
        """
        return None

    def failed_part(self) -> Operation[Any] | None:
        """The part whose execution failed, where a function of `fast_path` raised.

        None, as here, for an operation without parts, or where none failed.
        """
        return None

    def written(self) -> Iterable[Storage]:
        """The storages that it writes beside those lent to it; here none.

        If the device fails, they hold nothing useful: each later use raises the failure.
        """
        return ()

    @property
    def leases(self) -> list[Lease]:
        """The leases that it holds."""
        return self._leases

    def lend(self, *uses: Use | PlainUse) -> None:
        """Borrow arguments, all or none, until the operation has finished or is discarded.

        Raises:
            OwnershipError: a conflicting use is held; what this operation held is given back.
        """
        lease = Lease(uses, self._token, self._place)
        self._leases.append(lease)  # first, so that a lending that Ctrl-C ends halfway is given back with the operation
        try:
            enter(lease)
        except OwnershipError:
            self._give_back()
            self._state = _DISCARDED
            self._used = user_site()
            raise

    def parts(self) -> Iterable[Operation[Any]]:
        """The operations that this one is composed of."""
        return ()

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """Slow host work before this runs on `device` (compiling, say), if there is any.

        An `await` does it on a thread of its own, so that the event loop goes on; elsewhere `execute` does it.
        Here: the preparations of the parts, in order.
        """
        waiting = list(self.parts())
        while waiting:  # not by recursion: operations nest deeply
            part: Any = waiting.pop(0)
            # A class that does not override this method has its parts put into the list. (The casts are for pyright,
            # which knows no type of such a method.)
            if cast("Any", type(part)).preparations is cast("Any", Operation).preparations:
                waiting[:0] = part.parts()
            else:
                yield from part.preparations(device)

    def label(self) -> str:
        """A short name for errors and drawings."""
        return type(self).__name__.lower()

    def detail(self) -> str:
        """Details for drawings. Here: the arguments that it writes and reads."""
        return words_of([use for lease in self._leases for use in lease.uses])

    def sources(self) -> Iterable[Operation[Any]]:
        """The operations drawn before this: its parts, and those it shares with others."""
        return self.parts()

    @property
    def state(self) -> str:
        """`built`, `composed` (into another operation), `run`, `discarded` or `bound`."""
        return _STATES[self._state]

    # -- life ---------------------------------------------------------------------------------

    def claim(self, site: Place | None = None) -> None:
        """Mark the operation as part of another. For combinators.

        Args:
            site: the user's line that composes; by default it is found by the frames.

        Raises:
            OwnershipError: the operation was used before.
        """
        if self._state != BUILT:
            self._refuse()
        self._state = _COMPOSED
        self._used = user_site() if site is None else site

    def begin(self, *, composed: bool, site: Place | None = None) -> list[Lease]:
        """Mark the operation as run, and return its leases, which `execute` may extend.

        Args:
            composed: whether it is run as a part of another operation, by `ExecutionContext`.
            site: the user's line that runs it as a whole; by default it is found by the frames.

        Raises:
            OwnershipError: the operation was used before.
        """
        if self._state != BUILT and not (composed and self._state == _COMPOSED):
            self._refuse()
        self._state = _RUN  # no call since the test: at a call another thread could run it as well
        if not composed:
            self._used = user_site() if site is None else site
        return self._leases

    def note_use(self, site: Place) -> None:
        """Note the user's line that runs it, after `begin`.

        Finding the line takes time, which a caller may spend once the device is at work.
        """
        self._used = site

    def unclaim(self) -> None:
        """Undo `claim`: the operation that this was part of is gone, and neither has run."""
        if self._state == _COMPOSED:
            self._state = BUILT

    def discard(self) -> None:
        """Give up an operation that has not run: its arguments are free again.

        Example:
            >>> from cuda_async import value
            >>> op = value(3)
            >>> op.discard()
            >>> op.state
            'discarded'
        """
        if self._state in (BUILT, _COMPOSED):
            used = user_site()
            parts: list[Operation[Any]] = [self]  # not by recursion: a chain may have ten thousand links
            while parts:
                op = parts.pop()
                parts += op.drop(used)

    def mark_bound(self) -> None:
        """Mark the operation as bound, in place of running it; for `bind`.

        Its arguments are free again: each bound launch orders itself.

        Raises:
            OwnershipError: the operation was used before.
        """
        if self._state != BUILT:
            self._refuse()
        self._state = _BOUND  # as in `begin`
        self._used = user_site()
        for part in self._free():
            part.discard()

    def drop(self, used: Place) -> Iterable[Operation[Any]]:
        """Discard the operation without its parts, and return these to the caller.

        Args:
            used: the user's line, for the error of a later use.
        """
        if self._state not in (BUILT, _COMPOSED):
            return ()
        self._state = _DISCARDED
        self._used = used
        return self._free()

    def _free(self) -> Iterable[Operation[Any]]:
        """Free the arguments of an operation that will not run, and return its parts."""
        end(self._leases)  # it removes them from their storages at once
        self._give_back()  # subclasses give back more than leases: a raw launch its borrowed partitions
        return self.parts()

    def _give_back(self) -> None:
        for lease in self._leases:
            lease.give_back()

    def _refuse(self) -> None:
        first = f" at {format_site(self._used)}" if self._used is not None else ""
        words = {
            _COMPOSED: "made part of another operation",
            _RUN: "run",
            _DISCARDED: "discarded",
            _BOUND: "bound to a stream",
        }
        raise OwnershipError(
            f"the operation {self.label()} made at {format_site(self.site)} was already "
            f"{words[self._state]}{first}; an operation is used once. Build it again, or call "
            ".shared() before its first use to give its result to several consumers."
        )

    # A default, since the globals of this module may be gone when the interpreter ends.
    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            state = self._state
            if state >= _RUN:
                for lease in self._leases:  # a run has adopted them, unless Ctrl-C came before it could
                    if lease.uses and lease.run is None:
                        lease.give_back()
                return
        except AttributeError:  # __init__ failed
            return
        if _is_finalizing():  # modules are being taken apart: a warning could fail, and no lease matters any more
            return
        self._give_back()
        # No warning while an exception is handled: the operation was dropped because of it.
        if state == BUILT and self.warns() and sys.exc_info()[1] is None:
            # The name of the part with effects, or of the user's call, and not that of a step behind it, such as a map.
            label = next((op.label() for op in whole(self) if op.titled or op.has_effects), self.label())
            warnings.warn_explicit(
                f"the operation {label} made here was never run. "
                "Run it (.sync(), .sync_on(stream), await), or call .discard().",
                UnrunOperationWarning,
                *self.site,
            )

    def warns(self) -> bool:
        """Whether dropping this unrun is likely a mistake: it or a part of it has effects."""
        if self.has_effects:
            return True
        waiting: list[Any] = list(self.parts())
        while waiting:  # not by recursion: operations nest deeply
            op = waiting.pop()
            if op.__class__.warns is not cast("Any", Operation).warns:  # else its parts are put into the list
                if op.warns():
                    return True
            elif op.has_effects:
                return True
            else:
                waiting += op.parts()
        return False


def whole(op: Operation[Any]) -> Generator[Operation[Any]]:
    """Yield the operation and all operations that it is composed of."""
    waiting = [op]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.parts()
