"""Leases: who holds which bytes of which storage, and the refusal of a conflicting use.

Building an operation lends it its arguments: reads share, a write is exclusive, per storage and
byte range. A lease ends when the run that executed the operation has finished or failed, when the
operation is discarded, and when it is collected unrun. Within one run (in a `then` closure, say)
the run's own leases do not conflict: its work is ordered on one stream. Within one operation they
do, run or not.

This is the check that Rust's borrow checker makes for the upstream system, made when an operation
is built. It is not what orders work on streams: see `storage.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence, Set
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from cuda_async.errors import OwnershipError
from cuda_async.site import Site, format_site

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
    "lend",
    "refuse_conflicts",
    "set_current_holder",
)


class Holder(Protocol):
    """A run: what holds the leases of the operations that it executed."""

    @property
    def allies(self) -> set[object]:
        """Whose leases do not conflict with this run's work, since it is ordered behind theirs."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A run that can be asked whether the device is done with it."""

    def settle(self) -> bool:
        """Complete it if the device is done, and wait for that to be finished. Whether it is."""
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


class _Nothing:
    """What a lease that has ended is on."""

    leases: list[Lease]
    nbytes = 0

    def __init__(self) -> None:
        self.leases = []


_NOTHING = _Nothing()


class Lease:
    """Bytes [start, stop) of a storage, held by an operation (`owner`), and by its run once it runs."""

    __slots__ = ("active", "argument", "guard", "owner", "run", "site", "start", "stop", "storage", "write")

    exported: ClassVar[bool] = False
    """Whether it is another library's, over DLPack: no operation that could be waited for."""

    guards: ClassVar[bool] = False
    """Whether it is a graph's: a conflicting use may be built, for `graph.update`, but not run elsewhere."""

    def __init__(
        self, argument: str, storage: Lendable, write: bool, start: int, stop: int, owner: object, site: Site
    ) -> None:
        self.argument = argument
        self.storage: Lendable = storage
        self.write = write
        self.start = start
        self.stop = stop
        self.owner = owner
        self.site = site
        self.run: object | None = None
        self.active = True
        self.guard: Lease | None = None
        """The graph's lease that this one was built in conflict with."""

    def give_back(self) -> None:
        """End the lease. Safe in a finalizer: takes no lock; the storage forgets it at its next lending."""
        self.active = False
        self.run = self.guard = None  # the storage's list must not keep what they hold alive,
        self.storage = _NOTHING  # nor, where several storages share a list, one another

    def __repr__(self) -> str:
        kind = "write" if self.write else "read"
        state = "" if self.active else ", given back"
        what = f"{type(self).__name__} {self.argument!r} {kind} [{self.start}, {self.stop})"
        return f"<{what} of {format_site(self.site)}{state}>"


class ExportLease(Lease):
    """A tensor that was given to another library."""

    __slots__ = ()

    exported = True


class GuardLease(Lease):
    """An operand of a graph."""

    __slots__ = ()

    guards = True


_lock = threading.Lock()


class _Holder(threading.local):
    run: Holder | None = None


_holder = _Holder()


def current_holder() -> Holder | None:
    """The run that this thread is submitting, if any."""
    return _holder.run


def set_current_holder(run: Holder | None) -> Holder | None:
    """Say which run this thread is submitting; return what it was before."""
    before = _holder.run
    _holder.run = run
    return before


def lend(
    uses: Sequence[Use | PlainUse],
    owner: object,
    site: Site,
    *,
    allies: Set[object] = frozenset(),
    kind: type[Lease] = Lease,
) -> list[Lease]:
    """Lend all of `uses` to `owner`, or nothing.

    Args:
        uses: the arguments.
        owner: stands for the operation (not the operation itself, which a lease must not keep alive); two of
            its own uses conflict like anybody's.
        site: the user's line, named in the error of whoever conflicts later.
        allies: holders of leases that do not conflict, beside the run that this thread submits.
        kind: what to make: an operation's leases, an export's or a graph's.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    run = _holder.run
    if run is not None:
        allies = {run, *run.allies, *allies}
    while True:
        taken: list[Lease] = []
        refused = _try(uses, taken, owner, site, allies, kind)
        if refused is None:
            break
        use, conflict = refused
        # The device may be done with the run that holds it, and nobody has noticed yet.
        holder = conflict.run
        if not isinstance(holder, Settling) or not holder.settle():
            raise _refusal(use, conflict, same_operation=conflict.owner is owner)
    if run is not None:
        try:
            check_guards(taken, run)
        except OwnershipError:
            end(taken)
            raise
    return taken


def _try(
    uses: Sequence[Use | PlainUse],
    taken: list[Lease],
    owner: object,
    site: Site,
    allies: Set[object],
    kind: type[Lease],
) -> tuple[Use, Lease] | None:
    """Take leases of all the uses, or none; then the use and the lease that conflict."""
    with _lock:
        for use in uses:
            argument, storage, write, start, stop = use
            if stop is None:
                stop = storage.nbytes
            held = storage.leases
            guard: Lease | None = None
            if held:  # else, and mostly, nobody holds anything of it
                held[:] = [lease for lease in held if lease.active]
                for other in held:
                    if not (write or other.write) or start >= other.stop or other.start >= stop:
                        continue
                    if other.owner is not owner and other.run is not None and other.run in allies:
                        continue
                    if other.guards:
                        guard = other
                        continue
                    for lease in taken:
                        lease.give_back()
                    return Use(*use), other
            lease = kind(argument, storage, write, start, stop, owner, site)
            lease.guard = guard
            held.append(lease)
            taken.append(lease)
    return None


def end(leases: Iterable[Lease]) -> None:
    """End leases, and have their storages forget them now: the next lending finds nothing to look at.

    Takes a lock; a finalizer gives each lease back instead.
    """
    with _lock:
        for lease in leases:
            try:
                lease.storage.leases.remove(lease)
            except ValueError:
                continue  # it was given back before
            lease.active = False
            lease.run = lease.guard = None
            lease.storage = _NOTHING


def refuse_conflicts(uses: Sequence[Use], owner: object, site: Site) -> None:
    """Raise as `lend` would, but lend nothing: for work that stream order alone keeps apart from its neighbours.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    end(lend(uses, owner, site))


def check_guards(leases: Iterable[Lease], run: Holder | None) -> None:
    """Refuse to run what writes an operand of a graph, unless the graph does it (`graph.update`).

    Args:
        leases: what the operation holds.
        run: its run; None for an operation that needs none.

    Raises:
        OwnershipError: the graph is not an ally of the run.
    """
    for lease in leases:
        guard = lease.guard
        if guard is not None and guard.active and (run is None or guard.run not in run.allies):
            raise OwnershipError(
                f"argument {lease.argument!r} would be written, but the graph captured at "
                f"{format_site(guard.site)} uses the same memory at each launch. Pass the operation to "
                "graph.update(), or close() the graph."
            )


def _refusal(use: Use, lease: Lease, *, same_operation: bool) -> OwnershipError:
    wanted = "written" if use.write else "read"
    holds = "writes" if lease.write else "reads"
    if same_operation:
        return OwnershipError(
            f"argument {use.argument!r} would be {wanted}, but the same operation {holds} the same memory "
            f"as argument {lease.argument!r}. Pass a copy (dup()) for one of the two."
        )
    if lease.exported:
        return OwnershipError(
            f"argument {use.argument!r} would be {wanted}, but the memory was given to another library at "
            f"{format_site(lease.site)}, which {holds} it. Delete what was made of it there first, or pass a copy "
            "(dup())."
        )
    return OwnershipError(
        f"argument {use.argument!r} would be {wanted}, but the operation made at {format_site(lease.site)} "
        f"{holds} the same memory as its argument {lease.argument!r} and has not finished. "
        "Wait for that operation (await it, or sync()), discard() it, or pass a copy (dup())."
    )
