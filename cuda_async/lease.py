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
from typing import NamedTuple, Protocol, runtime_checkable

from cuda_async.errors import OwnershipError
from cuda_async.site import Site, format_site

__all__ = (
    "Holder",
    "Lease",
    "Lendable",
    "Settling",
    "Use",
    "check_guards",
    "current_holder",
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


class _Nothing:
    """What a lease that has ended is on."""

    leases: list[Lease]
    nbytes = 0

    def __init__(self) -> None:
        self.leases = []


_NOTHING = _Nothing()


class Lease:
    """Bytes [start, stop) of a storage, held by an operation (`owner`), and by its run once it runs."""

    __slots__ = (
        "active", "argument", "exported", "guard", "guards", "owner", "run", "site", "start", "stop", "storage",
        "write",
    )  # fmt: skip

    def __init__(self, storage: Lendable, use: tuple[str, bool, int, int], owner: object, site: Site) -> None:
        self.storage: Lendable = storage
        self.argument, self.write, self.start, self.stop = use
        self.owner = owner
        self.site = site
        self.run: object | None = None
        self.active = True
        self.exported = False
        """Whether it is another library's, over DLPack: no operation that could be waited for."""
        self.guards = False
        """Whether it is a graph's: a conflicting use may be built, for `graph.update`, but not run elsewhere."""
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
        return f"<Lease {self.argument!r} {kind} [{self.start}, {self.stop}) of {format_site(self.site)}{state}>"


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


def lend(uses: Iterable[Use], owner: object, site: Site, *, allies: Set[object] = frozenset()) -> list[Lease]:
    """Lend all of `uses` to `owner`, or nothing.

    Args:
        uses: the arguments.
        owner: stands for the operation (not the operation itself, which a lease must not keep alive); two of
            its own uses conflict like anybody's.
        site: the user's line, named in the error of whoever conflicts later.
        allies: holders of leases that do not conflict, beside the run that this thread submits.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    run = _holder.run
    if run is not None:
        allies = {run, *run.allies, *allies}
    wanted = list(uses)
    while True:
        taken, refused = _try(wanted, owner, site, allies)
        if refused is None:
            if run is not None:
                try:
                    check_guards(taken, run)
                except OwnershipError:
                    for lease in taken:
                        lease.give_back()
                    raise
            return taken
        use, conflict = refused
        # The device may be done with the run that holds it, and nobody has noticed yet.
        holder = conflict.run
        if not isinstance(holder, Settling) or not holder.settle():
            raise _refusal(use, conflict, same_operation=conflict.owner is owner)


def _try(
    uses: Sequence[Use], owner: object, site: Site, allies: Set[object]
) -> tuple[list[Lease], tuple[Use, Lease] | None]:
    taken: list[Lease] = []
    with _lock:
        for use in uses:
            storage = use.storage
            stop = storage.nbytes if use.stop is None else use.stop
            held = storage.leases
            guard: Lease | None = None
            if held:
                held[:] = [lease for lease in held if lease.active]
                for other in held:
                    if not (use.write or other.write) or use.start >= other.stop or other.start >= stop:
                        continue
                    if other.owner is not owner and other.run is not None and other.run in allies:
                        continue
                    if other.guards:
                        guard = other
                        continue
                    for lease in taken:
                        lease.give_back()
                    return taken, (use, other)
            lease = Lease(storage, (use.argument, use.write, use.start, stop), owner, site)
            lease.guard = guard
            held.append(lease)
            taken.append(lease)
    return taken, None


def refuse_conflicts(uses: Sequence[Use], owner: object, site: Site) -> None:
    """Raise as `lend` would, but lend nothing: for work that stream order alone keeps apart from its neighbours.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    taken = lend(uses, owner, site)
    with _lock:
        for lease in taken:
            lease.active = False
        for use in uses:  # what is left is empty, so that the next look at it costs nothing
            held = use.storage.leases
            held[:] = [lease for lease in held if lease.active]


def check_guards(leases: Iterable[Lease], run: Holder) -> None:
    """Refuse to run what writes an operand of a graph, unless the graph does it (`graph.update`).

    Raises:
        OwnershipError: the graph is not an ally of the run.
    """
    for lease in leases:
        guard = lease.guard
        if guard is not None and guard.active and guard.run not in run.allies:
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
