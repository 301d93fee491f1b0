"""Leases: who holds which bytes of a storage, and refusals of conflicting uses.

Building an operation lends it its arguments: reads share, a write is exclusive, per storage and
byte range. A lease ends when the run that executed the operation has finished or failed, when the
operation is discarded, and when it is collected unrun. Within one run (in a `then` closure, say)
the run's own leases do not conflict: its work is ordered on one stream. Within one operation they
do, run or not.

This is the check that Rust's borrow checker makes for the upstream system, made when an operation
is built. It is not what orders work on streams: see `storage.py`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from cuda_async.errors import OwnershipError
from cuda_async.locks import new_lock
from cuda_async.site import Place, format_site, kept_by_notebook

__all__ = (
    "ExportLease",
    "GuardLease",
    "Holder",
    "Lease",
    "Lendable",
    "PlainUse",
    "Settling",
    "Use",
    "check_guards",
    "current_holder",
    "end",
    "enter",
    "holders",
    "lend",
    "refuse_conflicts",
    "settle",
    "words_of",
)


class Holder(Protocol):
    """A run: what holds the leases of the operations that it executed."""

    @property
    def allies(self) -> set[object]:
        """Runs whose leases do not conflict, since this run's work is behind theirs."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A run that can be asked whether the device is done with it."""

    def settle(self) -> bool:
        """Complete it if the device is done, and wait for that to be finished.

        Whether it is.
        """
        ...


class Lendable(Protocol):
    """What a lease can be on: a storage."""

    @property
    def leases(self) -> list[Lease]: ...

    @property
    def nbytes(self) -> int: ...


class Use(NamedTuple):
    """One argument of an operation: bytes [start, stop) of a storage, read or written.

    `stop` None means to its end. `argument` is the name that an error shows.
    """

    argument: str
    storage: Lendable
    write: bool
    start: int = 0
    stop: int | None = None


PlainUse = tuple[str, Lendable, bool, int, "int | None"]
"""A `Use` as a plain tuple, which costs less to make."""


class Lease:
    """What an operation (`owner`) holds: bytes of storages, until its run is over.

    Attributes:
        uses: the arguments that it holds.
        owner: stands for the operation.
        site: the line that made it.
        run: what runs it, once it runs.
        active: whether it has not ended.
        guarded: the arguments that conflict with operands of a graph, each with the graph's lease.
    """

    __slots__ = ("active", "guarded", "owner", "run", "site", "uses")

    exported: ClassVar[bool] = False
    """Whether it is another library's, over DLPack: no operation that could be waited for."""

    guards: ClassVar[bool] = False
    """Whether it is a graph's: a conflicting use may be built, for `graph.update`, but not run elsewhere."""

    def __init__(self, uses: Sequence[Use | PlainUse], owner: object, site: Place) -> None:
        self.uses = uses
        self.owner = owner
        self.site = site
        self.run: object | None = None
        self.active = True
        self.guarded: tuple[tuple[str, Lease], ...] = ()

    def give_back(self) -> None:
        """End the lease.

        Safe in a finalizer: takes no lock; the storages forget it at their next lending.
        """
        self.active = False
        self.run = None  # the storages' lists must not keep what it holds alive,
        self.guarded = self.uses = ()  # nor, where several storages share a list, one another

    def __repr__(self) -> str:
        parts = [f"{each[0]!r} {'write' if each[2] else 'read'} [{each[3]}, {each[4]})" for each in self.uses]
        state = "" if self.active else ", given back"
        return f"<{type(self).__name__} {', '.join(parts)} of {format_site(self.site)}{state}>"


class ExportLease(Lease):
    """A tensor that was given to another library."""

    __slots__ = ()

    exported = True


class GuardLease(Lease):
    """The operands of a graph."""

    __slots__ = ()

    guards = True


_lock = new_lock()


holders: dict[int, Holder] = {}
"""Which run a thread is submitting; mostly empty, and then nothing has to be looked up. Who enters one takes it out in
a `finally` whose first call that is: a signal before it would leave the thread inside a submission for ever."""


def current_holder() -> Holder | None:
    """The run that this thread is submitting, if any."""
    return holders.get(threading.get_ident()) if holders else None


def lend(
    uses: Sequence[Use | PlainUse],
    owner: object,
    site: Place,
    *,
    allies: Set[object] = frozenset(),
    kind: type[Lease] = Lease,
) -> Lease:
    """Lend all of `uses` to `owner`, or nothing.

    Args:
        uses: the arguments.
        owner: stands for the operation (not the operation itself, which a lease must not keep alive); two of
            its own uses conflict like anybody's.
        site: the user's line, named in the error of a later conflict.
        allies: holders of leases that do not conflict, beside the run that this thread submits.
        kind: what to make: an operation's lease, an export's or a graph's.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    lease = kind(uses, owner, site)
    enter(lease, allies)
    return lease


def enter(lease: Lease, allies: Set[object] = frozenset()) -> None:
    """Lend what a lease says.

    The code that gives it back has the lease before this call: Ctrl-C may come with half of it lent.

    Raises:
        OwnershipError: as `lend`.
    """
    if not _enter(lease) or (holders and current_holder() is not None):
        settle(lease, allies)


def settle(lease: Lease, allies: Set[object] = frozenset()) -> None:
    """See whether a lease that was entered, and is not alone, can stay.

    Else take it out and raise as `lend` does.

    For `lend`, and for code that enters leases itself because it does so all the time: append one to the `leases` of
    each storage that it uses, and then look whether it is alone there; and whether this thread submits a run.
    """
    run = current_holder()
    if run is not None:
        allies = {run, *run.allies, *allies}
    collected = False
    while True:
        with _lock:
            refused = _find_conflict(lease, allies)
            if refused is None:
                break
            _remove(lease)
        use, conflict, held = refused
        # The device may be done with the run that holds it, and nobody has noticed yet.
        holder = conflict.run
        if holder is None and not collected and conflict.owner is not lease.owner and not conflict.exported:
            # An operation that was dropped, maybe, and that only a collection finds: an exception's frames, which a
            # task holds, hold it, and the exception itself.
            collected = True
            gc.collect()
            _enter(lease)
            continue
        if not isinstance(holder, Settling) or not holder.settle():
            raise _refusal(use, conflict, held, same_operation=conflict.owner is lease.owner)
        if conflict.active:  # its run is over, and Ctrl-C had come between the two
            end((conflict,))
        _enter(lease)
    if run is not None:
        try:
            check_guards((lease,), run)
        except OwnershipError:
            end((lease,))
            raise


def _enter(lease: Lease) -> bool:
    """Enter a lease on its storages.

    Whether it is alone there; else it may not be able to stay.

    First this, then any look at others, so that of two threads that enter at once one at least sees the other. A list's
    methods are atomic: this needs no lock.
    """
    alone = True
    for use in lease.uses:
        held = use[1].leases
        held.append(lease)
        if len(held) > 1:
            alone = False
    return alone


def _find_conflict(lease: Lease, allies: Set[object]) -> tuple[Use, Lease, Use] | None:
    """What is in the way of a lease that is entered.

    Its use that conflicts, with whose lease, and which use of that.

    Under the lock, so that of two that are in each other's way the second to look finds the first gone.
    """
    lease.guarded = ()
    for position, use in enumerate(lease.uses):
        conflict = _conflict(lease, position, use[1].leases, allies)
        if conflict is not None:
            return (Use(*use), *conflict)
    return None


def _remove(lease: Lease) -> None:
    for use in lease.uses:
        with suppress(ValueError):  # it is not entered there
            use[1].leases.remove(lease)


def _conflict(lease: Lease, position: int, held: list[Lease], allies: Set[object]) -> tuple[Lease, Use] | None:
    """What is in the way of a lease's use at `position`.

    Others' leases, and its own uses before that.
    """
    use = lease.uses[position]
    for other in reversed(held):  # from the end: what other threads take out meanwhile makes it skip nothing
        if not other.active:
            with suppress(ValueError):
                held.remove(other)  # given back by a finalizer, which leaves it here
            continue
        if other.owner is not lease.owner and other.run is not None and other.run in allies:
            continue
        for theirs in lease.uses[:position] if other is lease else other.uses:
            if theirs[1].leases is held and _overlap(use, theirs):
                if not other.guards:
                    return other, Use(*theirs)
                lease.guarded = (*lease.guarded, (use[0], other))
                break
    return None


def _overlap(use: Use | PlainUse, other: Use | PlainUse) -> bool:
    return (use[2] or other[2]) and max(use[3], other[3]) < min(_stop(use), _stop(other))


def _stop(use: Use | PlainUse) -> int:
    stop = use[4]
    return use[1].nbytes if stop is None else stop


def words_of(uses: Sequence[Use | PlainUse]) -> str:
    """What is done to which arguments, for drawings: `writes y, reads x`."""
    named = {write: [use[0] for use in uses if use[2] is write] for write in (True, False)}
    words = {True: "writes", False: "reads"}
    return ", ".join(f"{words[write]} {', '.join(names)}" for write, names in named.items() if names)


def end(leases: Iterable[Lease]) -> None:
    """End leases, and have their storages forget them now.

    The next lending finds nothing to look at.

    Not for finalizers, which run amid anything, also amid this module: they give each lease back instead.
    """
    for lease in leases:
        for use in lease.uses:
            try:
                use[1].leases.remove(lease)
            except ValueError:
                continue  # it was given back before
        lease.active = False
        lease.run = None
        lease.guarded = lease.uses = ()


def refuse_conflicts(uses: Sequence[Use], owner: object, site: Place) -> None:
    """Raise as `lend` would, but lend nothing.

    For work that stream order alone keeps apart from its neighbours.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    lease = Lease(uses, owner, site)
    try:
        enter(lease)
    finally:
        end((lease,))


def check_guards(leases: Iterable[Lease], run: Holder | None) -> None:
    """Refuse to run a writer of a graph's operand, unless the graph does it.

    A graph's operand is written by `graph.update`.

    Args:
        leases: what the operation holds.
        run: its run; None for an operation that needs none.

    Raises:
        OwnershipError: the graph is not an ally of the run.
    """
    for lease in leases:
        for argument, guard in lease.guarded:
            if guard.active and (run is None or guard.run not in run.allies):
                raise OwnershipError(
                    f"argument {argument!r} would be written, but the graph captured at "
                    f"{format_site(guard.site)} uses the same memory at each launch. Pass the operation to "
                    "graph.update(), or close() the graph."
                )


def _refusal(use: Use, lease: Lease, held: Use, *, same_operation: bool) -> OwnershipError:
    verb = "written" if use.write else "read"
    holds = "writes" if held.write else "reads"
    if same_operation:
        return OwnershipError(
            f"argument {use.argument!r} would be {verb}, but the same operation {holds} the same memory "
            f"as argument {held.argument!r}. Pass a copy (dup()) for one of the two."
        )
    if lease.exported:
        return OwnershipError(
            f"argument {use.argument!r} would be {verb}, but the memory was given to another library at "
            f"{format_site(lease.site)}, which {holds} it. Delete what was made of it there first, or pass a copy "
            "(dup())."
        )
    return OwnershipError(
        f"argument {use.argument!r} would be {verb}, but the operation made at {format_site(lease.site)} "
        f"{holds} the same memory as its argument {held.argument!r} and has not finished. Run it or wait for it "
        "(sync(), await), discard() it if it has not run, or pass a copy (dup())."
        f"{kept_by_notebook(lease.site)}"
    )
